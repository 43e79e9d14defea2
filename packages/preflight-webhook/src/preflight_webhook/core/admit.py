"""The main flow: one pod's way through admission. Every step adds to one :class:`Decision`.

reserved names → claims → identity → facts → devices → checks → inheritance → injection → patch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from preflight_kube.admission.review import Alike, BadReview
from preflight_proto import admitted
from preflight_proto.admitted import Admitted, SeenClaim
from preflight_proto.names import (
    CHECKED_LABEL,
    CHECKS_ANNOTATION,
    CLAIMS_ANNOTATION,
    CONTAINER_PREFIX,
    GANG_VOLUME,
    NO_CHECK_APPLIES,
)
from preflight_proto.stamp import Stamp

from preflight_webhook.api.review import (
    DecodedPod,
    Encoded,
    decode_pod,
    decode_resources,
    decode_whole,
    shown,
)
from preflight_webhook.api.types import Container, Pod, ResourceRequirements, Volume
from preflight_webhook.config.config import Config
from preflight_webhook.core import limits
from preflight_webhook.core.cache import CONTAINER, ENTRY, SizedCache
from preflight_webhook.core.decision import UNKNOWN, Decision, Skip
from preflight_webhook.core.detect.devices import (
    DeviceClaim,
    PodClaim,
    PodDevices,
    Ref,
    detects,
    devices_of,
    given_by,
    ref,
    will_test,
)
from preflight_webhook.core.detect.resources import (
    COMPUTE,
    Demand,
    StartStep,
    demands,
    effective_resources,
    kind,
    unknown,
)
from preflight_webhook.core.gang import GangIdentity, identify, marks, ordered, stamp
from preflight_webhook.core.guard import reserved
from preflight_webhook.core.guard.endpoint_guard import Redirect, redirects, trusted
from preflight_webhook.core.inject import patch
from preflight_webhook.core.inject.inheritance import (
    ContainerSettings,
    EmptyVolume,
    inheriting,
)
from preflight_webhook.core.inject.injection import (
    CheckTemplate,
    Injection,
    WorkloadTraits,
    inject,
    place,
    template,
)
from preflight_webhook.core.selection import (
    PodRefused,
    forbidden,
    guarded,
    not_applicable,
    select,
)


class PodTraits(NamedTuple):
    """Facts common to pods that differ in no more than amounts and the name of their gang
    (environments and mounts are compared as the bytes they came in).
    """

    init: tuple[StartStep, ...]
    own: bytes  # its resources, where it has some of its own
    windows: bool
    asked: str | None
    volumes: int  # how many, where that is more than there may be
    in_gang: bool
    ordered: str
    settings: tuple[ContainerSettings, ...]  # of all containers, where any check inherits
    pull_secrets: tuple[str, ...]
    claims: tuple[PodClaim, ...]
    confined: bool
    empty: tuple[EmptyVolume, ...]  # where any check inherits
    redirects: tuple[Redirect, ...]
    claimed: bool  # by the annotation of deviceVariables
    profiled: bool  # by AppArmor, with a profile that would hold for checks, too


class DecisionKey(NamedTuple):
    """Everything about a pod without anything of ours that its decision depends on.

    The pods of one job share their facts, their gang among them, so a gang of a thousand is decided
    once (``resources``, of containers and then init containers, are the bytes they came in).
    """

    resources: tuple[bytes, ...]
    there: patch.Present
    namespace: str  # a gang's; without one, the same decision holds in all of them
    gang: GangIdentity | None
    traits: PodTraits


_Asked = tuple[tuple[Demand, ...], tuple[str, ...]]
"""Devices that a container asks for, and which of the pod's claims."""
_Plan = tuple[Decision, CheckTemplate | None]
"""Decision, not to be given away, and where there are checks their template, for pods that differ
in no more than CPU, memory and the name of their gang.
"""
_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a pod that shows a static one; Kubernetes takes it only with a node's name."""
_NO_CHECK_IN_A_MIRROR: Final = (
    f"metadata.annotations: {_MIRROR} is of a pod that no check is in, and it carries names that are "
    "reserved for preflight; leave these out."
)
_SHOWN: Final = (
    "the pod only shows a static pod that a kubelet runs by itself, without these checks."
)
_CLAIMS_FIRST: Final = "the pod's resource claims must be known first."
_decisions: Final[SizedCache[tuple[DecisionKey, Config], Decision]] = SizedCache(2 * 1024 * 1024)
_plans: Final[SizedCache[tuple[tuple[_Asked, ...], PodTraits, Config], _Plan]] = SizedCache(
    1024 * 1024
)
Recall = Callable[[tuple[Ref, ...]], Mapping[Ref, DeviceClaim | None] | None]


