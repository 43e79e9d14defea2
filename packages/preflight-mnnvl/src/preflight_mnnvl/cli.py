"""The command line: controller, webhook, certs, explain, show, validate-config, schema."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from preflight_kube.cli import commands
from preflight_kube.cli.commands import BadInput, command

from preflight_mnnvl.api.names import is_name
from preflight_mnnvl.api.types import BadObject, shown
from preflight_mnnvl.config import Config, json_schema, parse

if TYPE_CHECKING:
    from preflight_mnnvl.report.explain import ExplainedSet

_SERVICES: Final = (["controller"], ["webhook"])

_ABOUT = """Multi-node NVLink for Grove workloads: three annotations of a PodCliqueSet, and the pods of a replica share one ComputeDomain.

Annotations, on the PodCliqueSet, on an entry of podCliqueScalingGroups, or on a clique; the nearest layer counts, for each by itself:

  grove.io/mnnvl-enabled        exactly "true" switches it on
  grove.io/mnnvl-scope          who shares one ComputeDomain: replica (default: all cliques of a replica of the set), clique (the pods of one
                                PodClique), scalingGroupReplica (the cliques of one replica of a scaling group)
  grove.io/mnnvl-device-class   the claim's device class; read in mode "literal" alone
"""

_EXAMPLES = """examples:
  preflight-mnnvl explain -f pcs.yaml
  preflight-mnnvl explain -f pcs.yaml --grove-nodes 18 -o json
  kubectl get pcs training -o yaml | preflight-mnnvl explain -f -
  preflight-mnnvl explain --live pcs/training -n ml

"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 the set, or the cluster, refuses, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    parser, added = commands.parser(
        "preflight-mnnvl",
        _ABOUT,
        epilog=f"{_EXAMPLES}explain ends with 1 where a set would be refused.\n",
    )
    _services(added)
    if sys.argv[1:2] not in _SERVICES:  # what the others need is memory that these need not carry
        _others(added)
    return parser


def _others(added: Any) -> None:
    from preflight_kube.admission import certs

    certs.add_command(
        added,
        component="preflight-mnnvl",
        service="preflight-mnnvl-webhook",
        mutating=("preflight-mnnvl",),
        validating=("preflight-mnnvl",),
    )
    commands.report(added, "explain", add_explain)
    commands.report(added, "show", add_show)
    commands.report(added, "validate-config", add_validate)
    commands.add_schema(added, json_schema)


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Show what will become of a PodCliqueSet."""
    parser.description = _EXPLAIN
    parser.set_defaults(run=_explain)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="YAML with one or more PodCliqueSets; - for standard input",
    )
    where.add_argument(
        "--live",
        type=_live,
        metavar="pcs/NAME",
        help="the set as it is stored, and how the cluster differs from it",
    )
    parser.add_argument(
        "-n", "--namespace", default="default", help="with --live: of the set (%(default)s)"
    )
    commands.add_config(parser)
    parser.add_argument(
        "--grove-nodes",
        type=commands.number(0, 9_999_999, "number of nodes"),
        metavar="N",
        help="how many nodes carry the label nvidia.com/gpu.clique",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        default="text",
        help="%(choices)s (%(default)s)",
    )


def add_show(show: argparse.ArgumentParser) -> None:
    """Show what there is of sets, domains and their pods."""
    show.set_defaults(run=_show)
    show.add_argument(
        "pcs",
        nargs="?",
        default="",
        metavar="PCS",
        help="the PodCliqueSet; default: all of the namespace",
    )
    show.add_argument("-n", "--namespace", default="default", help="of the set (%(default)s)")
    commands.add_config(show)


def add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""
    commands.validates(parser, parse)


def _services(added: Any) -> None:
    run = commands.add_controller(added, _controller)
    hook = command(added, "webhook", _webhook, help="be one replica of the webhook")
    hook.add_argument(
        "--certificate",
        type=Path,
        default=Path("/etc/preflight-mnnvl/tls"),
        metavar="FOLDER",
        help="tls.crt and tls.key, as in a mounted Secret (%(default)s)",
    )
    commands.add_client_ca(hook)
    commands.add_port(hook, "--admission-port", "LISTEN_TLS", 8443, "for reviews, over TLS")
    commands.add_address(hook)
    for program in (run, hook):
        commands.add_config(program)


def _live(value: str) -> str:
    kind, _, name = value.partition("/")
    if kind not in {"pcs", "podcliqueset", "podcliquesets"} or not is_name(name):
        raise argparse.ArgumentTypeError(
            f'"{shown(value, 60)}" is not a PodCliqueSet; write pcs/NAME'
        )
    return name


_EXPLAIN = """Expands the set into the PodCliques that Grove will make, and runs each through the webhook's own decision. The cluster is taken to have NVIDIA's
DRA driver; what resource claims ask for is not looked up. The owner of a domain follows from Grove's rule for PodGangs."""


