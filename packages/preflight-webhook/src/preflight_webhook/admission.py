"""The page: one pod's way through admission. Every step adds to one :class:`~.decision.Decision`.

reserved names → identity → facts → devices → checks → injection → patch
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from preflight_proto.names import CHECKS_ANNOTATION, CONTAINER_PREFIX
from preflight_proto.stamp import Stamp

from . import patch, reserved
from .config import Config
from .decision import Decision
from .detection import COMPUTE, Demand, Step, demands, devices, reckon
from .identity import identify, marks, ordered, stamp
from .injection import Injection, inject, place
from .objects import Pod
from .review import BadReview, decode_pod, decode_resources, encode_patch
from .selection import Refused, select
from .sources import Gang

__all__ = ["decide"]


class Facts(NamedTuple):
    """Everything about a pod without anything of ours that its decision depends on.

    The pods of one job share their facts, their gang among them, so a gang of a thousand is decided once (resources are
    compared as the bytes they came in).
    """

    init: tuple[tuple[str, bytes, str | None], ...]
    containers: tuple[bytes, ...]
    own_resources: bool
    windows: bool
    asked: str | None
    has_init: bool
    has_volumes: bool
    has_labels: bool
    has_annotations: bool
    namespace: str  # a gang's; without one, the same decision holds in all of them
    gang: Gang | None
    ordered: str


def decide(raw: bytes | msgspec.Raw, namespace: str, config: Config) -> Decision:
    """The decision about the pod whose JSON is ``raw``, created in ``namespace``; not to be changed, as alike pods share it.

    Pure. Raises :class:`~.review.BadReview` when it is no pod.
    """
    pod = decode_pod(raw)
    if problem := reserved.misuse(pod):
        return Decision("denied", problem)
    if not reserved.present(pod):
        return _judge(_facts(pod, namespace, config), config)[0]
    # Our own output on a second call, or somebody's forgery: taken out and built anew, never "found, so skip".
    now = msgspec.json.decode(raw)
    wanted = reserved.cleaned(now)
    facts = _facts(decode_pod(msgspec.json.encode(wanted)), namespace, config)
    decision, injection = _judge(facts, config)
    if decision.denied:
        return decision
    if injection is not None:
        _build_into(wanted, injection)
    patched = patch.rebuilt(now, wanted)
    result = "unchanged" if injection is not None and not patched else decision.result
    warnings = [*decision.warnings, *_replaced(now, wanted)]
    return replace(decision, result=result, patch=patched, encoded="", warnings=warnings)


def _facts(pod: Pod, namespace: str, config: Config) -> Facts:
    spec, metadata = pod.spec, pod.metadata
    gang = identify(pod, config.gang_discovery)
    return Facts(
        tuple((c.name, bytes(c.resources), c.restart_policy) for c in spec.init_containers or ()),
        tuple(bytes(c.resources) for c in spec.containers),
        _has_amounts(bytes(spec.resources)),
        spec.os is not None and spec.os.name == "windows",
        metadata.annotations.get(CHECKS_ANNOTATION) if metadata.annotations else None,
        spec.init_containers is not None,
        spec.volumes is not None,
        metadata.labels is not None,
        metadata.annotations is not None,
        namespace if gang else "",
        gang,
        ordered(pod, gang, config.gang_discovery) if gang else "",
    )


def _has_amounts(raw: bytes) -> bool:
    """Whether the pod has resources of its own: then its cost and its QoS class come from those alone."""
    own = None if raw == b"null" else decode_resources(raw)
    return own is not None and bool(own.requests or own.limits)


@lru_cache(maxsize=1024)
def _judge(facts: Facts, config: Config) -> tuple[Decision, Injection | None]:
    if facts.windows:
        return _unchecked(facts, Decision("windows", "Windows pods are not checked."))
    gpu_names, network_names = config.gpu_detection.resource_names, config.network_detection.resource_names
    try:
        init = [Step(name, _demands(raw), policy == "Always") for name, raw, policy in facts.init]
        containers = [_demands(raw) for raw in facts.containers]
        position = place(init, config.provider_init)
        accounts = reckon(init, containers, (*COMPUTE, *gpu_names, *network_names), position)
        gpus, network = devices(accounts, gpu_names), devices(accounts, network_names)
        if not gpus:
            return _unchecked(facts, Decision("no-gpu", f"no container requests any of {', '.join(gpu_names)}."))
        gang = facts.gang is not None
        checks, skipped = select(config, facts.asked, network=bool(network), gang=gang, ordered=facts.ordered)
    except Refused as error:
        return Decision("denied", str(error)), None
    except BadReview:  # a ValueError too, but the API server's to hear of
        raise
    except ValueError as error:
        return Decision("denied", f"spec: {error}."), None
    if not checks:
        told = Decision("no-checks", "no configured check applies to this pod.", skipped=skipped, gpus=gpus)
        return _unchecked(facts, told)
    member = _stamp(facts, takes_part=any(check.gang_wide for check in checks))
    injection = inject(
        config,
        checks,
        accounts,
        {**gpus, **network},
        position=position,
        compute_of=0 if facts.own_resources else len(init) + len(containers),
        gang_config_map=member.config_map if member is not None and member.takes_part else None,
    )
    counts = ", ".join(f"{count} {name}" for name, count in gpus.items())
    message = f"{', '.join(check.name for check in checks)} will test {counts} before the pod starts."
    decision = Decision("injected", message, [check.name for check in checks], skipped, gpus)
    return _finished(facts, decision, injection, member)


@lru_cache(maxsize=4096)
def _demands(raw: bytes) -> tuple[Demand, ...]:
    return demands(decode_resources(raw))


def _unchecked(facts: Facts, decision: Decision) -> tuple[Decision, Injection | None]:
    """A pod without checks. A gang's member is stamped all the same: the controller counts on every one."""
    if (member := _stamp(facts, takes_part=False)) is None:
        return decision, None
    message = f"{decision.message[:-1]}; it is stamped as a member of the gang {member.id}."
    return _finished(facts, replace(decision, result="stamped", message=message), Injection(), member)


