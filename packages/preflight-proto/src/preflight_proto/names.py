"""Every label, annotation, variable, path and reserved name that crosses a component border.

A name that two components must agree on stands here and nowhere else.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "preflight.nvsentinel.nvidia.com/"
"""Metadata under this prefix is ours: what a user writes there is untrusted and replaced."""

# --- opt-in (namespace label; pod annotation where `podSelection.enabled`)
NAMESPACE_LABEL: Final = "nvsentinel.nvidia.com/preflight"
NAMESPACE_ENABLED: Final = "enabled"
NAMESPACE_DISABLED: Final = "disabled"
CHECKS_ANNOTATION: Final = "nvsentinel.nvidia.com/preflight-checks"

# --- of preflight-gpu-scheduler: a pod with the annotation gets GPUs, be its claim there or not
GPU_CLAIM_ANNOTATION: Final = "gpu.scheduling/claim"
GPU_CLAIM_RESOURCE: Final = "gpu.scheduling/gpu"
"""By which it counts GPUs, unless its configuration names another, or none."""

# --- of preflight-computedomain, and of NVIDIA's driver: a claim of it reaches GPUs of other nodes
CHANNEL_CLASS: Final = "compute-domain-default-channel.nvidia.com"

# --- written by the webhook
CHECKED_LABEL: Final = PREFIX + "checked"
CHECKED: Final = "true"
"""Of that label: the pod carries checks."""
NO_CHECK_APPLIES: Final = "none"
"""Of that label: the pod gets GPUs, the webhook has seen it, and no configured
check can test it.
"""
GANG_LABEL: Final = PREFIX + "gang"
GANG_ANNOTATION: Final = PREFIX + "gang"
CLAIMS_ANNOTATION: Final = PREFIX + "claims"
"""What was known of the pod's resource claims at admission; see :mod:`.admitted`."""

# --- written by the gang controller
ROSTER_ANNOTATION: Final = PREFIX + "roster"
GANG_CONFIGMAP_PREFIX: Final = "preflight-"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "preflight-gang"
INSTANCE_TYPE_ANNOTATION: Final = PREFIX + "node-instance-type"
"""The node's instance type, written once the pod is bound: a container cannot read the labels of
its node.
"""
INSTANCE_TYPE_LABEL: Final = "node.kubernetes.io/instance-type"
"""Where the node has it, unless the configuration names another label."""
TOPOLOGY_ANNOTATION: Final = PREFIX + "node-topology"
"""The node's topology labels as one JSON object, empty where it has none; written together with the
instance type.
"""

# --- injected containers and volumes (reserved: rebuilt, never trusted)
CONTAINER_PREFIX: Final = "preflight-"
VOLUME_PREFIX: Final = "preflight-"
SOCKET_VOLUME: Final = "preflight-connector-socket"
TOKEN_VOLUME: Final = "preflight-connector-token"  # noqa: S105 (a volume's name)
TMP_VOLUME: Final = "preflight-tmp"
SERVICE_ACCOUNT_VOLUME: Final = "preflight-no-serviceaccount"
GANG_VOLUME: Final = "preflight-gang-config"
STATE_VOLUME: Final = "preflight-state"
NODE_VOLUME: Final = "preflight-node"
SHM_VOLUME: Final = "preflight-shm"

# --- paths inside a check's container
SOCKET_DIR: Final = "/var/run/nvsentinel"
SOCKET_URI: Final = "unix:///var/run/nvsentinel/nvsentinel.sock"
SOCKET_OFF: Final = "off"
"""In place of a socket: nothing is reported."""
TOKEN_DIR: Final = "/var/run/secrets/nvsentinel/platform-connector"  # noqa: S105 (a path)
TOKEN_PATH: Final = TOKEN_DIR + "/token"
TOKEN_AUDIENCE: Final = "platform-connector.nvsentinel.nvidia.com"  # noqa: S105 (an audience)
SERVICE_ACCOUNT_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
GANG_DIR: Final = "/etc/preflight"
ROSTER_FILE: Final = "roster"
TOPOLOGY_FILE: Final = "node-topology"
"""In the gang folder, beside the roster: what :data:`TOPOLOGY_ANNOTATION` says."""
STATE_DIR: Final = "/var/lib/preflight"
NODE_DIR: Final = "/etc/preflight-node"
INSTANCE_TYPE_PATH: Final = NODE_DIR + "/instance-type"
TOPOLOGY_PATH: Final = NODE_DIR + "/" + TOPOLOGY_FILE
"""What the pod's annotations of the same meaning say, as files."""
TOPOLOGY_FILES_DIR: Final = "/opt/nvsentinel/nccl-topologies"
"""NCCL's topology files, in the images of the NCCL checks."""
USER_TOPOLOGY_DIR: Final = "/etc/preflight-topology"
"""The workload's own topology file, in the NCCL checks: at the workload's path it could stand in
for a file of the check's image.
"""
SHM_DIR: Final = "/dev/shm"  # noqa: S108 (NCCL's)
RESULT_PATH: Final = "/dev/termination-log"