def _controller(args: argparse.Namespace) -> int:
    from preflight_kube.auth.connection import connection

    from preflight_mnnvl.service import run_controller

    return run_controller(connection(), _config(args), args)


def _webhook(args: argparse.Namespace) -> int:
    from preflight_kube.auth.connection import connection

    from preflight_mnnvl.service import run_webhook

    return run_webhook(connection(), _config(args), args)


def _show(args: argparse.Namespace) -> int:
    import anyio
    from preflight_kube.auth.connection import connection

    from preflight_mnnvl.report.live import show_live

    config, target = _given(args), connection(home=Path.home())
    text = anyio.run(show_live, target, args.namespace, args.pcs, config)
    if text is None:
        raise _absent(args.namespace, args.pcs)
    print(text, end="")
    return 0


def _given(args: argparse.Namespace) -> Config | None:
    return commands.load(parse, args.config) if args.config else None


def _config(args: argparse.Namespace) -> Config:
    return _given(args) or Config()


def _explain(args: argparse.Namespace) -> int:
    import msgspec

    from preflight_mnnvl.report.explain import text

    reports, differs = _explained_live(args) if args.live else (_explained(args), None)
    if args.output == "text":
        print("\n".join(map(text, reports)), end="")
        if differs is not None:
            differences = "\n".join(f"differs  {report}" for report in differs)
            print(f"\n{differences or 'The cluster is as expected.'}")
    else:
        plain = [msgspec.to_builtins(report) for report in reports]
        if differs is not None:
            plain[0]["differences"] = differs
        _print(plain[0] if len(plain) == 1 else plain, args.output)
    refused = any(
        report.problems or any(clique.message for clique in report.cliques) for report in reports
    )
    return commands.FAILED if refused else commands.DONE


def _explained(args: argparse.Namespace) -> list[ExplainedSet]:
    from preflight_mnnvl.report.explain import explain

    config, reports = _config(args), []
    for i, manifest in enumerate(_sets(args.file)):
        try:
            reports.append(explain(manifest, config, args.grove_nodes))
        except BadObject as error:
            where = f"{commands.named(args.file)}: document {i + 1}"
            raise BadInput(f"{where}: {error}; correct it.") from None
    return reports


def _explained_live(args: argparse.Namespace) -> tuple[list[ExplainedSet], list[str]]:
    import anyio
    from preflight_kube.auth.connection import connection

    from preflight_mnnvl.report.live import explain_live

    if args.grove_nodes is not None:
        raise BadInput(
            "--grove-nodes: with --live the nodes are counted in the cluster; leave it out."
        )
    config, target = _given(args), connection(home=Path.home())
    try:
        live = anyio.run(explain_live, target, args.namespace, args.live, config)
    except BadObject as error:
        raise BadInput(f"PodCliqueSet {args.namespace}/{args.live}: {error}; correct it.") from None
    if live is None:
        raise _absent(args.namespace, args.live)
    return [live[0]], live[1]


def _absent(namespace: str, name: str) -> BadInput:
    shown_name = shown(name, 60)
    return BadInput(
        f"PodCliqueSet {namespace}/{shown_name}: there is none; see `kubectl get pcs -A`."
    )


def _print(plain: Any, output: str) -> None:
    if output == "json":
        print(json.dumps(plain, indent=2))
        return
    import yaml

    print(yaml.safe_dump(plain, sort_keys=False), end="")


def _sets(path: str) -> list[dict[str, Any]]:
    """The PodCliqueSets of a file."""
    every = [item for item in commands.manifests(path) if isinstance(item, dict)]
    sets = [item for item in every if item.get("kind") == "PodCliqueSet"]
    if not sets:
        raise BadInput(f"{commands.named(path)}: has no PodCliqueSet; give a file with one.")
    return sets
