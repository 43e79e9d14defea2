"""Data against a JSON Schema: every problem, in one sentence each."""

from __future__ import annotations

from typing import Any

import jsonschema

__all__ = ["problems"]

_SHOWN = 60


def problems(schema: dict[str, Any], raw: object, whole: str) -> list[str]:
    """What is wrong with ``raw``, by path; ``whole`` is what people call the whole of it."""
    found = jsonschema.Draft202012Validator(schema).iter_errors(raw)
    return [_sentence(error, whole) for error in sorted(found, key=lambda e: e.json_path)]


def _sentence(error: jsonschema.ValidationError, whole: str) -> str:
    where = error.json_path.removeprefix("$").removeprefix(".") or whole
    text = str(error.instance)
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known = sorted(error.schema.get("properties", {}))
        unknown = sorted(set(error.instance) - set(known)) if isinstance(error.instance, dict) else []
        return f"{where}: unknown key {', '.join(unknown)}; known here are {', '.join(known)}."
    if error.validator == "enum" and isinstance(error.validator_value, list):
        return f'{where}: "{shown}" is not one of {", ".join(map(str, error.validator_value))}; set one of them.'
    return f'{where}: "{shown}" is not allowed ({error.validator} {error.validator_value}); change it.'
