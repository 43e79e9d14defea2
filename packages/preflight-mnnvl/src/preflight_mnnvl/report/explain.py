"""The future of a PodCliqueSet: the same decisions, on the PodCliques that Grove makes. Pure."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import yaml
from preflight_kube.api.jsonpatch import Operation, keys

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import BadObject, Metadata, PodCliqueSet, PodSpec, decode, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import claim_refs, gpu_resources, matches
from preflight_mnnvl.core.expansion import ExpandedClique, Planned, expand, nodes_needed, plan
from preflight_mnnvl.core.mutate_podclique import ClusterView, Review, ReviewAnswer, decide
from preflight_mnnvl.core.support import CHANNEL_CLASS, ClusterFacts, judge
from preflight_mnnvl.core.validate_podcliqueset import problems, surprises, warnings

MOST_PODCLIQUES: Final = 2000
MOST_DOMAINS: Final = 64
"""Domains that are written out; the others are counted."""
SERVED: Final = ClusterFacts("v1beta1")
"""A cluster with NVIDIA's DRA driver."""
Object = dict[str, Any]


class ExplainedDomain(msgspec.Struct, rename="camel"):
    """``gang``: the PodGang that will own it, by Grove's arithmetic. ``gpus``: of all its pods."""

    name: str
    claim: str
    scope: str
    gang: str
    members: list[str]
    pods: int
    gpus: int


class ExplainedClique(msgspec.Struct, rename="camel"):
    """One clique template, by its first PodClique; ``diff``: lines of a unified diff of that."""

    name: str
    podclique: str
    result: str
    message: str
    warnings: list[str]
    patch: list[Operation]
    diff: list[str]


class ExplainedSet(msgspec.Struct, rename="camel"):
    """``complete``: false where the set makes more PodCliques than were looked at."""

    name: str
    problems: list[str]
    warnings: list[str]
    nodes_needed: int
    domains: list[ExplainedDomain]
    cliques: list[ExplainedClique]
    complete: bool


def explain(
    written: Object,
    config: Config,
    nodes: int | None = None,
    facts: ClusterFacts = SERVED,
    there: Mapping[str, Metadata] = {},
    *,
    scaled: Mapping[str, int] = {},
) -> ExplainedSet:
    """What becomes of the PodCliqueSet ``written``. Raises :class:`BadObject` for what is none.

    ``nodes``: how many carry the fabric's label, where that is known; ``facts``: of its cluster;
    ``there``: by name and uid, what may have the names of its objects; ``scaled``: the replicas of
    its scaling groups.
    """
    set_ = decode(msgspec.json.encode(written), PodCliqueSet)
    support = judge(facts._replace(fabric_nodes=nodes), config)
    planned = plan(set_, config)
    templates = written["spec"]["template"]["cliques"] if set_.cliques else ()
    by_name = {template.get("name", ""): template for template in templates}
    namespace = set_.metadata.namespace or "default"
    domains: dict[str, ExplainedDomain] = {}
    cliques: dict[str, ExplainedClique] = {}
    pods = [clique.pod for clique in planned if clique.pod is not None]
    refs = [ref for pod in pods for ref in claim_refs(pod).values()]
    known = ClusterView(support, set_, True, dict.fromkeys(refs, ()), there.get)
    expanded = list(islice(expand(set_, planned, scaled), MOST_PODCLIQUES + 1))
    complete = len(expanded) <= MOST_PODCLIQUES
    needed = 0 if complete else nodes_needed(set_, planned)
    for expanded_clique in expanded[:MOST_PODCLIQUES]:
        clique = expanded_clique.planned.clique
        built = _podclique(set_.metadata.name, namespace, expanded_clique, by_name[clique.name])
        answer = decide(Review("CREATE", namespace, msgspec.json.encode(built)), config, known)
        if clique.name not in cliques:
            cliques[clique.name] = _explained(expanded_clique, built, answer)
        count = 1 if clique.spec.replicas is None else clique.spec.replicas
        needed += count if complete and expanded_clique.planned.enrolled else 0
        if (given := answer.decision) is not None:
            domain = domains.setdefault(
                given.cd, ExplainedDomain(given.cd, given.claim, given.scope, given.gang, [], 0, 0)
            )
            domain.members.append(expanded_clique.name)
            domain.pods += count
            domain.gpus += count * _gpus(expanded_clique.planned.pod, config)
    warned = warnings(set_, planned, config, support, needed)
    return ExplainedSet(
        set_.metadata.name,
        problems(set_, planned, config, support),
        list(dict.fromkeys([*warned, *surprises(set_, planned, config), *_unseen(planned)])),
        needed,
        list(domains.values()),
        list(cliques.values()),
        complete,
    )


def stored(objects: Sequence[Object]) -> list[Object]:
    """Give PodCliqueSets the claims that their pods will have, and add the driver's templates."""
    return [item for written in objects for item in _stored(written)]


