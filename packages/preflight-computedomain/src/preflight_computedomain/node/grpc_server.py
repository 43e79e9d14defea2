"""Both sockets of the plugin: bound in order, probed as the kubelet would, taken away in order.

Handlers take and return bytes; the messages are betterproto2's. An unknown service or method is
answered UNIMPLEMENTED by grpcio itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import betterproto2
import grpc
from preflight_kube.logs import get_logger
from preflight_kube.text import one_line

from preflight_computedomain._generated import kubelet
from preflight_computedomain.api.names import DEVICE, DRIVER, cdi_id
from preflight_computedomain.core.claims import KubeletClaim
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.metrics import OPERATIONS, PREPARE, UNPREPARE, PluginMetrics
from preflight_computedomain.node.atomic_file import Disk
from preflight_computedomain.node.prepare import ClaimAnswer, ClaimPreparer

_log = get_logger(__name__)
_CHECK: Final = 5.0
_AGAIN: Final = 30.0
_CONNECT: Final = 1.0
"""Seconds; a socket of this machine that is served takes a connection at once."""
_OPTIONS: Final = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 * 1024 * 1024))
_REGISTRATION: Final = "pluginregistration.Registration"
_VERSIONS: Final = ("v1", "v1beta1")
"""Versions of the kubelet's service for DRA drivers; both have the same messages."""

_Unary = tuple[type[betterproto2.Message], Callable[[Any], Awaitable[betterproto2.Message]]]
"""A method: its request's type, and what answers."""