def decide(
    raw: Encoded,
    namespace: str,
    config: Config,
    claims: Mapping[Ref, DeviceClaim | None] | None = None,
    *,
    confined: bool = False,
    recall: Recall | None = None,
    read: DecodedPod | None = None,
) -> Decision:
    """The decision about the pod whose JSON is ``raw`` (``read``: what was read of it already),
    created in ``namespace``; not to be changed, as alike pods share it.

    ``claims``: what the pod's resource claims ask for, None for one that does not exist. Where they
    matter and are not given, ``recall`` is asked, which may know all of them; else the result is
    ``needs-claims``, with their names. ``confined``: the namespace's Pod Security level allows no
    hostPath volumes. Pure. Raises :class:`BadReview` when it is not a pod.
    """
    read = read or DecodedPod(decode_pod(raw))
    pod, looked_up = read.pod, detects(config)
    (about, facts), ours = read.last, False
    if about[0] is not config:
        ours, mounts_ours = reserved.traces(pod)
        if pod.metadata.annotations and _MIRROR in pod.metadata.annotations:
            return Decision("denied", _NO_CHECK_IN_A_MIRROR) if ours else Decision("mirror", _SHOWN)
        problem = limits.of_pod(pod, claims=looked_up)
        if not problem and (ours or mounts_ours):
            problem = reserved.misuse(pod, config)
        if problem:
            return Decision("denied", problem)
    if claims is None and looked_up and pod.spec.resource_claims:
        needs = tuple(dict.fromkeys([of for _, of in _named(pod) if of]))
        claims = recall(needs) if needs and recall is not None else None
        if needs and claims is None:
            return Decision("needs-claims", _CLAIMS_FIRST, needs=needs)
    known: Mapping[Ref, DeviceClaim | None] = claims or {}
    if ours:
        return _rebuilt(raw, namespace, config, known, confined)
    if about != (now := (config, namespace, confined, known)):
        facts = _facts(pod, namespace, config, known, confined)
    if (decision := _decisions.get(key := (facts, config))) is None:
        decision = _judge(facts, config)
        rest = facts.traits.claims, replace(decision, encoded=b"")
        weight = _weight(facts.traits, len(facts.resources), rest)
        weight += len(raw) + len(decision.encoded)
        _decisions.put(key, decision, weight)
        if weight > Alike.LONGEST:  # what its claims ask for may be megabytes
            return decision
    read.last = now, facts
    return decision


def _weight(traits: PodTraits, containers: int, rest: object) -> int:
    """About how many bytes they take, and ``rest``."""
    objects = CONTAINER * containers + ENTRY * (len(traits.empty) + len(traits.pull_secrets))
    return 4096 + objects + len(msgspec.json.encode(rest))


def _rebuilt(
    raw: Encoded,
    namespace: str,
    config: Config,
    claims: Mapping[Ref, DeviceClaim | None],
    confined: bool,
) -> Decision:
    """The decision about a pod with our own output of a call before, or somebody's forgery: taken
    out and built anew, never "found, so skip".
    """
    now = decode_whole(raw)
    wanted = reserved.cleaned(now)
    facts = _facts(decode_pod(msgspec.json.encode(wanted)), namespace, config, claims, confined)
    decision = _judge(facts, config)
    if decision.denied:
        return decision
    wanted = reserved.accepted(patch.applied(wanted, decision.patch), now)
    patched = patch.rebuilt(now, wanted)
    result = "unchanged" if decision.encoded and not patched else decision.result
    warnings = [*decision.warnings, *_replaced(now, wanted)]
    return replace(decision, result=result, encoded=patch.encoded(patched), warnings=warnings)


