"""A PodCliqueSet's templates: what each asks for, and what Grove will make of them. Pure.

That is for telling people beforehand; what is decided goes by the labels of what Grove made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight_mnnvl.api.annotations import FabricRequest, Scope, resolve, scope_of
from preflight_mnnvl.api.identity import CliqueRefused
from preflight_mnnvl.api.types import BadObject, Clique, Group, PodCliqueSet, PodSpec, decode_pod
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import claims_of, places

SET_PATH = "metadata"


class Planned(NamedTuple):
    """One clique template. ``gpus``: None where a claim may give them, which only the cluster
    knows. ``scope``: None for a bad one. ``pod``: None where ``problem`` says why it is unreadable.
    ``layers``: paths of the clique, its group and the set.
    """

    path: str
    clique: Clique
    group: Group | None
    wish: FabricRequest
    scope: Scope | None
    pod: PodSpec | None
    gpus: bool | None
    problem: str
    layers: tuple[str, str, str]

    @property
    def enrolled(self) -> bool:
        """Tell whether its pods surely get a claim, if nothing refuses them."""
        return self.wish.enabled and bool(self.gpus)


class ExpandedClique(NamedTuple):
    """A PodClique as Grove will make it: in ``gang``, which builds upon ``base`` where it does."""

    name: str
    replica: int
    planned: Planned
    group_index: int | None
    gang: str
    base: str


def plan(set_: PodCliqueSet, config: Config) -> list[Planned]:
    """Each clique template with the annotations in force."""
    groups = set_.grouped()
    return [
        _planned(set_, i, clique, groups.get(clique.name), config)
        for i, clique in enumerate(set_.cliques)
    ]


def _planned(set_: PodCliqueSet, i: int, clique: Clique, at: int | None, config: Config) -> Planned:
    path, group = f"spec.template.cliques[{i}]", None if at is None else set_.groups[at]
    called = (path, f"spec.template.podCliqueScalingGroups[{at}]", SET_PATH)
    grouped, mode = group is not None, config.mode
    wish = resolve(
        clique.annotations, group, set_.metadata, grouped=grouped, mode=mode, called=called
    )
    pod: PodSpec | None = None
    gpus: bool | None = None
    problem = ""
    if wish.enabled:
        try:
            pod = decode_pod(clique.spec.pod_spec)
            gpus = bool(places(pod, config, ()))
            if not gpus and any(claims_of(place.container) for place in pod.everyone()):
                gpus = None
        except BadObject as error:
            problem = f"{path}.spec: {error}; correct it"
        except CliqueRefused as error:
            problem = str(error).replace("spec.podSpec", f"{path}.spec.podSpec", 1)
    return Planned(path, clique, group, wish, scope_of(wish.scope), pod, gpus, problem, called)


def expand(
    set_: PodCliqueSet, planned: list[Planned], scaled: Mapping[str, int] = {}
) -> Iterator[ExpandedClique]:
    """The PodCliques that Grove makes for the set as it is written; a set may ask for billions.

    ``scaled``: by name, the replicas of scaling groups that are there: what the set says of them
    counts at their creation alone.
    """
    for replica in range(_count(set_.spec.replicas or 0)):
        base = f"{set_.metadata.name}-{replica}"
        for template in planned:
            name, group = template.clique.name, template.group
            if group is None:
                yield ExpandedClique(f"{base}-{name}", replica, template, None, base, "")
                continue
            least = _count(group.min_available)
            for index in range(scaled.get(f"{base}-{group.name}", _count(group.replicas))):
                full, gang, of = f"{base}-{group.name}-{index}-{name}", base, ""
                if index >= least:
                    gang, of = f"{base}-{group.name}-{index - least}", base
                yield ExpandedClique(full, replica, template, index, gang, of)


def nodes_needed(set_: PodCliqueSet, planned: list[Planned]) -> int:
    """Pods with a claim of ours, and so nodes: a node has one channel, and gives it to one pod."""
    return _count(set_.spec.replicas or 0) * sum(
        _count(it.group.replicas if it.group else 1) * _count(it.clique.spec.replicas)
        for it in planned
        if it.enrolled
    )


def _count(value: int | None) -> int:
    """Grove's default of a count is 1, but for the replicas of a set: of these it is 0."""
    return 1 if value is None else max(0, value)