class GrpcServer:
    """``registry``: the kubelet's folder of registrations; ``folder``: the plugin's own. ``check``:
    seconds between two looks at the sockets' files; ``again``: from the kubelet's refusal until the
    socket is made anew. ``on_registered``: called when the kubelet says that it knows the plugin.
    """

    def __init__(
        self,
        claims: ClaimPreparer,
        metrics: PluginMetrics,
        registry: Path,
        folder: Path,
        *,
        check: float = _CHECK,
        again: float = _AGAIN,
        on_registered: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry, self._check, self._again = registry, check, again
        self._on_registered = on_registered
        self._refused = asyncio.Event()
        self.registered = False
        """The kubelet's last word."""
        self._dra = _Socket(folder / "dra.sock", _services(claims, metrics))
        methods: dict[str, _Unary] = {
            "GetInfo": (kubelet.Nothing, self._info),
            "NotifyRegistrationStatus": (kubelet.RegistrationStatus, self._status),
        }
        self._registration = _Socket(registry / f"{DRIVER}-reg.sock", {_REGISTRATION: methods})

    async def start(self) -> None:
        """Serve, and then be found. Raises :class:`Unfit` without that folder, and OSError."""
        if not self._registry.is_dir():
            raise Unfit(
                f"{self._registry}: no such folder; mount the kubelet's plugins_registry there."
            )
        self._dra.path.parent.mkdir(parents=True, exist_ok=True)
        self._dra.path.parent.chmod(0o750)
        await self._dra.start()
        await self._registration.start()

    async def watch(self) -> None:
        """Make again what is removed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._check):
                    await self._refused.wait()
            except TimeoutError:
                await self._restore()
            else:
                await asyncio.sleep(self._again)
                self._refused.clear()
                await self._logged(self._registration, self._registration.renew)

    async def _restore(self) -> None:
        for socket in (self._dra, self._registration):
            await self._logged(socket, socket.restore)

    @staticmethod
    async def _logged(socket: _Socket, change: Callable[[], Awaitable[object]]) -> None:
        try:
            await change()
        except OSError as error:
            _log.error("socket not made, tried again", path=socket.path, error=str(error))

    async def stop(self, grace: float = 10.0) -> None:
        """Not be found any more, then finish what runs within ``grace`` seconds."""
        await self._registration.stop()
        await self._dra.stop(grace)

    async def alive(self, patience: float = 5.0) -> bool:
        """Tell whether both sockets answer as the kubelet asks: who are you, prepare nothing."""
        info, prepare = f"/{_REGISTRATION}/GetInfo", f"/{_service(_VERSIONS[0])}/{PREPARE}"
        try:
            name = await self._registration.ask(info, bytes(kubelet.Nothing()), patience)
            done = await self._dra.ask(prepare, bytes(kubelet.Claims()), patience)
            return (
                kubelet.PluginInfo.parse(name).name == DRIVER
                and not kubelet.NodePrepareResourcesResponse.parse(done).claims
            )
        except (grpc.aio.AioRpcError, ValueError):
            return False

    # --- how the kubelet gets to know the plugin

    async def _info(self, request: kubelet.Nothing) -> kubelet.PluginInfo:
        return kubelet.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._dra.path),
            supported_versions=[f"{version}.DRAPlugin" for version in _VERSIONS],
        )

    async def _status(self, request: kubelet.RegistrationStatus) -> kubelet.Nothing:
        self.registered = request.plugin_registered
        if self.registered:
            _log.info("registered with the kubelet")
            self._refused.clear()
            self._on_registered()
        else:
            _log.error("the kubelet refuses the plugin", error=one_line(request.error, 500))
            self._refused.set()
        return kubelet.Nothing()


class _Socket:
    """A gRPC server on a unix socket; ``services``: methods by full name. Within one event loop."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, _Unary]]) -> None:
        self.path, self._services = path, services
        self._server: grpc.aio.Server | None = None
        self._made: tuple[int, int] | None = None

    async def start(self) -> None:
        """Serve; a file of a process before or beside this one is replaced. Raises OSError."""
        # Bound under another name, and renamed: a server that stops removes the path that it has
        # bound, though that may be another server's by then. The kubelet passes over names that
        # begin with a dot.
        bound = self.path.with_name(f".{secrets.token_hex(4)}")
        if self.path.is_dir():  # some runtimes make one where a socket that they mount is missing
            Disk().aside(self.path)
        server = grpc.aio.server(options=_OPTIONS)
        for name, methods in self._services.items():
            handlers = {key: _handler(method) for key, method in methods.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        try:
            server.add_insecure_port(f"unix://{bound.absolute()}")
        except RuntimeError as error:
            raise OSError(0, f"no socket can be made here ({error})", str(self.path)) from None
        await server.start()
        bound.replace(self.path)
        self._server, self._made = server, self._identity()

    async def stop(self, grace: float = 0.0) -> None:
        """Take the file away, and finish what runs within ``grace`` seconds."""
        server, self._server = self._server, None
        if self._identity() == self._made:
            self.path.unlink(missing_ok=True)
        if server is not None:
            await server.stop(grace)

    async def renew(self) -> None:
        """Take the file away, and make it again."""
        await self.stop()
        await self.start()

    async def restore(self) -> None:
        """Make the socket again where its file has gone, or nobody answers behind it.

        One that another process serves is left to it: two plugins run on a node while the DaemonSet
        is updated, and the kubelet would otherwise learn of one and the other in turn.
        """
        if (self._made and self._identity() == self._made) or await self._served():
            return
        _log.warning("socket removed or replaced, made again", path=self.path)
        old, self._server = self._server, None
        await self.start()
        if old is not None:
            await old.stop(45.0)

    async def ask(self, method: str, data: bytes, patience: float) -> bytes:
        """Call ``method`` over a connection of its own: a shared one's file may have gone."""
        async with grpc.aio.insecure_channel(
            f"unix://{self.path.absolute()}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            answer: bytes = await call(data, timeout=patience)
            return answer

    async def _served(self) -> bool:
        try:
            async with asyncio.timeout(_CONNECT):
                _, writer = await asyncio.open_unix_connection(self.path)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    def _identity(self) -> tuple[int, int] | None:
        try:
            stat = self.path.lstat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino


def _handler(method: _Unary) -> grpc.RpcMethodHandler[Any, Any]:
    """Refuses bytes that cannot be read as INVALID_ARGUMENT; only root can send any."""
    type_, answer = method

    async def call(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            request = type_.parse(data)
        except (EOFError, ValueError):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the bytes are no {type_.__name__}"
            )
        return bytes(await answer(request))

    return grpc.unary_unary_rpc_method_handler(call)


# --- the kubelet's service for DRA drivers: every claim of a call has an entry in its answer


def _service(version: str) -> str:
    return f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"


def _services(claims: ClaimPreparer, metrics: PluginMetrics) -> dict[str, dict[str, _Unary]]:
    async def measured(
        operation: str,
        call: Callable[[Iterable[KubeletClaim]], Awaitable[Mapping[str, ClaimAnswer]]],
        asked: Iterable[kubelet.Claim],
    ) -> Mapping[str, ClaimAnswer]:
        labels: Any = (DRIVER, OPERATIONS[operation])
        metrics.requests.labels(*labels).inc()
        with (
            metrics.inflight.labels(*labels).track_inprogress(),
            metrics.seconds.labels(*labels).time(),
        ):
            return await call(KubeletClaim(item.namespace, item.name, item.uid) for item in asked)

    async def prepare(
        request: kubelet.Claims,
    ) -> kubelet.NodePrepareResourcesResponse:
        if not request.claims:  # as the liveness probe asks: no call of the kubelet's to be counted
            return kubelet.NodePrepareResourcesResponse()
        answers = await measured(PREPARE, claims.prepare, request.claims)
        return kubelet.NodePrepareResourcesResponse(
            claims={uid: _prepared(uid, answer) for uid, answer in answers.items()}
        )

    async def unprepare(
        request: kubelet.Claims,
    ) -> kubelet.NodeUnprepareResourcesResponse:
        answers = await measured(UNPREPARE, claims.unprepare, request.claims)
        errors = {
            uid: kubelet.NodeUnprepareResourceResponse(error=answer.error)
            for uid, answer in answers.items()
        }
        return kubelet.NodeUnprepareResourcesResponse(claims=errors)

    methods: dict[str, _Unary] = {
        PREPARE: (kubelet.Claims, prepare),
        UNPREPARE: (kubelet.Claims, unprepare),
    }
    return {_service(version): methods for version in _VERSIONS}


def _prepared(uid: str, answer: ClaimAnswer) -> kubelet.NodePrepareResourceResponse:
    if answer.error:
        return kubelet.NodePrepareResourceResponse(error=answer.error)
    device = kubelet.Device(
        request_names=list(answer.requests),
        pool_name=answer.pool,
        device_name=DEVICE,
        cdi_device_ids=[cdi_id(uid)],
    )
    return kubelet.NodePrepareResourceResponse(devices=[device])
