"""A process from start to end: one replica of the controller, or the plugin of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from preflight_kube.cli import commands
from preflight_kube.logs import get_logger

if TYPE_CHECKING:
    from preflight_kube.auth.connection import Connection

    from preflight_computedomain.config import Gates

from preflight_computedomain.api.names import CONTROLLER, PLUGIN

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a program. ``host``, ``port``: of /healthz, /readyz and /metrics."""

    target: Connection
    gates: Gates
    environ: Mapping[str, str]
    host: str
    port: int
    log_level: str = "info"

    def log_gates(self) -> None:
        """Log what was forced and what is ignored."""
        for note in self.gates.notes:
            log.info(note)


def controller(start: Start, *, namespace: str, lease_seconds: float) -> int:
    """Be one replica of the controller until SIGTERM or SIGINT; the exit status."""
    from preflight_kube.client.client import Client
    from preflight_kube.runtime.manager import Election, Parts, run

    from preflight_computedomain.config import EXCLUSIVE
    from preflight_computedomain.controller.controller import Controller
    from preflight_computedomain.metrics import ControllerMetrics

    metrics = ControllerMetrics()

    async def build(client: Client) -> Parts:
        start.log_gates()
        exclusive = start.environ.get(EXCLUSIVE) == "true"
        leader = Controller(client, metrics, exclusive=exclusive)
        return Parts(reflectors=leader.reflectors, lead=leader.lead)

    return run(
        build,
        start.target,
        component=CONTROLLER,
        registry=metrics.registry,
        host=start.host,
        port=start.port,
        election=Election(namespace, CONTROLLER, lease_seconds),
        log_level=start.log_level,
    )


def plugin(start: Start) -> int:
    """Serve the kubelet of this node until SIGTERM or SIGINT; the exit status."""
    import anyio
    from preflight_kube import logs
    from preflight_proto import nvml

    nvml.start(log.warning, lasting=True)  # before there are threads
    from preflight_computedomain.node.plugin import run

    logs.set_up(PLUGIN, start.log_level)
    start.log_gates()
    try:
        anyio.run(run, start.target, start.gates, start.environ, (start.host, start.port))
    except commands.CommandFailed:
        raise
    except Exception as error:
        logs.fault("ended by a fault of its own; it is restarted, please report this line", error)
        return commands.FAILED
    finally:
        logs.flush()
    return commands.DONE
