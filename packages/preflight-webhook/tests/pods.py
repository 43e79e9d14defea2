"""Pods, reviews of them, generated pods, and an independent reckoning of what a pod costs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import jsonpatch
from hypothesis import strategies as st
from preflight_webhook.config.config import Config
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision
from preflight_webhook.core.detect.devices import DeviceClaim, Ref

GPU = "nvidia.com/gpu"
GPU_POD: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}]},
}
UNITS = {
    "m": Fraction(1, 1000),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "T": Fraction(10**12),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
}


def review(pod: object = GPU_POD, **request: Any) -> dict[str, Any]:
    """As an API server asks about it."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    about = {"uid": "u-1", "kind": kind, "operation": "CREATE", "namespace": "ml", "object": pod}
    head = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    return {**head, "request": {**about, **request}}


def judged(
    pod: dict[str, Any],
    config: Config,
    claims: Mapping[Ref, DeviceClaim | None] | None = None,
    *,
    namespace: str = "ml",
    confined: bool = False,
) -> tuple[Decision, dict[str, Any]]:
    """(what is decided about the pod, the pod as it is created then)."""
    decision = decide(json.dumps(pod).encode(), namespace, config, claims, confined=confined)
    return decision, jsonpatch.apply_patch(copy.deepcopy(pod), decision.patch)


def amount(text: str | int) -> Fraction:
    """A quantity, for the few units that these tests use."""
    text = str(text)
    for unit, size in UNITS.items():
        if text.endswith(unit):
            return Fraction(text.removesuffix(unit)) * size
    return Fraction(text)


cpus = st.sampled_from(["1", "4", "8", "250m", "1500m", "0.5"])
memories = st.sampled_from(["64Mi", "1Gi", "200M", "1G", "3000000000"])


@st.composite
def resources(draw: st.DrawFn) -> dict[str, Any]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, values in (("cpu", cpus), ("memory", memories)):
        match draw(st.sampled_from(["none", "request", "limit", "both", "equal"])):
            case "request":
                requests[name] = draw(values)
            case "limit":
                limits[name] = draw(values)
            case "equal":
                requests[name] = limits[name] = draw(values)
            case "both":
                low, high = sorted([draw(values), draw(values)], key=amount)
                requests[name], limits[name] = low, high
    if draw(st.booleans()):
        count = str(draw(st.integers(1, 8)))
        limits[GPU] = count
        if draw(st.booleans()):
            requests[GPU] = count
    name_empty: bool = draw(st.booleans())
    return {
        key: value
        for key, value in (("requests", requests), ("limits", limits))
        if value or name_empty
    }


gangs = st.tuples(
    st.sampled_from(["schedulingGroup", "workloadRef", "labels", "volcano", "broken"]),
    st.sampled_from(["train", "pg.1", "pg-1", "a-0123456789"]),
)
"""How a pod says which gang is its own, and the gang's name."""


def join(gang: tuple[str, str], metadata: dict[str, Any], spec: dict[str, Any]) -> None:
    """Make the pod a member."""
    match gang:
        case "schedulingGroup", name:
            spec["schedulingGroup"] = {"podGroupName": name}
        case "workloadRef", name:
            spec["workloadRef"] = {"name": name, "podGroup": "workers", "podGroupReplicaKey": "0"}
        case "labels", name:
            own = {"app.kubernetes.io/gang-id": name, "app.kubernetes.io/gang-size": "2"}
            metadata["labels"] = {**(metadata.get("labels") or {}), **own}
        case "volcano", name:
            metadata["annotations"] = {
                **(metadata.get("annotations") or {}),
                "scheduling.k8s.io/group-name": name,
            }
        case _:
            spec["schedulingGroup"] = {}
            metadata["labels"] = {**(metadata.get("labels") or {}), "app.kubernetes.io/gang-id": ""}


def is_member(pod: dict[str, Any]) -> bool:
    """What these tests know of a generated pod: whether it belongs to a gang."""
    spec, metadata = pod["spec"], pod["metadata"]
    return bool(
        spec.get("schedulingGroup")
        or spec.get("workloadRef")
        or (metadata.get("labels") or {}).get("app.kubernetes.io/gang-id")
        or (metadata.get("annotations") or {}).get("scheduling.k8s.io/group-name")
    )


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    def container(name: str) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "image": "i"}
        if draw(st.booleans()):
            made["resources"] = draw(resources())
        if draw(st.integers(0, 3)) == 0:
            made["volumeMounts"] = [
                {
                    "name": "data",
                    "mountPath": draw(st.sampled_from(["/data", "/tmp", "/var/run/nvsentinel"])),
                }
            ]
        return made

    init = []
    inits: int = draw(st.integers(0, 3))
    for number in range(inits):
        made = container(f"init-{number}")
        if draw(st.booleans()):
            made["restartPolicy"] = "Always"
        init.append(made)
    spec: dict[str, Any] = {
        "containers": [container(f"main-{n}") for n in range(draw(st.integers(1, 3)))]
    }
    write_empty: bool = draw(st.booleans())
    if init or write_empty:
        spec["initContainers"] = init
    volumes: bool = draw(st.booleans())
    if volumes or any("volumeMounts" in c for c in [*init, *spec["containers"]]):
        spec["volumes"] = [{"name": "data", "emptyDir": {}}]
    metadata: dict[str, Any] = {"name": "p"}
    if draw(st.booleans()):
        metadata["labels"] = {"app": "x", "a/b~c": "y"}
    if draw(st.integers(0, 3)) == 0:
        metadata["annotations"] = draw(st.sampled_from([{}, {"a/b~c": "y"}]))
    if draw(st.booleans()):
        join(draw(gangs), metadata, spec)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def of(container: dict[str, Any], kind: str, name: str) -> Fraction:
    given = container.get("resources") or {}
    value = (given.get(kind) or {}).get(name)
    if value is None and kind == "requests":
        value = (given.get("limits") or {}).get(name)
    return amount(value) if value is not None else Fraction(0)


def cost(pod: dict[str, Any], kind: str, name: str) -> Fraction:
    """What the scheduler (or a quota) counts, told as the documentation of sidecar containers tells
    it.
    """
    own = pod["spec"].get("resources") or {}
    if any(name in (own.get(side) or {}) for side in ("requests", "limits")):
        return of({"resources": own}, kind, name)
    init = pod["spec"].get("initContainers") or []
    peaks = []
    for position, container in enumerate(init):
        beside = sum(
            (of(c, kind, name) for c in init[:position] if c.get("restartPolicy") == "Always"),
            Fraction(0),
        )
        peaks.append(beside + of(container, kind, name))
    running = [*pod["spec"]["containers"], *(c for c in init if c.get("restartPolicy") == "Always")]
    return max([sum((of(c, kind, name) for c in running), Fraction(0)), *peaks])


def qos(pod: dict[str, Any]) -> str:
    everyone = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    named = [
        (c, kind, n)
        for c in everyone
        for kind in ("requests", "limits")
        for n in ("cpu", "memory")
        if of(c, kind, n)
    ]
    if not named:
        return "BestEffort"
    if all(
        of(c, "limits", n) and of(c, "limits", n) == of(c, "requests", n)
        for c in everyone
        for n in ("cpu", "memory")
    ):
        return "Guaranteed"
    return "Burstable"
