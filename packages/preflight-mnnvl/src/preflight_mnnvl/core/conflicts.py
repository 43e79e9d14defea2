"""What a pod's template may not bring along with our claim. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from preflight_mnnvl.api.identity import CliqueRefused
from preflight_mnnvl.api.names import CLAIM, ENABLED, GROVE_CLAIM, GROVE_MNNVL_GROUP
from preflight_mnnvl.api.types import PodSpec, shown
from preflight_mnnvl.core.gpus import ClaimRef, claim_refs, matches

__all__ = ["refuse_claims", "refuse_group"]

_CHANNELS = ("compute-domain-*", "compute-domain.*")


def refuse_group(group: tuple[str, str] | None) -> None:
    """``group``: the value in force and where it stands. Grove's own feature and ours would put two
    claims into a pod.

    Raises :class:`~.identity.CliqueRefused`.
    """
    if group is not None:
        raise CliqueRefused(
            f'{GROVE_MNNVL_GROUP} is "{shown(group[0], 63)}" at {group[1]} while {ENABLED} is "true", and only one of the two can be had; remove one'
        )


def refuse_claims(
    pod: PodSpec,
    ours: Mapping[str, str] | None,
    classes: Mapping[ClaimRef, Collection[str]],
    path: str = "spec.podSpec",
) -> None:
    """Refuse claims that cannot stand beside ours, which is ``ours`` where it is known. Raises
    :class:`~.identity.CliqueRefused`.
    """
    refs = claim_refs(pod)
    for i, entry in enumerate(pod.resource_claims or ()):
        where, name = f"{path}.resourceClaims[{i}]", entry.get("name")
        if name == CLAIM:
            if ours is None or dict(ours) != entry:
                raise CliqueRefused(
                    f'{where} is called "{CLAIM}", which is the name of the claim that is added here; rename it'
                )
            continue
        if name == GROVE_CLAIM:
            raise CliqueRefused(
                f'{where} is "{GROVE_CLAIM}" of Grove\'s own feature, and a node has one channel for a pod; remove it, or {ENABLED}'
            )
        ref = refs.get(name) if isinstance(name, str) else None
        for one in classes.get(ref, ()) if ref else ():
            if matches(one, _CHANNELS):
                raise CliqueRefused(
                    f'{where} ("{shown(str(name), 63)}") asks for a device of class "{shown(one)}", and a pod cannot have two channels of a node; '
                    f"remove it, or {ENABLED}"
                )
