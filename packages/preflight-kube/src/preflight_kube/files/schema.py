"""Data against a JSON Schema: every problem, in one sentence each. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from preflight_kube.text import one_line

_Problem = Any
"""A jsonschema.ValidationError, whose own types say that any of its fields may be unset."""
_SHOWN: Final = 60
_NAMES: Final = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
}


def problems(schema: dict[str, Any], raw: object, whole: str) -> list[str]:
    """What is wrong with ``raw``, as :func:`sentences`."""
    import jsonschema  # memory that a good file need not cost

    return sentences(jsonschema.Draft202012Validator(schema).iter_errors(raw), whole)


def sentences(errors: Iterable[_Problem], whole: str) -> list[str]:
    """Every problem in one sentence that begins with its path; ``whole`` is what people call the
    document itself.
    """
    ordered = sorted(errors, key=lambda e: path_of(e.absolute_path))
    # Of several missing keys each is an error that names them all.
    return list(
        dict.fromkeys(sentence for error in ordered for sentence in _sentences(error, whole))
    )


def path_of(parts: Iterable[str | int]) -> str:
    """`checks[0].name`; empty for the document itself."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _sentences(error: _Problem, whole: str) -> list[str]:
    path = path_of(error.absolute_path)
    where, instance = path or whole, error.instance
    rule, wanted = str(error.validator), error.validator_value
    schema: dict[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    below = f"{path}." if path else ""
    if rule == "additionalProperties" and isinstance(instance, dict):
        known = schema.get("properties", {})
        return _unknown(
            below, sorted(str(key) for key in set(instance) - set(known)), sorted(known)
        )
    if rule == "required":
        return [f"{below}{key}: is missing; set it." for key in wanted if key not in instance]
    if rule == "anyOf":
        return _alternatives(error, where, whole)
    if rule == "type":
        types = [wanted] if isinstance(wanted, str) else list(wanted)
        return [_of_type(where, types, instance, _hint(schema))]
    if rule == "enum":
        return [
            f"{where}: must be one of {', '.join(map(_word, wanted))}; found {_found(instance)}."
        ]
    if rule == "const":
        return [f"{where}: must be {_word(wanted)}; found {_found(instance)}."]
    bound = _bound(rule, wanted, instance)
    if bound:
        return [f"{where}: must {bound}; found {_found(instance)}."]
    pattern = f"match {wanted}" if rule == "pattern" else f"keep {rule} {wanted}"
    return [f"{where}: must {pattern}{_hint(schema)}; found {_found(instance)}."]


def _hint(schema: dict[str, Any]) -> str:
    """What the schema says of the value, where that is a line; a paragraph is for its reader."""
    meaning = str(schema.get("description", "")).rstrip(".")
    line = meaning and "\n" not in meaning and schema.get("type") != "object"
    return f" ({meaning})" if line else ""


def _unknown(below: str, unknown: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known keys are listed once, where there is no likely one."""
    from difflib import get_close_matches  # for mistakes alone

    sentences, listed = [], False
    for key in unknown:
        likely = get_close_matches(key, known, 1)
        if likely:
            hint = f"write {likely[0]} instead, or remove it."
        elif listed or not known:
            hint = "remove it."
        else:
            hint, listed = f"known here are {', '.join(known)}.", True
        sentences.append(f"{below}{one_line(key, _SHOWN)}: unknown key; {hint}")
    return sentences


def _of_type(where: str, wanted: Sequence[str], instance: Any, hint: str) -> str:
    example = hint
    scalar = isinstance(instance, str | int | float) and not isinstance(instance, bool)
    if list(wanted) == ["array"] and scalar:
        example = f", e.g. [{one_line(str(instance), _SHOWN)}]"
    elif not hint and "string" in wanted and isinstance(instance, int | float):
        example = f', e.g. "{one_line(json.dumps(instance), _SHOWN)}" in quotes'
    return f"{where}: must be {_or([_NAMES.get(kind, kind) for kind in wanted])}{example}; found {_found(instance)}."


def _alternatives(error: _Problem, where: str, whole: str) -> list[str]:
    """What the one alternative of the value's own type finds wrong; else which types there are."""
    inner: list[_Problem] = list(error.context or ())
    other = [
        problem
        for problem in inner
        if problem.validator not in {"type", "const", "enum"}
        or list(problem.absolute_path) != list(error.absolute_path)
    ]
    if other:
        return sentences(other, whole)
    words, types = [], []
    for problem in inner:
        if problem.validator == "type":
            wanted = problem.validator_value
            types += [wanted] if isinstance(wanted, str) else list(wanted)
        elif problem.validator == "enum":
            words += [_word(value) for value in problem.validator_value]
        else:
            words.append(_word(problem.validator_value))
    named = [_NAMES.get(kind, kind) for kind in dict.fromkeys(types) if kind != "null"]
    return [f"{where}: must be {_or([*words, *named])}; found {_found(error.instance)}."]


def _bound(rule: str, wanted: Any, instance: Any) -> str:
    if rule in {"minLength", "minItems"} and wanted == 1:
        return "not be empty"
    many = "characters" if isinstance(instance, str) else "entries"
    return {
        "minimum": f"be at least {wanted}",
        "maximum": f"be at most {wanted}",
        "exclusiveMinimum": f"be more than {wanted}",
        "exclusiveMaximum": f"be less than {wanted}",
        "minLength": f"have at least {wanted} {many}",
        "maxLength": f"have at most {wanted} {many}",
        "minItems": f"have at least {wanted} {many}",
        "maxItems": f"have at most {wanted} {many}",
    }.get(rule, "")


def _found(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the string "{one_line(value, _SHOWN)}"' if value else "an empty string"
    if isinstance(value, dict):
        return "a map" if value else "an empty map"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    kind = "number" if isinstance(value, int | float) else type(value).__name__  # as a YAML date
    return f"the {kind} {one_line(str(value), _SHOWN)}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _or(words: Sequence[str]) -> str:
    *first, last = words or ["something else"]
    return " or ".join(filter(None, [", ".join(first), last]))
