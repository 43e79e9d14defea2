"""A CustomResourceDefinition, made from the Structs that the program itself reads.

Pure. Kubernetes wants a *structural* schema: a type on every level, no references, `nullable` in
place of a union with null. What msgspec cannot say stands in ``Meta(extra_json_schema={...})`` of a
field and is taken over as it is, such as ``x-kubernetes-list-type``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

Schema = dict[str, Any]

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""An integer that Go clients keep in 32 bits."""

_LEFT_OUT: Final = frozenset({"title", "default", "required"})
"""What a structural schema has no place for, or has in another form."""
_FOREIGN: Final = frozenset(
    {"prefixItems", "propertyNames", "discriminator", "const", "allOf", "uniqueItems"}
)
"""What it cannot say: a tuple of fixed length, bounds of keys, a tag, a set."""
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


class ValidationRule(NamedTuple):
    """What a schema cannot say of what is at ``at``, keys from the object's root, in CEL."""

    at: tuple[str, ...]
    cel: str
    message: str


class Column(NamedTuple):
    """What `kubectl get` shows; ``priority`` 1: only with `-o wide`. ``type``: string, integer,
    number, boolean or date.
    """

    name: str
    path: str
    type: str = "string"
    priority: int = 0


def condition_column(
    condition: str, field: str = "status", *, name: str = "", priority: int = 0
) -> Column:
    """A column that shows a condition's ``field``."""
    return Column(
        name or condition,
        f'.status.conditions[?(@.type=="{condition}")].{field}',
        priority=priority,
    )


def list_map(*keys: str) -> dict[str, Any]:
    """``extra_json_schema`` of a list whose entries are told apart by ``keys``: appliers own single
    entries of it.
    """
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def embedded() -> dict[str, Any]:
    """``extra_json_schema`` of a ``dict[str, Any]`` that is a whole object of another kind."""
    return {"x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}


def crd(
    group: str,
    kind: str,
    version: str,
    *,
    spec: type,
    status: type | None = None,
    plural: str = "",
    short_names: Sequence[str] = (),
    scope: str = "Namespaced",
    description: str = "",
    rules: Sequence[ValidationRule] = (),
    columns: Sequence[Column] = (),
    defaults: bool = True,
) -> Schema:
    """The definition of one kind with one version, ready for `kubectl apply --server-side`.

    ``spec`` and ``status`` are Structs; a ``status`` makes its subresource. ``defaults``: whether
    the API server fills in the defaults of fields (in ``spec``); those that a factory makes are not
    seen, empty lists and maps left out. ``plural`` is the kind in lower case and an s unless given.

    Raises:
        TypeError: a field's type has no structural schema; the message says which.
        KeyError: a rule's place does not exist.
    """
    plural = plural or f"{kind.lower()}s"
    whole: Schema = {
        "type": "object",
        **({"description": description} if description else {}),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(spec, defaults=defaults),
            **({"status": structural(status, defaults=False)} if status is not None else {}),
        },
    }
    for rule in rules:
        place = whole
        for key in rule.at:
            place = place["properties"][key]
        rules_there = place.setdefault("x-kubernetes-validations", [])
        rules_there.append({"rule": rule.cel, "message": rule.message})
    served: Schema = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        **({"subresources": {"status": {}}} if status is not None else {}),
        **(
            {"additionalPrinterColumns": [_column(column) for column in columns]} if columns else {}
        ),
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {**names, **({"shortNames": list(short_names)} if short_names else {})},
            "versions": [served],
        },
    }


def structural(struct: type, *, defaults: bool = True) -> Schema:
    """The structural schema of a Struct. Raises TypeError for a type that has none."""
    whole = msgspec.json.schema(struct)
    return _Definitions(whole.get("$defs", {}), defaults).inline(whole, struct.__name__)


class _Definitions:
    """What schemas refer to, and how they are written out."""

    def __init__(self, definitions: Mapping[str, Schema], defaults: bool) -> None:
        self._definitions, self._defaults = definitions, defaults

    def inline(self, part: Schema, path: str) -> Schema:
        """``part`` without references."""
        if "$ref" in part:
            name = part["$ref"].removeprefix("#/$defs/")
            beside = {key: value for key, value in part.items() if key not in {"$ref", "$defs"}}
            return self.inline({**self._definitions[name], **beside}, path)
        if "anyOf" in part:
            return self._any_of(part, path)
        if foreign := sorted(_FOREIGN & part.keys()):
            raise TypeError(f"{path}: no structural schema has {', '.join(foreign)}.")
        schema = {key: value for key, value in part.items() if key not in _LEFT_OUT}
        if isinstance(words := schema.get("description"), str):
            # A docstring's lines are not the reader's.
            schema["description"] = " ".join(words.split())
        if part.get("required"):
            schema["required"] = part["required"]
        if "enum" in schema:
            schema = _enumerated(schema, path)
        if schema.get("type") == "integer":
            bounded = {"minimum", "maximum"} <= schema.keys()
            small = bounded and schema["minimum"] >= -(2**31) and schema["maximum"] < 2**31
            schema["format"] = "int32" if small else "int64"
        for end, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if end in schema:
                schema[bound], schema[end] = schema[end], True
        if "items" in schema:
            schema["items"] = self.inline(schema["items"], f"{path}[]")
        if "properties" in schema:
            schema["properties"] = {
                name: self.inline(value, f"{path}.{name}")
                for name, value in schema["properties"].items()
            }
        others = schema.pop("additionalProperties", None)
        if others not in (None, True, False):
            schema["additionalProperties"] = self.inline(others, f"{path}.*")
        if "type" not in schema or (
            schema["type"] == "object"
            and not {"properties", "additionalProperties"} & schema.keys()
        ):
            schema["x-kubernetes-preserve-unknown-fields"] = True
        if self._defaults and _worth(default := part.get("default"), schema):
            schema["default"] = default
        return schema

    def _any_of(self, part: Schema, path: str) -> Schema:
        """What may be null; of several types there is no structural schema."""
        beside = {key: value for key, value in part.items() if key != "anyOf"}
        others = [alternative for alternative in part["anyOf"] if alternative.get("type") != "null"]
        if len(others) > 1:
            raise TypeError(f"{path}: a union of several types has no structural schema.")
        return {**self.inline({**others[0], **beside}, path), "nullable": True}


def _enumerated(schema: Schema, path: str) -> Schema:
    values = [value for value in schema["enum"] if value is not None]
    types = {_TYPES[type(value)] for value in values}
    if len(types) != 1:
        raise TypeError(
            f"{path}: the values {values} are of several types; a structural schema has one."
        )
    return {
        **schema,
        "type": types.pop(),
        **({"nullable": True} if len(values) < len(schema["enum"]) else {}),
    }


def _worth(default: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a default says something: an empty map does where fields within it have defaults of
    their own.
    """
    if default is None or default in ([], ""):
        return False
    if default == {}:
        return bool([prop for prop in schema.get("properties", {}).values() if "default" in prop])
    return True


def _column(column: Column) -> Schema:
    priority = {"priority": column.priority} if column.priority else {}
    return {"name": column.name, "type": column.type, **priority, "jsonPath": column.path}
