"""The command line."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import yaml
from msgspec.structs import replace
from preflight_kube.admission import limits
from preflight_kube.cli import commands
from preflight_kube.files import yaml_document as document

from preflight_appwrapper.api.crd import crd
from preflight_appwrapper.api.names import API_VERSION, COMPONENT, KIND
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import wrapper_from
from preflight_appwrapper.config import Config, json_schema, settings
from preflight_appwrapper.report.explain import plan, plan_text, text

CONFIGURATION: Final = "appwrapper-preflight"
"""The name of both webhook configurations. Those that change objects are called in the order of
their names, and Kueue's begins with ``kueue-``.
"""
_LEAST_KEY: Final = 32

_ABOUT = """AppWrapper: workloads that are watched, reset, moved off sick nodes, and gone without a trace.

The cluster is the one of KUBECONFIG when that is set, else the one this pod runs in; for `explain` and `evacuations` else that of
~/.kube/config.

A configuration file is YAML: `schema` prints its keys and bounds, and the chart has values of the same names.

The annotations of a wrapper, all under workload.codeflare.dev.appwrapper/, change the same for itself: admissionGracePeriodDuration,
warmupGracePeriodDuration, failureGracePeriodDuration, retryPausePeriodDuration, forcefulDeletionGracePeriodDuration, successTTLDuration,
preflightAllowanceDuration, retryLimit; and deletionOnFailureGracePeriodDuration, terminalExitCodes, retryableExitCodes.
"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    parser, subparsers = commands.parser("preflight-appwrapper", _ABOUT)
    run = commands.command(subparsers, "run", _run, help="be one replica of the controller")
    label = commands.command(
        subparsers, "label-nodes", _label_nodes, help="keep one label on each node right"
    )
    serve = commands.command(
        subparsers, "serve", _serve, help="answer the API server's admission reviews"
    )
    for command in (run, label, serve):
        commands.add_config(command)
        commands.add_lease(command)
        commands.add_address(command)
    key = "file with the key of marks (none: no marks)"
    for command in (run, serve):
        command.add_argument("--mark-key", type=Path, help=key)
    excluded = "of which nothing is created; any number"
    run.add_argument("--exclude-namespace", action="append", default=[], help=excluded)
    serve.add_argument(
        "--wrapped-kind",
        action="append",
        default=[],
        metavar="RESOURCE.GROUP",
        help="what the controller may create beside pods; any number (none: not looked at)",
    )
    files = "folder with tls.crt and tls.key"
    serve.add_argument("--cert-dir", type=Path, required=True, metavar="DIR", help=files)
    commands.add_client_ca(serve)
    commands.add_port(serve, "--tls-port", "LISTEN_TLS", 8443, "admission, over TLS")
    end = "how long to go on answering after SIGTERM (%(default)s)"
    serve.add_argument("--linger", type=commands.seconds, default=10.0, metavar="SECONDS", help=end)
    if sys.argv[1:2] == ["certs"]:  # 8 MB in memory that no other command need carry
        from preflight_kube.admission import certs

        certs.add_command(
            subparsers,
            component=COMPONENT,
            service="preflight-appwrapper-webhook",
            secret="preflight-appwrapper-tls",  # noqa: S106 - its name
            mutating=[CONFIGURATION],
            validating=[CONFIGURATION],
            keys=["mark.key"],
        )
    else:
        subparsers.add_parser("certs", help="keep the serving certificate and the CA bundles fresh")
    commands.report(subparsers, "explain", add_explain)
    commands.report(subparsers, "evacuations", add_evacuations)
    commands.report(subparsers, "validate-config", add_validate)
    commands.add_schema(subparsers, json_schema)
    commands.add_crd(subparsers, crd)
    return parser


def add_explain(explain: argparse.ArgumentParser) -> None:
    """Explain why a wrapper is as it is and what comes next."""
    explain.set_defaults(run=_explain)
    explain.add_argument("name", nargs="?", metavar="NAME", help="an AppWrapper of the cluster")
    where = "where NAME is, or where what FILE holds would be (%(default)s)"
    explain.add_argument("-n", "--namespace", default="default", help=where)
    manifest = "a manifest instead (YAML or JSON): what would be created"
    explain.add_argument("-f", "--file", metavar="FILE", help=manifest)
    commands.add_config(explain)
    objects, outputs = "yaml: the objects alone (%(default)s)", ("text", "yaml", "json")
    explain.add_argument("-o", "--output", choices=outputs, default="text", help=objects)


