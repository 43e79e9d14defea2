"""Which replica a PodClique belongs to, by the requirement's labels and Grove's. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from preflight_mnnvl.api import names
from preflight_mnnvl.api.types import Metadata, shown

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class CliqueRefused(ValueError):
    """Why a PodClique cannot be admitted: one sentence without its object and its end."""


class CliqueIdentity(NamedTuple):
    """``clique``: the PodClique's name behind `{pcs}-{replica}-`. ``template``: its template's
    name. Both empty for a name that does not fit.

    ``group`` and ``group_index`` are of the scaling group, by its short name; empty for a clique
    that is in none. ``gang``, ``base``: its PodGang, and the one that PodGang builds upon; empty
    where no label says so.
    """

    pcs: str
    replica: str
    clique: str
    template: str
    group: str
    group_index: str
    gang: str
    base: str


def set_of(metadata: Metadata) -> str:
    """The PodCliqueSet that the labels name, the operator's own first; empty for none."""
    return next((value for key in reversed(names.PCS_NAME) if (value := metadata.label(key))), "")


def of_another(metadata: Metadata, set_: Metadata) -> bool:
    """Tell whether a PodClique belongs to a set of the same name before or after ``set_``.

    One of a scaling group does not say to which, but it is never older than its set.
    """
    owners = (owner for owner in metadata.owner_references or () if owner.kind == "PodCliqueSet")
    if (owner := next(owners, None)) is not None:
        return owner.name == set_.name and owner.uid != set_.uid
    return (metadata.creation_timestamp or "~") < (set_.creation_timestamp or "")


def identify(metadata: Metadata, scope: str) -> CliqueIdentity:
    """The identity of a PodClique; ``scope`` says what it needs. Raises :class:`CliqueRefused`."""
    if not metadata.name:
        raise CliqueRefused(
            "it has no name yet (generateName), and the names of its objects are made of it; give it a name"
        )
    pcs = _one(metadata, names.PCS_NAME, scope)
    replica = _index(metadata, names.PCS_INDEX, scope)
    prefix = f"{pcs}-{replica}-"
    if not metadata.name.startswith(prefix) or metadata.name == prefix:
        raise CliqueRefused(
            f'its labels say replica {replica} of "{shown(pcs)}", so its name must begin with "{shown(prefix)}"; correct the name or the labels'
        )
    clique = metadata.name.removeprefix(prefix)
    group, index = _group(metadata, prefix), ""
    if group:
        index = _index(metadata, names.PCSG_INDEX, scope)
        within = f"{group}-{index}-"
        if not clique.startswith(within) or clique == within:
            raise CliqueRefused(
                f'its labels say replica {index} of the scaling group "{shown(group)}", so its name must begin with "{shown(prefix + within)}"; '
                "correct the name or the labels"
            )
        template = clique.removeprefix(within)
    else:
        template = clique
        if scope == "scalingGroupReplica":
            raise _missing(names.PCSG_NAME, scope)
    gang = metadata.label(names.PODGANG) or ""
    if not gang:
        raise CliqueRefused(
            f"scope {scope} needs the label {names.PODGANG}, and it has none; add it, as without it nothing would own the domain"
        )
    return CliqueIdentity(
        pcs, replica, clique, template, group, index, gang, metadata.label(names.BASE_PODGANG) or ""
    )


def gang_of(identity: CliqueIdentity, scope: str) -> str:
    """The PodGang to which the domain is to belong: of a replica the one that others build upon."""
    return identity.base or identity.gang if scope == "replica" else identity.gang


def _one(metadata: Metadata, keys: tuple[str, str], scope: str) -> str:
    ours, groves = (metadata.label(key) for key in keys)
    if ours and groves and ours != groves:
        raise CliqueRefused(_contradiction(keys, ours, groves))
    if not (ours or groves):
        raise _missing(keys, scope)
    return ours or groves or ""


def _index(metadata: Metadata, keys: tuple[str, str], scope: str) -> str:
    value = _one(metadata, keys, scope)
    if not _INDEX.fullmatch(value):
        key = keys[0] if metadata.label(keys[0]) else keys[1]
        raise CliqueRefused(
            f'the label {key} is "{shown(value, 40)}", expected a whole number such as 0; correct it'
        )
    return value


def _group(metadata: Metadata, prefix: str) -> str:
    """The scaling group's short name; the operator's label has the full one."""
    short, full = (metadata.label(key) for key in names.PCSG_NAME)
    if full:
        if not full.startswith(prefix) or full == prefix:
            raise CliqueRefused(
                f'the label {names.PCSG_NAME[1]} is "{shown(full)}", expected a name that begins with "{shown(prefix)}"; correct it'
            )
        full = full.removeprefix(prefix)
    if short and full and short != full:
        raise CliqueRefused(_contradiction(names.PCSG_NAME, short, prefix + full))
    return short or full or ""


def _missing(keys: tuple[str, str], scope: str) -> CliqueRefused:
    instead = ", or choose another scope" if keys == names.PCSG_NAME else ""
    return CliqueRefused(
        f"scope {scope} needs the label {keys[0]} or {keys[1]}, and it has neither; add one of them{instead}"
    )


def _contradiction(keys: tuple[str, str], ours: str, groves: str) -> str:
    return f'the labels {keys[0]} ("{shown(ours)}") and {keys[1]} ("{shown(groves)}") contradict each other; correct one of them'
