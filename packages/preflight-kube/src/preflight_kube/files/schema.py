"""Data against a JSON Schema: every problem, in one sentence each."""

from __future__ import annotations

from typing import Any

import jsonschema

from preflight_kube.files import schema_errors

__all__ = ["problems"]


def problems(schema: dict[str, Any], raw: object, whole: str) -> list[str]:
    """What is wrong with ``raw``, by path; ``whole`` is what people call the whole of it."""
    return schema_errors.sentences(jsonschema.Draft202012Validator(schema).iter_errors(raw), whole)
