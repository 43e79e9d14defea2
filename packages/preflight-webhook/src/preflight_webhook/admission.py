"""The page: one pod's way through admission. Every step adds to one :class:`~.decision.Decision`.

reserved names → facts → devices → checks → injection → patch
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from preflight_proto.names import CHECKS_ANNOTATION, CONTAINER_PREFIX

from . import patch, reserved
from .config import Config
from .decision import Decision
from .detection import devices
from .injection import Injection, inject
from .objects import Load, Pod, Sized
from .review import decode_pod, decode_resources, encode_patch
from .selection import Refused, select

__all__ = ["decide"]


class Facts(NamedTuple):
    """Everything about a pod without anything of ours that its decision depends on.

    The pods of one job share their facts, so a gang of a thousand is decided once (resources are compared as the bytes
    they came in).
    """

    init: tuple[tuple[str, bytes, str | None], ...]
    containers: tuple[bytes, ...]
    own: bytes
    windows: bool
    asked: str | None
    has_init: bool
    has_volumes: bool
    has_labels: bool


def decide(raw: bytes | msgspec.Raw, config: Config) -> Decision:
    """The decision about the pod whose JSON is ``raw``; not to be changed, as alike pods share it.

    Pure. Raises :class:`~.review.BadReview` when it is no pod.
    """
    pod = decode_pod(raw)
    if problem := reserved.misuse(pod):
        return Decision("denied", problem)
    if not reserved.present(pod):
        return _judge(_facts(pod), config)[0]
    # Our own output on a second call, or somebody's forgery: taken out and built anew, never "found, so skip".
    now = msgspec.json.decode(raw)
    wanted = reserved.cleaned(now)
    decision, injection = _judge(_facts(decode_pod(msgspec.json.encode(wanted))), config)
    if decision.denied:
        return decision
    if injection is not None:
        _build_into(wanted, injection)
    patched = patch.rebuilt(now, wanted)
    result = "unchanged" if injection is not None and not patched else decision.result
    return replace(decision, result=result, patch=patched, encoded="", warnings=_replaced(now, wanted))


def _facts(pod: Pod) -> Facts:
    spec, metadata = pod.spec, pod.metadata
    return Facts(
        tuple((c.name, bytes(c.resources), c.restart_policy) for c in spec.init_containers or ()),
        tuple(bytes(c.resources) for c in spec.containers),
        bytes(spec.resources),
        spec.os is not None and spec.os.name == "windows",
        metadata.annotations.get(CHECKS_ANNOTATION) if metadata.annotations else None,
        spec.init_containers is not None,
        spec.volumes is not None,
        metadata.labels is not None,
    )


@lru_cache(maxsize=1024)
def _judge(facts: Facts, config: Config) -> tuple[Decision, Injection | None]:
    if facts.windows:
        return Decision("windows", "Windows pods are not checked."), None
    load = Load(
        [Sized("", decode_resources(raw)) for raw in facts.containers],
        [Sized(name, decode_resources(raw), policy) for name, raw, policy in facts.init],
        decode_resources(facts.own),
    )
    try:
        gpus = devices(load, config.gpu_detection.resource_names)
        network = devices(load, config.network_detection.resource_names)
        if not gpus:
            return Decision(
                "no-gpu", f"no container requests any of {', '.join(config.gpu_detection.resource_names)}."
            ), None
        checks, skipped = select(config, facts.asked, network=bool(network))
        if not checks:
            return Decision("no-checks", "no configured check applies to this pod.", skipped=skipped, gpus=gpus), None
        injection = inject(load, config, checks, gpus, network)
    except Refused as error:
        return Decision("denied", str(error)), None
    except ValueError as error:
        return Decision("denied", f"spec: {error}."), None
    told = ", ".join(f"{count} {name}" for name, count in gpus.items())
    message = f"{', '.join(check.name for check in checks)} will test {told} before the pod starts."
    operations = patch.fresh(injection, init=facts.has_init, volumes=facts.has_volumes, labels=facts.has_labels)
    names = [check.name for check in checks]
    return Decision("injected", message, names, skipped, gpus, operations, encode_patch(operations)), injection


def _build_into(pod: dict[str, Any], injection: Injection) -> None:
    spec, metadata = pod["spec"], pod.setdefault("metadata", {})
    init = spec.get("initContainers") or []
    spec["initContainers"] = init[: injection.position] + injection.containers + init[injection.position :]
    spec["volumes"] = [*(spec.get("volumes") or []), *injection.volumes]
    metadata["labels"] = {**(metadata.get("labels") or {}), **injection.labels}


def _replaced(now: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A warning, shown by kubectl, for each container of the user's own that had to give way."""
    built = {c["name"]: c for c in wanted["spec"].get("initContainers") or ()}
    return [
        f'init container "{c["name"]}" was replaced: names beginning with "{CONTAINER_PREFIX}" are reserved for preflight checks'
        for c in now["spec"].get("initContainers") or ()
        if c.get("name", "").startswith(CONTAINER_PREFIX) and built.get(c["name"]) != c
    ]
