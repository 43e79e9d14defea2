"""From a stamped pod to a member of a gang: where it stands, and why it is not further.

Pure. The stamp is the webhook's word about identity; here it is believed only when it proves itself
(label and ConfigMap name follow from namespace, source and raw id).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from itertools import takewhile
from typing import Final

import msgspec
from preflight_proto import names
from preflight_proto.result import Result, from_termination
from preflight_proto.roster import Answer, Roster, decode_roster
from preflight_proto.stamp import (
    ContractError,
    Stamp,
    configmap_name,
    decode_stamp,
    gang_hash,
    gang_id,
)

from preflight_gang.api.types import (
    POD_GROUP_ANNOTATION,
    ContainerStatus,
    ContainerTerminated,
    OwnerReference,
    Pod,
    PodCondition,
)

STUCK: Final = {
    "ErrImagePull": "IMAGE_PULL",
    "ImagePullBackOff": "IMAGE_PULL",
    "InvalidImageName": "IMAGE_PULL",
    "ErrImageNeverPull": "IMAGE_PULL",
    "ImageInspectError": "IMAGE_PULL",
    "CreateContainerConfigError": "CONTAINER_CREATE",
    "CreateContainerError": "CONTAINER_CREATE",
}
"""Why a container waits that the kubelet cannot start, and the code that a check has by it."""

OUTCOMES: Final = frozenset({"passed", "skipped", "failed", "misconfigured", "inconclusive"})
_CODE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?", re.ASCII)
"""Both become labels of metrics, and anybody's check writes them."""

_RUNTIMES_WORDS: Final = {
    "OOMKilled": ("OUT_OF_MEMORY", "it was killed for want of memory"),
    "StartError": ("START_ERROR", "the container could not be started"),
    "ContainerCannotRun": ("START_ERROR", "the container could not be started"),
    "ContainerStatusUnknown": ("STATUS_UNKNOWN", "its node lost sight of it"),
    # containerd's, with exit status 255, of what ran as its node went down.
    "Unknown": ("STATUS_UNKNOWN", "its node lost sight of it, as when it restarts"),
}
_TERMINATED: Final = 143  # 128 + SIGTERM: somebody ended it; says nothing about hardware
_STOPPED: Final = frozenset({"TERMINATED", "KILLED", "STATUS_UNKNOWN"})

Key = tuple[str, str]
"""A gang: its namespace, and source and raw id as :func:`~preflight_proto.stamp.gang_id` says."""
Place = tuple[str, str]
"""A ConfigMap: namespace and name."""


class MemberStage(StrEnum):
    """How far a member is on its way to the gang's test."""

    STARTING = "starting"  # no address yet
    CHECKING = "checking"  # has an address; its gang check has not begun
    WAITING = "waiting"  # its gang check runs
    PASSED = "passed"  # its gang check let it pass
    FAILED = "failed"  # a check has failed and has not been started again
    GONE = "gone"  # terminal, being deleted, or past its checks without one for the gang


class CheckFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The check that failed last. ``own``: the gang's test, so all of its generation have that.
    ``at``: by the API server's clock as far as that is known."""

    check: str
    code: str
    own: bool
    at: datetime | None

    @property
    def stopped(self) -> bool:
        """Tell whether something else ended the check: mostly an eviction, reported next."""
        return self.code in _STOPPED