def _stored(written: Object) -> list[Object]:
    try:
        explained = explain(written, Config()) if written.get("kind") == "PodCliqueSet" else None
    except BadObject:  # whoever asked says what is wrong with it
        explained = None
    if explained is None or not explained.domains:
        return [written]
    stored = copy.deepcopy(written)
    patches = {clique.name: clique.patch for clique in explained.cliques}
    cliques = stored["spec"]["template"]["cliques"]
    for i, clique in enumerate(cliques):
        patch = patches.get(clique["name"], [])
        pods = [step for step in patch if step["path"].startswith("/spec/podSpec")]
        cliques[i] = _after(clique, tuple(pods))
    namespace = written["metadata"].get("namespace")
    return [stored, *(_claim_template(domain.claim, namespace) for domain in explained.domains)]


def _claim_template(name: str, namespace: str | None) -> Object:
    request = {"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}
    return {
        "apiVersion": f"{names.RESOURCE_GROUP}/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _podclique(
    pcs: str, namespace: str, expanded: ExpandedClique, template: Mapping[str, Any]
) -> Object:
    """As Grove's operator writes it, as far as anything here reads it."""
    labels = {
        names.PCS_NAME[1]: pcs,
        names.PCS_INDEX[1]: str(expanded.replica),
        names.PODGANG: expanded.gang,
    }
    if expanded.base:
        labels[names.BASE_PODGANG] = expanded.base
    if expanded.planned.group is not None:
        labels[names.PCSG_NAME[1]] = f"{pcs}-{expanded.replica}-{expanded.planned.group.name}"
        labels[names.PCSG_INDEX[1]] = str(expanded.group_index)
    labels = {**(template.get("labels") or {}), **labels}
    metadata: Object = {"name": expanded.name, "namespace": namespace, "labels": labels}
    if template.get("annotations"):
        metadata["annotations"] = dict(template["annotations"])
    return {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodClique",
        "metadata": metadata,
        "spec": template.get("spec"),
    }


def _explained(expanded: ExpandedClique, built: Object, answer: ReviewAnswer) -> ExplainedClique:
    states = built, _after(built, answer.patch)
    before, after = (yaml.safe_dump(it, sort_keys=False).splitlines() for it in states)
    titles = f"{expanded.name} as Grove makes it", f"{expanded.name} as it is stored"
    return ExplainedClique(
        expanded.planned.clique.name,
        expanded.name,
        answer.result,
        answer.message,
        list(answer.warnings),
        list(answer.patch),
        list(difflib.unified_diff(before, after, *titles, lineterm="", n=2)),
    )


def _after(written: Object, patch: tuple[Operation, ...]) -> Object:
    """The object after a patch of ours, which sets and removes keys."""
    done = copy.deepcopy(written)
    for step in patch:
        *parents, last = keys(step["path"])
        at: Any = done
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if step["op"] == "remove":
            del at[last]
        else:
            at[last] = copy.deepcopy(step["value"])
    return done


def _gpus(pod: PodSpec | None, config: Config) -> int:
    """Whole GPUs of one pod by its containers' limits; what is no whole number counts as none."""
    containers = (pod.containers if pod else None) or ()
    amounts = [
        str(amount)
        for container in containers
        for name, amount in ((container.resources and container.resources.limits) or {}).items()
        if matches(name, gpu_resources(config))
    ]
    return sum(int(it) for it in amounts if it.isascii() and it.isdecimal() and len(it) < 6)


def _unseen(planned: Sequence[Planned]) -> list[str]:
    named = [shown(it.clique.name) for it in planned if it.pod and it.pod.resource_claims]
    why = "what their resource claims ask for is in the cluster, and was not looked up"
    return [f"{', '.join(named)}: {why}"] if named else []


def text(explained: ExplainedSet) -> str:
    """For people."""
    lines = [f"PodCliqueSet {shown(explained.name)}"]
    lines += [f"refused  {problem}" for problem in explained.problems]
    lines += [f"warning  {warning}" for warning in explained.warnings]
    if explained.domains:
        lines += [
            "",
            f"{len(explained.domains)} ComputeDomains, {explained.nodes_needed} nodes needed (one for each pod with a claim)",
        ]
    for domain in explained.domains[:MOST_DOMAINS]:
        lines.append(
            f"  {domain.name}  scope {domain.scope}, {domain.pods} pods, {domain.gpus} GPUs, owner PodGang {domain.gang}"
        )
        lines += [f"    {member}" for member in domain.members[:MOST_DOMAINS]]
    if len(explained.domains) > MOST_DOMAINS:
        lines.append(f"  and {len(explained.domains) - MOST_DOMAINS} more")
    for clique in explained.cliques:
        lines += ["", f"clique {shown(clique.name)}: {clique.result}"]
        lines += [f"  {clique.message}"] if clique.message else []
        lines += [f"  warning  {warning}" for warning in clique.warnings]
        lines += [f"  {line[:400]}" for line in clique.diff]
    if not explained.complete:
        lines += ["", f"The set makes more than {MOST_PODCLIQUES} PodCliques; these are the first."]
    return "\n".join(lines) + "\n"
