"""Events on pods and nodes, each said once: its name follows from what it says, so whoever leads
next does not say it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from preflight_kube.client.client import Client, Conflict, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.events import Regarding, event, timestamp

from preflight_gpu_scheduler.api.gpu_node_status import CONFLICT_DRA
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.core.leases import Taken

__all__ = ["GpuEventRecorder", "relocked", "shares"]

log = get_logger(__name__)
COMPONENT: Final = "gpu-scheduler-controller"


class GpuEventRecorder:
    """What cannot be written is logged, and nothing else suffers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of_pod(self, pod: Pod, reason: str, message: str, good: bool = False) -> None:
        """An Event on ``pod``; ``good``: Normal, else Warning."""
        about = pod.metadata
        await self._say(
            Regarding("v1", "Pod", about.name, about.uid, about.namespace), reason, message, good
        )

    async def of_node(self, node: Node, reason: str, message: str) -> None:
        """A Warning on ``node``."""
        await self._say(
            Regarding("v1", "Node", node.metadata.name, node.metadata.uid), reason, message, False
        )

    async def _say(self, regarding: Regarding, reason: str, message: str, good: bool) -> None:
        made = event(
            COMPONENT,
            regarding,
            about=f"{reason} {message}",
            good=good,
            reason=reason,
            message=message,
            now=timestamp(datetime.now(UTC)),
        )
        try:
            await self._client.create(
                f"/api/v1/namespaces/{made['metadata']['namespace']}/events", made
            )
        except Conflict:
            pass  # it was said before
        except KubeError as error:
            log.warning("no Event", about=regarding.name, reason=reason, error=str(error))


def shares(conflicts: Sequence[str]) -> str:
    """Why a node with these conflicts takes no pods of ours."""
    who = "a DRA driver" if set(conflicts) == {CONFLICT_DRA} else "a device plugin"
    return f"{who} hands out the GPUs of this node, too: no pod with a GpuClaim is placed here; take it off this node"


def relocked(
    node: str, taken: Taken, lease: Callable[[str], Lease | None]
) -> Iterator[tuple[str, str]]:
    """Reason and message for what came of leases that were lost. ``lease``: as a mirror has it."""
    if made := ", ".join(sorted(taken.created)):
        said = f"somebody deleted Lease {made}, which locks its GPU; it is made again"
        yield "GpusLockedAgain", said
    if taken.broken:
        said = f"the Lease of a GPU that it has of {node} is lost and cannot be made again, so no"
        yield "GpusNotLocked", f"{said} pod is placed there: {taken.broken}"
    for need in taken.busy:
        other = lease(need.name)
        who = "/".join(other.pod) if other is not None and other.pod is not None else "another pod"
        said = f"GPU {need.gpu} of {node} is its own by its Binding, and Lease {need.name} is"
        yield "GpusNotLocked", f"{said} {who}'s; delete one of the two pods"
