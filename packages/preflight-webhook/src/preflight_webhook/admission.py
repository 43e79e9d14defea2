"""The page: one pod's way through admission. Every step adds to one :class:`~.decision.Decision`.

reserved names → devices → checks → injection → patch
"""

from __future__ import annotations

from typing import Any

import msgspec
from preflight_proto.names import CHECKS_ANNOTATION, CONTAINER_PREFIX

from . import patch, reserved
from .config import Config
from .decision import Decision
from .detection import devices
from .injection import Injection, inject
from .objects import Pod
from .review import decode_pod
from .selection import Refused, select

__all__ = ["decide"]


def decide(raw: bytes | msgspec.Raw, config: Config) -> Decision:
    """The decision about the pod whose JSON is ``raw``. Pure. Raises :class:`~.review.BadReview` when it is no pod."""
    pod = decode_pod(raw)
    if not reserved.present(pod):
        decision, injection = _judge(pod, config)
        if injection is not None:
            decision.patch = patch.fresh(pod, injection)
        return decision
    # Our own output on a second call, or somebody's forgery: taken out and built anew, never "found, so skip".
    if problem := reserved.misuse(pod):
        return Decision("denied", problem)
    now = msgspec.json.decode(raw)
    wanted = reserved.cleaned(now)
    decision, injection = _judge(decode_pod(msgspec.json.encode(wanted)), config)
    if decision.denied:
        return decision
    if injection is not None:
        _build_into(wanted, injection)
    decision.patch = patch.rebuilt(now, wanted)
    if injection is not None and not decision.patch:
        decision.result = "unchanged"
    decision.warnings += _replaced(now, wanted)
    return decision


def _judge(pod: Pod, config: Config) -> tuple[Decision, Injection | None]:
    if pod.spec.os is not None and pod.spec.os.name == "windows":
        return Decision("windows", "Windows pods are not checked."), None
    if (problem := reserved.misuse(pod)) is not None:
        return Decision("denied", problem), None
    try:
        gpus = devices(pod.spec, config.gpu_detection.resource_names)
        network = devices(pod.spec, config.network_detection.resource_names)
    except ValueError as error:
        return Decision("denied", f"spec: {error}."), None
    if not gpus:
        return Decision(
            "no-gpu", f"no container requests any of {', '.join(config.gpu_detection.resource_names)}."
        ), None
    asked = (pod.metadata.annotations or {}).get(CHECKS_ANNOTATION)
    try:
        checks, skipped = select(config, asked, network=bool(network))
    except Refused as error:
        return Decision("denied", str(error), gpus=gpus), None
    if not checks:
        return Decision("no-checks", "no configured check applies to this pod.", skipped=skipped, gpus=gpus), None
    told = ", ".join(f"{count} {name}" for name, count in gpus.items())
    message = f"{', '.join(check.name for check in checks)} will test {told} before the pod starts."
    decision = Decision("injected", message, [check.name for check in checks], skipped, gpus)
    return decision, inject(pod.spec, config, checks, gpus, network)


def _build_into(pod: dict[str, Any], injection: Injection) -> None:
    spec, metadata = pod["spec"], pod.setdefault("metadata", {})
    init = spec.get("initContainers") or []
    spec["initContainers"] = init[: injection.position] + injection.containers + init[injection.position :]
    spec["volumes"] = (spec.get("volumes") or []) + injection.volumes
    metadata["labels"] = {**(metadata.get("labels") or {}), **injection.labels}


def _replaced(now: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A warning, shown by kubectl, for each container of the user's own that had to give way."""
    built = {c["name"]: c for c in wanted["spec"].get("initContainers") or ()}
    return [
        f'init container "{c["name"]}" was replaced: names beginning with "{CONTAINER_PREFIX}" are reserved for preflight checks'
        for c in now["spec"].get("initContainers") or ()
        if c.get("name", "").startswith(CONTAINER_PREFIX) and built.get(c["name"]) != c
    ]
