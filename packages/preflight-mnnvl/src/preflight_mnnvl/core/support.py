"""The support of multi-node NVLink: facts and configuration make one answer. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

from preflight_proto import names as contract

from preflight_mnnvl.api.annotations import Mode
from preflight_mnnvl.api.names import COMPUTE_DOMAIN_GROUP, ENABLED, FABRIC_LABEL
from preflight_mnnvl.config import Config

CHANNEL_CLASS: Final = contract.CHANNEL_CLASS
"""The device class of the driver's own claim templates."""
DOMAIN_VERSIONS: Final[dict[Mode, tuple[str, ...]]] = {
    "driver": ("v1beta1",),
    "literal": ("v1beta1", "v1alpha1"),
}
"""Versions of ComputeDomain that are known, best first."""
CLAIM_VERSIONS: Final[dict[Mode, tuple[str, ...]]] = {
    "driver": ("v1",),
    "literal": ("v1", "v1beta2", "v1beta1"),
}
"""The same of claims, their templates, and device classes."""
_INSTEAD: Final = f"install NVIDIA's DRA driver, or remove {ENABLED}"


class ClusterFacts(NamedTuple):
    """The cluster as it is seen; None is what has not been asked yet.

    ``domain``, ``claim``: the best version of computedomains and resourceclaims that is served,
    empty for none. ``device_class``: that of the driver's templates exists.
    """

    domain: str | None = None
    claim: str | None = "v1"
    device_class: bool | None = None
    fabric_nodes: int | None = None


class Support(NamedTuple):
    """``state``: `unknown` is a cluster that has not been asked yet. ``why``: one sentence without
    its end. ``domain_version``, ``claim_version``: those to write.
    """

    state: Literal["supported", "unsupported", "unknown", "off"]
    why: str = ""
    domain_version: str = ""
    claim_version: str = ""
    fabric_nodes: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether multi-node NVLink can be had now; `unknown` is no."""
        return self.state == "supported"


@lru_cache(maxsize=16)
def judge(facts: ClusterFacts, config: Config) -> Support:
    """Judge what can be had."""
    if config.feature == "off":
        return Support(
            "off",
            f'MNNVL cannot be had: it is switched off here (feature: "off"); set it to "auto", or remove {ENABLED}',
        )
    if facts.domain is None or facts.claim is None:
        return Support(
            "unknown",
            "MNNVL cannot be had yet: the API server has not said what it serves; this is tried again",
        )
    if not facts.domain:
        known = " or ".join(DOMAIN_VERSIONS[config.mode])
        return Support(
            "unsupported",
            f"MNNVL cannot be had: this cluster serves no computedomains.{COMPUTE_DOMAIN_GROUP} ({known}); {_INSTEAD}",
        )
    if config.mode == "literal" and not facts.claim:
        known = ", ".join(CLAIM_VERSIONS[config.mode])
        return Support(
            "unsupported",
            f"MNNVL cannot be had: this cluster serves no resourceclaims that we know ({known}); enable dynamic resource allocation, or remove {ENABLED}",
        )
    if config.require_fabric_nodes and facts.fabric_nodes is None:
        return Support(
            "unknown", "MNNVL cannot be had yet: the nodes have not been read; this is tried again"
        )
    if config.require_fabric_nodes and not facts.fabric_nodes:
        return Support(
            "unsupported",
            f"MNNVL cannot be had: no node carries the label {FABRIC_LABEL}, which requireFabricNodes asks for; add such nodes, or remove {ENABLED}",
        )
    warnings = []
    if facts.device_class is False and config.mode == "driver":
        warnings.append(
            f"there is no DeviceClass {CHANNEL_CLASS}: pods will wait until NVIDIA's DRA driver is there"
        )
    if facts.fabric_nodes == 0:
        warnings.append(
            f"no node carries the label {FABRIC_LABEL}: pods run without the fabric, or wait"
        )
    return Support("supported", "", facts.domain, facts.claim, facts.fabric_nodes, tuple(warnings))
