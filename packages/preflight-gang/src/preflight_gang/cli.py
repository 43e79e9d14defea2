"""The command line: run, show, report, validate-config, schema, crd."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from preflight_kube.cli import commands

from preflight_gang.config import Config, json_schema, parse, parse_values, sources_of

_ABOUT = """Preflight's gang controller: lets the pods of one distributed job find each other.

The cluster is the one of KUBECONFIG when that is set (one file, or several as for kubectl), else the one this pod runs in; for `show` and
`report` else that of ~/.kube/config.
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    made, subparsers = commands.parser(
        "preflight-gang", _ABOUT, epilog="While the API server does not answer, `run` tries again. "
    )
    run = commands.command(subparsers, "run", _run, help="run one replica of the controller")
    commands.add_config(run)
    commands.add_lease(run)
    commands.add_address(run)

    commands.report(subparsers, "show", add_show)
    commands.report(subparsers, "report", add_report)
    commands.report(subparsers, "validate-config", add_validate)
    commands.add_schema(subparsers, json_schema)
    commands.add_crd(subparsers, _crds)
    return made


def add_show(show: argparse.ArgumentParser) -> None:
    """Show one gang, or all gangs of a namespace."""
    show.set_defaults(run=_show)
    show.add_argument(
        "gang", nargs="?", metavar="GANG", help="its id, its ConfigMap's name, or one of its pods"
    )
    show.add_argument(
        "-n", "--namespace", default="default", help="namespace of the pods (%(default)s)"
    )
    _add_config(show, "its own sources")


def _add_config(parser: argparse.ArgumentParser, purpose: str) -> None:
    about = f"the controller's configuration or Helm values, for {purpose}"
    parser.add_argument("--config", type=Path, metavar="FILE", help=about)


def add_report(made: argparse.ArgumentParser) -> None:
    """Show what the checks found in a cluster, as a page."""
    made.set_defaults(run=_report)
    made.add_argument(
        "--since",
        default="7d",
        metavar="TIME",
        help="how far back, as long as the API server keeps Events, usually an hour: 7d, or as 12h30m (%(default)s)",
    )
    made.add_argument(
        "-o", "--output", choices=("html", "json"), default="html", help="%(default)s"
    )


def add_nodes(nodes: argparse.ArgumentParser) -> None:
    """Say of each node with GPUs how it is, since when and who found it, when it last passed a
    check, and its bandwidth beside what is usual for it."""
    nodes.set_defaults(run=_nodes)
    _add_output(nodes, "text", "wide", "json")


def add_node(node: argparse.ArgumentParser) -> None:
    """Say all that is known of one node, by check and GPU."""
    node.set_defaults(run=_nodes)
    node.add_argument("node", metavar="NAME", help="the node's name")
    _add_output(node, "text", "json")


def _add_output(parser: argparse.ArgumentParser, *choices: str) -> None:
    parser.add_argument("-o", "--output", choices=choices, default="text", help="%(default)s")
    _add_config(parser, "nodeConditions of its own")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""
    commands.validates(parser, parse_values, about=_about, warnings=_warnings)


def _run(args: argparse.Namespace) -> int:
    from preflight_kube.auth.connection import connection

    from preflight_gang import service

    config = commands.load(parse, args.config) if args.config else Config()
    return service.run(
        connection(), config, namespace=args.namespace, host=args.host, port=args.port
    )


def _config(args: argparse.Namespace) -> Config:
    return commands.load(parse_values, args.config)[0] if args.config else Config()


def _show(args: argparse.Namespace) -> int:
    import anyio

    from preflight_gang.report.show import show

    shown = anyio.run(show, args.namespace, args.gang, sources_of(_config(args)))
    if not shown:
        what = f'no gang "{args.gang}"' if args.gang else "no gang"
        raise commands.CommandFailed(
            f"{what} in namespace {args.namespace}; `-n` names another one."
        )
    commands.say(shown)
    return commands.DONE


def _report(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime, timedelta

    import anyio
    from preflight_kube.runtime.events import timestamp
    from preflight_proto.durations import parse_duration

    from preflight_gang.report import fleet

    days, unit = args.since[:-1], args.since[-1:]
    try:
        seconds = 86_400.0 * float(days) if unit == "d" else parse_duration(args.since)
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        if seconds < 0:
            raise ValueError(seconds)
    except (ValueError, OverflowError):
        raise commands.BadInput(
            f'--since: "{args.since:.40}" is not a time; give one such as 7d or 12h30m.'
        ) from None
    found = anyio.run(fleet.read, timestamp(since))
    print(fleet.page(found) if args.output == "html" else fleet.as_json(found))
    return commands.DONE


def _nodes(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    import anyio

    from preflight_gang.report import nodes

    found, missing = anyio.run(nodes.read, _config(args).node_conditions)
    for sentence in missing:
        print(f"Not read: {sentence}.", file=sys.stderr)
    name, now = getattr(args, "node", None), datetime.now(UTC)
    if name is not None and name not in found:
        raise commands.CommandFailed(
            f"no node {name} with GPUs, or of which anything is known; `preflight nodes` lists them."
        )
    shown = found if name is None else {name: found[name]}
    if args.output == "json":
        listed = nodes.as_json(shown)
        print(json.dumps(listed if name is None else listed[0], indent=2))
    elif name is None:
        commands.say(nodes.table(found, now, wide=args.output == "wide"))
    else:
        commands.say(nodes.record(name, found[name], now))
    return commands.DONE


def _about(found: tuple[Config, str]) -> Iterator[str]:
    config, taken = found
    yield f"checks: {', '.join(config.checks) or 'none'}"
    if taken:
        yield taken


def _warnings(found: tuple[Config, str]) -> Iterator[str]:
    if not found[0].checks:
        yield "checks: is empty, so no result is counted; name those of the injector."


def _crds() -> list[dict[str, Any]]:
    from preflight_gang.api.crd import crd, node_health_crd

    return [crd(), node_health_crd()]
