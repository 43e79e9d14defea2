"""The fake GPU node in its two lives: behind a kubelet, and as a plain process that is told its
facts on standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from preflight_e2e.images import ROOT
from preflight_testing.matrix.facts import node_json, uuids

FOLDER = ROOT / "e2e/fakes/node"
PROTO = ROOT / "packages/preflight-proto/proto"


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    out = [f"-I{FOLDER}", f"-I{PROTO}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    protos = ["deviceplugin.proto", "health_event.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *out, *protos], check=True)
    return folder


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(stubs: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def start(argv: list[str], **environ: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(stubs), str(FOLDER)])
        env = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "NODE_NAME": "node-a",
        }
        env |= {"HOST_IP": "127.0.0.1", **environ}
        process = subprocess.Popen(
            argv, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            pipe.close()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_plain_process_takes_its_facts_from_standard_input_and_ends_with_it(
    start: Start, tmp_path: Path
) -> None:
    port, sock = free_port(), tmp_path / "s"
    where = {
        "FAKE_NODE_LOCAL": str(tmp_path),
        "FAKE_NODE_SOCKET": str(sock),
        "FAKE_NODE_ENGINE_PORT": str(port),
    }
    process = start([sys.executable, str(FOLDER / "fake_node.py")], FAKE_NODE_STDIN="1", **where)
    assert process.stdin
    process.stdin.write(json.dumps(node_json("node-a", {})) + "\n")
    process.stdin.flush()
    assert line(process) == {"node": "node-a", "configured": True}
    assert json.loads((tmp_path / "node.json").read_text()) == node_json("node-a", {})
    assert sock.is_socket()
    with socket.create_connection(("127.0.0.1", port)) as engine, engine.makefile("rw") as stream:
        stream.write('{"do": "discovery", "client": "4.4.2"}\n')
        stream.flush()
        assert {gpu["uuid"] for gpu in json.loads(stream.readline())["gpus"]} == set(
            uuids("node-a")
        )
    process.stdin.close()
    assert process.wait(20) == 0


PLUGIN = """
import asyncio, json, sys
from pathlib import Path
from types import SimpleNamespace
import device_plugin
device_plugin.PLUGINS = Path(sys.argv[1])
async def main():
    gpus = [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]
    node = SimpleNamespace(local=Path("/etc/node-local"), facts={"gpus": gpus}, changed=asyncio.Event())
    await device_plugin.run_plugin(node, lambda **said: print(json.dumps(said), flush=True))
asyncio.run(main())
"""


def test_behind_a_kubelet_it_registers_and_gives_out_what_it_is_asked_for(
    start: Start, stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(stubs)
    dp, dp_grpc = (importlib.import_module(f"deviceplugin_{part}") for part in ("pb2", "pb2_grpc"))

    registered: list[Any] = []

    class Kubelet:
        def Register(self, request: Any, _context: Any) -> Any:
            registered.append(request)
            return dp.Empty()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    dp_grpc.add_RegistrationServicer_to_server(Kubelet(), server)
    server.add_insecure_port(f"unix://{tmp_path}/kubelet.sock")
    server.start()
    try:
        process = start([sys.executable, "-c", PLUGIN, str(tmp_path)])
        assert line(process) == {"registered": "nvidia.com/gpu"}
        [request] = registered
        with grpc.insecure_channel(f"unix://{tmp_path}/{request.endpoint}") as channel:
            wanted = dp.AllocateRequest(
                container_requests=[dp.ContainerAllocateRequest(devices_ids=["GPU-b"])]
            )
            [answer] = dp_grpc.DevicePluginStub(channel).Allocate(wanted).container_responses
    finally:
        server.stop(0).wait()
    assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}
    assert [mount.container_path for mount in answer.mounts] == [
        "/etc/node-local",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    ]
