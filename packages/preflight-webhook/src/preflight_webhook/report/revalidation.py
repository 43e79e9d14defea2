"""The Job that tests a node before it gets work again, and what came of it. Pure.

The Job's pods are ordinary pods of an opted-in namespace, so the webhook gives them the checks that
every pod gets; they differ by what they tolerate, and by asking for all GPUs of the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple

import msgspec
from preflight_kube.admission.review import BadReview
from preflight_kube.api.node_health import gpus_named, makes_sick
from preflight_kube.api.quantities import UNIT, parse_quantity
from preflight_kube.api.workloads.model import map_of, maps, name_of
from preflight_proto import names
from preflight_proto.devices import GROUP, VERSIONS, request_in
from preflight_proto.result import Result, from_termination

from preflight_webhook.api.types import Metadata, Pod, PodSpec
from preflight_webhook.config.config import Config
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision
from preflight_webhook.core.detect.devices import DeviceClaim, Ref, given_by, read_claim
from preflight_webhook.core.detect.resources import kind, matches
from preflight_webhook.core.gang import identify
from preflight_webhook.core.inject.injection import SECURITY
from preflight_webhook.core.inject.patch import applied
from preflight_webhook.report.explain import worst_case_delay
from preflight_webhook.report.workloads import Object, references

LABELS: Final = {"app.kubernetes.io/component": "revalidation"}
_SCHEDULING: Final = 300
"""Seconds that the pods get to be scheduled, beside what their checks may take."""
_KEPT: Final = 24 * 3600
"""Seconds that a Job and its logs are there after its end."""
_MOST_OWN: Final = 32
"""Of a network resource of which a node has more, pods share the device, and one is enough."""
_CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_GONE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_ELSEWHERE: Final = frozenset(
    {"nodeName", "nodeSelector", "schedulingGates", "schedulingGroup", "workloadRef"}
)
"""Of a workload's spec what says where it goes, when, and with which others."""
_OF_CONTAINER: Final = "container.apparmor.security.beta.kubernetes.io/"
"""How an annotation begins that is of a container, without which a pod is refused."""
_CLAIM: Final = "gpus"
_RAISES: Final = {
    names.DCGM_DIAG: "DcgmDiagnostic",
    names.NCCL_LOOPBACK: "NCCLLoopbackTest",
    names.NCCL_ALLREDUCE: "NCCLAllReduceTest",
}
"""How the conditions begin that a check raises."""
_OURS: Final = frozenset(map(names.container_name, _RAISES))
_DID_NOT_RUN: Final = frozenset({"GPU_IN_USE", "GPU_SHARED", "GANG_SKIPPED"})
"""Codes of checks that were skipped because of others; what has nothing to test is skipped, too."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class CannotRevalidate(ValueError):
    """The node cannot be tested as it is asked for. The message is one sentence."""


class RevalidatedCheck(NamedTuple):
    """How a check ended on a node; ``result`` is None where it has not."""

    node: str
    check: str
    result: Result | None

    @property
    def outcome(self) -> str:
        """Its outcome; empty where it did not run, though there was something to test."""
        if self.result is None or self.result.code in _DID_NOT_RUN:
            return ""
        return self.result.outcome

    def __str__(self) -> str:
        if self.result is None:
            return f"{self.node}: {self.check}: has not ended"
        sentence = f"{self.node}: {self.check}: {self.result.outcome}"
        if self.result.measured is not None:
            sentence += f", {self.result.measured:g} GB/s"
        good = self.result.outcome == "passed"
        return sentence if good else f"{sentence} ({self.result.code}): {self.result.reason}"


def standing(node: Object) -> dict[str, list[str]]:
    """The conditions of our checks that speak against the node, with the GPUs that each is about:
    none where it is about the node.
    """
    return {
        condition["type"]: gpus_named(condition.get("message") or "")
        for condition in maps(node["status"].get("conditions"))
        if makes_sick(condition["type"], condition["status"])
    }


def in_words(conditions: Mapping[str, Sequence[str]]) -> str:
    """Return :func:`standing` as one sentence lists it."""
    each = (f"{kind} ({', '.join(gpus) or 'the node'})" for kind, gpus in conditions.items())
    return ", ".join(each) or "nothing"


def replaced_gpu(node: Object, asked: str) -> str:
    """The UUID as the node's conditions write it, or as it is ``asked`` for where none names it.
    Raises :class:`CannotRevalidate` where it is only a part of one that they name.
    """
    gpus = {gpu for named in standing(node).values() for gpu in named}
    if whole := [gpu for gpu in gpus if gpu.lower() == asked.lower()]:
        return whole[0]
    if parts := sorted(gpu for gpu in gpus if asked.lower() in gpu.lower()):
        raise CannotRevalidate(
            f"--replaced {asked}: is a part of {', '.join(parts)}; write the whole UUID."
        )
    return asked


def farewell(
    run: Object, node: Object, gpu: str, config: Config, claim: Object | None = None
) -> Object | None:
    """The Job that clears what stands against a GPU that was replaced, made of the Job that has
    tested the others: beside the connector, as the checks are, and for a namespace in which nothing
    is injected. None where nothing stands against it.
    """
    stands = [kind for kind, gpus in standing(node).items() if gpu in gpus]
    pairs = [
        f"{check}={kind}" for kind in stands for check in _RAISES if kind.startswith(_RAISES[check])
    ]
    if not pairs:
        return None
    template = deepcopy(run["spec"]["template"])
    patch = decided(run, claim, config).patch
    pod = applied({**template, "metadata": dict(template["metadata"])}, patch)["spec"]
    before = pod.pop("initContainers")  # the provider's may be the first of them
    checks = [each for each in before if each["name"].startswith(names.CONTAINER_PREFIX)]
    check = min(checks, key=lambda each: each["name"] not in _OURS)
    reports = (names.SOCKET_VOLUME, names.TOKEN_VOLUME, names.TMP_VOLUME)
    container = {
        **{key: check[key] for key in ("image", "imagePullPolicy", "env", "securityContext")},
        "name": "replaced",
        "command": ["python3", "-m", "preflight_proto.check.replaced", gpu, *pairs],
        "volumeMounts": [each for each in check["volumeMounts"] if each["name"] in reports],
    }
    kept = {key: pod[key] for key in pod if key not in {"resourceClaims", "affinity"}}
    volumes = [volume for volume in pod["volumes"] if volume["name"] in reports]
    spec = {**kept, "affinity": _on([node]), "containers": [container], "volumes": volumes}
    return {
        **run,
        "metadata": {"name": f"{name_of(run)}-replaced", "labels": LABELS},
        "spec": {**run["spec"], "completions": 1, "parallelism": 1, "template": {"spec": spec}},
    }


def partner_of(
    node: Object, nodes: Iterable[Object], config: Config, busy: Collection[str] = ()
) -> Object | None:
    """A node beside which a gang's check can run: ready, schedulable, without a condition that
    speaks against it, with as many GPUs; of the same instance type, and none of the ``busy`` ones,
    where there is such a one.
    """
    label = config.nccl_topology.instance_type_label

    def type_of(peer: Object) -> str:
        return str((peer["metadata"].get("labels") or {}).get(label))

    well = [
        peer
        for peer in nodes
        if name_of(peer) != name_of(node)
        and _ready(peer)
        and not peer["spec"].get("unschedulable")
        and all(taint["effect"] == "PreferNoSchedule" for taint in peer["spec"].get("taints") or ())
        and not standing(peer)
        and _counted(peer, config, "gpu") == _counted(node, config, "gpu")
    ]

    def rank(peer: Object) -> tuple[bool, bool, str]:
        return type_of(peer) != type_of(node), name_of(peer) in busy, name_of(peer)

    return min(well, key=rank, default=None)


def _asks(container: Object, config: Config) -> bool:
    """Say whether the container asks for GPUs by number."""
    own = map_of(container.get("resources"))
    asked = {*map_of(own.get("requests")), *map_of(own.get("limits"))}
    return any(kind(name, config) not in {"", "network"} for name in asked)


def holds_gpus(pod: Object, config: Config) -> bool:
    """Say whether the pod has GPUs of its node, or a claim, which may be for some."""
    spec = pod["spec"]
    return bool(spec.get("resourceClaims")) or any(_asks(c, config) for c in spec["containers"])


def with_gpus(pods: Iterable[Object], config: Config) -> Object:
    """The first pod of a workload that gets GPUs, with that container first."""

    def rank(container: Object) -> tuple[bool, bool]:
        return not _asks(container, config), not map_of(container.get("resources")).get("claims")

    ranked = [
        (pod, sorted(maps(map_of(pod.get("spec")).get("containers")), key=rank) or [{}])
        for pod in pods
    ]
    pod, containers = min(ranked, key=lambda each: rank(each[1][0]))
    return {**pod, "spec": {**map_of(pod.get("spec")), "containers": containers}}


def without_gpus(pod: Object, known: Mapping[Ref, DeviceClaim | None], config: Config) -> Object:
    """The pod without its claims for GPUs, where the Job claims those of the node; ``known``: what
    its claims ask for.
    """
    entries = maps(pod["spec"].get("resourceClaims"))
    named = zip(entries, references(pod), strict=True)
    gpus = {entry.get("name") for entry, of in named if of and given_by(known.get(of), config).gpu}

    def rest(claims: object) -> list[Object]:
        return [each for each in maps(claims) if each.get("name") not in gpus]

    first, *others = pod["spec"]["containers"]
    own = map_of(first.get("resources"))
    first = {**first, "resources": {**own, "claims": rest(own.get("claims"))}}
    spec = {"containers": [first, *others], "resourceClaims": rest(entries)}
    return {**pod, "spec": {**pod["spec"], **spec}}


def job(
    name: str,
    nodes: Sequence[Object],
    config: Config,
    like: Object | None = None,
    claim: Object | None = None,
) -> Object:
    """The Job that tests the first of ``nodes``; with a second one also what lies between them.

    ``like``: a pod whose variables, mounts, networks and devices the checks shall have; ``claim``:
    what :func:`claim_template` has made. Raises :class:`CannotRevalidate`.
    """
    if dead := [name_of(node) for node in nodes if not _ready(node)]:
        raise CannotRevalidate(
            f"Node {dead[0]} is not ready, so no pod starts there; see `kubectl describe node {dead[0]}`."
        )
    labels = dict(LABELS)
    given: Object = (like or {}).get("spec") or {}
    affinity = _on(nodes)
    if len(nodes) > 1:
        keys = config.gang_discovery.labels
        labels |= {keys.gang_id_label: name, keys.gang_size_label: str(len(nodes))}
        apart = {
            "labelSelector": {"matchLabels": dict(labels)},
            "topologyKey": "kubernetes.io/hostname",
        }
        affinity["podAntiAffinity"] = {_REQUIRED: [apart]}
    taints = [_CORDON, *(taint for node in nodes for taint in node["spec"].get("taints") or ())]
    tolerated = {(taint["key"], taint["effect"]) for taint in taints if taint["key"] not in _GONE}
    pod = {
        **{key: given[key] for key in given if key not in _ELSEWHERE},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "affinity": affinity,
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": effect}
            for key, effect in sorted(tolerated)
        ],
        "initContainers": [
            entry
            for entry in given.get("initContainers") or ()
            if matches(str(entry.get("name")), config.provider_init)
        ],
        "containers": [_container(nodes[0], config, (given.get("containers") or [{}])[0], claim)],
    }
    if claim is not None:
        entry = {"name": _CLAIM, "resourceClaimTemplateName": name}
        pod["resourceClaims"] = [*(given.get("resourceClaims") or ()), entry]
    notes = ((like or {}).get("metadata") or {}).get("annotations") or {}
    kept = {
        key: value
        for key, value in notes.items()
        if not key.startswith((names.PREFIX, _OF_CONTAINER))
        and key != config.device_variables.claim_annotation
        and not _names_gang(key, str(value), config)
    }
    longest = sum(worst_case_delay(check, config, 16) for check in config.checks)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "backoffLimit": 0,
            "completions": len(nodes),
            "parallelism": len(nodes),
            "activeDeadlineSeconds": int(longest) + _SCHEDULING,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {"metadata": {"labels": labels, "annotations": kept}, "spec": pod},
        },
    }


def _names_gang(key: str, value: str, config: Config) -> bool:
    """Tell whether a pod is in a gang by this annotation: the run is one of its own."""
    pod = Pod(spec=PodSpec(containers=[]), metadata=Metadata(annotations={key: value}))
    return identify(pod, config.gang_discovery) is not None


def claim_template(
    name: str,
    node: Object,
    devices: Mapping[str, Sequence[str]],
    config: Config,
    gpu: str,
    *,
    version: str = VERSIONS[0],
) -> Object | None:
    """The ResourceClaimTemplate of the Job's pods, for all GPUs in ``devices`` (UUIDs by driver) or
    the one ``gpu``, in the shape of ``version``; None where they are handed out by number. Raises
    :class:`CannotRevalidate`.
    """
    counted = _counted(node, config, "gpu")
    every = [uuid for uuids in devices.values() for uuid in uuids]
    gpu = next((uuid for uuid in every if uuid.lower() == gpu.lower()), gpu)
    if gpu and every and gpu not in every:
        raise CannotRevalidate(
            f"--gpu {gpu}: node {name_of(node)} has {', '.join(every)}; name one of them."
        )
    for driver, uuids in devices.items():
        if gpu in uuids or not (gpu or counted):
            request: Object = {"deviceClassName": config.gpu_detection.device_classes[0]}
            request["count"] = 1 if gpu else len(uuids)
            request["tolerations"] = [{"operator": "Exists"}]  # as of the node's own taints
            if gpu:
                expression = f'device.attributes["{driver}"].uuid == "{gpu}"'
                request["selectors"] = [{"cel": {"expression": expression}}]
            return {
                "apiVersion": f"{GROUP}/{version}",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "labels": LABELS},
                "spec": {"spec": {"devices": {"requests": [request_in(version, _CLAIM, request)]}}},
            }
    if not counted:
        known = ", ".join(
            [*config.gpu_detection.resource_names, *config.gpu_detection.device_classes]
        )
        raise CannotRevalidate(
            f"Node {name_of(node)} has no GPU to hand out ({known}), so none can be tested; see its device plugin or DRA driver."
        )
    if gpu:
        raise CannotRevalidate(
            f"--gpu {gpu}: node {name_of(node)} hands its GPUs out by number ({', '.join(counted)}), so none can be asked for; leave --gpu out, and all are tested."
        )
    return None


def decided(run: Object, claim: Object | None, config: Config) -> Decision:
    """The webhook's decision about the Job's pods; claims other than the run's own ``claim`` count
    for nothing.
    """
    mine = DeviceClaim(()) if claim is None else read_claim(claim)
    own = "" if claim is None else name_of(claim)

    def recall(refs: tuple[Ref, ...]) -> dict[Ref, DeviceClaim | None]:
        return {ref: mine if ref.name == own else DeviceClaim(()) for ref in refs}

    try:
        return decide(msgspec.json.encode(run["spec"]["template"]), "", config, recall=recall)
    except BadReview as error:
        return Decision("denied", f"{error}.")


def runs(pods: Iterable[Object], config: Config) -> list[RevalidatedCheck]:
    """How each configured check ended in the Job's pods that have it."""
    tests = []
    for pod in pods:
        statuses = maps(map_of(pod.get("status")).get("initContainerStatuses"))
        by_name = {each["name"]: (each.get("state") or {}).get("terminated") for each in statuses}
        for check in config.checks:
            if (container := names.container_name(check.name)) in by_name:
                ended = by_name[container]
                result = None
                if ended:
                    message = str(ended.get("message") or "")
                    result = from_termination(check.name, message, int(ended["exitCode"]))
                tests.append(RevalidatedCheck(str(pod["spec"].get("nodeName")), check.name, result))
    return tests


