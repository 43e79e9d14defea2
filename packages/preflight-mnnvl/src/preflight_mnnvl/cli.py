"""The command line: explain, validate-config, schema."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import yaml
from preflight_proto.program import EXIT_CODES, leave, package_version

from . import document
from .config import Config, ConfigError, json_schema, parse
from .explain import Told, explain, text
from .objects import BadObject, shown

__all__ = ["main"]

EXIT_REFUSED = 1
EXIT_BAD_INPUT = 2

_ABOUT = """Multi-node NVLink for Grove workloads: what three annotations of a PodCliqueSet become, told without a cluster.

  preflight-mnnvl explain -f pcs.yaml      domains, their members, nodes needed, and the patch of each clique
  preflight-mnnvl validate-config FILE     every problem of a configuration file
  preflight-mnnvl schema                   the configuration's JSON Schema

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

"""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 the set would be refused, 2 bad input."""
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
        prog="preflight-mnnvl",
        description=_ABOUT,
        epilog=f"{_EXAMPLES}{EXIT_CODES}; explain ends with 1 where a set would be refused",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version('preflight-mnnvl')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    told = commands.add_parser("explain", help="what will become of a PodCliqueSet", description=_EXPLAIN)
    told.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="YAML with one or more PodCliqueSets; - for standard input"
    )
    told.add_argument("--config", type=Path, metavar="FILE", help="the release's configuration; default: all defaults")
    told.add_argument(
        "--grove-nodes", type=_count, metavar="N", help="how many nodes carry the label nvidia.com/gpu.clique"
    )
    told.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="%(choices)s (%(default)s)"
    )
    told.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="of the diffs; auto: on a terminal without NO_COLOR (%(default)s)",
    )
    told.set_defaults(run=_explain)
    validate = commands.add_parser("validate-config", help="list every problem of a configuration file")
    validate.add_argument("file", metavar="FILE", help="YAML (see `schema`); - for standard input")
    validate.set_defaults(run=_validate)
    commands.add_parser("schema", help="print the configuration's JSON Schema").set_defaults(run=_schema)
    return parser


_EXPLAIN = """Expands the set into the PodCliques that Grove will make, and runs each through the webhook's own decision. The cluster is taken to have NVIDIA's
DRA driver; what resource claims ask for is not looked up. The owner of a domain is told by Grove's rule for PodGangs."""


def _count(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 8):
        raise argparse.ArgumentTypeError(f'"{shown(value, 40)}" is no number of nodes; give e.g. 18')
    return int(value)


def _explain(args: argparse.Namespace) -> int:
    config = parse_file(str(args.config)) if args.config else Config()
    sets = _sets(args.file)
    color = args.color == "always" or (args.color == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    told = []
    for i, found in enumerate(sets):
        try:
            told.append(explain(found, config, args.grove_nodes))
        except BadObject as error:
            raise ConfigError([f"{args.file}: document {i + 1}: {error}; correct it."]) from None
    _print(told, args.output, color=color)
    return EXIT_REFUSED if any(one.problems or any(clique.message for clique in one.cliques) for one in told) else 0


def _print(told: list[Told], output: str, *, color: bool) -> None:
    if output == "text":
        print("\n".join(text(one, color=color) for one in told), end="")
        return
    plain = msgspec.to_builtins(told[0] if len(told) == 1 else told)
    print(
        json.dumps(plain, indent=2) if output == "json" else yaml.safe_dump(plain, sort_keys=False),
        end="\n" if output == "json" else "",
    )


def _sets(path: str) -> list[dict[str, Any]]:
    """The PodCliqueSets of a file, those of a List among them."""
    try:
        documents = document.read_all(_read(path))
    except document.DocumentError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None
    items: list[Any] = []
    for one in documents:
        inner = one.get("items") if isinstance(one, dict) and one.get("kind") == "List" else None
        items += inner if isinstance(inner, list) else [one]
    found = [one for one in items if isinstance(one, dict) and one.get("kind") == "PodCliqueSet"]
    if not found:
        raise ConfigError([f"{path}: has no PodCliqueSet; give a file with one."])
    return found


def parse_file(path: str) -> Config:
    """The configuration in a file. Raises :class:`~.config.ConfigError` with the file's name before each problem."""
    content = _read(path)
    try:
        return parse(content)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


def _read(path: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return raw.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError([f"{path}: cannot be read ({why}); give a readable file."]) from None


def _validate(args: argparse.Namespace) -> int:
    parse_file(args.file)
    print(f"{args.file}: valid")
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(json_schema(), indent=2))
    return 0
