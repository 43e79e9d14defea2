"""The command line: explain, validate-config, schema."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
import yaml
from preflight_proto.program import EXIT_CODES, leave, package_version

from . import document
from .config import ConfigError, json_schema, parse
from .explain import plan, plan_text
from .objects import API_VERSION, KIND, wrapper_from
from .rules import Rules

__all__ = ["main"]

EXIT_BAD_INPUT = 2
_MOST_BYTES = 4 * 1024 * 1024
"""Of a file that is read; an object in a cluster has at most 1.5 MB."""

_ABOUT = """AppWrapper: workloads that are watched, reset, moved off sick nodes, and gone without a trace.

  preflight-appwrapper explain -f FILE          what would be created for an AppWrapper, and every problem of it
  preflight-appwrapper validate-config FILE     every problem of a configuration file
  preflight-appwrapper schema                   the configuration's JSON Schema

None of them asks a cluster.

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

The annotations of a wrapper, all under workload.codeflare.dev.appwrapper/, change the same for itself: admissionGracePeriodDuration,
warmupGracePeriodDuration, failureGracePeriodDuration, retryPausePeriodDuration, forcefulDeletionGracePeriodDuration, successTTLDuration,
preflightAllowanceDuration, retryLimit; and deletionOnFailureGracePeriodDuration, terminalExitCodes, retryableExitCodes.
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 2 bad input."""
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
    return parser


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


def _rules(path: Path) -> Rules:
    text = _read(path)
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _explain(args: argparse.Namespace) -> int:
    rules = _rules(args.config) if args.config else Rules()
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


def _validate(args: argparse.Namespace) -> int:
    _rules(args.file)
    print(f"{args.file}: no problem found")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0
