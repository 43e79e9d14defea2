"""How the kubelet gets to know the plugin: by a socket in its folder of registrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from preflight_kube.logs import get_logger
from preflight_kube.text import one_line

from preflight_computedomain._generated.registration import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from preflight_computedomain.api.names import DRIVER
from preflight_computedomain.api.wire import TEXT, VARINT
from preflight_computedomain.node.dra import VERSIONS
from preflight_computedomain.node.grpc_server import Method, unary

__all__ = ["SERVICE", "Registration"]

SERVICE: Final = "pluginregistration.Registration"
_log = get_logger(__name__)


class Registration:
    """``endpoint``: the plugin's other socket. ``told`` is called with the kubelet's verdict, each
    time it gives one.
    """

    def __init__(self, endpoint: Path, told: Callable[[bool], None] = lambda _: None) -> None:
        self._endpoint, self._told = endpoint, told
        self.registered = False
        """What the kubelet said last."""

    def services(self) -> dict[str, dict[str, Method]]:
        """What the registration's socket serves."""
        return {
            SERVICE: {
                "GetInfo": unary(InfoRequest, {}, self._info),
                "NotifyRegistrationStatus": unary(
                    RegistrationStatus, {1: VARINT, 2: TEXT}, self._status
                ),
            }
        }

    async def _info(self, request: InfoRequest) -> PluginInfo:
        return PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[f"{version}.DRAPlugin" for version in VERSIONS],
        )

    async def _status(self, request: RegistrationStatus) -> RegistrationStatusResponse:
        self.registered = request.plugin_registered
        if request.plugin_registered:
            _log.info("registered with the kubelet")
        else:
            _log.error("the kubelet refuses the plugin", error=one_line(request.error, 500))
        self._told(self.registered)
        return RegistrationStatusResponse()
