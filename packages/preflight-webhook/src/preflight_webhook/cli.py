"""The command line: serve, explain, validate-config, schema, certs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from preflight_proto import policy

from .claims import detects
from .config import Config, ConfigError, json_schema, parse
from .configfile import read
from .workloads import KINDS, Found, documents, found_in, needed

__all__ = ["main"]

EXIT_BAD_INPUT = 2

_ABOUT = """Preflight's mutating admission webhook: injects check init containers into GPU pods.

  preflight-webhook serve --config FILE --cert-dir DIR     answer the API server
  preflight-webhook explain -f pod.yaml --config FILE      what would happen to this pod, and why
  preflight-webhook validate-config FILE                   every problem of a configuration file
  preflight-webhook schema                                 JSON Schema of the configuration
  preflight-webhook certs --namespace NS                   keep the serving certificate fresh
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    parser = _parser()
    args = parser.parse_args()
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
        prog="preflight-webhook", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="answer the API server's admission reviews")
    serve.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="configuration (YAML; see `schema`); read again when it changes",
    )
    serve.add_argument(
        "--cert-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with tls.crt and tls.key; reloaded when they change",
    )
    serve.add_argument(
        "--port", type=_port, default=8443, help="admission, over TLS: POST /mutate-pod (%(default)s; 0: any)"
    )
    serve.add_argument(
        "--plain-port", type=_port, default=8080, help="/healthz, /readyz and /metrics (%(default)s; 0: any)"
    )
    serve.add_argument("--host", default="0.0.0.0", help="address to listen on (%(default)s)")  # noqa: S104
    serve.add_argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="serve admission only to clients with a certificate of this authority (PEM); reloaded when it changes",
    )
    serve.add_argument(
        "--linger",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to go on answering after SIGTERM, until no API server sends requests here any more (%(default)s)",
    )
    serve.add_argument(
        "--patience",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="when a client that does not go on with its request is cut off, at the latest after twice this (%(default)s)",
    )
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="%(default)s")
    serve.set_defaults(run=_serve)

    explain = commands.add_parser("explain", help="what would be decided about a pod, with or without a cluster")
    given = explain.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "-f",
        "--file",
        action="append",
        metavar="FILE",
        help="a Pod, Job, JobSet, … as YAML or JSON, with the claims, Namespaces and PreflightConfigs that it needs (again for more files); - is stdin",
    )
    given.add_argument(
        "--live", metavar="KIND/NAME", help=f"an object of the cluster of KUBECONFIG: {', '.join(KINDS)}"
    )
    explain.add_argument("-n", "--namespace", default="default", help="where --live looks (%(default)s)")
    explain.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration; without one, dcgm-diag with its defaults"
    )
    explain.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text", help="%(default)s")
    explain.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="of the diff; auto: on a terminal, unless NO_COLOR is set (%(default)s)",
    )
    explain.add_argument("--brief", action="store_true", help="without the patch")
    explain.set_defaults(run=_explain)

    validate = commands.add_parser("validate-config", help="list every problem of a configuration file")
    validate.add_argument("file", type=Path, metavar="FILE")
    validate.set_defaults(run=_validate)

    schema = commands.add_parser("schema", help="print the configuration's JSON Schema")
    schema.set_defaults(run=_schema)

    keep = commands.add_parser("certs", help="keep the serving certificate and the CA bundle fresh")
    if sys.argv[1:2] == ["certs"]:  # what makes certificates is 8 MB in memory that the server need not carry
        from . import certs

        certs.add_arguments(keep)
        keep.set_defaults(run=certs.run)
    return parser


def _serve(args: argparse.Namespace) -> int:
    from . import logs
    from .server import Options, PortTaken, serve
    from .tls import CertificateError

    logs.set_up(args.log_level)
    options = Options(
        args.config,
        args.cert_dir,
        args.port,
        args.plain_port,
        args.host,
        linger=args.linger,
        patience=args.patience,
        client_ca=args.client_ca,
    )
    try:
        serve(options)
    except (PortTaken, CertificateError) as error:
        print(f"{error}.", file=sys.stderr)
        return EXIT_BAD_INPUT
    return 0


def _explain(args: argparse.Namespace) -> int:
    from .explain import explain
    from .kube import KubeError

    if args.config is not None:
        config = read(args.config)
    else:
        config = parse("checks: [{name: dcgm-diag, image: preflight-dcgm-diag}]")
    on_terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    coloured = args.color == "always" or (args.color == "auto" and on_terminal)
    try:
        found = _from_cluster(args.live, args.namespace, config) if args.live else _from_files(args.file)
        told = [explain(one, config, args.output, coloured=coloured, brief=args.brief) for one in found]
    except (KubeError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    between = {"text": "\n\n", "json": "\n", "yaml": "\n---\n"}
    print(between[args.output].join(told))
    return 0


def _from_files(files: list[str]) -> list[Found]:
    objects = []
    for file in files:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text()
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}; give a file with a pod in it.") from None
        objects += documents(text, "standard input" if file == "-" else file)
    return found_in(objects, ", ".join("standard input" if file == "-" else file for file in files))


def _from_cluster(wanted: str, namespace: str, config: Config) -> list[Found]:
    from .kube import Client, connection

    kind, _, name = wanted.partition("/")
    known = {one.lower(): one for one in KINDS}
    if kind.lower() not in known or not name:
        raise ValueError(f'--live: "{wanted}" is no KIND/NAME; kinds are {", ".join(KINDS)}.')
    kind = known[kind.lower()]
    with Client(connection()) as client:
        item = client.get(KINDS[kind].format(namespace) + name)
        if item is None:
            raise ValueError(f"{kind} {name}: not in namespace {namespace}; look at its name, or set -n.")
        around = client.get(f"/api/v1/namespaces/{namespace}") or {}
        objects = [{**item, "kind": kind}, {**around, "kind": "Namespace"}]
        if config.preflight_configs.enabled:
            listed = client.get(policy.path(namespace)) or {}
            objects += [{**one, "kind": policy.KIND} for one in listed.get("items", [])]
        found = found_in(objects, wanted)
        if detects(config):
            found = [one._replace(claims=needed(one, client.get)) for one in found]
        return found


def _validate(args: argparse.Namespace) -> int:
    config = read(args.file)
    names = ", ".join(check.name for check in config.checks) or "none"
    print(f"{args.file}: good; checks: {names}")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2, sort_keys=True))
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port; give a number from 0 to 65535')
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f'"{text}" is no time; give seconds from 0 to 3600')
    return seconds
