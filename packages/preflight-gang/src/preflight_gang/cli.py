"""The command line: run, show, validate-config, schema, crd."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import anyio
import yaml
from preflight_kube.configfile import read
from preflight_proto.program import EXIT_CODES, leave, package_version

from .config import Config, ConfigError, json_schema, parse, parse_values, sources_of

__all__ = ["main"]


EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

_ABOUT = """Preflight's gang controller: lets the pods of one distributed job find each other.

  preflight-gang run --config FILE          mirror the cluster, stand for leadership, seal and tell gangs
  preflight-gang show -n NAMESPACE [GANG]   a gang as its controller sees it: members, what each waits for, its record
  preflight-gang validate-config FILE       every problem of a configuration file
  preflight-gang schema                     the configuration's JSON Schema
  preflight-gang crd                        the CustomResourceDefinition of PreflightConfig, for `kubectl apply --server-side -f -`

The cluster is the one of KUBECONFIG when that is set (one file, or several as for kubectl), else the one this pod runs in; for `show` else
that of ~/.kube/config.
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
        prog="preflight-gang",
        description=_ABOUT,
        epilog=f"{EXIT_CODES}. `run` waits for an API server that does not answer.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version('preflight-gang')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="be one replica of the controller")
    run.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration (YAML; see `schema`); default: all defaults"
    )
    run.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "preflight",
        help="where the lease is kept (POD_NAMESPACE; here %(default)s)",
    )
    run.add_argument("--host", default="0.0.0.0", help="address of the plain port (%(default)s)")  # noqa: S104
    run.add_argument("--port", type=_port, default=8080, help="/healthz, /readyz, /metrics (%(default)s; 0: any)")
    run.set_defaults(run=_run)

    show = commands.add_parser("show", help="a gang, or all gangs of a namespace, as a person wants to see them")
    show.add_argument("gang", nargs="?", metavar="GANG", help="its id, its ConfigMap's name, or one of its pods")
    show.add_argument("-n", "--namespace", default="default", help="namespace of the pods (%(default)s)")
    show.add_argument(
        "--config", type=Path, metavar="FILE", help="the controller's configuration or Helm values, for its own sources"
    )
    show.set_defaults(run=_show)

    validate = commands.add_parser("validate-config", help="list every problem of a configuration file")
    validate.add_argument(
        "file", type=Path, metavar="FILE", help="the configuration, or Helm values of which the chart makes it"
    )
    validate.set_defaults(run=_validate)

    commands.add_parser("schema", help="print the configuration's JSON Schema").set_defaults(run=_schema)
    commands.add_parser("crd", help="print the CustomResourceDefinition of PreflightConfig").set_defaults(run=_crd)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port; give a number from 0 to 65535')
    return int(text)


def _load(path: Path | None) -> Config:
    return Config() if path is None else read(parse, path)


def _run(args: argparse.Namespace) -> int:
    from preflight_kube import logs
    from preflight_kube.connection import connection
    from preflight_kube.errors import BadAccess

    from . import service

    config = _load(args.config)
    try:
        target = connection()
    except BadAccess as error:
        print(f"preflight-gang: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    logs.set_up("preflight-gang", config.log_level)

    async def run() -> None:
        await service.run(target, config, namespace=args.namespace, host=args.host, port=args.port)

    try:
        anyio.run(run)
    except OSError as error:
        print(
            f"preflight-gang: {args.host}:{args.port} cannot be listened on ({error.strerror or error}); choose another --port.",
            file=sys.stderr,
        )
        return EXIT_FAILED
    except Exception as error:
        logs.fault("ended by a fault of its own; it is started anew, please report this line", error)
        return EXIT_FAILED
    return 0


def _show(args: argparse.Namespace) -> int:
    from preflight_kube.errors import BadAccess, KubeError

    from .show import show

    sources = sources_of(read(parse_values, args.config)[0] if args.config else Config())
    try:
        found = anyio.run(show, args.namespace, args.gang, sources)
    except KubeError as error:
        print(f"preflight-gang: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, BadAccess) else EXIT_FAILED
    if not found:
        what = f'no gang "{args.gang}"' if args.gang else "no gang"
        print(f"preflight-gang: {what} in namespace {args.namespace}; `-n` names another one.", file=sys.stderr)
        return EXIT_FAILED
    print(found)
    return 0


def _validate(args: argparse.Namespace) -> int:
    config, said = read(parse_values, args.file)
    if said:
        print(f"{args.file}: {said}")
    print(f"{args.file}: no problem found; checks: {', '.join(config.checks) or 'none'}")
    if not config.checks:
        print(
            f"{args.file}: warning: checks: is empty, so no result is counted; name those of the injector.",
            file=sys.stderr,
        )
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _crd(_: argparse.Namespace) -> int:
    from .overrides.crd import crd

    print(yaml.safe_dump(crd(), sort_keys=False, width=120), end="")
    return 0
