"""Label and field selectors: which objects a list or a watch is about."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Matches = Callable[[dict[str, Any]], bool]

_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*)?(?P<key>[\w./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)|(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?\s*(?:,|$)"
)
_FIELDS = {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase"}


def selection(labels: str, fields: str) -> Matches:
    """What a list's ``labelSelector`` and ``fieldSelector`` select together."""
    terms = [_on_labels(term) for term in _terms(labels)] + [_on_field(term) for term in _terms(fields)]
    return lambda item: all(term(item) for term in terms)


def _terms(selector: str) -> list[re.Match[str]]:
    terms, at = [], 0
    while at < len(selector):
        if not (term := _TERM.match(selector, at)):
            raise NotImplementedError(f"selector {selector!r}")
        terms.append(term)
        at = term.end()
    return terms


def _on_labels(term: re.Match[str]) -> Matches:
    key, op, value = term["key"], term["op"] or term["set"], term["value"]
    values = {one.strip() for one in (term["values"] or "").split(",")} if term["set"] else {value}
    if op is None:
        return lambda item: (key in _labels(item)) != bool(term["absent"])
    if op in {"!=", "notin"}:  # hold for an object without the label, too
        return lambda item: _labels(item).get(key) not in values
    return lambda item: _labels(item).get(key) in values


def _on_field(term: re.Match[str]) -> Matches:
    key, op, value = term["key"], term["op"], term["value"]
    if key not in _FIELDS or op is None:
        raise NotImplementedError(f"field selector {term[0]!r}")
    part, name = key.split(".")
    return lambda item: ((item.get(part, {}).get(name) or "") == value) == (op != "!=")


def _labels(item: dict[str, Any]) -> dict[str, str]:
    return item["metadata"].get("labels") or {}
