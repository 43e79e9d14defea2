"""Pods of gangs as the API server has them, in the states that kubelets bring them to."""

from __future__ import annotations

from typing import Any

import msgspec
from preflight_gang.api.types import Pod
from preflight_gang.core.membership import GangMember, key_of, member
from preflight_gang.core.participants import GangSize
from preflight_gang.core.snapshot import GangView, RankAssignment, Record
from preflight_proto import names
from preflight_proto.roster import Roster, encode_roster
from preflight_proto.stamp import (
    VERSION,
    Stamp,
    configmap_name,
    encode_stamp,
    gang_hash,
)

NS = "training"
CHECKS = ("dcgm-diag", "nccl-allreduce")
EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "TerminationByKubelet",
    "message": "The node was low on resource: memory.",
}


def stamp(
    raw: str = "job-1",
    *,
    size: int | None = 2,
    takes_part: bool = True,
    namespace: str = NS,
    source: str = "labels",
    **more: Any,
) -> Stamp:
    config_map = configmap_name(namespace, raw, source)
    return Stamp(
        v=VERSION,
        id=raw,
        source=source,
        config_map=config_map,
        takes_part=takes_part,
        size=size,
        **more,
    )


def injected(
    name: str, it: Stamp, namespace: str = NS, *, node: str = "", roster: str | None = ""
) -> dict[str, Any]:
    """As the webhook leaves a pod: who takes part has dcgm-diag and nccl-allreduce."""
    labels = {names.GANG_LABEL: gang_hash(namespace, it.id, it.source)}
    annotations = {names.GANG_ANNOTATION: encode_stamp(it)}
    checks: list[dict[str, Any]] = []
    if it.takes_part:
        labels[names.CHECKED_LABEL] = "true"
        if roster is not None:
            annotations[names.ROSTER_ANNOTATION] = roster
        checks = [{"name": names.container_name(check), "image": "x"} for check in CHECKS]
        checks[-1]["volumeMounts"] = [{"name": names.GANG_VOLUME, "mountPath": names.GANG_DIR}]
    about = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    spec |= {"initContainers": checks, "containers": [{"name": "train", "image": "x"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def pod_json(
    name: str,
    *,
    ip: str = "",
    node: str = "node-a",
    phase: str = "Pending",
    stamped: Stamp | None = None,
    roster: str | None = "",
    uid: str = "",
    statuses: list[dict[str, Any]] | None = None,
    conditions: list[dict[str, str]] | None = None,
    created: str = "2026-11-21T08:00:00Z",
    started: str | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """As it is stored, in the state that its kubelet has brought it to."""
    made = injected(name, stamped or stamp(), node=node, roster=roster)
    stored = {"uid": uid or f"uid-{name}", "resourceVersion": "1", "creationTimestamp": created}
    made["metadata"] |= stored | metadata
    status: dict[str, Any] = {"phase": phase, "initContainerStatuses": statuses or []}
    status |= {"conditions": conditions or [], "startTime": started}
    return {**made, "status": status | ({"podIP": ip} if ip else {})}


def result_line(check: str, outcome: str, code: str, reason: str = "why.") -> str:
    return (
        f'{{"v":1,"check":"{check}","outcome":"{outcome}","code":"{code}","gated":true,'
        f'"duration":9.5,"reason":"{reason}"}}'
    )


def status(
    check: str,
    state: str,
    *,
    restarts: int = 0,
    code: int = 0,
    message: str = "",
    began: str = "2026-11-21T08:00:05Z",
    at: str = "",
    runs: str = "",
) -> dict[str, Any]:
    """An init container's status: ``running``, ``ended``, in ``backoff`` after its end, ``waiting``
    for its turn, or ``pulling`` in vain. ``runs``: whose run it is.
    """
    ended = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "message": message,
        "startedAt": began,
        "finishedAt": at or "2026-11-21T08:01:00Z",
        "containerID": f"containerd://{check}-{runs}-{restarts}",
    }
    shown: dict[str, dict[str, Any]] = {
        "running": {"state": {"running": {"startedAt": began}}},
        "ended": {"state": {"terminated": ended}},
        "backoff": {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": ended},
        },
        "waiting": {"state": {"waiting": {"reason": "PodInitializing"}}},
        "pulling": {"state": {"waiting": {"reason": "ImagePullBackOff", "message": message}}},
    }
    image = {"image": "x", "imageID": "x", "ready": False}
    return {"name": names.container_name(check), "restartCount": restarts, **image, **shown[state]}


def pod(name: str, **fields: Any) -> Pod:
    return msgspec.convert(pod_json(name, **fields), Pod)


def a_member(name: str, **fields: Any) -> GangMember:
    return member_of(pod_json(name, **fields))


def member_of(body: dict[str, Any]) -> GangMember:
    made = msgspec.convert(body, Pod)
    stamped = key_of(made)
    assert stamped is not None
    return member(made, stamped[1])


def checking(name: str, ip: str, **fields: Any) -> GangMember:
    """In its first check, addressed."""
    return a_member(name, ip=ip, statuses=[status("dcgm-diag", "running")], **fields)


def waiting(name: str, ip: str, *, restarts: int = 0, **fields: Any) -> GangMember:
    """Its gang check runs."""
    done = [status("dcgm-diag", "ended"), status("nccl-allreduce", "running", restarts=restarts)]
    return a_member(name, ip=ip, statuses=done, **fields)


def passed(name: str, ip: str, **fields: Any) -> GangMember:
    done = [status("dcgm-diag", "ended"), status("nccl-allreduce", "ended")]
    return a_member(name, ip=ip, statuses=done, **{"phase": "Running", **fields})


def failed(name: str, ip: str, *, own: bool = False, at: str = "", **fields: Any) -> GangMember:
    """A check failed and waits to be started again (or the pod is over, with phase Failed)."""
    state = "ended" if fields.get("phase") == "Failed" else "backoff"
    check, code = (
        ("nccl-allreduce", "LOW_BANDWIDTH") if own else ("dcgm-diag", "DCGM_FR_FAULTY_MEMORY")
    )
    sick = status(check, state, code=1, message=result_line(check, "failed", code), at=at)
    done = [status("dcgm-diag", "ended")] if own else []
    return a_member(name, ip=ip, statuses=[*done, sick], **fields)


def record(*members: GangMember, generation: int = 1) -> Record:
    assignments = tuple(
        RankAssignment(uid=m.uid, name=m.name, ip=m.ip, node=m.node, attempt=m.attempt)
        for m in members
    )
    return Record(
        generation=generation,
        assignments=assignments,
        token="t" * 64,
        master_port=29500,
        control_port=29501,
    )


def gang(*members: GangMember, size: int | None = 2, skip: str = "", **fields: Any) -> GangView:
    sized = (
        GangSize(participants=size)
        if size is not None and not skip
        else GangSize(skip=skip, unknown="" if skip else "size?")
    )
    return GangView(
        namespace=NS,
        source="labels",
        id="job-1",
        config_map="preflight-job-1.labels",
        members=members,
        sized=fields.pop("sized", sized),
        **fields,
    )


def sealed_roster(uid: str, rank: int, generation: int = 1) -> str:
    return encode_roster(
        Roster(
            v=1,
            pod_uid=uid,
            generation=generation,
            epoch=1,
            answer="sealed",
            rank=rank,
            nnodes=2,
            master_addr="10.0.0.1",
            master_port=29500,
            control_port=29501,
            token="t" * 64,
        )
    )


def skip_roster(uid: str, generation: int = 1) -> str:
    roster = Roster(v=1, pod_uid=uid, generation=generation, epoch=1, answer="skip", reason="why.")
    return encode_roster(roster)
