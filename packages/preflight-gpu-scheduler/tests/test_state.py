"""What one process makes of what its mirrors tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from mirrors import Mirrors, tell
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.gpu_node_status import RawStatus
from preflight_gpu_scheduler.api.types import Metadata
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_kube.client.client import Client
from shapes import node, pod

FIRST, NEXT = "2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z"


class Seen:
    """A State whose mirrors tell what a test says, at a time that the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = GpuCache(cast(Client, SimpleNamespace(clock=lambda: self.now)), Config())
        _, nodes, _, self._statuses, _ = self.state.reflectors
        tell(nodes, node("a"))

    def reports(self, observed: str | None) -> None:
        devices = [{"id": n, "uuid": f"GPU-{n}"} for n in range(8)]
        status = {"total": 8, "devices": devices}
        if observed is not None:
            status["observedTime"] = observed
        tell(self._statuses, RawStatus(metadata=Metadata(name="a"), spec={}, status=status))

    def why(self, after: float) -> str:
        """Why node ``a`` takes no pod, so many seconds later; empty where it takes some."""
        self.now += after
        return self.state.view("a").blocked


def test_by_default_a_node_takes_no_pod_when_its_status_has_not_changed_for_ninety_seconds() -> (
    None
):
    seen = Seen()
    seen.reports(FIRST)
    assert seen.why(0) == ""
    assert seen.why(89) == ""
    assert seen.why(2) == messages.STATUS_STALE
    assert seen.state.stale() == 1
    seen.reports(NEXT)
    assert seen.why(0) == ""
    assert seen.state.stale() == 0


def test_a_status_that_says_no_time_as_one_written_by_hand_is_never_stale() -> None:
    seen = Seen()
    seen.reports(None)
    assert seen.why(10_000) == ""


def test_the_time_that_a_status_says_is_compared_with_no_clock() -> None:
    seen = Seen()
    seen.reports("1999-01-01T00:00:00Z")
    assert seen.why(60) == ""
    seen.reports("1999-01-01T00:00:30Z")
    assert seen.why(60) == ""


def test_a_pod_is_refused_for_a_claim_that_is_not_there_or_not_valid() -> None:
    seen = Mirrors()
    waiting = pod(annotations={names.CLAIM_ANNOTATION: "one"})
    assert seen.state.refusal_of(waiting) == messages.CLAIM_NOT_FOUND
    seen.claim("one", 0)
    assert seen.state.refusal_of(waiting) == messages.CLAIM_NOT_VALID
    seen.claim("one", 1)
    assert seen.state.refusal_of(waiting) == messages.COUNT_DIFFERS
    uncounted = Mirrors(count_resource="")
    uncounted.claim("one", 1)
    assert uncounted.state.refusal_of(waiting) == ""