def waiting(pods: Iterable[Object]) -> list[str]:
    """Why pods are not scheduled, in the scheduler's words."""
    return [
        f"{name_of(pod)} waits: {why.get('message')}"
        for pod in pods
        for why in maps(map_of(pod.get("status")).get("conditions"))
        if (why["type"], why["status"]) == ("PodScheduled", "False")
    ]


def _on(nodes: Sequence[Object]) -> Object:
    """The affinity of pods that go to these nodes."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name_of(node)]}]}
        for node in nodes
    ]
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}


def _ready(node: Object) -> bool:
    conditions = node["status"].get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _counted(node: Object, config: Config, what: str) -> dict[str, int]:
    """How many there are of each resource that is of this kind (gpu, network)."""
    amounts = node["status"].get("allocatable") or {}
    named = {
        name: parse_quantity(amounts[name]) // UNIT
        for name in amounts
        if kind(name, config) == what
    }
    return {name: amount for name, amount in named.items() if amount}


def _container(node: Object, config: Config, like: Object, claim: Object | None) -> Object:
    """What runs when all checks have passed, and does nothing."""
    given: Object = like.get("resources") or {}
    limits: dict[str, Any] = {} if claim is not None else dict(_counted(node, config, "gpu"))
    if like:
        asked = (given.get("limits") or {}).items()
        limits |= {name: amount for name, amount in asked if kind(name, config) == "network"}
    else:
        network = _counted(node, config, "network").items()
        limits |= {name: amount if amount <= _MOST_OWN else 1 for name, amount in network}
    resources: Object = {"limits": {name: str(amount) for name, amount in limits.items()}}
    if claims := [*(given.get("claims") or ()), *([{"name": _CLAIM}] if claim is not None else ())]:
        resources["claims"] = claims
    check = min(config.checks, key=lambda each: each.name not in _RAISES)
    return {
        **{key: like[key] for key in ("env", "envFrom", "volumeMounts") if key in like},
        "name": "revalidation",
        "image": check.image,  # which the node has by then
        "imagePullPolicy": check.image_pull_policy,
        "command": ["true"],
        "resources": resources,
        "securityContext": SECURITY,
    }