class GangMember(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a gang.

    ``check`` is the container of its gang check, ``attempt`` that one's restart count. ``roster``
    is its last roster, as written, and ``published`` the same read (None where nothing readable is
    there). ``passed``: its gang check let it pass, whatever has become of the pod since.
    ``pod_group`` names the object that knows the size where the stamp could not. ``can_start``:
    bound, or the scheduler has not said yet that there is no room. ``succeeded``: it is over, and
    needs no successor.
    """

    uid: str
    name: str
    node: str
    ip: str
    host_network: bool
    created: datetime | None
    takes_part: bool
    check: str
    attempt: int
    stage: MemberStage
    why: str
    failure: CheckFailure | None
    passed: bool
    terminal: bool
    roster: str
    published: Roster | None
    owner: OwnerReference | None
    size: int | None
    object: str | None
    source: str
    pod_group: str | None
    can_start: bool = True
    succeeded: bool = False

    @property
    def alive(self) -> bool:
        """Whether it still can take part in a test."""
        return self.takes_part and self.stage is not MemberStage.GONE and not self.terminal

    @property
    def sealed(self) -> bool:
        """Whether its last roster gave it a rank."""
        return self.published is not None and self.published.answer == "sealed"

    def answered(self, answer: Answer, generation: int) -> bool:
        """Whether its last roster is this answer, about this generation."""
        roster = self.published
        return roster is not None and (roster.answer, roster.generation) == (answer, generation)


def key_of(pod: Pod) -> tuple[Key, Stamp] | None:
    """The gang that a pod is stamped for; None when it carries no stamp.

    Raises :class:`ContractError` for a stamp that cannot be read or that does not match the pod.
    """
    text = pod.metadata.annotations.get(names.GANG_ANNOTATION)
    if text is None:
        return None
    stamp = decode_stamp(text)
    namespace, source = pod.metadata.namespace, stamp.source
    wrong = ""
    if stamp.config_map != configmap_name(namespace, stamp.id, source):
        wrong = f"ConfigMap {stamp.config_map}"
    elif pod.metadata.labels.get(names.GANG_LABEL) != gang_hash(namespace, stamp.id, source):
        wrong = f"the label {names.GANG_LABEL}"
    if wrong:
        raise ContractError(f"gang stamp: {wrong} does not follow from the id {stamp.id!r}")
    return (namespace, gang_id(source, stamp.id)), stamp


def config_map_of(key: Key) -> Place:
    """Where a gang's record is, or is to be."""
    source, _, raw = key[1].partition(":")
    return key[0], configmap_name(key[0], raw, source)


def gang_check(pod: Pod) -> str | None:
    """The init container that reads the roster: the first that mounts its volume."""
    for container in pod.spec.init_containers:
        mounted = any(mount.name == names.GANG_VOLUME for mount in container.volume_mounts)
        if mounted and container.name.startswith(names.CONTAINER_PREFIX):
            return container.name
    return None


def member(pod: Pod, stamp: Stamp) -> GangMember:
    """The member that ``pod`` is."""
    check = gang_check(pod)
    own = next((s for s in pod.status.init_container_statuses if s.name == check), None)
    roster = pod.metadata.annotations.get(names.ROSTER_ANNOTATION, "")
    group = pod.metadata.annotations.get(POD_GROUP_ANNOTATION)
    before = _before(pod, check)
    failure = _failure(pod, before, own)
    stage, why = _stage(pod, own, before, failure)
    return GangMember(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        ip=pod.status.pod_ip,
        host_network=pod.spec.host_network,
        created=pod.metadata.creation_timestamp,
        takes_part=stamp.takes_part and check is not None,
        check=check or "",
        attempt=own.restart_count if own else 0,
        stage=stage,
        why=why,
        failure=failure,
        passed=failure is None and own is not None and own.state.terminated is not None,
        terminal=pod.status.phase in {"Succeeded", "Failed"},
        roster=roster,
        published=_published(roster),
        owner=next(iter(pod.metadata.owner_references), None),
        size=stamp.size,
        object=stamp.object,
        source=stamp.source,
        pod_group=group if stamp.source == "owner" else None,
        can_start=bool(pod.spec.node_name) or _unscheduled(pod) is None,
        succeeded=pod.status.phase == "Succeeded",
    )


def _published(roster: str) -> Roster | None:
    try:
        return decode_roster(roster) if roster else None
    except ContractError:
        return None


def _ended(status: ContainerStatus) -> ContainerTerminated | None:
    """How a container ended that does not run again: terminated, or waiting for its next start."""
    if status.state.terminated:
        return status.state.terminated
    return status.last_state.terminated if status.state.waiting else None


def _before(pod: Pod, check: str | None) -> Sequence[ContainerStatus]:
    """The init containers that run before the gang check (all of them where there is none)."""
    statuses = {status.name: status for status in pod.status.init_container_statuses}
    first = takewhile(lambda container: container.name != check, pod.spec.init_containers)
    return [statuses[container.name] for container in first if container.name in statuses]


def _failure(
    pod: Pod, before: Sequence[ContainerStatus], own: ContainerStatus | None
) -> CheckFailure | None:
    every = [*before, *([own] if own is not None else [])]
    begun = (i for i, its in enumerate(every) if its.state.running or its.state.terminated)
    # What began has all checks before it behind it: what ends of those now is a sidecar.
    for status in every[max(begun, default=0) :]:
        end = _ended(status)
        if end is not None and end.exit_code != 0:
            return CheckFailure(
                check=status.name.removeprefix(names.CONTAINER_PREFIX),
                code=read(status.name, end, disruption(pod)).code,
                own=status is own,
                at=by_api_server(pod, end.finished_at),
            )
    return None


def by_api_server(pod: Pod, at: datetime | None) -> datetime | None:
    """A time of the pod's kubelet: that begins with a pod once the API server has it bound."""
    begun = pod.status.start_time
    bound = (it for it in pod.status.conditions if (it.type, it.status) == ("PodScheduled", "True"))
    by_both = next((it.last_transition_time for it in bound), None)
    if at is None or begun is None or by_both is None:
        return at
    with suppress(OverflowError):  # no kubelet's
        return at + (by_both - begun)
    return at


def disruption(pod: Pod) -> str:
    """Why a pod is over that its kubelet has evicted or its node lost; empty where it is not."""
    if pod.status.phase != "Failed":
        return ""
    targets = (it for it in pod.status.conditions if it.type == "DisruptionTarget")
    return next((it.message or it.reason for it in targets if it.status == "True"), "")


def read(container: str, end: ContainerTerminated, disrupted: str = "") -> Result:
    """A terminated check's result, by its container's status where it left none; never raises.

    ``disrupted``: the pod's :func:`disruption`."""
    check = container.removeprefix(names.CONTAINER_PREFIX)
    result = from_termination(check, end.message, end.exit_code)
    if result.outcome not in OUTCOMES:
        reason = f"its result says {result.outcome[:40]!r}, which is not an outcome"
        return _inconclusive(result, "BAD_RESULT", reason)
    if code_word(result.code) != result.code:
        result = msgspec.structs.replace(result, code="BAD_CODE")
    if result.code not in {f"EXIT_{end.exit_code}", "KILLED"}:
        return result
    if end.reason in _RUNTIMES_WORDS:
        code, reason = _RUNTIMES_WORDS[end.reason]
        detail = f" ({end.message[:200]})" if code == "START_ERROR" and end.message else ""
        return _inconclusive(result, code, reason + detail)
    if disrupted or end.exit_code == _TERMINATED:
        why = f" with its pod: {disrupted}" if disrupted else ""
        return _inconclusive(result, "TERMINATED", f"it was ended before it had a result{why}")
    return result


def _inconclusive(result: Result, code: str, reason: str) -> Result:
    return msgspec.structs.replace(result, outcome="inconclusive", code=code, reason=reason)


def code_word(code: str) -> str:
    """``code`` where it is a word that can be a label, or empty; else `BAD_CODE`."""
    return code if _CODE.fullmatch(code) else "BAD_CODE"


def _stage(
    pod: Pod,
    own: ContainerStatus | None,
    before: Sequence[ContainerStatus],
    failure: CheckFailure | None,
) -> tuple[MemberStage, str]:
    if pod.metadata.deletion_timestamp is not None:
        return MemberStage.GONE, "being deleted"
    if failure is not None and failure.stopped and (why := disruption(pod)):
        return MemberStage.GONE, f"disrupted ({why})"
    if failure is not None:
        at = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
        return MemberStage.FAILED, f"failed {failure.check}{at}: {failure.code}"
    if own is not None and own.state.terminated is not None:
        return MemberStage.PASSED, "passed"
    if pod.status.phase in {"Succeeded", "Failed"}:
        said = (pod.status.phase.lower(), pod.status.reason, pod.status.message)
        return MemberStage.GONE, ": ".join(filter(None, said))
    if not pod.status.pod_ip:
        return MemberStage.STARTING, _why_no_address(pod)
    if own is not None and own.state.running is not None:
        return MemberStage.WAITING, "waiting"
    # Addressed, and on its way through what runs before: the slowest of it is worth naming.
    for status in before:
        if status.state.waiting is not None and status.state.waiting.reason in STUCK:
            return MemberStage.CHECKING, f"{status.name}: {status.state.waiting.reason}"
    running = next((s.name for s in before if s.state.running is not None), "")
    return MemberStage.CHECKING, f"running {running}" if running else "starting its checks"


def _unscheduled(pod: Pod) -> PodCondition | None:
    """What the scheduler says of a pod that it has no node for."""
    scheduled = (one for one in pod.status.conditions if one.type == "PodScheduled")
    return next((one for one in scheduled if one.status != "True"), None)


def _why_no_address(pod: Pod) -> str:
    if (condition := _unscheduled(pod)) is not None:
        why = f": {condition.message}" if condition.message else ""
        return f"{condition.reason or 'not scheduled'}{why}"
    if not pod.spec.node_name:
        return "not scheduled yet"
    return f"starting on {pod.spec.node_name}"
