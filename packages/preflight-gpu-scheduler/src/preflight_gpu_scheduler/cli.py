"""The command line: the services, and what people ask."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import yaml
from preflight_proto.program import EXIT_CODES, leave, package_version

from .config import Config, ConfigError, json_schema, of
from .schedulerconfig import EXTENDER_PORT, scheduler_config

__all__ = ["main"]

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

_ABOUT = """A GPU scheduler: the very GPUs, for one pod, as long as it lives.

  preflight-gpu-scheduler extender          answer kube-scheduler beside it: filter, prioritize, bind
  preflight-gpu-scheduler controller        collect and take back GPUs, open gates, plan gangs, count
  preflight-gpu-scheduler scheduler-config  the KubeSchedulerConfiguration that names the extender
  preflight-gpu-scheduler validate-config   every problem of a configuration file
  preflight-gpu-scheduler schema            the configuration's JSON Schema
  preflight-gpu-scheduler crd               the CustomResourceDefinitions, for `kubectl apply --server-side -f -`
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    leave(_command)


def _command() -> int:
    args = _parser().parse_args()
    try:
        return int(args.run(args))
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return EXIT_BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="preflight-gpu-scheduler",
        description=_ABOUT,
        epilog=f"{EXIT_CODES}. Services wait for an API server that does not answer.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = package_version("preflight-gpu-scheduler")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    extender = _service(commands, "extender", "answer kube-scheduler beside it", 8080)
    extender.add_argument("--listen", default="127.0.0.1", help="address for kube-scheduler, on loopback (%(default)s)")
    extender.add_argument(
        "--extender-port", type=_port, default=EXTENDER_PORT, help="port for kube-scheduler (%(default)s)"
    )
    extender.set_defaults(run=_extender)

    controller = _service(commands, "controller", "be one replica of the controller", 8080)
    controller.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "preflight",
        help="where the leader's lease is kept (POD_NAMESPACE; here %(default)s)",
    )
    controller.set_defaults(run=_controller)

    scheduler = commands.add_parser("scheduler-config", help="the KubeSchedulerConfiguration that names the extender")
    _config(scheduler)
    scheduler.add_argument("--kubeconfig", default="", help="what kube-scheduler uses; default: its ServiceAccount")
    scheduler.add_argument("--namespace", default="kube-system", help="where its lease is kept (%(default)s)")
    scheduler.add_argument("--extender-port", type=_port, default=EXTENDER_PORT, help="(%(default)s)")
    scheduler.add_argument("--no-leader-election", action="store_true", help="for a single replica")
    scheduler.set_defaults(run=_scheduler_config)

    validate = commands.add_parser("validate-config", help="list every problem of a configuration file")
    validate.add_argument("file", type=Path, metavar="FILE")
    validate.set_defaults(run=_validate)

    commands.add_parser("schema", help="print the configuration's JSON Schema").set_defaults(run=_schema)
    commands.add_parser("crd", help="print the CustomResourceDefinitions").set_defaults(run=_crd)
    return parser


def _service(commands: Any, name: str, about: str, port: int) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=about)
    _config(made)
    made.add_argument("--host", default="0.0.0.0", help="address of the plain port (%(default)s)")  # noqa: S104
    made.add_argument("--port", type=_port, default=port, help="/healthz, /readyz, /metrics (%(default)s; 0: any)")
    return made


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration (YAML; see `schema`); default: all defaults"
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port; give a number from 0 to 65535')
    return int(text)


def _load(path: Path | None) -> Config:
    if path is None:
        return Config()
    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError([f"{path}: {why}; give a readable configuration file."]) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError([f"{path}: is no YAML ({' '.join(str(error).split()):.200}); correct it."]) from None
    try:
        return of(raw)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _extender(args: argparse.Namespace) -> int:
    from . import service

    async def run(target: Any, config: Config) -> None:
        listen = (args.listen, args.extender_port)
        await service.run_extender(target, config, listen=listen, host=args.host, port=args.port)

    return _serve("extender", args, run)


def _controller(args: argparse.Namespace) -> int:
    from . import service

    async def run(target: Any, config: Config) -> None:
        await service.run_controller(target, config, namespace=args.namespace, host=args.host, port=args.port)

    return _serve("controller", args, run)


def _serve(part: str, args: argparse.Namespace, run: Callable[[Any, Config], Awaitable[None]]) -> int:
    from preflight_kube import logs
    from preflight_kube.connection import connection
    from preflight_kube.errors import BadAccess

    config = _load(args.config)
    try:
        target = connection()
    except BadAccess as error:
        print(f"preflight-gpu-scheduler: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    logs.set_up(f"gpu-scheduler-{part}", config.log_level)
    try:
        anyio.run(run, target, config)
    except ValueError as error:
        print(f"preflight-gpu-scheduler: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        why = error.strerror or error
        print(f"preflight-gpu-scheduler: a port cannot be listened on ({why}); choose another one.", file=sys.stderr)
        return EXIT_FAILED
    except Exception as error:
        logs.fault("ended by a fault of its own; it is started anew, please report this line", error)
        return EXIT_FAILED
    return 0


def _scheduler_config(args: argparse.Namespace) -> int:
    made = scheduler_config(
        _load(args.config),
        kubeconfig=args.kubeconfig,
        namespace=args.namespace,
        port=args.extender_port,
        leader_elect=not args.no_leader_election,
    )
    print(yaml.safe_dump(made, sort_keys=False, width=120), end="")
    return 0


def _validate(args: argparse.Namespace) -> int:
    config = _load(args.file)
    print(f"{args.file}: no problem found; scheduler {config.scheduler_name}, leases in {config.lock_namespace}")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _crd(_: argparse.Namespace) -> int:
    from .crds import crds

    print(yaml.safe_dump_all(crds(), sort_keys=False, width=120), end="")
    return 0
