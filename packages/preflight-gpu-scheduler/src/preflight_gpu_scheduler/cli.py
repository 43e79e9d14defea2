"""The command line: the services, and what people ask."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import yaml
from preflight_kube.cli import commands
from preflight_kube.files import yaml_document as document

from preflight_gpu_scheduler.config import EXTENDER_PORT, Config, json_schema, of, scheduler_config

if TYPE_CHECKING:
    from preflight_gpu_scheduler.core.snapshot import GpuSnapshot
    from preflight_gpu_scheduler.service import Process

T = TypeVar("T")

_ABOUT = """A GPU scheduler: the very GPUs, for one pod, as long as it lives.

The extender answers kube-scheduler beside it; the controller collects and takes back GPUs, opens gates, starts gangs and counts;
the webhook admits pods that name a GpuClaim; the agent says which GPUs its node has, and how they are.
"""
PROGRAM = "preflight-gpu-scheduler"


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    parser, subparsers = commands.parser(PROGRAM, _ABOUT)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], about: str, *, address: bool = False
    ) -> argparse.ArgumentParser:
        parser = commands.command(subparsers, name, run, help=about)
        commands.add_config(parser)
        if address:
            commands.add_address(parser)
        return parser

    def extend(args: argparse.Namespace) -> int:
        return _process(args).extender(args.extender_port)

    def control(args: argparse.Namespace) -> int:
        return _process(args).controller(args.namespace)

    def admit(args: argparse.Namespace) -> int:
        return _process(args).webhook(args.certificates, args.client_ca, args.admission_port)

    extender = command("extender", extend, "answer kube-scheduler beside it", address=True)
    about = "be one replica of the controller"
    commands.add_lease(command("controller", control, about, address=True))
    webhook = command("webhook", admit, "admit pods that name a GpuClaim", address=True)
    files = "tls.crt, tls.key and ca.crt"
    webhook.add_argument("--certificates", type=Path, required=True, metavar="DIR", help=files)
    commands.add_client_ca(webhook)
    commands.add_port(webhook, "--admission-port", "LISTEN_TLS", 8443, "HTTPS")
    agent = command("agent", _agent, "say which GPUs this node has, and how they are", address=True)
    about = "the node that this runs on (NODE_NAME; here %(default)s)"
    agent.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help=about)

    commands.report(subparsers, "show", add_show)
    commands.report(subparsers, "explain", add_explain)
    about = "the KubeSchedulerConfiguration that names the extender"
    scheduler = command("scheduler-config", _scheduler_config, about)
    about = "what kube-scheduler uses; default: its ServiceAccount"
    scheduler.add_argument("--kubeconfig", default="", help=about)
    about = "where its lease is kept (%(default)s)"
    scheduler.add_argument("--namespace", default="kube-system", help=about)
    for asked in (extender, scheduler):
        about = "port for kube-scheduler, on 127.0.0.1 (%(default)s)"
        asked.add_argument("--extender-port", type=commands.port, default=EXTENDER_PORT, help=about)

    if sys.argv[1:2] == ["certs"]:  # what makes certificates is memory that no service need carry
        from preflight_kube.admission import certs

        name = "gpu-scheduler-webhook"
        certs.add_command(subparsers, component=name, service=PROGRAM, mutating=[PROGRAM])
    else:
        subparsers.add_parser("certs", help="keep the serving certificate and the CA bundles fresh")
    commands.report(subparsers, "validate-config", add_validate)
    commands.add_schema(subparsers, json_schema)
    commands.add_crd(subparsers, lambda: import_module("preflight_gpu_scheduler.api.crd").crds())
    return parser


def add_show(show: argparse.ArgumentParser) -> None:
    """A row a node, a cell a GPU; or what one pod waits for."""
    show.set_defaults(run=_show)
    commands.add_config(show)
    about = "this pod: its claim, its leases, what it waits for"
    show.add_argument("pod", nargs="?", metavar="POD", help=about)
    about = "the pod's namespace (%(default)s)"
    show.add_argument("-n", "--namespace", default="default", help=about)


def add_explain(explain: argparse.ArgumentParser) -> None:
    """Per node why not, and which GPUs it would be; without a cluster."""
    explain.set_defaults(run=_explain)
    commands.add_config(explain)
    more: Any = {"action": "append", "required": True, "metavar": "FILE"}
    about = (
        "a Pod, its GpuClaim, Nodes and GpuNodeStatuses (YAML, several of each); may be repeated"
    )
    explain.add_argument("-f", "--file", help=about, **more)
    about = "nodes, statuses and leases of the cluster instead"
    explain.add_argument("--live", action="store_true", help=about)
    forms = ["text", "json"]
    explain.add_argument("-o", "--output", choices=forms, default="text", help="(%(default)s)")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""

    def about(config: Config) -> tuple[str]:
        return (f"scheduler {config.scheduler_name}, leases in {config.lock_namespace}",)

    commands.validates(parser, _parse, about=about)


def _parse(text: str) -> Config:
    return of(document.read(text))


def _load(path: Path | None) -> Config:
    return Config() if path is None else commands.load(_parse, path)


def _process(args: argparse.Namespace) -> Process:
    from preflight_kube.auth.connection import connection

    from preflight_gpu_scheduler.service import Process

    return Process(connection(), _load(args.config), args.host, args.port)


def _agent(args: argparse.Namespace) -> int:
    if not args.node:
        raise commands.BadInput(
            "--node: is empty and NODE_NAME is not set; name the node that this runs on."
        )
    path = Path(os.environ.get("ALT_BOOT_ID_PATH") or "/proc/sys/kernel/random/boot_id")
    try:
        boot = path.read_text().strip()[:64]
    except (OSError, UnicodeDecodeError) as error:
        raise commands.BadInput(
            f"{path}: the boot's id cannot be read ({error}); name the kernel's own file by ALT_BOOT_ID_PATH."
        ) from None
    return _process(args).agent(args.node, boot)


def _live(config: Config, say: Callable[[GpuSnapshot], T]) -> T:
    from preflight_kube.auth.connection import connection

    from preflight_gpu_scheduler import service

    return service.read(connection(home=Path.home()), config, say)


def _show(args: argparse.Namespace) -> int:
    from preflight_gpu_scheduler.report.show import pod_text, table

    def say(seen: GpuSnapshot) -> str:
        key = (args.namespace, args.pod)
        return pod_text(seen, key) if args.pod else table(seen, datetime.now(UTC))

    if not (text := _live(_load(args.config), say)):
        raise commands.CommandFailed(
            f"no pod {args.pod} of this scheduler in namespace {args.namespace}; `-n` names another one."
        )
    commands.say(text)
    return commands.DONE


def _explain(args: argparse.Namespace) -> int:
    import msgspec

    from preflight_gpu_scheduler.report.explain import explain, files, text

    config, given = _load(args.config), files(args.file)
    explained = explain(_live(config, given.beside) if args.live else given, config)
    if args.output == "json":
        print(json.dumps(msgspec.to_builtins(explained), indent=2))
    else:
        commands.say(text(explained))
    return commands.DONE


def _scheduler_config(args: argparse.Namespace) -> int:
    more = {"kubeconfig": args.kubeconfig, "namespace": args.namespace}
    config = scheduler_config(_load(args.config), port=args.extender_port, **more)
    print(yaml.safe_dump(config, sort_keys=False, width=120), end="")
    return commands.DONE
