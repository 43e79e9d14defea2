"""The program ``preflight``: VERB KIND, over what the installed parts register.

A part registers under the entry point group ``preflight.reports`` functions that add a command's
arguments to its parser and set what runs, each named ``VERB.KIND``, or ``VERB`` where there is but
one. So a cluster with two parts has two, and no part knows another one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NoReturn

from preflight_kube.cli import commands
from preflight_kube.errors import BadAccess, KubeError

GROUP: Final = "preflight.reports"
VERBS: Final = {
    "doctor": "what is wrong in the cluster, and what to do; without KIND all parts",
    "evacuations": "what AppWrapper's brake has wait, and its release",
    "explain": "why an object is as it is, or what would become of it",
    "node": "all that is known of one node, by check and GPU",
    "nodes": "how each node with GPUs is, since when, and who found it",
    "report": "what the checks found in a cluster, as a page",
    "revalidate": "test a node that was repaired, or is new; what passes is cleared",
    "show": "what there is, as its controller sees it",
    "validate": "every problem of a part's configuration; of injector, gang and computedomain also of Helm values",
}
_ABOUT = """What people ask of Preflight, of every part that is installed beside this program.

  preflight explain pod -f pod.yaml          what would be injected, and why
  preflight explain appwrapper NAME -n NS    why a wrapper is as it is, and what happens next
  preflight show gang -n NS                  who waits for whom
  preflight show gpus                        a row a node, a cell a GPU
  preflight nodes                            which nodes are sick, since when, found by what
  preflight doctor                           what is wrong, and what to do
  preflight doctor install                   of releases, workloads, admission, certificates, nodes
  preflight report --since 7d > page.html    what was found, and how fast each node is
  preflight revalidate NODE                  test a repaired node, and clear what passes
  preflight validate injector values.yaml    every problem, by path

`preflight VERB --help` lists the kinds. The cluster is that of KUBECONFIG when that is set, else the one this pod runs in, else that of
~/.kube/config; each command works with the rights of who calls it, and says which are missing.
As `kubectl preflight` it is the same.
"""

Points = Mapping[str, EntryPoint]
"""By kind; by the empty one for a verb that has none."""


def main() -> NoReturn:
    """Run one command and exit: 0 done, 1 it could not be done, 2 bad input."""
    commands.main(lambda: _parser(sys.argv[1:]))


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    """Load only the parts that ``argv`` asks: each takes a tenth of a second."""
    program, verbs = commands.parser("preflight", _ABOUT, distribution="preflight-cli")
    asked, kind = [*argv, "", ""][:2]
    for verb, about in VERBS.items():
        if points := _points(verb):
            parser = verbs.add_parser(verb, help=about)
            if verb == asked:
                _fill(parser, verb, kind, points)
    return program


def _fill(parser: argparse.ArgumentParser, verb: str, kind: str, points: Points) -> None:
    if "" in points:
        _added(points[""])(parser)
        return
    kinds = parser.add_subparsers(metavar="KIND", required=verb != "doctor")
    if verb == "doctor":
        parser.set_defaults(run=lambda _: _every(points))
        if not kind:
            return
    chosen = {kind: points[kind]} if kind in points else points
    for name, point in sorted(chosen.items()):
        commands.report(kinds, name, _added(point))


def _points(verb: str) -> Points:
    points = {}
    for point in entry_points(group=GROUP):
        name, _, kind = point.name.partition(".")
        if name == verb:
            points[kind] = point
    return points


def _added(point: EntryPoint) -> Callable[[argparse.ArgumentParser], None]:
    try:
        add: Callable[[argparse.ArgumentParser], None] = point.load()
    except (ImportError, AttributeError) as error:
        part = point.dist.name if point.dist is not None else point.value
        raise commands.CommandFailed(
            f"{part}: {point.name} cannot be loaded ({error}); install the version that belongs to this program."
        ) from None
    return add


def _every(points: Points) -> int:
    """Run one verb of every part, with its defaults, whatever another one ends with; the worst exit
    status.
    """
    worst = commands.DONE
    for kind, point in sorted(points.items()):
        parser = argparse.ArgumentParser(prog=f"preflight doctor {kind}")
        print(f"{kind}:", flush=True)
        try:
            _added(point)(parser)
            args = parser.parse_args([])
            worst = max(worst, args.run(args))
        except BadAccess:
            raise  # as every part would say
        except (commands.CommandFailed, KubeError) as error:
            worst = max(worst, commands.complain([str(error)], commands.FAILED))
    return worst
