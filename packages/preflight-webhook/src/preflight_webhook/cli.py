"""The command line: serve, explain, validate-config, schema, certs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from preflight_kube.configfile import read
from preflight_proto.program import EXIT_CODES, leave, package_version

from .admission.claims import detects
from .configuration.config import ConfigError, json_schema, parse
from .explain import values
from .explain.kinds import KINDS
from .explain.workloads import Found, Object, documents, found_in, needed

if TYPE_CHECKING:
    from .explain.report import About

__all__ = ["main"]

EXIT_BAD_INPUT = 2
FORBIDDEN = 403

_ABOUT = """Preflight's mutating admission webhook: injects check init containers into GPU pods.

  preflight-webhook serve --config FILE --cert-dir DIR     answer the API server
  preflight-webhook explain -f pod.yaml --config FILE      what would happen to this pod, and why
  preflight-webhook validate-config FILE                   every problem of a configuration file
  preflight-webhook schema                                 JSON Schema of the configuration
  preflight-webhook certs --namespace NS                   keep the serving certificate fresh
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
        prog="preflight-webhook",
        description=_ABOUT,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version('preflight-webhook')}")
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
        help="a Pod, Job, JobSet, PyTorchJob, … as YAML or JSON, with the claims, Namespaces and PreflightConfigs that it needs (again for more files); - is stdin",
    )
    given.add_argument(
        "--live",
        metavar="KIND/NAME",
        help=f"an object of the cluster of KUBECONFIG, or of ~/.kube/config: {', '.join(KINDS)}",
    )
    explain.add_argument("-n", "--namespace", default="default", help="where --live looks (%(default)s)")
    explain.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration, or the Helm values of the release; without one, with --live that of the cluster's release, else dcgm-diag with its defaults",
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
    validate.add_argument(
        "file", type=Path, metavar="FILE", help="the configuration, or Helm values of which the chart makes it"
    )
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
    from preflight_kube.admission.tls import CertificateError

    from . import logs
    from .serving.server import Options, PortTaken, WatcherDied, serve

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
    except WatcherDied as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    return 0


def _explain(args: argparse.Namespace) -> int:
    from .cluster.kube import BadAccess, KubeError
    from .explain.live import NotThere
    from .explain.report import explain

    problems: list[str] = []
    try:
        found, about = _from_cluster(args) if args.live else _from_files(args, problems)
    except NotThere as error:
        print(error, file=sys.stderr)
        return 1
    except KubeError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT if isinstance(error, BadAccess) else 1
    except ValueError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    on_terminal = sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    colored = args.color == "always" or (args.color == "auto" and on_terminal)
    told = []
    for one in found:
        try:
            told.append(explain(one, about, args.output, colored=colored, brief=args.brief))
        except ValueError as error:
            problems.append(str(error))
    between = {"text": "\n\n", "json": "\n", "yaml": "\n---\n"}
    if told:
        print(between[args.output].join(told))
    for problem in dict.fromkeys(problems):
        print(problem, file=sys.stderr)
    return EXIT_BAD_INPUT if problems else 0


def _from_files(args: argparse.Namespace, problems: list[str]) -> tuple[list[Found], About]:
    """What can be read of the files; ``problems`` gets a sentence for each thing that cannot."""
    from .explain.report import About

    if args.config is not None:
        given = read(values.parse, args.config)
        by = f"{args.config}{f' ({given.said})' if given.said else ''}"
        about = About(given.config, given.lists, by, from_files=True)
    else:
        by = "the defaults (dcgm-diag alone); give the values of your release, or its configuration, with --config"
        about = About(parse("checks: [{name: dcgm-diag, image: preflight-dcgm-diag}]"), None, by, from_files=True)
    objects: list[Object] = []
    for file in args.file:
        where = "standard input" if file == "-" else file
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            problems.append(f"{where}: {why}; give a file with a pod in it.")
            continue
        made, bad = documents(text, where)
        objects += made
        problems += bad
    found, bad = found_in(objects, ", ".join("standard input" if file == "-" else file for file in args.file))
    if not problems or objects:  # else the reason why there is no pod is said already
        problems += bad
    return found, about


def _from_cluster(args: argparse.Namespace) -> tuple[list[Found], About]:
    from .cluster.kube import Client, KubeError, connection
    from .explain import live
    from .explain.report import About

    kind, name = live.wanted_of(args.live)
    with Client(connection(home=Path.home())) as client:
        if args.config is not None:
            given = read(values.parse, args.config)
            about = About(given.config, given.lists, str(args.config), from_files=False)
        else:
            try:
                release = live.release_of(client)
            except KubeError as error:
                if error.status != FORBIDDEN:
                    raise
                raise live.NotThere(live.unreadable(error)) from None
            about = About(release.config, release.lists, release.where, from_files=False)
        policies = about.config.preflight_configs.enabled
        objects = live.objects_of(client, kind, name, args.namespace, policies=policies)
        found, problems = found_in(objects, args.live)
        if problems:
            raise ValueError("\n".join(problems))
        if detects(about.config):
            found = [one._replace(claims=needed(one, client.get)) for one in found]
        return found, about


def _validate(args: argparse.Namespace) -> int:
    given = read(values.parse, args.file)
    names = ", ".join(check.name for check in given.config.checks) or "none"
    if given.said:
        print(f"{args.file}: {given.said}")
    print(f"{args.file}: no problem found; checks: {names}")
    if not given.config.checks:
        print(f"{args.file}: warning: checks: is empty, so no pod is checked; name at least one.", file=sys.stderr)
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2, sort_keys=True))
    return 0


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is not a port; give a number from 0 to 65535')
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f'"{text}" is not a duration; give seconds from 0 to 3600')
    return seconds
