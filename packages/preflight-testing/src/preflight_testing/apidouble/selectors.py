"""Label and field selectors: which objects a list or a watch is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Matches = Callable[[dict[str, Any]], bool]

_TERM = re.compile(
    r"\s*(?P<absent>!)?(?P<key>[\w./-]+)\s*"
    r"((?P<op>==?|!=)\s*(?P<value>[\w.-]*)|(?P<among>in|notin)\s*\((?P<values>[^)]*)\))?\s*(,|$)"
)
_FIELDS = {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"}


def selection(labels: str, fields: str) -> Matches:
    """What a list's ``labelSelector`` and ``fieldSelector`` select together."""
    terms = [*map(_on_labels, _terms(labels)), *map(_on_field, _terms(fields))]
    return lambda item: all(term(item) for term in terms)


def _terms(selector: str) -> list[re.Match[str]]:
    terms: list[re.Match[str]] = []
    while (at := terms[-1].end() if terms else 0) < len(selector):
        if not (term := _TERM.match(selector, at)):
            raise NotImplementedError(f"selector {selector!r}")
        terms.append(term)
    return terms


def _on_labels(term: re.Match[str]) -> Matches:
    key, op = term["key"], term["op"] or term["among"]
    listed = term["values"].split(",") if term["among"] else [term["value"]]
    values = {value and value.strip() for value in listed}

    def matches(item: dict[str, Any]) -> bool:
        labels = item["metadata"].get("labels") or {}
        if op is None:
            return (key in labels) != bool(term["absent"])
        # != and notin hold without the label, too.
        return (labels.get(key) in values) == (op in {"=", "==", "in"})

    return matches


def _on_field(term: re.Match[str]) -> Matches:
    if term["key"] not in _FIELDS or term["op"] is None:
        raise NotImplementedError(f"field selector {term[0]!r}")
    part, name = term["key"].split(".")
    return lambda item: (item.get(part, {}).get(name, "") == term["value"]) == (term["op"] != "!=")
