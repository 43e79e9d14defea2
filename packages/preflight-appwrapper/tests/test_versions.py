"""The watcher of the behaviour suite sees what must not be."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_appwrapper.api.names import LABEL
from versions import Seen, problems

AT = "2026-11-22T10:00:0{}Z"


def wrapper(phase: str = "", *, at: int = 0, count: int = 0, **conditions: bool) -> dict[str, Any]:
    made = [
        {"type": type_, "status": str(value), "lastTransitionTime": AT.format(at)}
        for type_, value in conditions.items()
    ]
    status = {"phase": phase, "resettingCount": count, "conditions": made}
    return {"metadata": {"name": "w", "uid": "u"}, "status": status if phase else {}}


def history(*wrappers: dict[str, Any], **others: str) -> list[Seen]:
    """``others``: a pod's type of event, by its version as a word."""
    made = [Seen(10 * i, "wrappers", "MODIFIED", one) for i, one in enumerate(wrappers)]
    pod = {"metadata": {"name": "p", "uid": "p", "labels": {LABEL: "w"}}}
    return [*made, *(Seen(int(at[1:]), "pods", type_, pod) for at, type_ in others.items())]


NEW, SUSPENDED = wrapper(), wrapper("Suspended")
RESUMING = wrapper("Resuming", at=1, QuotaReserved=True, ResourcesDeployed=True)
RUNNING = wrapper("Running", at=1, QuotaReserved=True, ResourcesDeployed=True)
DONE = wrapper("Succeeded", at=2, QuotaReserved=False)
GONE = wrapper("Terminating", at=3, QuotaReserved=False, ResourcesDeployed=False)
LIFE = (NEW, SUSPENDED, RESUMING, RUNNING)


def test_a_life_as_it_should_be_has_no_problem() -> None:
    assert not problems(history(*LIFE, v25="ADDED", v45="DELETED"))
    kept = {"QuotaReserved": True, "ResourcesDeployed": True}
    failed = wrapper("Failed", at=1, **kept)
    over = wrapper("Failed", at=4, QuotaReserved=False, ResourcesDeployed=False)
    assert not problems(history(*LIFE, failed, over, GONE | {"status": over["status"]}))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (history(*LIFE, SUSPENDED), "Suspended after Running"),
        (history(*LIFE, DONE, RESUMING), "Resuming after Succeeded"),
        (history(*LIFE, wrapper("Resetting", at=2, QuotaReserved=False)), "QuotaReserved is False in Resetting"),
        (history(*LIFE, wrapper("Succeeded", at=1, QuotaReserved=True)), "QuotaReserved is True in Succeeded"),
        (history(*LIFE, wrapper("Failed", at=2, QuotaReserved=False, ResourcesDeployed=True)), "QuotaReserved is False in Failed"),
        (history(NEW, wrapper("Terminating", QuotaReserved=True, ResourcesDeployed=True)), "QuotaReserved is True in Terminating"),
        (history(*LIFE, wrapper("Succeeded", at=0, QuotaReserved=False)), "QuotaReserved goes back from"),
        (history(*LIFE, wrapper("Running", at=2, QuotaReserved=True)), "QuotaReserved moves from"),
        (history(wrapper("Suspended", count=2), wrapper("Suspended", count=1)), "resettingCount goes back from 2 to 1"),
        (history(*LIFE[:2], v15="ADDED"), "pods p although ResourcesDeployed of w is not True"),
    ],
    ids=lambda one: one.replace(" ", "-") if isinstance(one, str) else "",
)  # fmt: skip
def test_each_thing_that_must_not_be_is_seen(wrong: list[Seen], said: str) -> None:
    assert any(said in one for one in problems(wrong)), problems(wrong)