def _facts(
    pod: Pod,
    namespace: str,
    config: Config,
    claims: Mapping[Ref, DeviceClaim | None],
    confined: bool,
) -> DecisionKey:
    spec, metadata = pod.spec, pod.metadata
    containers, init, secrets = spec.containers, spec.init_containers, spec.image_pull_secrets
    gang, annotations = identify(pod, config.gang_discovery), metadata.annotations or {}
    everyone = [*containers, *init] if init else containers
    inherited = everyone if inheriting(config) else ()
    named = _named(pod) if detects(config) and spec.resource_claims else ()
    # By position, as it is made for every pod: keywords would take five times as long.
    traits = PodTraits(
        tuple([StartStep(c.name, c.restart_policy == "Always") for c in init or ()]),
        bytes(spec.resources),
        spec.os is not None and spec.os.name == "windows",
        annotations.get(CHECKS_ANNOTATION) if config.pod_selection.enabled else None,
        len(spec.volumes) if spec.volumes and len(spec.volumes) > limits.ENTRIES else 0,
        gang is not None,
        ordered(pod, gang, config.gang_discovery) if gang else "",
        tuple([_settings(c) for c in inherited]),
        tuple([secret.name for secret in secrets]) if secrets else (),
        tuple([(name, of, claims.get(of) if of else None) for name, of in named]),
        confined,
        _empty(spec.volumes) if inherited and spec.volumes else (),
        redirects(pod, namespace, config),
        config.device_variables.enabled and config.device_variables.claim_annotation in annotations,
        reserved.profiled(pod),
    )
    parts = init, spec.volumes, secrets, metadata.labels, metadata.annotations
    return DecisionKey(
        tuple([bytes(c.resources) for c in everyone]),
        patch.Present(*[part is not None for part in parts]),
        namespace if gang else "",
        gang,
        traits,
    )


def _named(pod: Pod) -> list[tuple[str, Ref | None]]:
    """The claims of the pod: their names in it, and which they are."""
    return [
        (entry.name, ref(entry.resource_claim_name, entry.resource_claim_template_name))
        for entry in pod.spec.resource_claims or ()
    ]


def _empty(volumes: Sequence[Volume]) -> tuple[EmptyVolume, ...]:
    """The emptyDirs; of too many volumes the pod is denied anyway."""
    if len(volumes) > limits.ENTRIES:
        return ()
    return tuple(
        [
            EmptyVolume(each.name, of.medium == "Memory")
            for each in volumes
            if (of := each.empty_dir) is not None and len(each.name) <= limits.NAME
        ]
    )


def _settings(container: Container) -> ContainerSettings:
    mounts, security = bytes(container.volume_mounts), bytes(container.security_context)
    return ContainerSettings(bytes(container.env), bytes(container.env_from), mounts, security)


def _judge(facts: DecisionKey, config: Config) -> Decision:
    traits = facts.traits
    if traits.windows:
        windows = Decision("windows", "Windows pods are not checked.")
        return _unchecked(facts, _with_claims(windows, traits.claims, config))
    try:
        return _checked(facts, trusted(config, traits.redirects))
    except BadReview:  # a ValueError too, but the API server's to hear of
        raise
    except ValueError as error:
        why = str(error) if isinstance(error, PodRefused) else f"spec: {error}."
        return Decision("denied", why)


def _checked(facts: DecisionKey, config: Config) -> Decision:
    """The decision about a pod that may get checks. Raises :class:`ValueError`."""
    traits = facts.traits
    if traits.asked is not None:
        _refuse(limits.of_asked(CHECKS_ANNOTATION, traits.asked))
    if config.gpu_detection.device_classes:  # it may be the claim that gives the pod its GPUs
        _refuse(_unresolved(traits.claims, config))
    everyone = [_asked(raw) for raw in facts.resources]
    asked = tuple([of for of, _ in everyone])
    if (plan := _plans.get(key := (asked, traits, config))) is None:
        plan = _plan(asked, traits, config)
        _with_claims(plan[0], traits.claims, config)
        entries = ENTRY * sum([len(devices) + len(claims) for devices, claims in asked])
        _plans.put(key, plan, entries + _weight(traits, len(asked), (asked, traits, plan)))
    decision, template = plan
    if template is None:
        return _unchecked(facts, decision)
    compute = [of for _, of in everyone]
    first = last = effective_resources(traits.init, compute, COMPUTE, template.position)
    if template.last != template.position:
        last = effective_resources(traits.init, compute, COMPUTE, template.last)
    member = stamp(facts.namespace, facts.gang, takes_part=GANG_VOLUME in template.volumes)
    gang_config_map = member.config_map if member is not None and member.takes_part else None
    injection = inject(template, first, last, len(asked), gang_config_map)
    return _finished(facts, decision, injection, member)


