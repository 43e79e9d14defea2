"""From terminated checks to what operators see of them: counts, and one Kubernetes Event a run.

Pure. The Event's name follows from the run, so creating it is what makes a run counted: whoever
finds it there already, after a restart or under another leader, does not count it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any, Final

import msgspec
from preflight_kube.api.node_health import CheckEnd, EndedRun
from preflight_kube.runtime.events import Regarding, event, timestamp
from preflight_proto import names
from preflight_proto.result import VERSION, Result

from preflight_gang.api.types import ContainerStatus, Pod
from preflight_gang.core.membership import STUCK, by_api_server, code_word, disruption, read

NOT_HELD: Final = "the pod is not held back"
"""What an Event says of a run that did not pass where its pod starts all the same."""
_GOOD: Final = frozenset({"passed", "skipped"})
_MOST_SECONDS: Final = 86_400.0
"""More than any check's time; a forged one must not spoil the sum of true ones."""


class EndedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one check. ``run`` is its container's id: a restarted check is another run.

    Times are by the API server's clock, as far as that is known. ``ran`` is false where the kubelet
    could not start it.
    """

    run: str
    check: str
    result: Result
    exit_code: int
    started: datetime | None = None
    finished: datetime | None = None
    ran: bool = True

    @property
    def seconds(self) -> float:
        """How long it took by its own account, no longer than the kubelet says and a check may."""
        own = self.result.duration
        if self.started is None or self.finished is None:
            return min(own, _MOST_SECONDS)
        whole = max(0.0, (self.finished - self.started).total_seconds())
        # The kubelet's times are whole seconds.
        return min(own if own > 0 else whole, whole + 1.0, _MOST_SECONDS)


def ended_checks(pod: Pod, configured: Collection[str]) -> Iterator[EndedCheck]:
    """The last run of each configured check, and the one before it where it was restarted.

    What calls itself a check without being configured is not read: its name would become a label of
    ours.
    """
    for check, status in _configured(pod, configured):
        for end in (status.last_state.terminated, status.state.terminated):
            # Without an id the container was never started: it says nothing about a run.
            if end is not None and end.container_id:
                yield EndedCheck(
                    run=end.container_id,
                    check=check,
                    result=read(status.name, end, disruption(pod)),
                    exit_code=end.exit_code,
                    started=by_api_server(pod, end.started_at),
                    finished=by_api_server(pod, end.finished_at),
                )


def _configured(pod: Pod, configured: Collection[str]) -> Iterator[tuple[str, ContainerStatus]]:
    for status in pod.status.init_container_statuses:
        check = status.name.removeprefix(names.CONTAINER_PREFIX)
        if status.name.startswith(names.CONTAINER_PREFIX) and check in configured:
            yield check, status


PATIENCE: Final = 60.0
"""Seconds until a check that cannot be started is inconclusive; a registry that hiccups is back."""

_ADVICE: Final = {
    "IMAGE_PULL": "see that the image exists under this name and that the node may pull it",
    "CONTAINER_CREATE": "see what the kubelet says about the container, and correct the check's configuration",
}
_MAX_WORDS: Final = 500


def stuck_checks(pod: Pod, configured: Collection[str]) -> Iterator[tuple[str, ContainerStatus]]:
    """The configured checks that the kubelet tries to start in vain just now."""
    if pod.metadata.deletion_timestamp is None:
        for check, status in _configured(pod, configured):
            if status.state.waiting is not None and status.state.waiting.reason in STUCK:
                yield check, status


def not_started(status: ContainerStatus, check: str) -> EndedCheck:
    """What is counted for a check of :func:`stuck_checks`, once for each start that is tried."""
    waiting = status.state.waiting
    assert waiting is not None
    code = STUCK[waiting.reason]
    said = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    reason = f"it could not be started for {PATIENCE:.0f} s ({said[:_MAX_WORDS]}); {_ADVICE[code]}"
    result = Result(
        v=VERSION,
        check=check,
        outcome="inconclusive",
        code=code,
        gated=True,
        duration=0.0,
        reason=reason,
    )
    return EndedCheck(
        run=f"start {status.restart_count}", check=check, result=result, exit_code=0, ran=False
    )


_OF: Final = ("gpus", "nodes", "links", "size")
"""What of a result's details its bandwidth is comparable by."""


def check_run(pod: Pod, ended: EndedCheck, now: datetime) -> EndedRun:
    """What a run says of its node. A finish that is to come is ``now``."""
    result = ended.result
    details = result.details or {}
    end = CheckEnd(
        time=timestamp(min(ended.finished or now, now)),
        code=code_word(result.code),
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}"[:317],
        gpu=result.subject[:128],
        blames=result.outcome == "failed" and bool(result.blames),
    )
    of = " ".join(f"{key}={details[key]}" for key in _OF if key in details)[:128]
    created = pod.metadata.creation_timestamp
    since = created.timestamp() if created is not None else 0.0
    return EndedRun(ended.check, result.outcome == "passed", end, result.measured, of, since)


def event_of(pod: Pod, ended: EndedCheck, at: str) -> dict[str, Any]:
    """The Event about one run that ended at ``at`` (RFC 3339)."""
    about, field = pod.metadata, f"spec.initContainers{{{names.container_name(ended.check)}}}"
    return event(
        names.MANAGED_BY,
        Regarding("v1", "Pod", about.name, about.uid, about.namespace, field),
        about=f"{ended.check}\0{ended.run}",
        good=ended.result.outcome in _GOOD,
        reason=f"Preflight{ended.result.outcome.title()}",
        message=_message(pod, ended),
        now=at,
        host=pod.spec.node_name,
    )


def _message(pod: Pod, ended: EndedCheck) -> str:
    result = ended.result
    at = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    numbers = ""
    if result.measured is not None:
        expected = f" of {result.expected:g} expected" if result.expected is not None else ""
        numbers = f" ({result.measured:g} GB/s{expected})"
    code = f" {result.code}" if result.code and result.code != "OK" else ""
    said = result.reason or f"exit status {ended.exit_code}"
    if not result.gated:
        said = f"{said.removesuffix('.')}; observed only, {NOT_HELD}"
    elif result.outcome not in _GOOD and ended.ran and ended.exit_code == 0:
        said = f"{said.removesuffix('.')}; {NOT_HELD}"
    return f"{ended.check}{at} {result.outcome}{code}{numbers}: {said}"
