"""More of the known attacks: numbers, texts, times and shapes that nobody has, and objects that
were there before ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preflight_e2e.bench.cluster import PREFIX, member

from .shots import Shot, pod_path
from .vectors import (
    JOB_SET,
    POD_GROUP,
    STRAY,
    VECTORS,
    created,
    dry,
    fresh,
    gang_of,
    patched,
    record,
    status,
    stray,
    user,
    vector,
)

__all__ = ["VECTORS"]


@vector
def sizes_that_no_gang_has(volume: float) -> Iterator[Shot]:
    def jobs(count: int) -> dict[str, Any]:
        template = {"spec": {"parallelism": count}}
        return {"replicatedJobs": [{"name": "a", "replicas": count, "template": template}]}

    for kind, source, spec in (
        *((POD_GROUP, "coscheduling", {"minMember": n}) for n in (2**62, -(2**62), 10**30, 2.5)),
        *((JOB_SET, "jobset", jobs(n)) for n in (2**62, -2)),
    ):
        name = fresh("sized")
        yield kind.created(STRAY, {"name": name, "namespace": STRAY}, spec=spec)
        for i in range(2):
            pod = member(STRAY, name, 2, f"{name}-{i}", source)
            yield created("pod", gang_of(pod, size=None, object=name))
            yield _addressed(f"{name}-{i}")


def _addressed(name: str, **more: Any) -> Shot:
    return patched(STRAY, name, "10.7.0.1", **more)


@vector
def records_that_were_there_before(volume: float) -> Iterator[Shot]:
    """Names of records taken by a tenant: never to be changed, or held by a finalizer when they are
    deleted.
    """
    for more in ({"immutable": True}, {}):
        gang = fresh("squatted")
        shot = record(f"preflight-{gang}.labels", data={"members": "x", "generation": "9" * 4_000})
        annotations = {PREFIX + "gang-id": gang, PREFIX + "gang-source": "labels"}
        shot.body["metadata"] |= {"annotations": annotations, "finalizers": ["example.com/never"]}
        shot.body.update(more)
        yield shot
        for i in range(2):
            yield created("pod", member(STRAY, gang, 2, f"{gang}-{i}"))
            yield _addressed(f"{gang}-{i}")
        if not more:
            path = f"/api/v1/namespaces/{STRAY}/configmaps/preflight-{gang}.labels"
            yield Shot("ConfigMap", "DELETE", path)


@vector
def members_that_come_and_go(volume: float) -> Iterator[Shot]:
    gang = fresh("restless")
    for i in range(max(30, int(500 * volume))):
        name = f"{gang}-{i % 2}"
        yield created("pod", member(STRAY, gang, 2, name))
        yield _addressed(name)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        yield Shot("pod", "DELETE", pod_path(STRAY, name), options)


@vector
def results_of_odd_texts(volume: float) -> Iterator[Shot]:
    good = '"check":"nccl-allreduce","outcome":"failed","code":"X","gated":true,"duration":1}'
    for text in (
        '{"v":1,"v":99,"outcome":"passed",' + good,
        "\ufeff" + '{"v":1,' + good,
        '{"v":1,"reason":"\\ud800 \\u0000 \\u202e",' + good,
        '{"v":1,"V":2,"Outcome":"passed",' + good,
        '{"v":1,"reason":"' + '\\"' * 1_500 + '",' + good,
        '{"v":1e400,' + good,
        '{"v":' + "9" * 3_500 + "}",
        '{"v":1,"subject":"\u202eedon","reason":"\u200b\u200d\u2066\x1b[2J\r\n",' + good,
    ):
        pod = stray("odd-text")
        yield created("pod", pod)
        yield status(pod["metadata"]["name"], text)


@vector
def times_that_no_clock_shows(volume: float) -> Iterator[Shot]:
    for i, when in enumerate(
        ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z")
    ):
        gang = fresh("timeless")
        for n in range(2):
            yield created("pod", member(STRAY, gang, 2, f"{gang}-{n}"))
            yield _addressed(f"{gang}-{n}", startTime=when)
        for check in ("dcgm-diag", "nccl-allreduce"):
            shot = status(f"{gang}-0", "{}", check=check, code=(1, 137, 255)[i])
            [container] = shot.body["status"]["initContainerStatuses"]
            container["state"]["terminated"] |= {"startedAt": when, "finishedAt": when}
            container["restartCount"] = 2**31 - 1
            yield shot


@vector
def gangs_of_odd_names(volume: float) -> Iterator[Shot]:
    hexadecimal = "-".join("0123456789abcdef")
    plain = ("a" * 253, "a.b" * 84, hexadecimal, "x-0123456789", "labels:x", "a/b/c")
    for name in (*plain, "a\n\x1b[2J", "\u202eedon", "a\u200b", "\u0661\u0662"):
        pod = user("odd-name")
        pod["metadata"].setdefault("annotations", {})["scheduling.k8s.io/group-name"] = name
        yield created("pod", pod)
        yield created("pod", gang_of(stray("odd-name"), id=name))


@vector
def quantities_of_odd_spelling(volume: float) -> Iterator[Shot]:
    spelt = (
        "1e400",
        "1E18",
        "-8",
        "+8",
        "\u0668",
        "8.",
        ".5",
        "0x8",
        "1e-9",
        "NaN",
        "8 ",
        "9" * 64,
    )
    for amount in (*spelt, 8.5, 2**62):
        pod = user("spelt")
        limits = {"nvidia.com/gpu": amount, "cpu": amount}
        pod["spec"]["containers"][0]["resources"] = {"limits": limits}
        yield dry(pod)


@vector
def pods_of_odd_shapes(volume: float) -> Iterator[Shot]:
    ours = [{"name": "preflight-state", "mountPath": "/x", "subPathExpr": "$(A)/.."}]
    node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    owner = node | {"controller": True, "blockOwnerDeletion": True}
    side = {"name": "side", "image": "x", "restartPolicy": "Always", "volumeMounts": ours}
    tcp = {"name": "net.ipv4.tcp_rmem", "value": "1 1 1"}
    look_alike = "preflight\u2010dcgm-diag"
    shapes: tuple[dict[str, Any], ...] = (
        {"nodeName": "node-1"},
        {"os": {"name": "windows"}},
        {"hostNetwork": True, "hostPID": True, "shareProcessNamespace": True},
        {"schedulingGates": [{"name": "example.com/wait"}]},
        {"initContainers": [{"name": "PREFLIGHT-dcgm-diag", "image": "x"}]},
        {"initContainers": [{"name": look_alike, "image": "x"}]},
        {"initContainers": [{"name": "preflight-dcgm-diag", "image": "d", "command": ["true"]}]},
        {"initContainers": [side]},
        {"volumes": [{"name": "preflight-state", "hostPath": {"path": "/"}}]},
        {"securityContext": {"sysctls": [tcp], "runAsUser": 0}},
    )
    for spec in shapes:
        yield dry(user("shape", **spec))
    pod = user("owned")
    pod["metadata"]["ownerReferences"] = [
        owner | {"uid": f"u{i}", "controller": i == 0} for i in range(2_000)
    ]
    yield dry(pod)
    pod = user("mirrored", nodeName="node-1")
    pod["metadata"].setdefault("annotations", {})["kubernetes.io/config.mirror"] = "x"
    yield dry(pod)
    pod = user("unnamed")
    del pod["metadata"]["name"]
    pod["metadata"]["generateName"] = "a" * 57 + "-"
    yield dry(pod)
