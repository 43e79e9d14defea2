"""The command line: serve, explain, revalidate, validate-config, schema, certs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from preflight_kube.cli import commands
from preflight_proto.names import MANAGED_BY_LABEL

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from preflight_webhook.report.release import InstalledRelease

_ABOUT = """Preflight's mutating admission webhook: injects check init containers into GPU pods.

  preflight-webhook serve --config FILE --cert-dir DIR     answer the API server
  preflight-webhook explain -f pod.yaml --config FILE      what would happen to this pod, and why
  preflight-webhook revalidate NODE                        test a node, and clear what passes
  preflight-webhook validate-config FILE                   every problem of a configuration file
  preflight-webhook schema                                 JSON Schema of the configuration
  preflight-webhook certs --namespace NS                   keep the serving certificate fresh
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    parser, subparsers = commands.parser("preflight-webhook", _ABOUT)
    serve = commands.command(
        subparsers, "serve", _serve, help="answer the API server's admission reviews"
    )
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
    commands.add_port(serve, "--port", "LISTEN_TLS", 8443, "admission, over TLS: POST /mutate-pod")
    commands.add_port(serve, "--plain-port", "LISTEN_PLAIN", 8080, "/healthz, /readyz and /metrics")
    commands.add_host(serve)
    commands.add_client_ca(serve)
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
    serve.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="%(default)s",
    )
    if sys.argv[1:2] != ["serve"]:  # what the others need is memory that the server need not carry
        _others(subparsers)
    return parser


def _others(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    from preflight_kube.admission import certs

    from preflight_webhook.config.config import json_schema
    from preflight_webhook.report.command import add_explain
    from preflight_webhook.report.revalidate import add_revalidate

    commands.report(subparsers, "explain", add_explain)
    commands.report(subparsers, "revalidate", add_revalidate)
    commands.report(subparsers, "validate-config", add_validate)
    commands.add_schema(subparsers, json_schema)
    certs.add_command(
        subparsers,
        component="preflight-webhook",
        service="preflight-injector",
        mutating=["preflight-injector"],
        managed_by=MANAGED_BY_LABEL,
    )


def add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""
    from preflight_webhook.report import release

    commands.validates(
        parser,
        release.parse,
        about=_about,
        warnings=_warnings,
        takes="the configuration (YAML; see `schema`), or Helm values of which the chart makes it",
    )


def _serve(args: argparse.Namespace) -> int:
    from preflight_webhook.service import serve

    return serve(args)


def _about(release: InstalledRelease) -> Iterator[str]:
    yield f"checks: {', '.join(check.name for check in release.config.checks) or 'none'}"
    if release.source:
        yield release.source


def _warnings(release: InstalledRelease) -> Iterator[str]:
    if not release.config.checks:
        yield "checks: is empty, so no pod is checked; name at least one."
