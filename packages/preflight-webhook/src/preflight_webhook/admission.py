"""The page: one pod's way through admission. Every step adds to one :class:`~.decision.Decision`.

reserved names → claims → identity → facts → devices → checks → inheritance → injection → patch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from preflight_proto.names import CHECKS_ANNOTATION, CONTAINER_PREFIX
from preflight_proto.stamp import Stamp

from . import patch, reserved
from .claims import Claim, Devices, Ref, detects, ref
from .claims import devices as gives_of
from .config import CheckConfig, Config
from .decision import Decision, Skip
from .detection import COMPUTE, Account, Demand, Step, demands, devices, kind, reckon
from .identity import identify, marks, ordered, stamp
from .inheritance import Settings, inheriting, legacies
from .injection import Injection, Place, Workload, has_room, inject, place
from .kept import Kept
from .objects import ClaimEntry, ClaimUse, Container, Pod
from .review import BadReview, decode_pod, decode_resources, decode_whole, decode_whole_of, encode_patch
from .selection import Refused, Situation, select
from .sources import Gang

__all__ = ["decide"]


class Facts(NamedTuple):
    """Everything about a pod without anything of ours that its decision depends on.

    The pods of one job share their facts, their gang among them, so a gang of a thousand is decided once (resources,
    environments and mounts are compared as the bytes they came in).
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
    settings: tuple[Settings, ...]  # of all containers, where any check inherits
    pull_secrets: tuple[str, ...] | None
    claims: tuple[
        tuple[str, bool, Claim | None], ...
    ]  # name in the pod, whether others may use it too, what it asks for
    confined: bool

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory."""
        raws = [raw for _, raw, _ in self.init], self.containers, *self.settings
        return 2048 + sum([len(raw) for group in raws for raw in group])


Recall = Callable[[tuple[Ref, ...]], Mapping[Ref, Claim | None] | None]
_decisions: Final[Kept[tuple[Facts, Config], Decision]] = Kept(2 * 1024 * 1024)


def decide(
    raw: bytes | bytearray,
    namespace: str,
    config: Config,
    claims: Mapping[Ref, Claim | None] | None = None,
    *,
    confined: bool = False,
    recall: Recall | None = None,
    read: Pod | None = None,
) -> Decision:
    """The decision about the pod whose JSON is ``raw`` (or the review's around it, where ``read`` is what was read of it), created in ``namespace``; not to be changed, as alike pods share it.

    ``claims``: what the pod's resource claims ask for, None for one that does not exist. Where they matter and are not given,
    ``recall`` is asked, which may know all of them; else the result is ``needs-claims``, with their names. ``confined``: the namespace's Pod Security level allows no hostPath volumes.
    Pure. Raises :class:`~.review.BadReview` when it is no pod.
    """
    pod = read or decode_pod(raw)
    if problem := reserved.misuse(pod):
        return Decision("denied", problem)
    if pod.spec.resource_claims and claims is None and detects(config):
        needs = tuple(dict.fromkeys([one for entry in pod.spec.resource_claims if (one := ref(entry))]))
        claims = recall(needs) if needs and recall is not None else None
        if needs and claims is None:
            return Decision("needs-claims", "the pod's resource claims must be known first.", needs=needs)
    known: Mapping[Ref, Claim | None] = claims or {}
    if not reserved.present(pod):
        facts = _facts(pod, namespace, config, known, confined)
        key = facts, config
        if (kept := _decisions.get(key)) is not None:
            return kept
        decision, _ = _judge(facts, config)
        return _decisions.put(key, decision, facts.size + len(decision.encoded))
    # Our own output on a second call, or somebody's forgery: taken out and built anew, never "found, so skip".
    now = decode_whole(raw) if read is None else decode_whole_of(raw)
    wanted = reserved.cleaned(now)
    facts = _facts(decode_pod(msgspec.json.encode(wanted)), namespace, config, known, confined)
    decision, injection = _judge(facts, config)
    if decision.denied:
        return decision
    if injection is not None:
        _build_into(wanted, injection)
    patched = patch.rebuilt(now, wanted)
    result = "unchanged" if injection is not None and not patched else decision.result
    warnings = [*decision.warnings, *_replaced(now, wanted)]
    return replace(decision, result=result, encoded=encode_patch(patched), warnings=warnings)


def _facts(pod: Pod, namespace: str, config: Config, claims: Mapping[Ref, Claim | None], confined: bool) -> Facts:
    spec, metadata = pod.spec, pod.metadata
    gang = identify(pod, config.gang_discovery)
    everyone = [*spec.containers, *(spec.init_containers or ())] if inheriting(config) else ()
    secrets = spec.image_pull_secrets
    return Facts(
        tuple([(c.name, bytes(c.resources), c.restart_policy) for c in spec.init_containers or ()]),
        tuple([bytes(c.resources) for c in spec.containers]),
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
        tuple([_settings(c) for c in everyone]),
        tuple([one.name for one in secrets]) if secrets is not None else None,
        tuple([_claim(entry, claims) for entry in spec.resource_claims])
        if spec.resource_claims and detects(config)
        else (),
        confined,
    )


def _settings(container: Container) -> Settings:
    raw = container.env, container.env_from, container.volume_mounts, container.security_context
    return Settings(*map(bytes, raw))


def _has_amounts(raw: bytes) -> bool:
    """Whether the pod has resources of its own: then its cost and its QoS class come from those alone."""
    own = None if raw == b"null" else decode_resources(raw)
    return own is not None and bool(own.requests or own.limits)


def _claim(entry: ClaimEntry, claims: Mapping[Ref, Claim | None]) -> tuple[str, bool, Claim | None]:
    wanted = ref(entry)
    return entry.name, entry.resource_claim_name is not None, claims.get(wanted) if wanted else None


class _Devices(NamedTuple):
    """What a pod gets. ``counts``: extended resources, ``gpus``: the GPUs among them; ``others``: what of it are no whole GPUs of
    its own."""

    counts: dict[str, int]
    gpus: dict[str, int]
    claims: tuple[str, ...]
    gpu_claims: tuple[str, ...]
    network: bool
    claimed: int | None
    others: frozenset[str]
    has_gpus: bool


def _judge(facts: Facts, config: Config) -> tuple[Decision, Injection | None]:
    if facts.windows:
        return _unchecked(facts, Decision("windows", "Windows pods are not checked."))
    if problem := _unresolved(facts, config):
        return Decision("denied", problem), None
    try:
        init = [Step(name, _demands(raw), policy == "Always") for name, raw, policy in facts.init]
        containers = [_demands(raw) for raw in facts.containers]
        resources = _names([*containers, *(step.demands for step in init)], config)
        first = _place(init, containers, resources, place(init, config.provider_init))
        found = _devices(facts, config, first.accounts)
        if not found.has_gpus:
            return _unchecked(facts, _no_gpu(config))
        situation = Situation(found.network, facts.gang is not None, facts.ordered, found.others)
        checks, skipped = select(config, facts.asked, situation)
        behind = any(check.placement == "last" for check in checks)
        last = _place(init, containers, resources, len(init)) if behind else first
        if not found.gpu_claims:
            checks, skipped = _with_room(checks, skipped, first, last, found.gpus)
    except Refused as error:
        return Decision("denied", str(error)), None
    except BadReview:  # a ValueError too, but the API server's to hear of
        raise
    except ValueError as error:
        return Decision("denied", f"spec: {error}."), None
    gpus = {**found.gpus, **{f"claim {name}": 1 for name in found.gpu_claims}}
    if not checks:
        told = Decision("no-checks", "no configured check applies to this pod.", skipped=skipped, gpus=gpus)
        return _unchecked(facts, told)
    if facts.confined and config.on_pod_security_conflict == "deny":
        return Decision("denied", _CONFINED), None
    member = _stamp(facts, takes_part=any(check.gang_wide for check in checks))
    gets = _who_gets_gpus(facts, init, containers, found) if facts.settings else ()
    legacy = legacies(facts.settings, gets, len(containers), config)
    workload = Workload(
        devices=found.counts,
        gpus=found.gpus,
        claims=found.claims,
        claimed=found.claimed,
        compute_of=0 if facts.own_resources else len(init) + len(containers),
        gang_config_map=member.config_map if member is not None and member.takes_part else None,
        inherited=legacy.by_check,
        ipc_lock=legacy.ipc_lock,
        pull_secrets=frozenset(facts.pull_secrets or ()),
        reports=not facts.confined,
    )
    injection = inject(config, checks, workload, first, last)
    counts = ", ".join(name if name.startswith("claim ") else f"{count} {name}" for name, count in gpus.items())
    message = f"{', '.join(check.name for check in checks)} will test {counts} before the pod starts."
    warnings = [w for check in checks if (one := legacy.by_check.get(check.name)) for w in one.warnings]
    if facts.confined:
        warnings.append(
            "the namespace's Pod Security level forbids the connector's socket: checks run and report nothing"
        )
    unseen = [u for check in checks if (one := legacy.by_check.get(check.name)) for u in one.unseen]
    told = Decision(
        "injected", message, [check.name for check in checks], skipped, gpus, warnings=warnings, unseen=unseen
    )
    return _finished(facts, told, injection, member)


def _names(wanted: list[tuple[Demand, ...]], config: Config) -> list[str]:
    """The resources of interest."""
    named = {demand.resource for demands in wanted for demand in demands}
    return [*COMPUTE, *sorted([name for name in named if kind(name, config)])]


def _with_room(
    checks: list[CheckConfig], skipped: list[Skip], first: Place, last: Place, gpus: Mapping[str, int]
) -> tuple[list[CheckConfig], list[Skip]]:
    """Without the checks for which no GPU is left at their place."""
    rooms = {"first": has_room(first, gpus), "last": first is last or has_room(last, gpus)}
    if all(rooms.values()):
        return checks, skipped
    why = "sidecars that start before this check hold all GPUs of the pod"
    without = [Skip(check.name, "no-room", why) for check in checks if not rooms[check.placement]]
    return [check for check in checks if rooms[check.placement]], [*skipped, *without]


_CONFINED: Final = (
    "the namespace's Pod Security level (label pod-security.kubernetes.io/enforce) forbids the hostPath volume through which checks "
    "report; set that label to privileged, or set onPodSecurityConflict: report-off to check without reports."
)


def _no_gpu(config: Config) -> Decision:
    detection = config.gpu_detection
    wanted = f"no container requests any of {', '.join(detection.resource_names)}"
    if detection.device_classes:
        wanted += f", and no claim a device of class {' or '.join(detection.device_classes)}"
    return Decision("no-gpu", wanted + ".")


def _place(
    init: Sequence[Step], containers: Sequence[tuple[Demand, ...]], resources: Sequence[str], position: int
) -> Place:
    return Place(position, reckon(init, containers, resources, position))


def _unresolved(facts: Facts, config: Config) -> str | None:
    """Why the pod is denied for a claim that does not exist."""
    missing = [name for name, _, claim in facts.claims if claim is None]
    if not missing or config.unresolved_claims != "deny":
        return None
    return (
        f"spec.resourceClaims: what {', '.join(missing)} asks for is not known, as there is no such claim or template in the namespace; "
        "create the claim first, then the pod."
    )


def _devices(facts: Facts, config: Config, accounts: Mapping[str, Account]) -> _Devices:
    counts = devices(accounts, [name for name in accounts if name not in COMPUTE])
    own: dict[str, int] = {}
    others: set[str] = set()
    claimed: int | None = 0
    network = False
    claims, gpu_claims = [], []
    for name, count in counts.items():
        if (what := kind(name, config)) == "network":
            network = True
            continue
        own[name] = count
        if what != "gpu":  # how many devices that makes, nobody knows here
            others.add(what)
            claimed = None
    for name, shared, claim in facts.claims:
        if claim is None:
            if config.unresolved_claims == "allow":
                continue
            gives = Devices(gpu=True, network=False, gpus=None)
        else:
            gives = gives_of(claim, config)
        if gives.gpu:
            gpu_claims.append(name)
            claimed = None if claimed is None or gives.gpus is None else claimed + gives.gpus
            if shared and config.gpu_detection.shared_claims == "skip":
                others.add("shared")
        if gives.gpu or gives.network:
            claims.append(name)
        network = network or gives.network
    has_gpus = bool(own or gpu_claims)
    return _Devices(counts, own, tuple(claims), tuple(gpu_claims), network, claimed, frozenset(others), has_gpus)


def _who_gets_gpus(
    facts: Facts, init: Sequence[Step], containers: Sequence[tuple[Demand, ...]], found: _Devices
) -> tuple[bool, ...]:
    """Of each container, then of each init container."""
    gets = []
    for wanted in (*containers, *[step.demands for step in init]):
        for demand in wanted:
            if demand.resource in found.gpus and demand.request:
                gets.append(True)
                break
        else:
            gets.append(False)
    if found.gpu_claims:
        for i, raw in enumerate((*facts.containers, *[raw for _, raw, _ in facts.init])):
            gets[i] = gets[i] or any(use.name in found.gpu_claims for use in _claims_of(raw))
    return tuple(gets)


@lru_cache(maxsize=256)
def _claims_of(raw: bytes) -> tuple[ClaimUse, ...]:
    resources = decode_resources(raw)
    return tuple((resources.claims if resources is not None else None) or ())


@lru_cache(maxsize=1024)
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
        pull_secrets=facts.pull_secrets is not None,
        labels=facts.has_labels,
        annotations=facts.has_annotations,
    )
    warnings = [*([facts.gang.warning] if facts.gang and facts.gang.warning else []), *decision.warnings]
    decision = replace(decision, stamp=member, encoded=encode_patch(operations), warnings=warnings)
    return decision, injection


def _build_into(pod: dict[str, Any], injection: Injection) -> None:
    spec, metadata = pod["spec"], pod.setdefault("metadata", {})
    init = spec.get("initContainers") or []
    checked = init[: injection.position] + injection.containers + init[injection.position :] + injection.last
    spec["initContainers"] = checked
    spec["volumes"] = [*(spec.get("volumes") or []), *injection.volumes]
    if injection.pull_secrets:
        missing = [{"name": name} for name in injection.pull_secrets]
        spec["imagePullSecrets"] = [*(spec.get("imagePullSecrets") or []), *missing]
    metadata["labels"] = {**(metadata.get("labels") or {}), **injection.labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **injection.annotations}


def _replaced(now: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A warning, shown by kubectl, for each container of the user's own that had to give way."""
    built = {c.get("name"): c for c in wanted["spec"].get("initContainers") or ()}
    return [
        f'init container "{c["name"]}" was replaced: names beginning with "{CONTAINER_PREFIX}" are reserved for preflight checks'
        for c in now["spec"].get("initContainers") or ()
        if c.get("name", "").startswith(CONTAINER_PREFIX) and built.get(c["name"]) != c
    ]
