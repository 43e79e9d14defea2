"""The umbrella with any of the 64 choices of its systems."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations
from typing import Any

import pytest
from preflight_testing.helm import PARTS, REQUIRED, UMBRELLA, Object, render

NAMES = sorted(part.name for part in PARTS.iterdir())
CHOICES = list(chain.from_iterable(combinations(NAMES, n) for n in range(len(NAMES) + 1)))


def made(choice: tuple[str, ...]) -> list[Object]:
    values = {name: {**REQUIRED.get(PARTS / name, {}), "enabled": True} for name in choice}
    off = {name: {"enabled": False} for name in NAMES if name not in choice}
    return render(UMBRELLA, {**off, **values})


def place(item: Object) -> tuple[str, str, str]:
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace", ""), metadata["name"]


def named(value: Any, key: str) -> set[str]:
    """Every text at ``key``, wherever it stands."""
    if isinstance(value, list):
        return set().union(*(named(one, key) for one in value))
    if not isinstance(value, dict):
        return set()
    own = {value[key]} if isinstance(value.get(key), str) else set()
    return own.union(*(named(one, key) for one in value.values()))


@pytest.mark.component  # renders the umbrella
@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "+".join(choice) or "none")
def test_any_choice_of_systems_renders_and_what_it_refers_to_is_there(
    choice: tuple[str, ...],
) -> None:
    objects = made(choice)
    twice = [where for where, count in Counter(map(place, objects)).items() if count > 1]
    assert not twice
    label = "app.kubernetes.io/name"
    parts = {one["metadata"].get("labels", {}).get(label) for one in objects}
    assert parts - {None} == set(choice)
    accounts = {where for where in map(place, objects) if where[0] == "ServiceAccount"}
    services = {where[2] for where in map(place, objects) if where[0] == "Service"}
    roles = {where[0::2] for where in map(place, objects) if where[0] in {"Role", "ClusterRole"}}
    for one in objects:
        for subject in one.get("subjects", ()):
            assert ("ServiceAccount", subject["namespace"], subject["name"]) in accounts
        if "roleRef" in one and not one["roleRef"]["name"].startswith(("system:", "extension-")):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in roles
        for hook in one.get("webhooks", ()):
            assert hook["clientConfig"]["service"]["name"] in services
        if one["kind"] in {"Deployment", "DaemonSet", "CronJob"}:
            assert named(one, "serviceAccountName") <= {where[2] for where in accounts}
