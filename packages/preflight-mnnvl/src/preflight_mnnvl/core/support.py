"""The support of multi-node NVLink: facts of the cluster and the configuration make one
answer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from preflight_mnnvl.api.names import COMPUTE_DOMAIN_GROUP, ENABLED, FABRIC_LABEL
from preflight_mnnvl.config import Config

__all__ = ["CHANNEL_CLASS", "ClusterFacts", "Support", "judge", "served_claims", "served_domains"]

CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"
"""The device class of the driver's own claim templates."""
_DOMAINS: Final[dict[str, tuple[str, ...]]] = {
    "driver": ("v1beta1",),
    "literal": ("v1beta1", "v1alpha1"),
}
"""Versions of ComputeDomain that we know, best first."""
_CLAIMS: Final = ("v1", "v1beta2", "v1beta1")
_INSTEAD: Final = f"install NVIDIA's DRA driver, or remove {ENABLED}"


class ClusterFacts(NamedTuple):
    """The cluster as it is seen; None is what has not been asked yet.

    ``domains``, ``claims``: the served versions of computedomains and of resourceclaims, empty
    where none is. ``device_class``: the class of the driver's templates exists. ``fabric_nodes``:
    nodes with a fabric's label.
    """

    domains: tuple[str, ...] | None = None
    claims: tuple[str, ...] = ("v1",)
    device_class: bool | None = None
    fabric_nodes: int | None = None


class Support(NamedTuple):
    """``state``: `unknown` is a cluster that has not been asked yet. ``why``: for what is not
    supported, one sentence without its end. ``domain_version``, ``claim_version``: those to write.
    ``warnings``: what hardware says, which is no reason to refuse."""

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


def served_domains(mode: Literal["driver", "literal"]) -> Callable[[ClusterFacts], str]:
    """From facts to the version of ComputeDomain that is read and written; empty where none that we
    know is served.
    """
    return lambda facts: next(
        (version for version in _DOMAINS[mode] if version in (facts.domains or ())), ""
    )


def served_claims(facts: ClusterFacts) -> str:
    """The version of resourceclaims and their templates that is read and written; empty where none
    that we know is served.
    """
    return next((version for version in _CLAIMS if version in facts.claims), "")


def judge(facts: ClusterFacts, config: Config) -> Support:
    """Judge what can be had."""
    if config.feature == "off":
        return Support(
            "off",
            f'MNNVL cannot be had: it is switched off here (feature: "off"); set it to "auto", or remove {ENABLED}',
        )
    if facts.domains is None:
        return Support(
            "unknown",
            "MNNVL cannot be had yet: the API server has not said what it serves; this is tried again",
        )
    known = _DOMAINS[config.mode]
    version = served_domains(config.mode)(facts)
    if not facts.domains:
        return Support(
            "unsupported",
            f"MNNVL cannot be had: this cluster serves no computedomains.{COMPUTE_DOMAIN_GROUP}; {_INSTEAD}",
        )
    if not version:
        return Support(
            "unsupported",
            f"MNNVL cannot be had: this cluster serves computedomains.{COMPUTE_DOMAIN_GROUP} as {', '.join(facts.domains)}, "
            f"and mode {config.mode} knows {', '.join(known)}; {_INSTEAD}",
        )
    claim = served_claims(facts)
    if config.mode == "literal" and not claim:
        return Support(
            "unsupported",
            f"MNNVL cannot be had: this cluster serves no resourceclaims that we know ({', '.join(_CLAIMS)}); enable dynamic resource allocation, or remove {ENABLED}",
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
    return Support("supported", "", version, claim, facts.fabric_nodes, tuple(warnings))