def add_evacuations(waiting: argparse.ArgumentParser) -> None:
    """Show what the brake has wait, and release it."""
    waiting.set_defaults(run=_evacuations)
    waiting.add_argument("--release", action="store_true", help="let all of it go now")
    commands.add_config(waiting)
    waiting.add_argument("-o", "--output", choices=("text", "json"), default="text")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""
    commands.validates(parser, settings)


def _settings(path: Path | None) -> tuple[Config, WrapperRules]:
    return commands.load(settings, path) if path else settings("")


def _mark_key(path: Path | None) -> bytes:
    key = commands.read(path).strip().encode() if path else b""
    if path and len(key) < _LEAST_KEY:
        raise commands.BadInput(
            f"{path}: has {len(key)} characters, and a key at least {_LEAST_KEY}; let `preflight-appwrapper certs` make it"
        )
    return key


def _run(args: argparse.Namespace) -> int:
    from preflight_appwrapper import service

    config, rules = _settings(args.config)
    excluded = frozenset(args.exclude_namespace)
    rules = replace(rules, excluded=excluded, mark_key=_mark_key(args.mark_key))
    return service.controller(config, rules, args)


def _label_nodes(args: argparse.Namespace) -> int:
    from preflight_appwrapper import service

    return service.labeler(*_settings(args.config), args)


def _serve(args: argparse.Namespace) -> int:
    from preflight_kube.admission.tls import Certificate

    from preflight_appwrapper import service

    config, rules = _settings(args.config)
    wrapped = frozenset(args.wrapped_kind) | {"pods"} if args.wrapped_kind else frozenset()
    return service.webhook(
        config,
        replace(rules, mark_key=_mark_key(args.mark_key), wrapped=wrapped),
        args,
        Certificate(args.cert_dir, "`preflight-appwrapper certs`", args.client_ca),
    )


def _explain(args: argparse.Namespace) -> int:
    rules = _settings(args.config)[1]
    if bool(args.name) == bool(args.file):
        raise commands.BadInput("explain: needs either NAME or -f FILE; give one of the two")
    if args.name:
        return _explain_live(args, rules)
    raw = commands.load(lambda text: document.read(text, document.MANIFEST), args.file)
    if not isinstance(raw, dict) or raw.get("apiVersion") != API_VERSION or raw.get("kind") != KIND:
        raise commands.BadInput(
            f"{args.file}: holds no AppWrapper; give one with apiVersion {API_VERSION} and kind {KIND}"
        )
    if beyond := limits.of_value(raw):
        raise commands.BadInput(f"{args.file}: {beyond}")
    wrapper = wrapper_from(raw)
    if not wrapper.metadata.namespace:  # as kubectl create -n has it
        wrapper = replace(wrapper, metadata=replace(wrapper.metadata, namespace=args.namespace))
    planned = plan(wrapper, rules)
    if args.output == "yaml":
        print(yaml.safe_dump_all(planned.objects, sort_keys=False, width=120), end="")
    else:
        _print(args, planned, plan_text(planned))
    for problem in planned.problems if args.output != "text" else ():
        print(f"{args.file}: {problem}", file=sys.stderr)
    return commands.BAD_INPUT if planned.problems else commands.DONE


def _evacuations(args: argparse.Namespace) -> int:
    import anyio

    from preflight_appwrapper.report.evacuations import evacuations, lines

    health = _settings(args.config)[0].node_health
    waits = anyio.run(lambda: evacuations(health, released=args.release))
    _print(args, waits, "\n".join(lines(waits, released=args.release)))
    return commands.DONE


def _explain_live(args: argparse.Namespace, rules: WrapperRules) -> int:
    import anyio

    from preflight_appwrapper.service import explain_once

    if args.output == "yaml":
        raise commands.BadInput(
            "explain: -o yaml shows what would be created, and needs -f FILE; give -o json"
        )
    explanation = anyio.run(explain_once, args.namespace, args.name, rules)
    if explanation is None:
        raise commands.CommandFailed(
            f"no AppWrapper {args.name} in namespace {args.namespace}; `-n` names another one"
        )
    if args.config is None:
        hint = "parameters are the defaults of this program; --config FILE has those of the release"
        print(f"explain: {hint}.", file=sys.stderr)
    _print(args, explanation, text(explanation))
    return commands.DONE


def _print(args: argparse.Namespace, report: msgspec.Struct, text: str) -> None:
    if args.output == "json":
        print(json.dumps(msgspec.to_builtins(report), indent=2))
    else:
        commands.say(text)
