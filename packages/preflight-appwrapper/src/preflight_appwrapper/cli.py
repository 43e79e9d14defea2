"""The command line: run, label-nodes, explain, validate-config, schema, crd."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import yaml
from preflight_proto.program import EXIT_CODES, leave, package_version

from . import document
from .config import Config, ConfigError, json_schema, settings
from .explain import plan, plan_text
from .objects import API_VERSION, KIND, wrapper_from
from .rules import Rules

if TYPE_CHECKING:
    from preflight_kube.client import Client
    from preflight_kube.lease import Leadership

    from .metrics import Metrics

__all__ = ["main"]

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
_MOST_BYTES = 4 * 1024 * 1024
"""Of a file that is read; an object in a cluster has at most 1.5 MB."""

_ABOUT = """AppWrapper: workloads that are watched, reset, moved off sick nodes, and gone without a trace.

  preflight-appwrapper run --config FILE        be one replica of the controller
  preflight-appwrapper label-nodes              keep one label on each node right, by the node's conditions
  preflight-appwrapper explain -f FILE          what would be created for an AppWrapper, and every problem of it
  preflight-appwrapper validate-config FILE     every problem of a configuration file
  preflight-appwrapper schema                   the configuration's JSON Schema
  preflight-appwrapper crd                      the CustomResourceDefinition, for `kubectl apply --server-side -f -`

The cluster is the one of KUBECONFIG when that is set, else the one this pod runs in.

A configuration file is YAML. These are all its sections, with their defaults; durations are Go durations in quotes or plain:

  faultTolerance:
    admissionGracePeriod: 1m            # until all pods exist
    warmupGracePeriod: 5m               # until all pods run
    failureGracePeriod: 1m              # for the workload to mend itself
    retryPausePeriod: 90s               # between the end of deletion and the next creation; doubles with evacuations in a row
    retryLimit: 3                       # counted resets
    forcefulDeletionGracePeriod: 10m    # until what is left is deleted by force
    successTTL: 168h                    # until what has succeeded is deleted
    gracePeriodMaximum: 24h             # bounds every other period
    preflightAllowance: 20m             # of preflight's checks, which are no warm-up
    failedPods: unreplaced              # or any: a failed pod counts even if its controller has made up for it
  autopilot:
    injectAntiAffinities: true
    monitorNodes: true
    preferNoScheduleWeight: 50
    resourceTaints:                     # node labels, by resource
      nvidia.com/gpu:
      - {key: autopilot.ibm.com/gpuhealth, value: ERR, effect: NoSchedule}
      - {key: autopilot.ibm.com/gpuhealth, value: EVICT, effect: NoExecute}
  defaultQueueName: ""
  schedulerName: ""
  failureRules: []                      # how the status of further kinds is read
  nodeHealth:                           # of `label-nodes`: while one of these conditions is True, the node has this label
    conditions: ["DcgmDiagnostic*", NCCLLoopbackTest, NCCLAllReduceTest]
    key: preflight.nvsentinel.nvidia.com/gpu-health
    value: EVICT
  leaseDuration: 15s                    # after which another replica may lead
  logLevel: info

The annotations of a wrapper, all under workload.codeflare.dev.appwrapper/, change the same for itself: admissionGracePeriodDuration,
warmupGracePeriodDuration, failureGracePeriodDuration, retryPausePeriodDuration, forcefulDeletionGracePeriodDuration, successTTLDuration,
preflightAllowanceDuration, retryLimit; and deletionOnFailureGracePeriodDuration, terminalExitCodes, retryableExitCodes.
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
        prog="preflight-appwrapper",
        description=_ABOUT,
        epilog=f"{EXIT_CODES}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version('preflight-appwrapper')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="be one replica of the controller")
    _as_service(run, _run)
    label = commands.add_parser("label-nodes", help="keep one label on each node right, by the node's conditions")
    _as_service(label, _label_nodes)
    explain = commands.add_parser("explain", help="what would be created for an AppWrapper, and every problem of it")
    explain.add_argument("-f", "--file", type=Path, required=True, metavar="FILE", help="the manifest (YAML or JSON)")
    explain.add_argument("--config", type=Path, metavar="FILE", help="configuration; default: all defaults")
    explain.add_argument(
        "-o", "--output", choices=("text", "yaml", "json"), default="text", help="yaml: the objects alone (%(default)s)"
    )
    explain.set_defaults(run=_explain)
    validate = commands.add_parser("validate-config", help="list every problem of a configuration file")
    validate.add_argument("file", type=Path, metavar="FILE", help="the configuration (YAML)")
    validate.set_defaults(run=_validate)
    commands.add_parser("schema", help="print the configuration's JSON Schema").set_defaults(run=_schema)
    commands.add_parser("crd", help="print the CustomResourceDefinition").set_defaults(run=_crd)
    return parser