def _plan(asked: tuple[_Asked, ...], traits: PodTraits, config: Config) -> _Plan:
    """Plan for pods with these ``traits``. Raises :class:`ValueError`."""
    init, everyone = traits.init, [devices for devices, _ in asked]
    wanted = {resource for demands in everyone for resource, _, _ in demands}
    resources = sorted([name for name in wanted if kind(name, config)])
    first = effective_resources(init, everyone, resources, place(init, config.provider_init))
    devices = devices_of(first.accounts, traits.claims, config, claimed=traits.claimed)
    if not devices.of_gpus:
        strange = unknown(everyone, config)
        return _unknown(strange, config) if strange else _no_gpu(config), None
    _refuse(_unresolved(traits.claims, config))
    gang, ordered = traits.in_gang, traits.ordered
    checks, skipped = select(config, traits.asked, devices, gang=gang, ordered=ordered)
    behind = any(check.placement == "last" for check in checks)
    last = effective_resources(init, everyone, resources, len(init)) if behind else first
    gets = _who_gets_gpus(asked, devices)
    number = len(asked) - len(init)
    users = {i: step for i, step in enumerate(init) if gets[number + i]}
    checks, skipped = guarded(
        checks, skipped, devices, traits.redirects, users, first, last, config
    )
    gpus = {**devices.gpus, **{f"claim {name}": 1 for name in devices.gpu_claims}}
    if devices.annotation:
        gpus[f"claim of annotation {devices.annotation}"] = 1
    if not checks:
        why = "no configured check applies to this pod."
        return Decision("no-checks", why, skipped=skipped, gpus=gpus), None
    _refuse(forbidden(checks, config) if traits.confined else None)
    _refuse(limits.of_inherited(traits.settings, traits.volumes))
    workload = WorkloadTraits(
        traits.settings,
        gets if traits.settings else (),
        number,
        traits.empty,
        reports=config.platform_connector.enabled and not traits.confined,
        named_devices=traits.claimed
        and not devices.gpu_claims
        and {*devices.gpus} <= {config.device_variables.resource_name},
        profiled=traits.profiled,
    )
    (own, _), compute = _asked(traits.own)
    named = {of.resource: of for of in (*own, *compute)}
    laid = template(config, checks, workload, devices, (first, last), named, traits.pull_secrets)
    if traits.confined and config.platform_connector.enabled:
        laid.warnings.append(
            "the namespace's Pod Security level forbids the connector's socket: checks run and report nothing"
        )
    decision = Decision(
        "injected",
        will_test(checks, devices),
        [check.name for check in checks],
        skipped,
        gpus,
        warnings=laid.warnings,
        unseen=laid.unseen,
    )
    return decision, laid


def _refuse(why: str | None) -> None:
    if why:
        raise PodRefused(why)


def _no_gpu(config: Config) -> Decision:
    detection = config.gpu_detection
    wanted = f"no container requests any of {', '.join(detection.resource_names)}"
    if detection.device_classes:
        wanted += f", and no claim a device of class {' or '.join(detection.device_classes)}"
    if config.device_variables.enabled:
        wanted += f", and it has no annotation {config.device_variables.claim_annotation}"
    return Decision("no-gpu", wanted + ".")


def _unknown(resources: list[str], config: Config) -> Decision:
    reason = (
        f"{shown(', '.join(resources))} may be a GPU, and is not known here: name it in gpuDetection.resourceNames (a slice in migResourceNames, "
        "what pods share in sharedResourceNames), or where it is none in gpuDetection.otherResourceNames"
    )
    skipped = [Skip(check.name, UNKNOWN, reason) for check in config.checks]
    return Decision("no-checks", f"{reason}.", skipped=skipped)


