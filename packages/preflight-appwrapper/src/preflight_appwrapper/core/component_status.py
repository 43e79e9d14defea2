"""The verdict of a component's own status: failed, ended well, or with more to do. Pure.

The paths are those of the kinds' own APIs: batch/v1 JobStatus; kubeflow.org/v1 JobStatus
(PyTorchJob and MPIJob share it, and v2beta1 of MPIJob has the same conditions);
jobset.x-k8s.io/v1alpha2 JobSetStatus; ray.io/v1 RayJobStatus, whose ``jobStatus`` flaps while Ray
retries and whose ``jobDeploymentStatus`` does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from preflight_kube.api.workloads.batch import at_once
from preflight_kube.api.workloads.model import at, map_of, maps, whole

from preflight_appwrapper.api.rules import BUILT_IN, FailureRule, StatusMatch
from preflight_appwrapper.api.types import Condition, lenient
from preflight_appwrapper.core.podsets import group_kind

Says = Literal["nothing", "failed", "finished", "more"]

_JOB_SET: Final = "alpha.jobset.sigs.k8s.io"
_LEADERS: Final = "leaderworkerset.sigs.k8s.io"
_MOST_CONDITIONS: Final = 64
_MOST_TEXT: Final = 256


class ComponentVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``message``: in the object's own words. ``suspended``: it is held back by its own
    ``suspend``, e.g. queues by itself; ``resumed``: when that ended. ``owns_pods``: as in
    :class:`FailureRule`. ``in_order``: it makes some of its pods only once others are ready,
    have a node, or have completed; ``later``: how many wait for others to complete.
    ``disrupted``: of a Pod, why Kubernetes takes it away (preemption, eviction, a node that is
    lost). ``succeeded``: its pods that have, by its count, whether they are still there or not."""

    says: Says = "nothing"
    message: str = ""
    suspended: bool = False
    resumed: datetime | None = None
    owns_pods: bool = False
    in_order: bool = False
    later: int = 0
    disrupted: str = ""
    succeeded: int = 0


def verdict(raw: object, rules: Iterable[FailureRule] = BUILT_IN) -> ComponentVerdict:
    """Read what the object in plain data says of itself. Never raises."""
    raw = map_of(raw)
    group, _, kind = group_kind(raw)
    conditions = _conditions(raw)
    # Job, JobSet, RayJob; then Kubeflow's
    suspended = _at(raw, "spec.suspend") is True or _at(raw, "spec.runPolicy.suspend") is True
    resumed = None if suspended else conditions.get("Suspended")
    rule = next((rule for rule in rules if (rule.group, rule.kind) == (group, kind)), None)
    says, message = _says(rule, raw, conditions) if rule else ("nothing", "")
    owns_pods = rule is not None and rule.owns_pods
    return ComponentVerdict(
        says=says,
        message=message,
        suspended=suspended,
        resumed=resumed.last_transition_time if resumed and resumed.status == "False" else None,
        owns_pods=owns_pods,
        in_order=_in_order(group, kind, raw),
        later=_later(raw) if kind == "JobSet" else 0,
        disrupted=_true(conditions, "DisruptionTarget") or "" if kind == "Pod" else "",
        succeeded=_succeeded(raw, kind, conditions) if owns_pods or kind == "JobSet" else 0,
    )


def _says(
    rule: FailureRule, raw: Mapping[str, Any], conditions: Mapping[str, Condition]
) -> tuple[Says, str]:
    tests: list[tuple[Says, StatusMatch]] = [("failed", test) for test in rule.failed]
    tests += [("finished", test) for test in rule.finished]
    for says, test in tests:
        if (message := _holds(test, raw, conditions)) is not None:
            return says, message
    if rule.unless_finished or (rule.group == "batch" and _waves(raw)):
        return "more", ""
    return "nothing", ""


def _holds(
    test: StatusMatch, raw: Mapping[str, Any], conditions: Mapping[str, Condition]
) -> str | None:
    if test.condition:
        return _true(conditions, test.condition)
    text = _at(raw, test.path)
    if not isinstance(text, str) or text not in test.values:
        return None
    message = _at(raw, test.path.rpartition(".")[0] + ".message")
    return f"{text}: {message}" if isinstance(message, str) and message else text


