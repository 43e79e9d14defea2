"""`python -m preflight_e2e.demo`: the command line."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from ..program import add_version, leave


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="demo",
        description="Four gangs of GPU pods, three sick nodes, one missing member; then a job that leaves a sick node, which comes back.",
    )
    add_version(parser)
    parser.add_argument(
        "--environments",
        type=Path,
        required=True,
        metavar="DIR",
        help="one Python environment a component",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what happened to FILE")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        default=Path("report.html"),
        help="the page (%(default)s)",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="make a PNG of the page's first screen (the README's: docs/demo-report.png); needs chromium",
    )
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    try:
        from .run import demo  # takes a second, in which somebody may change their mind

        return demo(
            args.environments.resolve(), args.report, args.json, args.picture
        )  # pods run in folders of their own
    except KeyboardInterrupt:
        print("demo: interrupted; every process is ended and every file removed", file=sys.stderr)
        return 130


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    leave(main)
