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
    raw: str = "job-1", *, size: int | None = 2, takes_part: bool = True, **more: Any
) -> Stamp:
    source = more.pop("source", "labels")
    return Stamp(
        v=VERSION,
        id=raw,
        source=source,
        config_map=configmap_name(NS, raw, source),
        takes_part=takes_part,
        size=size,
        **more,
    )


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
    """A pod with dcgm-diag and nccl-allreduce injected."""
    it = stamped or stamp()
    annotations = {names.GANG_ANNOTATION: encode_stamp(it)}
    if roster is not None and it.takes_part:
        annotations[names.ROSTER_ANNOTATION] = roster
    containers: list[dict[str, Any]] = []
    if it.takes_part:
        containers = [{"name": names.container_name(check), "image": "x"} for check in CHECKS]
        containers[-1]["volumeMounts"] = [{"name": names.GANG_VOLUME, "mountPath": names.GANG_DIR}]
    status: dict[str, Any] = {"phase": phase, "initContainerStatuses": statuses or []}
    status |= {"conditions": conditions or [], "startTime": started}
    if ip:
        status["podIP"] = ip
    labels = {names.GANG_LABEL: gang_hash(NS, it.id, it.source)}
    if it.takes_part:
        labels[names.CHECKED_LABEL] = "true"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NS,
            "uid": uid or f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": created,
            "labels": labels,
            "annotations": annotations,
            **metadata,
        },
        "spec": {
            "nodeName": node,
            "initContainers": containers,
            "containers": [{"name": "train", "image": "x"}],
        },
        "status": status,
    }


def status(
    check: str, state: str, *, restarts: int = 0, code: int = 0, message: str = "", at: str = ""
) -> dict[str, Any]:
    """One init container's status: running, done, or in back-off after a failure."""
    ended = {
        "exitCode": code,
        "message": message,
        "startedAt": "2026-11-21T08:00:05Z",
        "finishedAt": at or "2026-11-21T08:01:00Z",
        "containerID": f"containerd://{check}-{restarts}",
    }
    shown: dict[str, dict[str, Any]] = {
        "running": {"state": {"running": {"startedAt": "2026-11-21T08:00:05Z"}}},
        "ended": {"state": {"terminated": ended}},
        "backoff": {
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": ended},
        },
        "waiting": {"state": {"waiting": {"reason": "PodInitializing"}}},
        "pulling": {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}},
    }
    return {"name": names.container_name(check), "restartCount": restarts, **shown[state]}


def pod(name: str, **fields: Any) -> Pod:
    return msgspec.convert(pod_json(name, **fields), Pod)


def a_member(name: str, **fields: Any) -> GangMember:
    made = pod(name, **fields)
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


def failed(name: str, ip: str, *, own: bool = False, **fields: Any) -> GangMember:
    """A check failed and waits to be started again (or the pod is over, with phase Failed)."""
    message = '{"v":1,"check":"%s","outcome":"failed","code":"%s","gated":true,"duration":9.5,"reason":"why."}'
    at = fields.pop("at", "")
    state = "ended" if fields.get("phase") == "Failed" else "backoff"
    sick = status(
        "dcgm-diag", state, code=1, message=message % ("dcgm-diag", "DCGM_FR_FAULTY_MEMORY"), at=at
    )
    done = [sick]
    if own:
        sick = status(
            "nccl-allreduce",
            state,
            code=1,
            message=message % ("nccl-allreduce", "LOW_BANDWIDTH"),
            at=at,
        )
        done = [status("dcgm-diag", "ended"), sick]
    return a_member(name, ip=ip, statuses=done, **fields)


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
