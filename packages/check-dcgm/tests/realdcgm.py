"""A node with the real DCGM and no GPU: NVIDIA's own engine, diagnostic and dcgmi, on devices that
DCGM's NVML for tests invents; and what a node's dcgmi printed, played again.

PREFLIGHT_REAL_DCGM names the folder with the programs (`nox -s real-dcgm` compiles them), or
several with `:` between them, of several versions.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from inprocess import Terminate, completed, conduct
from preflight_proto.check import Completed
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check

REAL = Path(__file__).parent / "real"
ROWS: list[dict[str, Any]] = tomllib.loads((REAL / "rows.toml").read_text())["row"]
OUTS = {
    Path(out).name.partition("-")[0]: Path(out)
    for out in filter(None, os.environ.get("PREFLIGHT_REAL_DCGM", "").split(":"))
}
"""The compiled versions → their folders."""
ADDRESS = "127.0.0.1:5555"
"""The engine's, in recordings."""
ANSWERS = 30.0
"""Seconds in which an engine must have begun to listen."""


SRAM = (
    *("aggregateUncParity", "aggregateUncSecDed", "aggregateCor", "volatileUncParity"),
    *("volatileUncSecDed", "volatileCor", "aggregateUncBucketL2", "aggregateUncBucketSm"),
    *("aggregateUncBucketPcie", "aggregateUncBucketMcu", "aggregateUncBucketOther"),
    *("bThresholdExceeded", "version"),
)
"""The fields of nvmlEccSramErrorStatus_t."""


ERRORS = "errors.tsv"
"""Beside a version's recordings: number, severity and category of each error, as its library says
them.
"""


def errors(out: Path) -> str:
    """What the library in ``out`` says of its errors, as :data:`ERRORS` has it.

    A process of its own asks it: what the library is linked with comes by LD_LIBRARY_PATH.
    """
    asks = """
import ctypes, sys
class Meta(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("format", ctypes.c_char_p), ("suggestion", ctypes.c_char_p),
                ("severity", ctypes.c_int), ("category", ctypes.c_int)]
library = ctypes.CDLL(sys.argv[1])
library.dcgmGetErrorMeta.restype = ctypes.POINTER(Meta)
number = 0
while meta := library.dcgmGetErrorMeta(number):
    print(meta.contents.id, meta.contents.severity, meta.contents.category, sep="\\t")
    number += 1
"""
    [library] = (out / "lib").glob("libdcgm.so.*")
    asked = [sys.executable, "-c", asks, str(library)]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout


