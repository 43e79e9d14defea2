"""`explain`: pods of files or of a cluster, and what would be decided about them."""

from __future__ import annotations

import argparse
from importlib.metadata import entry_points
from pathlib import Path

import anyio
from preflight_kube.api.workloads.table import KINDS
from preflight_kube.auth.connection import connection
from preflight_kube.cli import commands
from preflight_kube.cli.commands import BadInput
from preflight_kube.client.client import Client

from preflight_webhook.config.config import parse
from preflight_webhook.core.detect.devices import detects
from preflight_webhook.report import live
from preflight_webhook.report.explain import explain
from preflight_webhook.report.release import InstalledRelease
from preflight_webhook.report.release import parse as parse_release
from preflight_webhook.report.workloads import FoundPod, Object, found_in, objects_in

STORED = "preflight.stored"
"""Entry points of what other parts' webhooks make of the objects of a file before their pods are
created: each takes and returns a list of objects.
"""


def add_explain(parser: argparse.ArgumentParser) -> None:
    """What would be decided about a pod, with or without a cluster."""
    parser.set_defaults(run=_run)
    given = parser.add_mutually_exclusive_group(required=True)
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
    parser.add_argument(
        "-n", "--namespace", default="default", help="where --live looks (%(default)s)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration, or the Helm values of the release; without one, with --live that of the cluster's release, else dcgm-diag with its defaults",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="%(default)s"
    )
    parser.add_argument("--brief", action="store_true", help="without the patch")


def _run(args: argparse.Namespace) -> int:
    problems: list[str] = []
    pods, given = anyio.run(_from_cluster, args) if args.live else _from_files(args, problems)
    reports = []
    for pod in pods:
        try:
            reports.append(explain(pod, given, args.output, brief=args.brief))
        except ValueError as error:
            problems.append(str(error))
    between = {"text": "\n\n", "json": "\n", "yaml": "\n---\n"}
    if reports:
        print(between[args.output].join(reports))
    if problems:
        raise BadInput(dict.fromkeys(problems))
    return commands.DONE


def _configured(file: Path) -> InstalledRelease:
    given = commands.load(parse_release, file)
    return given._replace(source=f"{file}{f' ({given.source})' if given.source else ''}")


def _from_files(
    args: argparse.Namespace, problems: list[str]
) -> tuple[list[FoundPod], InstalledRelease]:
    """What can be read of the files; ``problems`` gets a sentence for each thing that cannot."""
    if args.config is not None:
        given = _configured(args.config)
    else:
        by = "the defaults (dcgm-diag alone); give the values of your release, or its configuration, with --config"
        config = parse("checks: [{name: dcgm-diag, image: preflight-dcgm-diag}]")
        given = InstalledRelease(config, None, by)
    objects: list[Object] = []
    for file in args.file:
        try:
            objects += objects_in(file)
        except BadInput as error:
            problems += error.problems
    for point in entry_points(group=STORED):
        objects = point.load()(objects)
    pods, bad = found_in(objects, ", ".join(map(commands.named, args.file)))
    if not problems or objects:  # else the reason why there is no pod is said already
        problems += bad
    return pods, given


async def _from_cluster(args: argparse.Namespace) -> tuple[list[FoundPod], InstalledRelease]:
    kind, name = live.wanted_of(args.live)
    async with Client(connection(home=Path.home()), agent="preflight-webhook") as client:
        given = _configured(args.config) if args.config else await live.release_of(client)
        policies = given.config.preflight_configs.enabled
        objects = await live.objects_of(client, kind, name, args.namespace, policies=policies)
        pods, problems = found_in(objects, args.live)
        if problems:
            raise BadInput(problems)
        if detects(given.config):
            pods = [pod._replace(claims=await live.needed(pod, client)) for pod in pods]
        return pods, given
