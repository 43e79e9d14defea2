"""PodCliques that ask for the fabric, and whose pods do not get the claim: written while no webhook
answered, or older than the wish. Pure.

The wish is resolved from set, scaling group and clique, as at admission.
"""

from __future__ import annotations

from typing import Final

from preflight_mnnvl.api import names
from preflight_mnnvl.api.annotations import Newer, pod_claim, read_decision, wish_of
from preflight_mnnvl.api.identity import CliqueRefused, of_another
from preflight_mnnvl.api.types import BadObject, Metadata, PodClique, PodCliqueSet, decode_pod
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import places

__all__ = ["ANNOTATIONS", "LABELS", "asks", "lacks_claim"]

LABELS: Final = (*names.PCS_NAME, *names.PCSG_NAME)
ANNOTATIONS: Final = (*names.KEYS, names.DECISION, names.GROVE_MNNVL_GROUP)
"""What :func:`asks` reads of a PodClique."""


def lacks_claim(clique: PodClique, config: Config) -> bool:
    """Whether its pods have GPUs and no decision, or a decision and not its claim."""
    meta = clique.metadata
    if meta.going:
        return False
    try:
        made = read_decision(meta.annotation(names.DECISION))
        pod = decode_pod(clique.spec.pod_spec)
        if made is not None:
            return pod_claim(made) not in (pod.resource_claims or [])
        return bool(places(pod, config.gpu_resources, ()))
    except (BadObject, CliqueRefused, Newer):
        return meta.annotation(names.DECISION) is not None


def asks(meta: Metadata, set_: PodCliqueSet | None, config: Config) -> bool:
    """Whether a PodClique that lacks its claim is to have one."""
    if meta.annotation(names.DECISION) is not None:
        return True
    if set_ is not None and (set_.metadata.going or of_another(meta, set_.metadata)):
        return False
    wish = wish_of(meta, set_, config.mode)
    return wish.enabled and wish.group is None
