"""Names that others know: the driver's, its API's, its labels' and its files'.

Pure. The driver's are those of NVIDIA's driver, so that workloads need not change.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from preflight_proto import names as contract

DRIVER: Final = "compute-domain.nvidia.com"
GROUP: Final = "resource.nvidia.com"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ComputeDomain"
PLURAL: Final = "computedomains"

DOMAINS: Final = f"/apis/{API_VERSION}/{PLURAL}"
TEMPLATES: Final = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
CLAIMS: Final = "/apis/resource.k8s.io/v1/resourceclaims"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"

CONTROLLER: Final = "compute-domain-controller"
"""The program, its lease, and who says its Events."""
PLUGIN: Final = "compute-domain-kubelet-plugin"

FINALIZER: Final = f"{GROUP}/computeDomain"
LABEL: Final = FINALIZER
"""Finalizer and label have one name; the label's value is the ComputeDomain's uid."""
GRANTED: Final = "preflight.nvsentinel.nvidia.com/nvlink-cliques"
"""Annotation of a ComputeDomain: the NVLink cliques that it has for itself (`exclusiveCliques`)."""
TARGET_LABEL: Final = f"{GROUP}/computeDomainTarget"
WORKLOAD: Final = "Workload"
DAEMON: Final = "Daemon"
"""Values of that label: by the second one driver-managed mode marks its daemons' templates."""

CHANNEL_CLASS: Final = contract.CHANNEL_CLASS
CHANNEL_CONFIG: Final = "ComputeDomainChannelConfig"
DAEMON_CONFIG: Final = "ComputeDomainDaemonConfig"

DEVICE: Final = "channel-0"
DAEMON_DEVICE: Final = "daemon-0"
DEVICE_NODE: Final = "/dev/nvidia-caps-imex-channels/channel0"
MAJOR_NAME: Final = "nvidia-caps-imex-channels"
"""Under this name the NVIDIA driver has the channels' major in /proc/devices."""
OLDEST_DRIVER: Final = "570.158.01"

CDI_KIND: Final = f"k8s.{DRIVER}/claim"
CDI_PREFIX: Final = f"k8s.{DRIVER}-claim_"

_LABEL_1123: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PART: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
"""Between dots Kubernetes takes more characters than a label of DNS has."""
_UID: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?")


def namespaced(collection: str, namespace: str, name: str = "") -> str:
    """The path of ``collection`` in a namespace, or of its object ``name`` there."""
    group, _, plural = collection.rpartition("/")
    return f"{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def fits_as_namespace(text: str) -> bool:
    """Tell whether ``text`` can be a namespace (RFC 1123 label)."""
    return _LABEL_1123.fullmatch(text) is not None


def fits_as_name(text: str) -> bool:
    """Tell whether ``text`` can name a claim or a node (RFC 1123 subdomain)."""
    return len(text) <= 253 and all(_PART.fullmatch(part) for part in text.split("."))


def fits_as_uid(text: str) -> bool:
    """Tell whether ``text`` can be a uid that is part of a file's name and of a CDI device's."""
    return _UID.fullmatch(text) is not None and ".." not in text


def cdi_device(uid: str) -> str:
    """The CDI device of the claim ``uid``, within :data:`CDI_KIND`."""
    return f"{uid}-{DEVICE}"


def cdi_id(uid: str) -> str:
    """The device in full, as the kubelet passes it on to the container runtime."""
    return f"{CDI_KIND}={cdi_device(uid)}"


def cdi_file(uid: str) -> str:
    """The name of the file that describes it."""
    return f"{CDI_PREFIX}{uid}.json"


def slice_name(node: str) -> str:
    """The name of a node's ResourceSlice; a long one is cut, and has a hash of the node."""
    name = f"{node}-{DRIVER}"
    if len(name) <= 253:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]
    return f"{node[: 253 - len(DRIVER) - len(digest) - 2].rstrip('.-')}-{digest}-{DRIVER}"
