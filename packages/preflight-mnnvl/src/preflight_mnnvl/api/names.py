"""Every annotation, label, group and limit that crosses a border, once. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

GROVE_GROUP: Final = "grove.io"
SCHEDULER_GROUP: Final = "scheduler.grove.io"
COMPUTE_DOMAIN_GROUP: Final = "resource.nvidia.com"
RESOURCE_GROUP: Final = "resource.k8s.io"

ENABLED: Final = "grove.io/mnnvl-enabled"
SCOPE: Final = "grove.io/mnnvl-scope"
DEVICE_CLASS: Final = "grove.io/mnnvl-device-class"
KEYS: Final = (ENABLED, SCOPE, DEVICE_CLASS)
"""A user's annotations, each of the three by itself."""
GROVE_MNNVL_GROUP: Final = "grove.io/mnnvl-group"
"""Grove's own wish for multi-node NVLink, which excludes ours."""
ADOPTED: Final = "grove.io/mnnvl-resources-adopted"
"""Annotation of a PodGang to which all of its domains belong."""
ONE_FABRIC: Final = "grove.io/mnnvl-one-fabric"
"""The same, whether its pods share one fabric, and why. Grove keeps what has its own prefix."""
DECISION: Final = "mnnvl.nvsentinel.nvidia.com/domain"
"""Annotation of a PodClique: what was decided at its creation (see :mod:`.decision`)."""
RECREATED: Final = "mnnvl.nvsentinel.nvidia.com/recreated"
"""Annotation of a ComputeDomain: the uid of the lost one that it replaces, or "unknown"."""

CLAIM: Final = "mnnvl"
"""Our entry among a pod's resource claims, and the request of a claim in `literal` mode."""
GROVE_CLAIM: Final = "mnnvl-claim"
"""The entry that Grove's own feature adds."""
DEFAULT_DEVICE_CLASS: Final = "compute-domain.nvidia.com"

# The labels of the requirement, and beside each the one that Grove's operator writes.
PCS_NAME: Final = ("grove.io/pcs-name", "app.kubernetes.io/part-of")
PCS_INDEX: Final = ("grove.io/pcs-replica-index", "grove.io/podcliqueset-replica-index")
PCSG_NAME: Final = ("grove.io/pcsg-name", "grove.io/podcliquescalinggroup")
PCSG_INDEX: Final = ("grove.io/pcsg-replica-index", "grove.io/podcliquescalinggroup-replica-index")
PODGANG: Final = "grove.io/podgang"
BASE_PODGANG: Final = "grove.io/base-podgang"
CLIQUE_NAME: Final = "grove.io/clique-name"
MANAGED: Final = "grove.io/mnnvl-managed"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_US: Final = "preflight-mnnvl"
INSTANCE: Final = "app.kubernetes.io/instance"
"""The release that made an object: two of them in one cluster do not take each other's."""

TEMPLATE_OF: Final = "resource.nvidia.com/computeDomain"
"""Label of a claim template: the uid of the ComputeDomain for which the driver made it."""
IDENTITY: Final = (PCS_NAME[0], PCS_INDEX[0], CLIQUE_NAME, PCSG_NAME[0], PCSG_INDEX[0])
"""The labels that say which domain an object is of."""
READ_LABELS: Final = (MANAGED, MANAGED_BY, INSTANCE, PODGANG, *IDENTITY, TEMPLATE_OF)
"""All that is read of a ComputeDomain, claim template or claim."""
FABRIC_LABEL: Final = "nvidia.com/gpu.clique"
"""Label of a node: which NVLink fabric it is part of."""

MOST_NAME: Final = 253
"""Characters of an object's name."""
MOST_LABEL: Final = 63
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def claim_of(domain: str) -> str:
    """The name of the claim or claim template beside the ComputeDomain of this name."""
    return f"{domain.removesuffix('-cd')}-mnnvl-claim"


def domain_of_claim(claim: str) -> str:
    """The name of the ComputeDomain beside the claim or claim template of this name."""
    return f"{claim.removesuffix('-mnnvl-claim')}-cd"


def is_name(text: str) -> bool:
    """Tell whether Kubernetes takes ``text`` as an object's name: a DNS subdomain (RFC 1123)."""
    return len(text) <= MOST_NAME and _SUBDOMAIN.fullmatch(text) is not None


def hashed(text: str) -> str:
    """Ten hexadecimal digits that stand for ``text``."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:10]


def label_value(text: str) -> str:
    """``text`` as the value of a label; what cannot be one is kept apart by its hash."""
    if len(text) <= MOST_LABEL and (not text or _LABEL.fullmatch(text)):
        return text
    kept = re.sub(r"[^-A-Za-z0-9_.]", "-", text)[: MOST_LABEL - 11].strip("-._")
    return f"{kept or 'x'}-{hashed(text)}"
