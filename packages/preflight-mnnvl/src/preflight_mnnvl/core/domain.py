"""A domain: its names, its labels, and by them whose it is. Pure.

Names are joined with dashes, as the requirement has them, so that some could be read two ways: the
clique `p-1` and replica 1 of the scaling group `p`, or the set `llm-0-pool` and the scaling group
`pool` of `llm`. A pod's claim knows nothing but a name, so where the name of a set, a scaling group
or a clique has an index among its parts, a hash says which is meant. A name is the identity of no
object all the same: the labels are, and an object with other labels is somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from preflight_mnnvl.api import names
from preflight_mnnvl.api.annotations import SCOPES, Scope, scope_of
from preflight_mnnvl.api.identity import CliqueIdentity, CliqueRefused
from preflight_mnnvl.api.types import Metadata, shown

_index_in = re.compile(r"-(?:0|[1-9][0-9]*)(?:-|\Z)", re.ASCII).search
"""Looks for an index among the parts of a name, but for its first."""


class Domain(NamedTuple):
    """One ComputeDomain: of the scope `clique` with ``clique``, of `scalingGroupReplica` with
    ``group`` and ``group_index``. ``indexed``: the name of that has an index among its parts.
    ``earlier``: with the names of release 0.2, which had a hash for the set's name alone.
    """

    scope: Scope
    pcs: str
    replica: str
    clique: str = ""
    group: str = ""
    group_index: str = ""
    indexed: bool = False
    earlier: bool = False

    @property
    def stem(self) -> str:
        """The beginning of all names of its objects, before `-cd` and `-mnnvl-claim`."""
        stem = f"{self.pcs}-{self.replica}"
        if self.scope == "clique":
            stem = f"{stem}-{self.clique}"
        elif self.scope == "scalingGroupReplica":
            stem = f"{stem}-{self.group}-{self.group_index}"
        if self.indexed and not self.earlier:
            which = "/".join((self.pcs, self.scope, self.clique, self.group))
            return f"{stem}-{names.hashed(which)}"
        # Another set may be called like what stands before an index in this set's name.
        return f"{stem}-{names.hashed(self.pcs)}" if _index_in(self.pcs) else stem

    @property
    def name(self) -> str:
        """The name of the ComputeDomain."""
        return f"{self.stem}-cd"

    @property
    def claim(self) -> str:
        """The name of the claim template, or in `literal` mode of the claim."""
        return f"{self.stem}-mnnvl-claim"


def domain_of(identity: CliqueIdentity, scope: str) -> Domain:
    """The domain of a PodClique. Raises :class:`CliqueRefused` for a bad scope, and bad names."""
    known = scope_of(scope)
    if known is None:
        raise CliqueRefused(
            f'the scope "{shown(scope, 40)}" is unknown; write one of {", ".join(SCOPES)}'
        )
    domain = Domain(known, identity.pcs, identity.replica)
    if known == "clique":
        indexed = _index_in(f"-{identity.group}-{identity.template}") is not None
        domain = domain._replace(clique=identity.clique, indexed=indexed)
    elif known == "scalingGroupReplica":
        group, indexed = identity.group, _index_in(f"-{identity.group}") is not None
        domain = domain._replace(group=group, group_index=identity.group_index, indexed=indexed)
    if problem := bad_name(domain.claim) or bad_name(domain.name):
        raise CliqueRefused(problem)
    return domain


def bad_name(name: str) -> str:
    """Why Kubernetes does not take a name, as a clause; empty where it does."""
    if len(name) > names.MOST_NAME:
        return f"the name {shown(name)} would have {len(name)} characters, more than {names.MOST_NAME}; shorten the names of set and clique"
    if not names.is_name(name):
        return f'the name "{shown(name)}" is none that Kubernetes takes; use lower-case letters, digits, "-" and "."'
    return ""


def identity_labels(domain: Domain) -> dict[str, str]:
    """The labels that say which domain it is."""
    labels = {names.PCS_NAME[0]: names.label_value(domain.pcs), names.PCS_INDEX[0]: domain.replica}
    if domain.scope == "clique":
        labels[names.CLIQUE_NAME] = names.label_value(domain.clique)
    elif domain.scope == "scalingGroupReplica":
        labels[names.PCSG_NAME[0]] = names.label_value(domain.group)
        labels[names.PCSG_INDEX[0]] = domain.group_index
    return labels


def labels_of(domain: Domain, gang: str, instance: str) -> dict[str, str]:
    """All labels of its objects; ``gang``: the PodGang that will own them."""
    return {
        **identity_labels(domain),
        names.MANAGED: "true",
        names.MANAGED_BY: names.MANAGED_BY_US,
        names.INSTANCE: names.label_value(instance),
        names.PODGANG: names.label_value(gang),
    }


def other_identity(given: Mapping[str, str] | None, domain: Domain, instance: str) -> str:
    """Whose an object of our name and the labels ``given`` is, in words; empty where it is ours."""
    labels = given or {}
    by = labels.get(names.MANAGED_BY)
    if by and by != names.MANAGED_BY_US:
        return f"is managed by {shown(by)}"
    if not by or labels.get(names.MANAGED) != "true":
        return f"does not carry the label {names.MANAGED}"
    if labels.get(names.INSTANCE) != names.label_value(instance):
        return f'belongs to the release "{shown(labels.get(names.INSTANCE, ""))}", not to "{shown(instance)}"'
    wanted = identity_labels(domain)
    for key in names.IDENTITY:
        if labels.get(key) != wanted.get(key):
            return f'is of another domain: its label {key} is "{shown(labels.get(key, ""))}", expected "{wanted.get(key, "")}"'
    return ""


def owned_by(meta: Metadata) -> str:
    """The first owner of an object that is in the way, as the end of a clause; empty for none."""
    owner = next(iter(meta.owner_references or ()), None)
    return f" and belongs to the {shown(owner.kind, 63)} {shown(owner.name)}" if owner else ""
