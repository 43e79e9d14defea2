"""A cluster for people: set → domain → owner → nodes → pods, with the controller's plans. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from preflight_proto import result
from preflight_proto.names import NCCL_ALLREDUCE as ALLREDUCE
from preflight_proto.names import container_name

from preflight_mnnvl.api.names import CLAIM, ONE_FABRIC, PCS_NAME
from preflight_mnnvl.api.types import ComputeDomain, Key, KubeObject, PodGang, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.fabric import WAITING, some_of
from preflight_mnnvl.core.reconcile import DomainPlan, plans
from preflight_mnnvl.core.snapshot import World
from preflight_mnnvl.core.support import Support

POD_OF = "grove.io/podclique"
"""Label of a pod: its PodClique."""
_ANSWER = 2000
"""Characters of a PodGang's annotation that are shown."""


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    node_name: str | None = None
    resource_claims: list[dict[str, object]] | None = None


class _Ended(msgspec.Struct, rename="camel", gc=False):
    exit_code: int = 0
    message: str = ""


class _State(msgspec.Struct, gc=False):
    terminated: _Ended | None = None


class _InitStatus(msgspec.Struct, gc=False):
    name: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _PodStatus(msgspec.Struct, rename="camel", gc=False):
    init_container_statuses: list[_InitStatus] | None = None


class Pod(KubeObject):
    """As far as it is shown."""

    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def claims(self) -> bool:
        """Tell whether it asks for our claim."""
        return any(claim.get("name") == CLAIM for claim in self.spec.resource_claims or ())

    @property
    def measured(self) -> str:
        """The result of `nccl-allreduce` in it; empty where it has not ended."""
        containers = self.status.init_container_statuses or ()
        ended = (it.state.terminated for it in containers if it.name == container_name(ALLREDUCE))
        if (run := next(filter(None, ended), None)) is None:
            return ""
        answer = result.from_termination(ALLREDUCE, run.message, run.exit_code)
        rate = "" if answer.measured is None else f" at {answer.measured:g} GB/s"
        details = {} if isinstance(answer.details, msgspec.UnsetType) else answer.details
        network = shown(details.get("transport", ""))
        return f"{answer.outcome}{rate}{network and f' by {network}'}"


def fabric(gang: PodGang | None, pods: Sequence[Pod]) -> str:
    """The controller's answer about a PodGang, with what is known by its ``pods`` alone."""
    written = gang.metadata.annotation(ONE_FABRIC) if gang is not None else None
    answer = shown(written or WAITING, _ANSWER)
    if without := [pod.metadata.name for pod in pods if not pod.claims]:
        more = f"; {answer[4:]}" if answer.startswith("no: ") else ""
        answer = f"no: {some_of(without)} without the claim{more}"
    measured = sorted({pod.measured for pod in pods} - {""})
    return f"{answer}; {ALLREDUCE}: {' and '.join(measured)}" if measured else answer


def show(
    world: World,
    pods: Iterable[Pod],
    config: Config,
    support: Support,
    now: float,
    *,
    only: str = "",
) -> str:
    """Text, one set after the other; ``only`` the PodCliqueSet of this name."""
    wants = world.wanted()
    plan_of = plans(world, config, support, now)
    of_clique: dict[Key, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        key = (pod.metadata.namespace, pod.metadata.label(POD_OF) or "")
        of_clique.setdefault(key, []).append(pod)
    by_set: dict[Key, list[Key]] = {}
    for key in plan_of:
        domain, want = world.domains.get(key), wants.get(key)
        pcs = want.domain.pcs if want else (domain and domain.metadata.label(PCS_NAME[0])) or ""
        by_set.setdefault((key[0], pcs), []).append(key)
    lines: list[str] = []
    for (namespace, pcs), keys in sorted(by_set.items()):
        if only and pcs != only:
            continue
        gone = "" if (namespace, pcs) in world.sets else " (not there)"
        lines.append(f"PodCliqueSet {shown(namespace)}/{shown(pcs)}{gone}")
        gangs: dict[str, list[Pod]] = {}
        for key in keys:
            domain = world.domains.get(key)
            lines += _domain(key, plan_of[key], domain)
            if (want := wants.get(key)) is None:
                continue
            of_gang = gangs.setdefault(want.owner(domain), [])
            for member in want.members:
                own = of_clique.get((namespace, member.name), [])
                lines += [f"    PodClique {member.name}", *(f"      {_pod(pod)}" for pod in own)]
                of_gang += own
        lines += [
            f"  PodGang {shown(name)}, one fabric: {fabric(world.gangs.get((namespace, name)), of)}"
            for name, of in sorted(gangs.items())
        ]
    lines += [
        f"ignored  PodClique {shown(member.namespace)}/{shown(member.name)}: {member.why}"
        for member in world.members()[1]
    ]
    return "\n".join(lines or ["no domains"]) + "\n"


def _domain(key: Key, plan: DomainPlan, domain: ComputeDomain | None) -> list[str]:
    why = f"    {plan.why[:1].upper()}{plan.why[1:]}"
    lines = [f"  ComputeDomain {shown(key[1])}: {plan.state}", why]
    if domain is not None and domain.status is not None:
        nodes = [
            f"{shown(node.name)} ({shown(node.status) or 'unknown'})"
            for node in domain.status.nodes or ()
        ]
        status = shown(domain.status.status) or "no status"
        lines.append(f"    {status}; nodes: {', '.join(nodes) or 'none'}")
    return lines


def _pod(pod: Pod) -> str:
    where = f"on {shown(pod.spec.node_name)}" if pod.spec.node_name else "on no node yet"
    return f"{shown(pod.metadata.name)} {where}, {'with' if pod.claims else 'WITHOUT'} its claim"
