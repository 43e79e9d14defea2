"""What the real `compute-domain-kubelet-plugin` takes for a claim, beside a real API server; NVML
is the one in C of ``fakes/nvml``.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from preflight_testing.apiserver import ApiServer, free_port
from preflight_testing.fakes import FAKES, NVML, NvmlError, build_nvml

from ..imex_channels import DRIVER, GPU, config
from .load import BenchError, resident_mb, until

PLUGIN, NODE = "compute-domain-kubelet-plugin", "bench-node"
SLICE = f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-{DRIVER}"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PATIENCE = 120.0


@dataclass
class Plugin:
    """A plugin that serves, and the kubelet's way to it."""

    process: subprocess.Popen[bytes]
    folder: Path

    def __post_init__(self) -> None:
        out = [f"--python_out={self.folder}", f"--grpc_python_out={self.folder}"]
        protos = ("dra.proto", "pluginregistration.proto")
        where = f"-I{FAKES / 'node'}"
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", where, *out, *protos], check=True
        )
        sys.path.insert(0, str(self.folder))
        self.dra, self._stubs = (
            importlib.import_module("dra_pb2"),
            importlib.import_module("dra_pb2_grpc"),
        )
        registration, stubs = (
            importlib.import_module(f"pluginregistration_pb2{end}") for end in ("", "_grpc")
        )
        socket = self.folder / "registry" / f"{DRIVER}-reg.sock"
        until(socket.is_socket, "the plugin's socket of registration")
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            stub = stubs.RegistrationStub(channel)
            self._endpoint = stub.GetInfo(registration.InfoRequest(), timeout=20).endpoint
            stub.NotifyRegistrationStatus(
                registration.RegistrationStatus(plugin_registered=True), timeout=20
            )

    @contextmanager
    def connected(self) -> Iterator[Callable[[str, dict[str, str]], float]]:
        """Calls ``method`` for a claim, and says how many milliseconds it took. Raises BenchError
        where the plugin refuses.
        """
        with grpc.insecure_channel(f"unix:{self._endpoint}") as channel:
            stub = self._stubs.DRAPluginStub(channel)

            def call(method: str, claim: dict[str, str]) -> float:
                request = getattr(self.dra, f"{method}Request")(claims=[self.dra.Claim(**claim)])
                began = time.perf_counter()
                answer = getattr(stub, method)(request, timeout=45)
                took = (time.perf_counter() - began) * 1000
                if error := answer.claims[claim["uid"]].error:
                    raise BenchError(f"{method}: {error}")
                return took

            yield call


def node_of_files(folder: Path) -> dict[str, str]:
    """The environment by which a plugin takes files of ``folder`` for the node's. Raises
    BenchError.
    """
    root = folder / "driver" / "lib64"
    for path in (root, folder / "registry", folder / "plugins", folder / "cdi"):
        path.mkdir(parents=True)
    try:
        build_nvml(NVML, root / "libnvidia-ml.so.1")
    except NvmlError as error:
        raise BenchError(str(error)) from None
    (root / "driver.json").write_text(json.dumps({"driver_version": "570.158.01", "gpus": [GPU]}))
    (folder / "devices").write_text("Character devices:\n235 nvidia-caps-imex-channels\n")
    return {
        "NVIDIA_DRIVER_ROOT": str(folder / "driver"),
        "ALT_PROC_DEVICES_PATH": str(folder / "devices"),
        "KUBELET_REGISTRAR_DIRECTORY_PATH": str(folder / "registry"),
        "KUBELET_PLUGINS_DIRECTORY_PATH": str(folder / "plugins"),
        "CDI_ROOT": str(folder / "cdi"),
    }


@contextmanager
def plugin(server: ApiServer, folder: Path, program: str) -> Iterator[Plugin]:
    """A node of files, and its plugin."""
    server.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    environ = {
        **os.environ,
        **node_of_files(folder),
        "FEATURE_GATES": "HostManagedIMEX=true",
        "KUBECONFIG": str(server.kubeconfig(folder / "plugin.kubeconfig")),
        "NODE_NAME": NODE,
    }
    with (folder / "plugin.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--port", str(free_port())], env=environ, stdout=log, stderr=log
        )
    try:
        yield Plugin(process, folder)
    finally:
        process.terminate()
        process.wait(timeout=60)


def measured(
    server: ApiServer, running: Plugin, domain: str, number: int, idle: float, log: Path
) -> dict[str, Any]:
    """``domain``: the uid of a ComputeDomain in namespace default. ``idle``: seconds for which
    nobody asks.
    """
    claims = [allocated(server, f"claim-{i:04}", domain) for i in range(number)]
    first, again, undone = [], [], []
    with running.connected() as call:
        for claim in claims:
            first.append(call("NodePrepareResources", claim))
            again += [call("NodePrepareResources", claim) for _ in range(3)]
            undone.append(call("NodeUnprepareResources", claim))
    back = [_back(server) for _ in range(5)]
    before = len(requests_of(log, PLUGIN))
    time.sleep(idle)
    asked = requests_of(log, PLUGIN)[before:]
    return {
        "claims": number,
        "prepare_p50_ms": round(statistics.median(first), 2),
        "prepare_p99_ms": round(statistics.quantiles(first, n=100)[98], 2),
        "prepare_again_p50_ms": round(statistics.median(again), 2),
        "unprepare_p50_ms": round(statistics.median(undone), 2),
        "slice_back_s": round(statistics.median(back), 3),
        "idle_s": idle,
        "idle_requests": dict(Counter(entry["verb"] for entry in asked)),
        "rss_mb": resident_mb(running.process.pid),
    }


def allocated(server: ApiServer, name: str, domain: str, node: str = NODE) -> dict[str, str]:
    """A claim that is allocated on the node."""
    opaque = {"requests": ["channel"], "opaque": {"driver": DRIVER, "parameters": config(domain)}}
    request = {
        "name": "channel",
        "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
    }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request], "config": [opaque]}},
    }
    claim = server.call("POST", CLAIMS, body)
    result = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
    claim["status"] = {
        "allocation": {
            "devices": {"results": [result], "config": [{**opaque, "source": "FromClaim"}]}
        }
    }
    server.call("PUT", f"{CLAIMS}/{name}/status", claim)
    return {"namespace": "default", "name": name, "uid": claim["metadata"]["uid"]}


def _back(server: ApiServer) -> float:
    """Seconds from the removal of the node's slice, as a kubelet does it that starts, until there
    is another.
    """
    before = server.call("GET", SLICE)["metadata"]["uid"]
    began = time.monotonic()
    server.call("DELETE", SLICE)

    def back() -> bool:
        slices = server.call("GET", SLICE.rpartition("/")[0])["items"]
        return any(each["metadata"]["uid"] != before for each in slices)

    until(back, "the slice is back", pause=0.005)
    return time.monotonic() - began


def requests_of(log: Path, agent: str) -> list[dict[str, Any]]:
    """What a program has asked of the API server, by its audit log."""
    events = (json.loads(line) for line in log.read_text().splitlines() if agent in line)
    return [event for event in events if event.get("userAgent", "").startswith(agent)]
