"""The program ``preflight-computedomain``: what an administrator asks. It reads; it changes
nothing.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from preflight_kube.cli import commands
from preflight_kube.files.configfile import ConfigError

__all__ = ["main"]

_ABOUT = """Host-managed IMEX: ComputeDomains whose channel 0 reaches pods, while the operator owns nvidia-imex.

  preflight-computedomain doctor                leftovers, nodes without a slice, conflicts, stale claims; what to do
  preflight-computedomain explain -n NS NAME    one ComputeDomain: its template, claims, nodes and pods
  preflight-computedomain validate-config FILE  every problem of what the programs read of the chart's values
  preflight-computedomain schema                the JSON Schema of the values that the programs read
  preflight-computedomain crd                   the CustomResourceDefinition, for `kubectl apply --server-side -f -`

The cluster is that of KUBECONFIG when that is set, else the one this pod runs in, else that of ~/.kube/config.
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    from . import config
    from .crd import crd

    made, subparsers = commands.parser("preflight-computedomain", _ABOUT)
    doctor = commands.command(
        subparsers, "doctor", _doctor, help="what is wrong in the cluster, and what to do"
    )
    doctor.add_argument(
        "--runbook",
        action="store_true",
        help="print how to change between driver-managed and host-managed IMEX",
    )
    doctor.add_argument(
        "--before-uninstall",
        action="store_true",
        help="say what could not be deleted any more; exit status 1 where there is something",
    )
    explain = commands.command(
        subparsers, "explain", _explain, help="one ComputeDomain, down to its pods"
    )
    explain.add_argument("name", metavar="NAME", help="of the ComputeDomain")
    explain.add_argument("-n", "--namespace", default="default", help="where it is (%(default)s)")
    commands.add_validate_config(subparsers, _values)
    commands.add_schema(subparsers, config.json_schema)
    commands.add_crd(subparsers, crd)
    return made


def _values(text: str) -> object:
    """The values of the chart, or of the umbrella with a part of this name. Raises ConfigError."""
    from preflight_kube.files import yaml_document as document

    from .config import CHART, OWN, problems

    try:
        raw = document.read(text)
    except document.DocumentError as error:
        raise ConfigError(error.problems) from None
    path, values = "", {} if raw is None else raw
    if isinstance(values, dict) and isinstance(values.get(CHART), dict):
        path, values = f"{CHART}.", values[CHART]
    if isinstance(values, dict):
        values = {
            key: value for key, value in values.items() if key not in OWN and value is not None
        }
    if found := problems(values, path):
        raise ConfigError(found)
    return values


def _doctor(args: argparse.Namespace) -> int:
    import anyio

    from .doctor import RUNBOOK, before_uninstall, report
    from .look import look

    if args.runbook:
        print(RUNBOOK, end="")
        return commands.DONE
    said = before_uninstall if args.before_uninstall else report
    lines, sound = said(anyio.run(look))
    commands.say("\n".join(lines))
    return commands.DONE if sound else commands.FAILED


def _explain(args: argparse.Namespace) -> int:
    import anyio

    from .explain import explain
    from .look import look

    lines = explain(anyio.run(look, args.namespace), args.namespace, args.name)
    if not lines:
        raise commands.CommandFailed(
            f"no ComputeDomain {args.name} in namespace {args.namespace}; `-n` names another namespace."
        )
    commands.say("\n".join(lines))
    return commands.DONE
