"""The command line: serve, explain, validate-config, schema, certs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from preflight_kube import commands
from preflight_kube.commands import BadInput, Failed
from preflight_proto.names import MANAGED_BY_LABEL

from .admission.claims import detects
from .configuration.config import json_schema, parse
from .explain import values
from .explain.kinds import KINDS
from .explain.workloads import Found, Object, documents, found_in

if TYPE_CHECKING:
    from .explain.report import About

__all__ = ["main"]

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
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    made, subparsers = commands.parser("preflight-webhook", _ABOUT)
    serve = commands.command(subparsers, "serve", _serve, help="answer the API server's admission reviews")
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
        "--port", type=commands.port, default=8443, help="admission, over TLS: POST /mutate-pod (%(default)s; 0: any)"
    )
    serve.add_argument(
        "--plain-port", type=commands.port, default=8080, help="/healthz, /readyz and /metrics (%(default)s; 0: any)"
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
        type=commands.seconds,
        default=10.0,
        metavar="SECONDS",
        help="how long to go on answering after SIGTERM, until no API server sends requests here any more (%(default)s)",
    )
    serve.add_argument(
        "--patience",
        type=commands.seconds,
        default=10.0,
        metavar="SECONDS",
        help="when a client that does not go on with its request is cut off, at the latest after twice this (%(default)s)",
    )
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="%(default)s")

    explain = commands.command(
        subparsers, "explain", _explain, help="what would be decided about a pod, with or without a cluster"
    )
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

    commands.add_validate_config(
        subparsers,
        values.parse,
        about=_about,
        warnings=_warnings,
        takes="the configuration (YAML; see `schema`), or Helm values of which the chart makes it",
    )
    commands.add_schema(subparsers, json_schema)
    if sys.argv[1:2] != ["certs"]:  # what makes certificates is 8 MB in memory that the server need not carry
        subparsers.add_parser("certs", help="keep the serving certificate and the CA bundles fresh")
        return made
    from preflight_kube.admission import certs

    keep = certs.add_command(
        subparsers,
        component="preflight-webhook",
        service="preflight-injector",
        mutating=["preflight-injector"],
        managed_by=MANAGED_BY_LABEL,
    )
    # Its name before there was another kind of configuration.
    keep.add_argument("--webhook-configuration", dest="mutating", action="append", help=argparse.SUPPRESS)
    return made


def _serve(args: argparse.Namespace) -> int:
    from preflight_kube import logs

    from .serving.server import Options, serve

    logs.set_up("preflight-webhook", args.log_level)
    serve(
        Options(
            args.config,
            args.cert_dir,
            args.port,
            args.plain_port,
            args.host,
            linger=args.linger,
            patience=args.patience,
            client_ca=args.client_ca,
        )
    )
    return commands.DONE


def _explain(args: argparse.Namespace) -> int:
    from .explain.report import explain

    problems: list[str] = []
    found, about = _from_cluster(args) if args.live else _from_files(args, problems)
    told = []
    for one in found:
        try:
            told.append(explain(one, about, args.output, colored=commands.colored(args.color), brief=args.brief))
        except ValueError as error:
            problems.append(str(error))
    between = {"text": "\n\n", "json": "\n", "yaml": "\n---\n"}
    if told:
        print(between[args.output].join(told))
    if problems:
        raise BadInput(dict.fromkeys(problems))
    return commands.DONE


def _from_files(args: argparse.Namespace, problems: list[str]) -> tuple[list[Found], About]:
    """What can be read of the files; ``problems`` gets a sentence for each thing that cannot."""
    from .explain.report import About

    if args.config is not None:
        given = commands.load(values.parse, args.config)
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
    import anyio

    return anyio.run(_read, args)


async def _read(args: argparse.Namespace) -> tuple[list[Found], About]:
    from preflight_kube.client import Client, KubeError
    from preflight_kube.connection import connection

    from .explain import live
    from .explain.report import About

    kind, name = live.wanted_of(args.live)
    async with Client(connection(home=Path.home()), agent="preflight-webhook") as client:
        if args.config is not None:
            given = commands.load(values.parse, args.config)
            about = About(given.config, given.lists, str(args.config), from_files=False)
        else:
            try:
                release = await live.release_of(client)
            except KubeError as error:
                if error.status != FORBIDDEN:
                    raise
                raise Failed(live.unreadable(error)) from None
            about = About(release.config, release.lists, release.where, from_files=False)
        policies = about.config.preflight_configs.enabled
        objects = await live.objects_of(client, kind, name, args.namespace, policies=policies)
        found, problems = found_in(objects, args.live)
        if problems:
            raise BadInput(problems)
        if detects(about.config):
            found = [one._replace(claims=await live.needed(one, client)) for one in found]
        return found, about


def _about(found: values.Given) -> Iterator[str]:
    yield f"checks: {', '.join(check.name for check in found.config.checks) or 'none'}"
    if found.said:
        yield found.said


def _warnings(found: values.Given) -> Iterator[str]:
    if not found.config.checks:
        yield "checks: is empty, so no pod is checked; name at least one."
