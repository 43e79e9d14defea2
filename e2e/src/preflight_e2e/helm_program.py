"""`python -m preflight_e2e.helm_program`: the two commands of `helm` that the README has, by Helm's
own engine.

It stands in for the program where none is on PATH. An option that it does not know is an error, as
with the program.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import yaml
from preflight_testing.helm import ChartError, Release

from .program import leave


def main() -> int:
    parser = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", allow_abbrev=False)
    install.add_argument("name")
    install.add_argument("chart", type=Path)
    install.add_argument("--namespace", required=True)
    install.add_argument("--create-namespace", action="store_true", required=True)
    install.add_argument("--values", type=Path, required=True)
    install.add_argument("--wait", action="store_true")
    uninstall = commands.add_parser("uninstall", allow_abbrev=False)
    uninstall.add_argument("name")
    uninstall.add_argument("--namespace", required=True)
    args = parser.parse_args()
    kubeconfig = Path(os.environ["KUBECONFIG"])
    try:
        if args.command == "install":
            release = Release(args.namespace, kubeconfig, args.name, args.chart)
            release.install(yaml.safe_load(args.values.read_text()), wait=args.wait)
        else:
            Release(args.namespace, kubeconfig, args.name).uninstall(wait=False)
    except ChartError as error:
        print(f"helm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave(main)
