"""The host's nvidia-imex is nobody's business here: its files and its socket are not looked at, and
no program is started.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from driven import User, until
from kubelet import Kubelet
from preflight_computedomain.api.names import DRIVER
from preflight_computedomain.core.claims import KubeletClaim
from preflight_testing.apiserver import ApiServer
from processed import MachineNode, library

pytestmark = pytest.mark.anyio

IN_ALL_EVENTS, IN_NONBLOCK = 0xFFF, os.O_NONBLOCK
HEADER = struct.Struct("iIII")


class Imex:
    """A daemon in a driver's root: its program, its configuration, its control socket; and who
    touches them.
    """

    def __init__(self, root: Path) -> None:
        self.folders = [root / "usr/bin", root / "etc/nvidia-imex", root / "run/nvidia-imex"]
        for folder in self.folders:
            folder.mkdir(parents=True)
        # A binary: a script would still be read by its shell when it has been started.
        sleep = shutil.which("sleep")
        assert sleep is not None
        for name in ("nvidia-imex", "nvidia-imex-ctl"):
            shutil.copy(sleep, self.folders[0] / name)
        (self.folders[1] / "nodes_config.cfg").write_text("10.0.0.1\n10.0.0.2\n")
        self.door = self.folders[2] / "ctl.sock"
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(IN_NONBLOCK)
        assert self._inotify >= 0

    def watch(self) -> None:
        """From now on, whatever is done with the files and in their folders counts."""
        for folder in self.folders:
            for path in (folder, *folder.iterdir()):
                assert (
                    self._libc.inotify_add_watch(self._inotify, os.fsencode(path), IN_ALL_EVENTS)
                    >= 0
                )

    def events(self) -> list[str]:
        """What has been done since."""
        try:
            data = os.read(self._inotify, 65536)
        except BlockingIOError:
            return []
        found = []
        while data:
            _, mask, _, length = HEADER.unpack_from(data)
            name = data[HEADER.size : HEADER.size + length].rstrip(b"\0").decode()
            found.append(f"{mask:#x} {name}")
            data = data[HEADER.size + length :]
        return found

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The daemon, with its control socket open."""
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self.door))
            door.listen()
            process = subprocess.Popen([self.folders[0] / "nvidia-imex", "3600"])
            try:
                yield process
            finally:
                process.kill()
                process.wait()
        self.door.unlink()

    def close(self) -> None:
        os.close(self._inotify)


async def served(node: MachineNode, user: User, google: dict[str, ModuleType], name: str) -> None:
    """What a kubelet does with a claim, from end to end."""
    kubelet = Kubelet(node.registry, google)
    await until((node.registry / f"{DRIVER}-reg.sock").exists)
    await kubelet.register()
    domain = await user.create(name)
    made = (await user.claim(f"{name}-claim", domain["metadata"]["uid"], node.name))["metadata"]
    of = KubeletClaim(made["namespace"], made["name"], made["uid"])
    assert (await kubelet.prepare([of]))[of.uid].error == ""
    assert list(node.cdi.iterdir())
    assert (await kubelet.unprepare([of]))[of.uid].error == ""


def machine(short: Path, server: ApiServer) -> MachineNode:
    name = f"node-{uuid.uuid4().hex[:8]}"
    made = MachineNode(short, server.kubeconfig(short / "kubeconfig"), name)
    library(made.driver)
    return made


async def test_a_daemon_that_runs_that_ends_and_that_is_not_there_is_never_touched(
    short: Path, real_api_server: ApiServer, user: User, google: dict[str, ModuleType]
) -> None:
    node = machine(short, real_api_server)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": node.name}})
    imex = Imex(node.driver)
    try:
        with imex.running() as daemon, node.running():
            imex.watch()
            await served(node, user, google, "while-it-runs")
            assert imex.events() == []
            daemon.kill()
            daemon.wait()
            imex.events()  # the end of the daemon's own program
            await served(node, user, google, "after-its-end")
            assert imex.events() == []
        log = [json.loads(line) for line in (short / "plugin.log").read_text().splitlines()]
        assert all({"time", "level", "msg", "component"} <= line.keys() for line in log)
        assert (imex.folders[1] / "nodes_config.cfg").read_text() == "10.0.0.1\n10.0.0.2\n"
        assert [
            one for one in imex.events() if "cfg" in one
        ]  # so the watch does see what is touched
    finally:
        imex.close()


async def test_the_plugin_starts_no_program_from_its_start_to_its_end(
    short: Path, real_api_server: ApiServer, user: User, google: dict[str, ModuleType]
) -> None:
    if (strace := shutil.which("strace")) is None:
        pytest.skip("strace is not installed")
    if subprocess.run(
        [strace, "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True
    ).returncode:
        pytest.skip("strace may not look at processes here")
    node = machine(short, real_api_server)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": node.name}})
    trace = short / "trace"
    with node.running(
        strace, "-f", "-qq", "-e", "trace=execve,execveat,connect,vfork,fork", "-o", str(trace)
    ):
        await served(node, user, google, "traced")
    lines = trace.read_text().splitlines()
    starts = [line for line in lines if "exec" in line]
    assert len(starts) == 1, starts  # the plugin itself
    assert [line for line in lines if "fork" in line] == []
    assert any("connect(" in line for line in lines)
    assert [line for line in lines if "nvidia-imex" in line] == []
