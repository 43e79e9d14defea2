"""`check-nccl-loopback record FILE`: what this node's tools print, stripped of serials and names,
as a sample for the tests.

Versions, the listing, how the GPUs are joined, what the driver counts, and the outputs, documents
and exit statuses of nccl-tests.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio
from preflight_proto import nvml
from preflight_proto.check import (
    Completed,
    Failed,
    Gpu,
    Inconclusive,
    Skipped,
    ToolMissing,
    child,
    counters,
    log,
)
from preflight_proto.check import gpus as devices
from preflight_proto.check.nccl import clean_environment

TOOL: Final = "all_reduce_perf"
PATIENCE: Final = 900.0
USAGE: Final = "usage: check-nccl-loopback record [FILE]"
_UUID: Final = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_ENV: Final = re.compile(r'"env":\s*\[.*?\](?=,\s*"nccl_version")', re.DOTALL)
_SERIAL: Final = re.compile(r"(?i)(serial[^:=\n]*[:=]\s*)\S+")


def main(arguments: Sequence[str]) -> NoReturn:
    """Write the sample and leave. Exit status 0; 2 where it cannot be written or the arguments are
    wrong.
    """
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    target = Path(arguments[0]) if arguments else Path("nccl-loopback-record.json")
    nvml.start(log.echo)
    sample = anyio.run(record, dict(os.environ))
    try:
        target.write_text(json.dumps(sample, indent=1) + "\n")
    except OSError as error:
        print(
            f"{target}: cannot be written ({error.strerror}); name another file. {USAGE}",
            file=sys.stderr,
        )
        sys.exit(2)
    print(
        f"{target}: {len(sample['gpus'])} GPU(s), {len(sample['runs'])} run(s); look through it before you pass it on"
    )
    sys.exit(0)


async def record(environ: Mapping[str, str]) -> dict[str, Any]:
    """The sample as plain data."""
    names = [
        platform.node(),
        *(environ.get(name, "") for name in ("NODE_NAME", "MY_POD_NAME", "HOSTNAME")),
    ]
    tool, clean = environ.get("NCCL_LOOPBACK_TOOL") or TOOL, clean_environment(environ)
    listing = ""
    gpus: tuple[Gpu, ...] = ()
    try:
        gpus, listing = await devices.find(
            lambda argv, patience: child.run(argv, timeout=patience), None, environ
        )
    except (Inconclusive, Skipped, Failed) as error:
        listing = str(error)
    before = await counters.snapshot(gpus)
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        document = Path(folder) / "all_reduce.json"
        runs = [await _run(argv, clean, document) for argv in _commands(tool, len(gpus), document)]
    after = await counters.snapshot(gpus)
    sample = {
        "v": 1,
        "listed_by": listing,
        "gpus": [
            {"uuid": gpu.uuid, "name": gpu.name, "pci_bus_id": gpu.pci_bus_id, "mig": gpu.mig}
            for gpu in gpus
        ],
        "before": [_plain(asdict(facts)) for facts in before],
        "after": [_plain(asdict(facts)) for facts in after],
        "runs": runs,
    }
    text = stripped(
        json.dumps(sample), [gpu.uuid for gpu in gpus], [gpu.serial for gpu in gpus], names
    )
    plain: dict[str, Any] = json.loads(text)
    return plain


def _commands(tool: str, count: int, document: Path) -> list[list[str]]:
    ask = [
        [
            "nvidia-smi",
            "--query-gpu=index,name,driver_version,vbios_version,mig.mode.current",
            "--format=csv",
        ]
    ]
    ask += [["nvidia-smi", "topo", "-m"], [tool, "-h"]]
    if count < 2:
        return ask
    common = ["-g", str(count), "-n", "20", "-w", "5", "-d", "float", "-o", "sum", "-c", "1"]
    sweep, large = ["-b", "8", "-e", "256M", "-f", "2"], ["-b", "1G", "-e", "1G"]
    written = ["-J", str(document)]
    return [
        *ask,
        [tool, *sweep, *common],
        [tool, *large, *common],
        [tool, *large, *common, *written],
    ]


async def _run(argv: Sequence[str], environ: Mapping[str, str], document: Path) -> dict[str, Any]:
    try:
        done: Completed = await child.run(argv, timeout=PATIENCE, env=environ)
    except ToolMissing as error:
        return {"argv": list(argv), "error": str(error)}
    path = anyio.Path(document)
    wrote = str(document) in argv and await path.exists()
    return {
        "argv": ["all_reduce.json" if word == str(document) else word for word in argv],
        "status": done.returncode,
        "timed_out": done.timed_out,
        "stdout": done.stdout.replace(str(document), "all_reduce.json"),
        "stderr": done.stderr,
        "json": _ENV.sub('"env":[]', await path.read_text()).replace(
            str(document), "all_reduce.json"
        )
        if wrote
        else "",
    }


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples for keys."""
    return {
        key: {str(k): v for k, v in value.items()} if isinstance(value, dict) else value
        for key, value in facts.items()
    }


def stripped(text: str, uuids: Sequence[str], serials: Sequence[str], names: Sequence[str]) -> str:
    """``text`` with GPUs called by their number, and without serials and the names of host, node
    and pod.
    """
    for number, uuid in enumerate(uuids):
        text = text.replace(uuid, f"GPU-{number}")
    text = _SERIAL.sub(r"\g<1>0", _UUID.sub("GPU-other", text))
    for serial in serials:
        text = text.replace(serial, "0") if len(serial) > 4 else text
    for name in sorted(
        {name for name in names if len(name) > 1} | {n.split(".")[0] for n in names if "." in n},
        key=len,
    ):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "host", text)
    return text
