"""Three programs: the controller, the kubelet plugin, and what an administrator asks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from preflight_kube.cli import commands
from preflight_kube.files.configfile import ConfigError

from preflight_computedomain import service
from preflight_computedomain.api.names import CONTROLLER, PLUGIN

if TYPE_CHECKING:
    from preflight_kube.auth.connection import Connection

    from preflight_computedomain.config import Gates

_LEVELS: Final = ("debug", "info", "warning", "error")

_ABOUT = """Host-managed IMEX: ComputeDomains whose channel 0 reaches pods, while the operator owns nvidia-imex.

The cluster is that of KUBECONFIG when that is set, else the one this pod runs in, else that of ~/.kube/config.
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    from preflight_computedomain import config
    from preflight_computedomain.api.crd import crd

    program, subparsers = commands.parser("preflight-computedomain", _ABOUT)
    commands.report(subparsers, "doctor", add_doctor)
    commands.report(subparsers, "explain", add_explain)
    commands.report(subparsers, "validate-config", add_validate)
    commands.add_schema(subparsers, config.json_schema)
    commands.add_crd(subparsers, crd)
    return program


def add_doctor(doctor: argparse.ArgumentParser) -> None:
    """Find what is wrong in the cluster, and what to do."""
    doctor.set_defaults(run=_doctor)
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


def add_explain(explain: argparse.ArgumentParser) -> None:
    """One ComputeDomain, down to its pods."""
    explain.set_defaults(run=_explain)
    explain.add_argument("name", metavar="NAME", help="of the ComputeDomain")
    explain.add_argument("-n", "--namespace", default="default", help="where it is (%(default)s)")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""
    commands.validates(parser, _values)


def _values(text: str) -> object:
    """The values of the chart, or of the umbrella with a part of this name."""
    from preflight_kube.files import yaml_document

    from preflight_computedomain.config import CHART, OWN, problems

    raw = yaml_document.read(text)
    path, values = "", {} if raw is None else raw
    if isinstance(values, dict) and isinstance(values.get(CHART), dict):
        path, values = f"{CHART}.", values[CHART]
    if isinstance(values, dict):
        values = {
            key: value for key, value in values.items() if key not in OWN and value is not None
        }
    if wrong := problems(values, path):
        raise ConfigError(wrong)
    return values


def _doctor(args: argparse.Namespace) -> int:
    import anyio

    from preflight_computedomain.report.doctor import RUNBOOK, before_uninstall, report
    from preflight_computedomain.report.live import read_cluster

    if args.runbook:
        print(RUNBOOK, end="")
        return commands.DONE
    judge = before_uninstall if args.before_uninstall else report
    lines, sound = judge(anyio.run(read_cluster))
    commands.say("\n".join(lines))
    return commands.DONE if sound else commands.FAILED


def _explain(args: argparse.Namespace) -> int:
    import anyio

    from preflight_computedomain.report.doctor import explain
    from preflight_computedomain.report.live import read_cluster

    cluster = anyio.run(read_cluster, args.namespace)
    lines = explain(cluster, args.namespace, args.name)
    if not lines and cluster.unread:
        raise commands.CommandFailed(" ".join(cluster.unread))
    if not lines:
        raise commands.CommandFailed(
            f"no ComputeDomain {args.name} in namespace {args.namespace}; `-n` names another namespace."
        )
    commands.say("\n".join(lines))
    return commands.DONE


# --- the programs of the cluster


def controller() -> NoReturn:
    """Be one replica of the controller until SIGTERM."""
    commands.main(_controller_parser)


def plugin() -> NoReturn:
    """Serve the kubelet of this node until SIGTERM."""
    commands.main(_plugin_parser)


def _controller_parser() -> argparse.ArgumentParser:
    about = "Makes the ResourceClaimTemplates of ComputeDomains. IMEX itself is the operator's."
    program = _program(CONTROLLER, about, service.controller)
    commands.add_lease(program)
    program.add_argument(
        "--lease-seconds",
        type=commands.number(1, 3600, "number of seconds"),
        default=15,
        metavar="SECONDS",
        help="a leader that has not renewed its lease for so long writes no more (%(default)s)",
    )
    return program


def _plugin_parser() -> argparse.ArgumentParser:
    about = "DRA driver of one node: puts IMEX channel 0 into pods that have the claim. IMEX itself is the operator's."
    return _program(PLUGIN, about, service.plugin)


def _program(
    name: str, about: str, run: Callable[[Connection, Gates, argparse.Namespace], int]
) -> argparse.ArgumentParser:
    program = argparse.ArgumentParser(
        prog=name,
        description=about,
        epilog="Feature gates are read from FEATURE_GATES (Name=true,Other=false), with IMEX_MODE and IMEX_ISOLATION. "
        "Exit status: 0 after SIGTERM; 1 it cannot work here; 2 bad input.",
    )
    version = commands.version_of("preflight-computedomain")
    program.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands.add_address(program)
    program.add_argument(
        "--log-level",
        default=os.environ.get("LOG_LEVEL") or "info",
        help="LOG_LEVEL (here %(default)s)",
        metavar="LEVEL",
    )
    program.set_defaults(run=lambda args: run(*_begin(args), args))
    return program


def _begin(args: argparse.Namespace) -> tuple[Connection, Gates]:
    """Raises BadInput with every problem of gates, log level and access."""
    from preflight_kube.auth.connection import connection

    from preflight_computedomain.config import GatesInvalid, read_gates

    problems: list[str] = []
    if args.log_level not in _LEVELS:
        problems.append(
            f"LOG_LEVEL: {args.log_level!r:.60} is not a level; use one of {', '.join(_LEVELS)}."
        )
    try:
        names = ("FEATURE_GATES", "IMEX_MODE", "IMEX_ISOLATION")
        gates = read_gates(*(os.environ.get(name, "") for name in names))
    except GatesInvalid as error:
        problems += error.problems
    if problems:
        raise commands.BadInput(problems)
    return connection(os.environ), gates