# --- environment of a check
ENV_CONNECTOR_SOCKET: Final = "PLATFORM_CONNECTOR_SOCKET"
ENV_CONNECTOR_TOKEN_PATH: Final = "PLATFORM_CONNECTOR_TOKEN_PATH"  # noqa: S105 (a variable's name)
ENV_DCGM_LEVEL: Final = "DCGM_DIAG_LEVEL"
ENV_DCGM_HOSTENGINE: Final = "DCGM_HOSTENGINE_ADDR"
ENV_LOOPBACK_THRESHOLD: Final = "NCCL_LOOPBACK_THRESHOLD_GBPS"
ENV_ALLREDUCE_THRESHOLD: Final = "NCCL_ALLREDUCE_THRESHOLD_GBPS"
ENV_GANG_TIMEOUT: Final = "GANG_TIMEOUT"
ENV_CHECK_TIMEOUT: Final = "CHECK_TIMEOUT"
ENV_POD_NAME: Final = "MY_POD_NAME"
ENV_NODE_NAME: Final = "NODE_NAME"
ENV_NODE_IP: Final = "NODE_IP"
ENV_POD_UID: Final = "POD_UID"
ENV_POD_IP: Final = "POD_IP"
ENV_EXPECTED_GPUS: Final = "EXPECTED_GPUS"
ENV_PROCESSING_STRATEGY: Final = "PROCESSING_STRATEGY"
ENV_GATE: Final = "GATE"
ENV_ON_INCONCLUSIVE: Final = "ON_INCONCLUSIVE"
ENV_EXIT_FAILED: Final = "EXIT_CODE_FAILED"
ENV_EXIT_PEER_FAILED: Final = "EXIT_CODE_PEER_FAILED"
ENV_EXIT_INCONCLUSIVE: Final = "EXIT_CODE_INCONCLUSIVE"
ENV_GANG_CONFIG_DIR: Final = "GANG_CONFIG_DIR"
ENV_STATE_DIR: Final = "PREFLIGHT_STATE_DIR"
ENV_RESULT_PATH: Final = "PREFLIGHT_RESULT_PATH"
ENV_INSTANCE_TYPE_PATH: Final = "NODE_INSTANCE_TYPE_PATH"
ENV_TOPOLOGY_PATH: Final = "NODE_TOPOLOGY_PATH"
ENV_TOPOLOGY_DIR: Final = "PREFLIGHT_TOPOLOGY_DIR"
ENV_TOPOLOGY_MAP: Final = "PREFLIGHT_TOPOLOGY_MAP"
"""Topology files by instance type: `type=file,…`."""
ENV_USER_TOPOLOGY: Final = "PREFLIGHT_USER_TOPOLOGY"
"""Where the workload itself has the file that NCCL_TOPO_FILE names; for people."""
ENV_TOPOLOGY_FALLBACK: Final = "PREFLIGHT_TOPOLOGY_FALLBACK"
"""`false`: an instance type without a topology file is inconclusive, instead of left to NCCL's own
detection.
"""

# --- the built-in checks
DCGM_DIAG: Final = "dcgm-diag"
NCCL_LOOPBACK: Final = "nccl-loopback"
NCCL_ALLREDUCE: Final = "nccl-allreduce"


def container_name(check: str) -> str:
    """The init container that runs ``check``; it is also the HealthEvent's ``agent``."""
    return CONTAINER_PREFIX + check
