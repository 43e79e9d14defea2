"""The gate's last lines: its ten slowest parts, and what was left out. `python3 .ci/summary.py
FOLDER`, of what `.ci/run` noted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def parts(folder: Path) -> list[tuple[float, str]]:
    """Seconds and name of each nox session and of what ran outside of nox, the slowest first."""
    reports = [json.loads(report.read_text()) for report in folder.glob("nox-*.json")]
    sessions = [session for report in reports for session in report["sessions"]]
    found = [
        (float(session.get("duration") or 0), str(session["signatures"][-1]))
        for session in sessions
    ]
    if (listed := folder / "parts").is_file():
        for line in listed.read_text().splitlines():
            name, _, seconds = line.partition("\t")
            found.append((float(seconds), name))
    return sorted(found, reverse=True)


def skipped(folder: Path) -> Counter[str]:
    """How many tests were skipped, by the reason that they gave."""
    listed = folder / "skipped"
    lines = listed.read_text().splitlines() if listed.is_file() else []
    return Counter(line.partition("\t")[2] for line in lines)


def main(folder: Path) -> None:
    """Print what took longest, and what was left out."""
    print("\n== slowest parts")
    for seconds, name in parts(folder)[:10]:
        print(f"{seconds:7.0f} s  {name}")
    tests = skipped(folder)
    whole = (
        (folder / "left-out").read_text().splitlines() if (folder / "left-out").is_file() else []
    )
    print(f"\n== left out: {len(whole)} sessions, {tests.total()} tests")
    for name in whole:
        print(f"  session  {name}")
    for reason, count in tests.most_common():
        print(f"{count:9} tests  {reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