def played(row: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The row as it is with an engine of ``version``."""
    return {**row, **row.get("with", {}).get(version, {})}


def uuid(number: int) -> str:
    """The UUID of a node's GPU ``number``."""
    return f"GPU-5f2b1c7e-0000-4a6d-9d10-0000000000{number:02d}"


def device(number: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A healthy H100 as DCGM's NVML for tests reads it: function → result; ``changes``: other
    results, of which a whole number is what the function returns and anything else its value.
    """
    bus = 0x1B + 16 * number
    place = f"00000000:{bus:02X}:00.0"
    values: dict[str, Any] = {
        "UUID": uuid(number),
        "Index": number,
        "MinorNumber": number,
        "Name": "NVIDIA H100 80GB HBM3",
        "Brand": 14,
        "Serial": f"16500230{number:05d}",
        "PciInfo": {
            "busIdLegacy": place[4:],
            "domain": 0,
            "bus": bus,
            "device": 0,
            "pciDeviceId": 0x233010DE,
            "pciSubSystemId": 0x16C110DE,
            "busId": place,
        },
        "MemoryInfo": {"total": 85899345920, "reserved": 0, "free": 85899345920, "used": 0},
        "BAR1MemoryInfo": {"bar1Total": 137438953472, "bar1Free": 137438953472, "bar1Used": 0},
        "PersistenceMode": 1,
        "CudaComputeCapability": {"major": 9, "minor": 0},
        "EccMode": {"current": 1, "pending": 1},
        "MigMode": {"currentMode": 0, "pendingMode": 0},
        "RetiredPagesPendingStatus": 0,
        "RemappedRows": {"corrRows": 0, "uncRows": 0, "isPending": 0, "failureOccurred": 0},
        "GraphicsRunningProcesses": [],
        "ComputeRunningProcesses": [],
        "VbiosVersion": "96.00.74.00.01",
        "Architecture": 9,
        "VirtualizationMode": 0,
        "GpuFabricInfoV": {
            "version": 0,
            "clusterUuid": "0" * 16,
            "status": 0,
            "cliqueId": 0,
            "state": 3,
            "healthMask": 0,
        },
        "SramEccErrorStatus": dict.fromkeys(SRAM, 0),
    }
    results = {key: {"FunctionReturn": 0, "ReturnValue": value} for key, value in values.items()}
    results["ValidateInforom"] = {"FunctionReturn": 0}
    fields = {
        field: {"fieldId": int(field), "value": value, "valueType": 1, "nvmlReturn": 0}
        | dict.fromkeys(("scopeId", "timestamp", "latencyUsec"), 0)
        for field, value in changes.get("fields", {}).items()
    }
    results["FieldValues"] = {"FunctionReturn": 0, "ReturnValue": fields}
    for key, change in changes.items():
        if key == "fields":
            continue
        if isinstance(change, dict) and key not in values:  # by what the function is asked
            results[key] = change
        elif key.endswith("()"):  # what the function returns, instead of a value
            results[key[:-2]] = {"FunctionReturn": change}
        elif isinstance(change, dict) and isinstance(values.get(key), dict):
            results[key] = {"FunctionReturn": 0, "ReturnValue": values[key] | change}
        else:
            results[key] = {"FunctionReturn": 0, "ReturnValue": change}
    return results


def machine(gpus: int, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """All of a node, as the file of NVML_YAML_FILE; ``changes``: by the GPU's number."""
    ok = {
        "Count": gpus,
        "DriverVersion": "550.90.07",
        "CudaDriverVersion": 12040,
        "NVMLVersion": "12.550.90.07",
        "ExcludedDeviceCount": 0,
    }
    return {
        "Global": {
            "DeviceOrder": [uuid(i) for i in range(gpus)],
            **{key: {"FunctionReturn": 0, "ReturnValue": value} for key, value in ok.items()},
        },
        "Device": {uuid(i): device(i, changes.get(str(i), {})) for i in range(gpus)},
    }


RECORDER = """#!{python}
# dcgmi, and beside it what it was asked and what it printed.
import ctypes, json, os, signal, socket, subprocess, sys
if sys.argv[1] == {ends_at!r}:
    os.kill({engine}, signal.SIGKILL)
    while not socket.socket().connect_ex(("127.0.0.1", {port})):
        pass
die = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # no dcgmi outlives whoever killed this one
argv = [{dcgmi!r}, *sys.argv[1:]]
run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die)
signal.signal(signal.SIGTERM, lambda *_: run.send_signal(signal.SIGTERM))
out, err = (part.decode() for part in run.communicate())
with open({record!r}, "a") as file:
    file.write(json.dumps(dict(argv=["dcgmi", *sys.argv[1:]], exit_status=run.returncode, stdout=out, stderr=err)) + "\\n")
sys.stdout.write(out); sys.stderr.write(err); sys.exit(run.returncode % 256)
"""


class Node:
    """One node: its folder, devices and engine."""

    def __init__(self, out: Path, folder: Path, row: Mapping[str, Any]) -> None:
        self.out, self.folder, self.row = out, folder, row
        self.gpus = int(row.get("gpus", 2))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self.devices, self.results = folder / "devices.yaml", folder / "results"
        self.devices.write_text(json.dumps(machine(self.gpus, row.get("nvml", {}))))
        self.results.write_text("\n".join(row.get("results", [])) + "\n")
        self._engine: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Of the engine, and of whoever asks NVML."""
        driver = self.folder / "driver"
        driver.mkdir(exist_ok=True)
        (self.folder / "home").mkdir(exist_ok=True)
        lacks = self.row.get("without", [])
        for name in ("libnvidia-ml.so.1", "libcuda.so.1", "libcuda.so"):  # 3.3 opens the last
            link = driver / name
            if not any(one.startswith(name) for one in lacks) and not link.exists():
                link.symlink_to(self.out / "lib/libnvml_injection.so.1")
        older = self.out.name.startswith(
            "3."
        )  # its NVML for tests reads no file; 4's is its driver
        libraries = [str(self.out / "lib"), str(driver), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
            **({} if older else {"NVML_INJECTION_MODE": "True"}),
            "NVML_YAML_FILE": str(self.devices),
            "NVVS_BIN_PATH": str(self._nvvs()),
            "DCGM_HOME_DIR": str(self.folder / "home"),
            "STAND_RESULTS": str(self.results),
            **self.row.get("env", {}),
        }

    @contextmanager
    def engine(self) -> Iterator[subprocess.Popen[bytes]]:
        """The engine as a process that answers, in a mount namespace whose /dev has the devices."""
        devices = self.folder / "dev"
        devices.mkdir()
        script = [f"cd {self.folder}"]
        for name in ("null", "zero", "urandom", "random"):
            (devices / name).touch()
            script.append(f"mount --bind /dev/{name} {devices}/{name}")
        (devices / "shm").mkdir()
        if "/dev" not in self.row.get("without", []):
            for number in range(self.gpus):
                (devices / f"nvidia{number}").touch()
        script.append(f"mount --rbind {devices} /dev")
        hwmon = "hwmon" not in self.row.get("without", [])
        if Path("/sys/class/hwmon").exists() != hwmon:
            script.append("mount -t tmpfs none /sys/class")
            script.append(f"mkdir /sys/class/thermal {'/sys/class/hwmon' * hwmon}")
        script.append('exec "$@"')
        namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["-r"])]
        engine = [str(self.out / "bin/nv-hostengine"), "-n", "-b", "127.0.0.1"]
        engine += ["-p", str(self.port), "--pid", str(self.folder / "pid")]
        engine += ["-f", str(self.folder / "engine.log"), "--log-level", "DEBUG"]
        engine += self.row.get("engine-options", [])
        with (self.folder / "engine.out").open("wb") as out:
            process = subprocess.Popen(
                [*namespace, "sh", "-ec", " && ".join(script), "sh", *engine],
                env=self.environment(),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            self._wait(process)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + ANSWERS
        while process.poll() is None and time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError(
            f"the engine does not listen; {self.folder}/engine.out and engine.log say why."
        )

    def dcgmi(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The real dcgmi, at this node's engine."""
        argv = [str(self.out / "bin/dcgmi"), *words, "--host", self.address]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def _nvvs(self) -> Path:
        """The folder of the diagnostic; without plugins a copy of it alone."""
        if "nvvs" in self.row.get("without", []):
            return self.folder
        if "plugins" not in self.row.get("without", []):
            return self.out / "bin"
        alone = self.folder / "bin"
        for part in ("plugins/cudaless", "plugins/cuda12"):
            (alone / part).mkdir(parents=True)
        shutil.copy2(self.out / "bin/nvvs", alone / "nvvs")
        return alone


HEADER = struct.Struct("<iIiii")
"""Of a message between dcgmi and engine (DcgmProtocol.h): magic, request, length of what follows,
kind, status.
"""
MISMATCH = -12
REQUESTS = {"listing": {(0, 14), (0, 34)}, "diagnostic": {(7, 1)}}
"""By their module and subcommand: of the core, who is there, and a run of the diagnostic."""


@contextmanager
def refusing(
    engine: int, refused: Collection[tuple[int, int]], version: str, says: str
) -> Iterator[int]:
    """A port at which the engine of ``version`` at the port ``engine`` answers as one of another
    version, ``says``: requests that are ``refused`` get what an engine says that does not know
    theirs.
    """

    def whole(end: socket.socket, size: int) -> bytes:
        read = b""
        while len(read) < size:
            if not (part := end.recv(size - len(read))):
                raise OSError("closed")
            read += part
        return read

    def pump(come: socket.socket, go: socket.socket, refused: Collection[tuple[int, int]]) -> None:
        with suppress(OSError):
            while True:
                magic, request, length, kind, status = HEADER.unpack(whole(come, HEADER.size))
                body, to = whole(come, length), go
                if length >= 12 and struct.unpack_from("<II", body, 4) in refused:
                    to, status = come, MISMATCH
                body = body.replace(f"version:{version}".encode(), f"version:{says}".encode())
                to.sendall(HEADER.pack(magic, request, length, kind, status) + body)
        for end in (come, go):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(ours: socket.socket) -> None:
        with ours, socket.create_connection(("127.0.0.1", engine)) as theirs:
            back = threading.Thread(target=pump, args=(theirs, ours, ()))
            back.start()
            pump(ours, theirs, refused)
            back.join()

    def listen(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        taking = threading.Thread(target=listen, args=(listener,))
        taking.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            taking.join()


def listing(row: Mapping[str, Any]) -> str:
    """The row's own GPUs, as nvidia-smi lists them."""
    listed = []
    for i in row.get("ours", range(row.get("gpus", 2))):
        told = {key: one.get("ReturnValue") for key, one in device(i, {}).items()}
        place = told["PciInfo"]["busId"]
        listed.append(f"{i}, {uuid(i)}, {told['Name']}, {place}, {told['Serial']}, Disabled")
    return "\n".join(listed)


def variables(row: Mapping[str, Any], address: str = ADDRESS) -> dict[str, str]:
    """What the check is given in ``row``."""
    return {
        "DCGMI": "dcgmi",
        "DCGM_HOSTENGINE_ADDR": address,
        "DCGM_DIAG_LEVEL": str(row.get("level", 1)),
        **row.get("settings", {}),
    }


def play(
    out: Path,
    row: Mapping[str, Any],
    folder: Path,
    connector: FakeConnector,
    program: Sequence[str],
) -> tuple[CheckRun, list[dict[str, Any]]]:
    """The check as ``row`` has it against the real DCGM in ``out``, and what dcgmi said."""
    node, record = Node(out, folder, row), folder / "record"
    dcgmi = str(out / "bin/dcgmi")
    hangs = Path(f"{node.results}.hangs")
    with ExitStack() as stack:
        engine = stack.enter_context(node.engine()) if row.get("engine") != "absent" else None
        for words in row.get("before", []):
            done = node.dcgmi(*words.split())
            assert done.returncode == 0, done.stdout
        if row.get("engine") == "busy":
            argv = [dcgmi, "diag", "-r", "2", "--host", node.address]
            neighbor = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
            stack.callback(neighbor.wait)
            stack.callback(lambda: node.results.unlink(missing_ok=True))
            until = time.monotonic() + ANSWERS
            while not hangs.exists():
                assert time.monotonic() < until, "the neighbour's diagnostic did not begin"
                time.sleep(0.05)
        if row.get("engine") == "killed":
            assert engine is not None
            wait = f"until [ -e {hangs} ]; do sleep 0.1; done"
            killer = subprocess.Popen(
                ["sh", "-c", f"{wait}; kill -9 {engine.pid}; rm -f {node.results}"]
            )
            stack.callback(killer.wait)
        recorder = RECORDER.format(
            python=sys.executable,
            dcgmi=dcgmi,
            record=str(record),
            ends_at="diag" if row.get("engine") == "gone" else "",
            engine=engine.pid if engine else 0,
            port=node.port,
        )
        address = node.address
        if "refuses" in row:
            version = out.name.partition("-")[0]
            another = refusing(node.port, REQUESTS[row["refuses"]], version, row["says"])
            port = stack.enter_context(another)
            address = f"127.0.0.1:{port}"
        tools = folder / "tools"
        tools.mkdir()
        smi = f"#!/bin/sh\ncat <<END\n{listing(row)}\nEND\n"
        for name, text in {"dcgmi": recorder, "nvidia-smi": smi}.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        given = {
            "PATH": f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
            **variables(row, address),
        }
        ran = run_check(program, connector, folder, given, check="dcgm-diag", timeout=300.0)
        node.results.unlink(missing_ok=True)  # whoever hangs goes on
    runs: list[dict[str, Any]] = []
    for line in record.read_text().splitlines():
        told = json.loads(line.replace(address, ADDRESS).replace(str(folder), "/node"))
        if told not in runs[-1:]:  # an engine that stays busy says so again and again
            runs.append(told)
    return ran, runs


def replay(
    recording: Path, row: Mapping[str, Any], folder: Path, connector: FakeConnector
) -> CheckRun:
    """The check as ``row`` has it, with a dcgmi that answers as the real one did: to each command
    the first answer that it has not given yet, else its last.
    """
    runs = json.loads(recording.read_text())["runs"]
    asked: list[list[str]] = []

    def tool(argv: Sequence[str], timeout: float | None, terminate: Terminate) -> Completed:
        if argv[0] == "nvidia-smi":
            return completed(argv, 0, listing(row))
        answers = [run for run in runs if run["argv"][1:] == list(argv[1:])]
        assert answers, f"the recording has no `{' '.join(argv)}`"
        answer = answers[min(asked.count([*argv]), len(answers) - 1)]
        asked.append([*argv])
        return completed(argv, answer["exit_status"] % 256, answer["stdout"], answer["stderr"])

    return conduct(tool, connector, folder, variables(row))
