"""Rules for all wrappers, as the operator's configuration says them. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from preflight_proto.durations import format_duration, parse_duration
from preflight_proto.printable import printable

PERIODS: Final = {
    "admission": "AdmissionGracePeriod",
    "warmup": "WarmupGracePeriod",
    "failure": "FailureGracePeriod",
    "retry_pause": "RetryPausePeriod",
    "forceful_deletion": "ForcefulDeletionGracePeriod",
    "preflight_allowance": "PreflightAllowance",
}
"""Names of the periods that an annotation may change, by their field of :class:`WrapperRules`."""
_MOST_NANOSECONDS: Final = 2**63
"""A Go duration is an int64 of nanoseconds."""
_LONGEST: Final = 256
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class ConfigSection(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A part of the configuration: keys in camel case; others are refused."""


class StatusMatch(ConfigSection, frozen=True, kw_only=True):
    """A condition of this type is True, or the text at ``path`` (dotted) is among ``values``."""

    condition: str = ""
    path: str = ""
    values: tuple[str, ...] = ()


class FailureRule(ConfigSection, frozen=True, kw_only=True):
    """A way to read the status of one kind. ``group``: without version. ``owns_pods``: its pods
    have it as their controller, so that they can be told from those of other components.
    ``unless_finished``: while neither holds it has more to do.
    """

    group: str
    kind: str
    failed: tuple[StatusMatch, ...] = ()
    finished: tuple[StatusMatch, ...] = ()
    owns_pods: bool = False
    unless_finished: bool = False


def _by_conditions(
    group: str, kind: str, failed: str, finished: str, *, owns_pods: bool = False
) -> FailureRule:
    bad, good = (StatusMatch(condition=failed),), (StatusMatch(condition=finished),)
    return FailureRule(group=group, kind=kind, failed=bad, finished=good, owns_pods=owns_pods)


_RAY_JOB: Final = "status.jobDeploymentStatus"
BUILT_IN: Final = (
    _by_conditions("batch", "Job", "Failed", "Complete", owns_pods=True),
    _by_conditions("kubeflow.org", "PyTorchJob", "Failed", "Succeeded", owns_pods=True),
    _by_conditions("kubeflow.org", "MPIJob", "Failed", "Succeeded"),
    _by_conditions("jobset.x-k8s.io", "JobSet", "Failed", "Completed"),
    FailureRule(
        group="",
        kind="Pod",
        finished=(StatusMatch(path="status.phase", values=("Succeeded",)),),
        owns_pods=True,  # it is its only one
    ),
    FailureRule(group="apps", kind="StatefulSet", owns_pods=True),
    FailureRule(group="ray.io", kind="RayCluster", owns_pods=True),
    FailureRule(
        group="ray.io",
        kind="RayJob",
        # ValidationFailed is final, too: the operator never looks at such a RayJob again.
        failed=(StatusMatch(path=_RAY_JOB, values=("Failed", "ValidationFailed")),),
        finished=(StatusMatch(path=_RAY_JOB, values=("Complete",)),),
        unless_finished=True,
    ),
)


class BrakeRules(msgspec.Struct, frozen=True):
    """At most ``percent`` of all, or one if that is more, in ``window`` seconds; 100: no brake."""

    percent: int = 10
    window: float = 600

    def sentence(self, what: str) -> str:
        """Say why something waits, the same for all that do."""
        return (
            f"at most {self.percent} % of {what}, or one, {'is' if self.percent == 1 else 'are'} evacuated in "
            f"{format_duration(self.window)}; `preflight-appwrapper evacuations` shows what waits and releases it"
        )


class LabelTaint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node label about a resource of that node, and its effect on pods that ask for it."""

    key: Annotated[str, Meta(min_length=1, max_length=317)]
    value: Annotated[str, Meta(max_length=63)]
    effect: Effect


_AUTOPILOT: Final = (
    LabelTaint("autopilot.ibm.com/gpuhealth", "ERR", "NoSchedule"),
    LabelTaint("autopilot.ibm.com/gpuhealth", "EVICT", "NoExecute"),
)


class Autopilot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Node labels that say what to do with pods. ``taints``: by resource, or by device class (DRA),
    whose name has no slash, in configured order. ``weight``: of the preferred terms.
    """

    inject: bool = msgspec.field(name="injectAntiAffinities", default=True)
    monitor: bool = msgspec.field(name="monitorNodes", default=True)
    weight: Annotated[int, Meta(ge=1, le=100)] = msgspec.field(
        name="preferNoScheduleWeight", default=50
    )
    taints: dict[str, tuple[LabelTaint, ...]] = msgspec.field(
        name="resourceTaints",
        default_factory=lambda: {"nvidia.com/gpu": _AUTOPILOT, "gpu.nvidia.com": _AUTOPILOT},
    )


class RetryLoop(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the retry loop, by their defaults; periods are in seconds."""

    admission: float = 60
    warmup: float = 300
    failure: float = 60
    retry_pause: float = 90
    retry_limit: int = 3
    forceful_deletion: float = 600
    success_ttl: float = 7 * 86_400
    maximum: float = 86_400
    preflight_allowance: float = 1200


class WrapperRules(RetryLoop, frozen=True, kw_only=True):
    """Rules for all wrappers, from the operator's configuration.

    ``set_`` names the parameters that the configuration sets. ``failed_pods`` says when a failed
    pod counts: ``unreplaced`` until its controller has made up for it, ``any`` always.
    ``trusted_users``: who may wrap what the controller may create, without being asked about.
    ``wrapped``: the resources that the controller may create, each before its group; empty: any.
    ``excluded``: namespaces of which nothing is created. ``mark_key``: see :mod:`.marks`; empty:
    nobody marks, and no mark is asked for.
    """

    failed_pods: Literal["unreplaced", "any"] = "unreplaced"
    scheduler_name: str = ""
    default_queue: str = ""
    autopilot: Autopilot = Autopilot()
    failure_rules: tuple[FailureRule, ...] = BUILT_IN
    brake: BrakeRules = BrakeRules()
    trusted_users: frozenset[str] = frozenset()
    wrapped: frozenset[str] = frozenset()
    set_: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    mark_key: bytes = b""


def key_of(name: str) -> str:
    """The key of a parameter in a configuration, and the beginning of its annotation's."""
    return name[:1].lower() + name[1:]


def seconds(text: str) -> float:
    """A Go duration. Raises :class:`ValueError`, also for what no int64 of nanoseconds holds."""
    if not 0 < len(text) <= _LONGEST:
        what = f"has {len(text)} characters" if text else "is empty"
        raise ValueError(f"it {what}; write e.g. 90s, 10m or 1h30m")
    period = parse_duration(text)
    if abs(period) * 1e9 >= _MOST_NANOSECONDS:
        shown = printable(text, 60)
        raise ValueError(f'"{shown}" is longer than a duration can be (about 292 years)')
    return period
