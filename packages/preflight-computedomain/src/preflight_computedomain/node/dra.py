"""The kubelet's service for DRA drivers, v1 and v1beta1: messages to claims, answers to messages.

The two versions have the same messages. Every claim of a call has an entry in its answer, also an
empty one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from preflight_computedomain._generated.dra import (
    Claim,
    Device,
    NodePrepareResourceResponse,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from preflight_computedomain.api.names import DRIVER
from preflight_computedomain.api.wire import TEXT, Shape
from preflight_computedomain.core.claims import KubeletClaim
from preflight_computedomain.metrics import OPERATIONS, PREPARE, UNPREPARE, PluginMetrics
from preflight_computedomain.node.grpc_server import Method, unary
from preflight_computedomain.node.prepare import ClaimAnswer, ClaimPreparer

__all__ = ["VERSIONS", "service_name", "services"]

VERSIONS: Final = ("v1", "v1beta1")
_REQUEST: Final[Shape] = {1: {1: TEXT, 2: TEXT, 3: TEXT}}
"""Of both requests: claims, each with namespace, uid and name."""


def service_name(version: str) -> str:
    """The full name of the service."""
    return f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"


def services(page: ClaimPreparer, metrics: PluginMetrics) -> dict[str, dict[str, Method]]:
    """What the plugin's socket serves."""

    async def prepare(request: NodePrepareResourcesRequest) -> NodePrepareResourcesResponse:
        if not request.claims:  # as the liveness probe asks: no call of the kubelet's to be counted
            return NodePrepareResourcesResponse()
        found = await _measured(metrics, PREPARE, lambda: page.prepare(map(_ref, request.claims)))
        return NodePrepareResourcesResponse(
            claims={uid: _prepared(one) for uid, one in found.items()}
        )

    async def unprepare(request: NodeUnprepareResourcesRequest) -> NodeUnprepareResourcesResponse:
        found = await _measured(
            metrics, UNPREPARE, lambda: page.unprepare(map(_ref, request.claims))
        )
        answers = {
            uid: NodeUnprepareResourceResponse(error=one.error) for uid, one in found.items()
        }
        return NodeUnprepareResourcesResponse(claims=answers)

    methods = {
        PREPARE: unary(NodePrepareResourcesRequest, _REQUEST, prepare),
        UNPREPARE: unary(NodeUnprepareResourcesRequest, _REQUEST, unprepare),
    }
    return {service_name(version): methods for version in VERSIONS}


async def _measured(
    metrics: PluginMetrics, operation: str, call: Callable[[], Awaitable[Mapping[str, ClaimAnswer]]]
) -> Mapping[str, ClaimAnswer]:
    labels: Any = (DRIVER, OPERATIONS[operation])
    metrics.requests.labels(*labels).inc()
    with (
        metrics.inflight.labels(*labels).track_inprogress(),
        metrics.seconds.labels(*labels).time(),
    ):
        return await call()


def _ref(claim: Claim) -> KubeletClaim:
    return KubeletClaim(claim.namespace, claim.name, claim.uid)


def _prepared(answer: ClaimAnswer) -> NodePrepareResourceResponse:
    if answer.error:
        return NodePrepareResourceResponse(error=answer.error)
    device = Device(
        request_names=list(answer.requests),
        pool_name=answer.pool,
        device_name=answer.device,
        cdi_device_ids=list(answer.cdi),
    )
    return NodePrepareResourceResponse(devices=[device])
