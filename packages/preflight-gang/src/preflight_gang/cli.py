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

from .config import Config, ConfigError, json_schema, parse, sources_of

__all__ = ["main"]

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

_ABOUT = """Preflight's gang controller: lets the pods of one distributed job find each other.

  preflight-gang run --config FILE          mirror the cluster, stand for leadership, seal and tell gangs
  preflight-gang show -n NAMESPACE [GANG]   a gang as its controller sees it: members, what each waits for, its record
  preflight-gang validate-config FILE       every problem of a configuration file
  preflight-gang schema                     the configuration's JSON Schema
  preflight-gang crd                        the CustomResourceDefinition of PreflightConfig, for `kubectl apply --server-side -f -`

The cluster is the one of KUBECONFIG when that is set, else the one this pod runs in.
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    args = _parser().parse_args()
    try:
        status = args.run(args)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        status = EXIT_BAD_INPUT
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="preflight-gang", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    show.add_argument("--config", type=Path, metavar="FILE", help="the controller's configuration, for its own sources")
    show.set_defaults(run=_show)

    validate = commands.add_parser("validate-config", help="list every problem of a configuration file")
    validate.add_argument("file", type=Path, metavar="FILE")
    validate.set_defaults(run=_validate)

    commands.add_parser("schema", help="print the configuration's JSON Schema").set_defaults(run=_schema)
    commands.add_parser("crd", help="print the CustomResourceDefinition of PreflightConfig").set_defaults(run=_crd)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port; give a number from 0 to 65535')
    return int(text)


def _load(path: Path | None) -> Config:
    if path is None:
        return Config()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError([f"{path}: {why}; give a readable configuration file."]) from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _run(args: argparse.Namespace) -> int:
    from . import logs, service
    from .kube.client import KubeError
    from .kube.connection import connection

    config = _load(args.config)
    try:
        target = connection()
    except KubeError as error:
        print(f"preflight-gang: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    logs.set_up(config.log_level)

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
    return 0


def _show(args: argparse.Namespace) -> int:
    from .kube.client import KubeError
    from .show import show

    sources = sources_of(_load(args.config))
    try:
        found = anyio.run(show, args.namespace, args.gang, sources)
    except KubeError as error:
        print(f"preflight-gang: {error}", file=sys.stderr)
        return EXIT_FAILED
    if not found:
        what = f"no gang {args.gang!r}" if args.gang else "no gang"
        print(f"preflight-gang: {what} in namespace {args.namespace}; `-n` names another one.", file=sys.stderr)
        return EXIT_FAILED
    print(found)
    return 0


def _validate(args: argparse.Namespace) -> int:
    _load(args.file)
    print(f"{args.file}: no problem found")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _crd(_: argparse.Namespace) -> int:
    from .crd import crd

    print(yaml.safe_dump(crd(), sort_keys=False, width=120), end="")
    return 0
