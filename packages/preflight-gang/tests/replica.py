"""The controller as it runs in a cluster: a process, its log, its plain port; with a wire of its
own to the API server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
from preflight_kube.auth.connection import Connection
from preflight_testing.apidouble import write_kubeconfig
from preflight_testing.waiting import until
from prometheus_client.parser import text_string_to_metric_families
from wire import Wire, wired

LEASE_SECONDS = 900
"""Who leads goes on leading, however busy the machine is. Tests of what happens otherwise name
another."""


class Replica:
    """``wire`` is between it and the API server."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, wire: Wire) -> None:
        self.process, self.wire, self._folder = process, wire, folder

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far, whole lines only; each must be a JSON object."""
        text = (self._folder / "stdout").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["msg"] == message]

    @property
    def leads(self) -> bool:
        """Whether it thinks so."""
        ends = ("released the lease", "no longer leading")
        words = [line["msg"] for line in self.lines() if line["msg"] in {"leading", *ends}]
        return bool(words) and words[-1] == "leading"

    async def get(self, path: str) -> httpx.Response:
        port = self.said("started")[0]["port"]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return await client.get(f"http://127.0.0.1:{port}{path}")

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """What a scrape finds: name and label values, in the order of the labels' names, to the
        value.
        """
        text = (await self.get("/metrics")).text
        return {
            (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def peak_mib(self) -> float:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def stop(self) -> int:
        """Ask it to end, and wait until it has."""
        self.send(signal.SIGTERM)
        return await self.process.wait()


@asynccontextmanager
async def replica(
    target: Connection,
    namespace: str,
    folder: Path,
    *,
    patience: float = 600,
    lease: int = LEASE_SECONDS,
) -> AsyncIterator[Replica]:
    """A replica that has read the cluster, its lease in ``namespace``; at the end it must stop
    cleanly and leave a clean log.
    """
    folder.mkdir()
    (folder / "config.yaml").write_text(f"leaseDuration: {lease}s\nlogLevel: info\n")
    async with wired(target) as (wire, through):
        user = {"token": target.token} if target.token else None
        by = write_kubeconfig(folder / "kubeconfig", through.server, user=user)
        where = ("--namespace", namespace, "--host", "127.0.0.1", "--port=0")
        arguments = ("--config", str(folder / "config.yaml"), *where)
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "preflight_gang", "run", *arguments),
                stdout=out,
                stderr=err,
                env={**os.environ, "KUBECONFIG": str(by), "POD_NAME": folder.name},
                start_new_session=True,
            )
        made = Replica(process, folder, wire)
        try:
            await until(lambda: made.said("started") or process.returncode is not None, "it starts")
            assert process.returncode is None, (folder / "stderr").read_text()
            with anyio.fail_after(patience):
                while (await made.get("/readyz")).status_code != 200:
                    await anyio.sleep(0.02)
            yield made
            if process.returncode is None:
                made.send(signal.SIGCONT)
                assert await made.stop() == 0
            judge(made, (folder / "stderr").read_text())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def judge(made: Replica, stderr: str) -> None:
    """What holds for every replica, however it ended: no traceback, nothing beside the log, and
    every line is of its form.
    """
    assert stderr == ""
    for line in made.lines():
        assert {"time", "level", "msg", "component"} <= line.keys(), line
        assert line["component"] == "preflight-gang"
        assert line["level"] in {"info", "warning"}, line
    with_children = [
        path for path in Path("/proc").glob("[0-9]*/stat") if _session(path) == made.process.pid
    ]
    assert not with_children, "its session is empty"


def _session(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except OSError:
        return 0
