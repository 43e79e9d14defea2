"""How much later a pod runs that has a channel, on a real cluster: the chart installed, pods with
and without the claim in turn.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

from ..imex_channels import ChannelNamespace, Channels
from .load import BenchError, until


def overhead(kubeconfig: Path, pods: int) -> dict[str, Any]:
    """``pods``: of each kind. Milliseconds from a pod being bound until its container runs, as a
    watch tells them. Raises BenchError.
    """
    config.load_kube_config(str(kubeconfig))  # type: ignore[no-untyped-call]
    channels = Channels(kubeconfig)
    if not channels.nodes:
        raise BenchError(f"{kubeconfig}: no node takes pods.")
    try:
        channels.install()
        place = channels.place()
        place.ready()
        took: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(pods):
            for kind, template in (("with", "train-channel"), ("without", "")):
                took[kind].append(_started(place, f"{kind}-{number}", channels.nodes[0], template))
    finally:
        channels.remove()
    medians = {kind: statistics.median(each) for kind, each in took.items()}
    return {
        "start_with_median_ms": round(medians["with"]),
        "start_without_median_ms": round(medians["without"]),
        "start_overhead_median_ms": round(medians["with"] - medians["without"]),
    }


def _started(place: ChannelNamespace, name: str, node: str, template: str) -> float:
    seen: dict[str, float] = {}
    watch_: Any = watch.Watch
    ends = watch_()

    def follow() -> None:
        api: Any = client.CoreV1Api(client.ApiClient())
        selector = f"metadata.name={name}"
        for event in ends.stream(
            api.list_namespaced_pod, place.namespace, field_selector=selector, timeout_seconds=60
        ):
            pod, now = event["object"], time.monotonic()
            if pod.spec.node_name:
                seen.setdefault("bound", now)
            if any(status.state.running for status in pod.status.container_statuses or []):
                seen.setdefault("runs", now)
                ends.stop()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    place.pod(name, node, template, initContainers=[])
    until(lambda: "runs" in seen, f"pod {name} runs", pause=0.005)
    thread.join()
    place.delete(name)
    return (seen["runs"] - seen["bound"]) * 1000