def _stamp(facts: Facts, *, takes_part: bool) -> Stamp | None:
    return stamp(facts.namespace, facts.gang, takes_part=takes_part) if facts.gang else None


def _finished(
    facts: Facts, decision: Decision, injection: Injection, member: Stamp | None
) -> tuple[Decision, Injection]:
    if member is not None:
        labels, annotations = marks(facts.namespace, member)
        injection.labels.update(labels)
        injection.annotations.update(annotations)
    operations = patch.fresh(
        injection,
        init=facts.has_init,
        volumes=facts.has_volumes,
        labels=facts.has_labels,
        annotations=facts.has_annotations,
    )
    warnings = [facts.gang.warning] if facts.gang and facts.gang.warning else []
    decision = replace(decision, stamp=member, patch=operations, encoded=encode_patch(operations), warnings=warnings)
    return decision, injection


def _build_into(pod: dict[str, Any], injection: Injection) -> None:
    spec, metadata = pod["spec"], pod.setdefault("metadata", {})
    init = spec.get("initContainers") or []
    spec["initContainers"] = init[: injection.position] + injection.containers + init[injection.position :]
    spec["volumes"] = [*(spec.get("volumes") or []), *injection.volumes]
    metadata["labels"] = {**(metadata.get("labels") or {}), **injection.labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **injection.annotations}


def _replaced(now: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A warning, shown by kubectl, for each container of the user's own that had to give way."""
    built = {c["name"]: c for c in wanted["spec"].get("initContainers") or ()}
    return [
        f'init container "{c["name"]}" was replaced: names beginning with "{CONTAINER_PREFIX}" are reserved for preflight checks'
        for c in now["spec"].get("initContainers") or ()
        if c.get("name", "").startswith(CONTAINER_PREFIX) and built.get(c["name"]) != c
    ]
