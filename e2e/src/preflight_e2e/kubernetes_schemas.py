"""What Kubernetes has published of its objects, of each version: every field, its type, and none
beyond.

The schemas are those of kubernetes_validate. Its own function reads and indexes all definitions of
a version, megabytes, anew for each object.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource


def validate(document: dict[str, Any], version: str) -> None:
    """Hold an object against Kubernetes ``version``, such as "1.36". Raises
    jsonschema.ValidationError where the object is not valid.
    """
    group, _, release = document["apiVersion"].rpartition("/")
    group = group.partition(".")[0]
    name = (
        f"{document['kind'].lower()}-{group}-{release}"
        if group
        else f"{document['kind'].lower()}-{release}"
    )
    _validator(version, name).validate(document)


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    schema = _schema(version, name)
    return Draft202012Validator(
        schema, registry=Resource.from_contents(schema) @ _definitions(version)
    )


@cache
def _definitions(version: str) -> Registry[Any]:
    registry: Registry[Any] = Resource.from_contents(_schema(version, "_definitions")) @ Registry()
    return registry.crawl()


def _schema(version: str, name: str) -> Any:
    return schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{name}.json", version)
