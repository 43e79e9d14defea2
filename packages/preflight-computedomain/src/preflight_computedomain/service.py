"""A process from start to end: one replica of the controller, or the plugin of one node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from preflight_kube.cli import commands
from preflight_kube.logs import get_logger

if TYPE_CHECKING:
    from argparse import Namespace

    from preflight_kube.auth.connection import Connection

    from preflight_computedomain.config import Gates

from preflight_computedomain.api.names import CONTROLLER, PLUGIN

log = get_logger(__name__)


def controller(target: Connection, gates: Gates, args: Namespace) -> int:
    """Be one replica of the controller until SIGTERM or SIGINT; the exit status."""
    from preflight_kube.client.client import Client
    from preflight_kube.runtime.manager import Election, Parts, run

    from preflight_computedomain.config import EXCLUSIVE
    from preflight_computedomain.controller.controller import Controller
    from preflight_computedomain.metrics import ControllerMetrics

    metrics = ControllerMetrics()

    async def build(client: Client) -> Parts:
        _log_gates(gates)
        leader = Controller(client, metrics, exclusive=os.environ.get(EXCLUSIVE) == "true")
        return Parts(reflectors=leader.reflectors, lead=leader.lead)

    return run(
        build,
        target,
        component=CONTROLLER,
        registry=metrics.registry,
        host=args.host,
        port=args.port,
        election=Election(args.namespace, CONTROLLER, args.lease_seconds),
        log_level=args.log_level,
    )


def _log_gates(gates: Gates) -> None:
    for note in gates.notes:
        log.info(note)


def plugin(target: Connection, gates: Gates, args: Namespace) -> int:
    """Serve the kubelet of this node until SIGTERM or SIGINT; the exit status."""
    import anyio
    from preflight_kube import logs
    from preflight_proto import nvml

    nvml.start(log.warning, lasting=True)  # before there are threads
    from preflight_computedomain.node.plugin import run

    logs.set_up(PLUGIN, args.log_level)
    _log_gates(gates)
    try:
        anyio.run(run, target, gates, os.environ, (args.host, args.port))
    except commands.CommandFailed:
        raise
    except Exception as error:
        logs.fault("ended by a fault of its own; it is restarted, please report this line", error)
        return commands.FAILED
    finally:
        logs.flush()
    return commands.DONE