def _unresolved(claims: Sequence[PodClaim], config: Config) -> str | None:
    """Why the pod is denied for a claim that does not exist."""
    unknown = [name for name, _, claim in claims if claim is None]
    if not unknown or config.unresolved_claims != "deny":
        return None
    return (
        f"spec.resourceClaims: what {', '.join(unknown)} asks for is not known, as there is no such claim or template in the namespace; "
        "create the claim first, then the pod."
    )


def _who_gets_gpus(
    asked: Sequence[tuple[tuple[Demand, ...], tuple[str, ...]]], devices: PodDevices
) -> tuple[bool, ...]:
    """Of each container, then of each init container."""
    claimed, of_gpus = {*devices.gpu_claims}, devices.gpus
    gets = [
        bool([r for r, request, _ in wanted if request and r in of_gpus])
        or not claimed.isdisjoint(claims)
        for wanted, claims in asked
    ]
    if devices.annotation and gets:
        gets[0] = True  # which the count is added to where the claim is known
    return tuple(gets)


_SMALL: Final = 1024
"""Bytes of resources that are remembered, a thousand of them; ordinary ones have two hundred."""


def _asked(raw: bytes) -> tuple[_Asked, tuple[Demand, ...]]:
    """(what a container's resources say, what of CPU and memory)."""
    return _ordinary(raw) if len(raw) <= _SMALL else _ordinary.__wrapped__(raw)


@lru_cache(maxsize=1024)
def _ordinary(raw: bytes) -> tuple[_Asked, tuple[Demand, ...]]:
    own = decode_resources(raw) or ResourceRequirements()
    amounts = demands(own)
    devices = tuple([demand for demand in amounts if demand.resource not in COMPUTE])
    compute = tuple([demand for demand in amounts if demand.resource in COMPUTE])
    return (devices, tuple([use.name for use in own.claims or ()])), compute


def _unchecked(facts: DecisionKey, decision: Decision) -> Decision:
    """A pod without checks. A gang's member is stamped all the same: the controller counts on every
    one; and what was known of its claims is written down, as they may have changed when it is
    scheduled. GPUs that none of the checks can test have not escaped: the controller's audit need
    not count their pod, which is marked."""
    marked = decision.gpus and not_applicable(decision.skipped)
    added = Injection(labels={CHECKED_LABEL: NO_CHECK_APPLIES} if marked else {})
    if (member := stamp(facts.namespace, facts.gang, takes_part=False)) is None:
        return _finished(facts, decision, added, None)
    message = f"{decision.message[:-1]}; it is stamped as a member of the gang {member.id}."
    return _finished(facts, replace(decision, result="stamped", message=message), added, member)


def _with_claims(decision: Decision, claims: Sequence[PodClaim], config: Config) -> Decision:
    """``decision`` with what was known of the pod's claims."""
    for name, which, claim in claims:
        decision.claims[name] = SeenClaim(
            kind=which.kind if which else "",
            name=which.name if which else "",
            uid=claim.uid if claim else "",
            gpu=given_by(claim, config).gpu,
        )
    return decision


def _finished(
    facts: DecisionKey, decision: Decision, injection: Injection, member: Stamp | None
) -> Decision:
    if decision.claims:
        record = Admitted(v=admitted.VERSION, claims=decision.claims)
        injection.annotations[CLAIMS_ANNOTATION] = admitted.encode_admitted(record)
    if member is not None:
        labels, annotations = marks(facts.namespace, member)
        injection.labels.update(labels)
        injection.annotations.update(annotations)
    warnings = [*decision.warnings]
    if facts.gang and facts.gang.warning and member is not None and member.takes_part:
        warnings.insert(0, facts.gang.warning)  # nobody else waits
    encoded = patch.encoded(patch.fresh(injection, facts.there))
    return replace(decision, stamp=member, encoded=encoded, warnings=warnings)


def _replaced(now: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A warning, shown by kubectl, for each container of the user's own that had to give way."""
    built = {c.get("name"): c for c in wanted["spec"].get("initContainers") or ()}
    return [
        f'init container "{c["name"]}" was replaced: names beginning with "{CONTAINER_PREFIX}" are reserved for preflight checks'
        for c in now["spec"].get("initContainers") or ()
        if c.get("name", "").startswith(CONTAINER_PREFIX) and built.get(c["name"]) != c
    ]