def _as_service(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration; default: all defaults")
    parser.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "preflight",
        help="where the lease is kept (POD_NAMESPACE; here %(default)s)",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address of the plain port (%(default)s)")  # noqa: S104
    parser.add_argument("--port", type=_port, default=8080, help="/healthz, /readyz, /metrics (%(default)s; 0: any)")
    parser.set_defaults(run=run)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port; give a number from 0 to 65535')
    return int(text)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError([f"{path}: has more than {_MOST_BYTES} bytes; give a smaller file."])
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError([f"{path}: {why}; give a readable file."]) from None


def _settings(path: Path | None) -> tuple[Config, Rules]:
    text = _read(path) if path is not None else ""
    try:
        return settings(text)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _explain(args: argparse.Namespace) -> int:
    rules = _settings(args.config)[1]
    text = _read(args.file)
    try:
        raw = document.read(text)
    except document.DocumentError as error:
        raise ConfigError([f"{args.file}: {problem}" for problem in error.problems]) from None
    if not isinstance(raw, dict) or raw.get("apiVersion") != API_VERSION or raw.get("kind") != KIND:
        raise ConfigError(
            [f"{args.file}: holds no AppWrapper; give one with apiVersion {API_VERSION} and kind {KIND}."]
        )
    found = plan(wrapper_from(raw), rules)
    if args.output == "json":
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    elif args.output == "yaml":
        print(yaml.safe_dump_all(found.objects, sort_keys=False, width=120), end="")
    else:
        print(plan_text(found))
    if found.problems and args.output != "text":
        for problem in found.problems:
            print(f"{args.file}: {problem}", file=sys.stderr)
    return EXIT_BAD_INPUT if found.problems else 0


def _run(args: argparse.Namespace) -> int:
    from .controller import Controller

    config, rules = _settings(args.config)
    return _serve_leading(
        args, config, "preflight-appwrapper", lambda client, metrics: Controller(client, rules, metrics).lead
    )


def _label_nodes(args: argparse.Namespace) -> int:
    from .labeler import Labeler

    config, _ = _settings(args.config)
    return _serve_leading(
        args,
        config,
        "preflight-appwrapper-labeler",
        lambda client, metrics: Labeler(client, config.node_health, metrics).lead,
    )


def _serve_leading(
    args: argparse.Namespace,
    config: Config,
    lease: str,
    leads: Callable[[Client, Metrics], Callable[[Leadership], Awaitable[None]]],
) -> int:
    import anyio
    from preflight_kube import logs
    from preflight_kube.connection import connection
    from preflight_kube.errors import BadAccess

    from . import service
    from .metrics import Metrics

    try:
        target = connection()
    except BadAccess as error:
        print(f"preflight-appwrapper: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    logs.set_up(service.AGENT, config.log_level)
    metrics = Metrics()

    async def run() -> None:
        await service.run(
            target,
            metrics,
            lease=lease,
            lease_seconds=config.lease_seconds,
            namespace=args.namespace,
            host=args.host,
            port=args.port,
            act=lambda client: leads(client, metrics),
        )

    try:
        anyio.run(run)
    except OSError as error:
        why = error.strerror or error
        print(
            f"preflight-appwrapper: {args.host}:{args.port} cannot be listened on ({why}); choose another --port.",
            file=sys.stderr,
        )
        return EXIT_FAILED
    except Exception as error:
        logs.fault("ended by a fault of its own; it is started anew, please report this line", error)
        return EXIT_FAILED
    return 0


def _validate(args: argparse.Namespace) -> int:
    _settings(args.file)
    print(f"{args.file}: no problem found")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0


def _crd(_: argparse.Namespace) -> int:
    from .crd import crd

    print(yaml.safe_dump(crd(), sort_keys=False, width=120), end="")
    return 0
