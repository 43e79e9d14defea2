"""What of an installation's nodes is wrong: rules of :mod:`.installation`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from preflight_kube.api.node_health import SICK, makes_sick
from preflight_proto import names

from preflight_cli.cluster import (
    Installation,
    Object,
    Problem,
    about,
    checks_of,
    has_gpus,
    key_of,
    labels_of,
)

_LABEL: Final = f"{names.PREFIX}gpu-health"
"""The labeler's own, unless its values name another."""
_CONNECTOR, _ENGINE = "platform-connectors", "nvidia-dcgm"


def nodes(cluster: Installation) -> Iterator[Problem]:
    """Nodes that are sick, keep a label that nobody takes away, or lack connector or hostengine."""
    patterns = next(iter(cluster.sick_conditions().values()), SICK)
    labeled = cluster.labels_nodes
    for node in cluster.of("Node"):
        name = key_of(node)[1]
        for condition in (node.get("status") or {}).get("conditions", []):
            if makes_sick(condition["type"], condition["status"], patterns):
                what = f"is sick since {condition.get('lastTransitionTime')}: {condition['type']} ({condition.get('message', '')})"
                yield Problem(f"Node {name}", what, f"kubectl describe node {name}")
        if _LABEL in labels_of(node) and cluster.parts and not labeled:
            its = "'s labeler" if "preflight-appwrapper" in cluster.parts else ""
            what = f"has the label {_LABEL} of preflight-appwrapper{its}, which is not installed: nobody takes it away"
            yield Problem(f"Node {name}", what, f"kubectl label node {name} {_LABEL}-")
    injector = cluster.config.get("preflight-injector")
    if not isinstance(injector, dict):
        return
    gpu_nodes = {key_of(node)[1] for node in cluster.of("Node") if has_gpus(node, injector)}
    if not gpu_nodes:
        return
    wanted = {}
    if (injector.get("platformConnector") or {}).get("enabled"):
        wanted[_CONNECTOR] = "no result of it is reported"
    if "dcgm-diag" in checks_of(injector):
        wanted[_ENGINE] = "dcgm-diag ends as ENGINE_UNREACHABLE"
    for name, effect in wanted.items():
        suppliers = [item for item in cluster.of("Supplier") if key_of(item)[1] == name]
        if not suppliers and name == _CONNECTOR and cluster.knows("Supplier"):
            off = cluster.setting_of("preflight-injector", "platformConnector.enabled=false")
            run = f"{off}  # or install NVSentinel"
            yield Problem(f"DaemonSet {name}", f"is not there: {effect}", run)
        for item in suppliers:
            if not cluster.knows("SupplierPod"):
                continue
            lacking = sorted(gpu_nodes - _served(cluster, item))
            if lacking:
                listed = ", ".join(lacking[:3]) + ", …" * (len(lacking) > 3)
                yield Problem(
                    about(item),
                    f"is not ready on {len(lacking)} of {len(gpu_nodes)} nodes with GPUs ({listed}): there {effect}",
                    f"kubectl -n {key_of(item)[0]} get pods -o wide --field-selector spec.nodeName={lacking[0]}",
                )


def _served(cluster: Installation, daemons: Object) -> set[str]:
    """The nodes on which a pod of the DaemonSet is ready."""
    chosen = daemons["spec"]["selector"].get("matchLabels") or {}
    return {
        str(pod["spec"].get("nodeName"))
        for pod in cluster.of("SupplierPod")
        if key_of(pod)[0] == key_of(daemons)[0] and chosen.items() <= labels_of(pod).items()
        for condition in (pod.get("status") or {}).get("conditions", [])
        if (condition["type"], condition["status"]) == ("Ready", "True")
    }