def _true(conditions: Mapping[str, Condition], type_: str) -> str | None:
    """Return what a condition says, if it is True."""
    known = conditions.get(type_)
    if known is None or known.status != "True":
        return None
    return ": ".join(part for part in (known.reason, known.message) if part) or known.type


def _waves(raw: Mapping[str, Any]) -> bool:
    """A Job with more completions than pods at once is between two waves until it says Complete."""
    completions = whole(_at(raw, "spec.completions"), -1)
    at_once = whole(_at(raw, "spec.parallelism"), 1)
    succeeded = whole(_at(raw, "status.succeeded"), 0)
    return completions >= 0 and (completions > at_once or completions > succeeded)


def _in_order(group: str, kind: str, raw: Mapping[str, Any]) -> bool:
    if (group, kind) == ("apps", "StatefulSet"):
        several = whole(_at(raw, "spec.replicas"), 1) > 1
        return several and _at(raw, "spec.podManagementPolicy") != "Parallel"
    if kind == "JobSet":
        jobs = maps(_at(raw, "spec.replicatedJobs"))
        in_order = _at(raw, "spec.startupPolicy.startupPolicyOrder") == "InOrder"
        exclusive = any(
            _one_domain(part, _JOB_SET) for part in (raw, *(job.get("template") for job in jobs))
        )
        return in_order or exclusive or any(job.get("dependsOn") for job in jobs)
    # LeaderWorkerSet and MPIJob
    waits = (_at(raw, "spec.startupPolicy"), _at(raw, "spec.launcherCreationPolicy"))
    ready = waits[0] == "LeaderReady" or waits[1] == "WaitForWorkersReady"
    return ready or _one_domain(raw, _LEADERS)


def _one_domain(raw: object, prefix: str) -> bool:
    """Say whether its pods have a topology domain to themselves, which the first one finds."""
    return at(raw, ("metadata", "annotations", f"{prefix}/exclusive-topology")) is not None


def _later(raw: Mapping[str, Any]) -> int:
    """Pods of a JobSet's jobs that depend on jobs which have not completed, or depend on such."""
    statuses = maps(_at(raw, "status.replicatedJobsStatus"))
    succeeded = {str(job.get("name")): whole(job.get("succeeded"), 0) for job in statuses}
    pods, open_, waiting = 0, set[str](), set[str]()
    for job in maps(_at(raw, "spec.replicatedJobs")):  # each depends on earlier ones alone
        name, replicas = str(job.get("name")), whole(job.get("replicas"), 1)
        if succeeded.get(name, 0) < replicas:
            open_.add(name)
        for on in maps(job.get("dependsOn")):
            other = str(on.get("name"))
            if other in waiting or (other in open_ and on.get("status") == "Complete"):
                waiting.add(name)
        if name in waiting:
            pods += replicas * _pods_of(job)
    return pods


def _pods_of(job: Mapping[str, Any]) -> int:
    """How many pods one of a JobSet's jobs has at once."""
    spec = map_of(at(job, ("template", "spec")))
    return at_once(spec.get("parallelism"), spec.get("completions"))


def _succeeded(raw: Mapping[str, Any], kind: str, conditions: Mapping[str, Condition]) -> int:
    """By a Job's count, by those of a training job's roles, or of a JobSet's jobs."""
    if kind == "Job" and _true(conditions, "SuccessCriteriaMet") is not None:
        return _pods_of({"template": raw})  # what it ends now is not needed any more
    if kind == "JobSet":
        jobs = {
            str(job.get("name")): _pods_of(job) for job in maps(_at(raw, "spec.replicatedJobs"))
        }
        known = maps(_at(raw, "status.replicatedJobsStatus"))
        return sum(
            jobs.get(str(job.get("name")), 0) * whole(job.get("succeeded"), 0) for job in known
        )
    roles = map_of(_at(raw, "status.replicaStatuses")).values()
    counts = (_at(raw, "status.succeeded"), *(_at(role, "succeeded") for role in roles))
    return sum(whole(count, 0) for count in counts)


def _conditions(raw: Mapping[str, Any]) -> dict[str, Condition]:
    listed = maps(_at(raw, "status.conditions"))[:_MOST_CONDITIONS]
    known = [lenient(Condition, part) for part in listed]
    cut = [msgspec.structs.replace(each, message=each.message[:_MOST_TEXT]) for each in known]
    return {condition.type: condition for condition in reversed(cut)}


def _at(raw: object, path: str) -> Any:
    return at(raw, tuple(path.split(".")))
