"""``check-dcgm record``: what the tools of this node print, as one JSON file that can become a
test's sample.

Versions, lists, the diagnostic's documents at each level, exit statuses and times; UUIDs, serial
numbers, addresses and names are replaced. Nothing is judged and nothing is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from preflight_proto import names
from preflight_proto.settings import endpoints

from .anonymous import Anonymizer
from .hostengine import Hostengine, diag_argv, parse_listing, parse_versions
from .settings import TIMEOUTS

FIELDS = "index,uuid,name,pci.bus_id,serial,driver_version,vbios_version,persistence_mode,mig.mode.current"


@dataclass(frozen=True, slots=True)
class Ran:
    """One command as it ended; ``exit_status`` is None where it took too long or is not there."""

    argv: list[str]
    exit_status: int | None
    seconds: float
    stdout: str
    stderr: str


def main(arguments: Sequence[str]) -> NoReturn:
    """The command line; exits 0 when something was recorded, 2 when no tool is there or the
    arguments are wrong.
    """
    parser = argparse.ArgumentParser(
        prog="check-dcgm record", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--host",
        default=os.environ.get(names.ENV_DCGM_HOSTENGINE, "localhost:5555"),
        type=lambda raw: endpoints(raw)[0],
        help="host:port; of several the first",
    )
    parser.add_argument(
        "--level", type=int, choices=[1, 2, 3, 4], default=2, help="up to which level to diagnose"
    )
    parser.add_argument("--out", default="-", help="file to write, - for standard output")
    parser.add_argument(
        "--gpus",
        default="",
        help="UUIDs to diagnose, by commas; by default all that the engine lists",
    )
    given = parser.parse_args(arguments)
    tools = [
        tool for tool in os.environ.get("DCGMI", "dcgmi,dcgmi3").split(",") if shutil.which(tool)
    ]
    if not tools:
        print("check-dcgm record: no dcgmi on PATH; set DCGMI to where it is.", file=sys.stderr)
        sys.exit(2)
    runs = record(tools, given.host, given.level, [uuid for uuid in given.gpus.split(",") if uuid])
    text = (
        json.dumps({"v": 1, "check": "dcgm-diag", "runs": [asdict(run) for run in runs]}, indent=1)
        + "\n"
    )
    if given.out == "-":
        sys.stdout.write(text)
    else:
        try:
            Path(given.out).write_text(text)
        except OSError as error:
            print(
                f"check-dcgm record: {given.out} cannot be written ({error.strerror}).",
                file=sys.stderr,
            )
            sys.exit(2)
        print(f"{len(runs)} commands recorded in {given.out}", file=sys.stderr)
    sys.exit(0)


def record(
    tools: Sequence[str],
    host: str,
    level: int,
    uuids: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> list[Ran]:
    """Run everything that the check may run, and return it stripped."""
    smi = _run(["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader"], 60.0)
    raw = [smi, _run(["nvidia-smi", "topo", "-m"], 60.0)]
    for tool in tools:
        version = _run([tool, "-v", "--host", host], 30.0)
        listing = _run([tool, "discovery", "-l", "--host", host], 30.0)
        raw += [version, listing, _run([tool, "discovery", "-l", "-a", "--host", host], 30.0)]
        gpus = parse_listing(listing.stdout)
        ours = [uuid for uuid in gpus if not uuids or uuid in uuids]
        raw += [
            _run([tool, "discovery", "--gpuid", str(gpus[uuid]), "-i", "a", "--host", host], 30.0)
            for uuid in ours
        ]
        if not ours:
            continue
        engine = Hostengine(tool, host, *parse_versions(version.stdout), gpus)
        for each in range(1, level + 1):
            print(f"{tool}: level {each}, at most {TIMEOUTS[each]:g} s", file=sys.stderr)
            raw.append(_run(diag_argv(engine, each, ours, TIMEOUTS[each]), TIMEOUTS[each] + 30))
    serials = [cell.strip() for row in smi.stdout.splitlines() for cell in row.split(",")[4:5]]
    machine = [
        socket.gethostname(),
        environ.get(names.ENV_NODE_NAME, ""),
        environ.get(names.ENV_POD_NAME, ""),
    ]
    address = host.rpartition(":")[0]
    anonymizer = Anonymizer(
        [*machine, "" if address == "localhost" else address], [s for s in serials if s.isalnum()]
    )
    for run in raw:  # serial numbers of one output are stripped from all
        anonymizer.strip(run.stdout)
    return [
        Ran(
            [anonymizer.strip(word) for word in run.argv],
            run.exit_status,
            run.seconds,
            anonymizer.strip(run.stdout),
            anonymizer.strip(run.stderr),
        )
        for run in raw
    ]


def _run(argv: list[str], timeout: float) -> Ran:
    started = time.monotonic()
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        out, err = (
            part.decode(errors="replace") if part else "" for part in (error.stdout, error.stderr)
        )
        return Ran(argv, None, round(time.monotonic() - started, 3), out, err)
    except OSError as error:
        return Ran(argv, None, 0.0, "", str(error.strerror))
    return Ran(
        argv,
        done.returncode,
        round(time.monotonic() - started, 3),
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )
