"""Controller and webhook as they run in a cluster: a process, its log, its plain port."""

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
from preflight_testing.waiting import until

LEASE_SECONDS = 2


class Replica:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process, self._folder = process, folder

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

    async def metrics(self) -> dict[str, float]:
        """By name with its labels, as Prometheus reads them."""
        lines = (await self.get("/metrics")).text.splitlines()
        pairs = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    async def get(self, path: str) -> httpx.Response:
        port = self.said("started")[0]["port"]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            return await client.get(f"http://127.0.0.1:{port}{path}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def replica(
    kubeconfig: Path, namespace: str, folder: Path, *, mode: str = "driver"
) -> AsyncIterator[Replica]:
    """A replica of the controller that has read the cluster, its lease in ``namespace``; at the end
    it must stop cleanly and leave a clean log.
    """
    instance = "preflight" if mode == "driver" else "preflight-literal"
    config = f"mode: {mode}\nleaseSeconds: {LEASE_SECONDS}\ninstance: {instance}\n"
    async with _running(
        ["controller", "--namespace", namespace], kubeconfig, folder, config
    ) as one:
        yield one


@asynccontextmanager
async def mortal(
    kubeconfig: Path, namespace: str, folder: Path, mode: str, *at: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A controller that is killed ``at`` one of its writes to ``namespace``, where its lease is,
    too: see the program of this name.
    """
    folder.mkdir()
    (folder / "config.yaml").write_text(f"mode: {mode}\nleaseSeconds: {LEASE_SECONDS}\n")
    arguments = ["--config", str(folder / "config.yaml"), "--namespace", namespace]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).parent / "mortal.py"), namespace, *at),
            *(*arguments, "--host", "127.0.0.1", "--port=0"),
            stdout=log,
            stderr=log,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "mortal"},
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def hook(
    kubeconfig: Path, folder: Path, certificate: Path, config: str
) -> AsyncIterator[Replica]:
    """A replica of the webhook that is ready; ``certificate``: the folder with its pair. It ends as
    :func:`replica`.
    """
    command = ["webhook", "--certificate", str(certificate), "--admission-port=0"]
    async with _running(command, kubeconfig, folder, config) as one:
        yield one


@asynccontextmanager
async def _running(
    command: list[str], kubeconfig: Path, folder: Path, config: str
) -> AsyncIterator[Replica]:
    folder.mkdir()
    (folder / "config.yaml").write_text(config)
    more = ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port=0"]
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "preflight_mnnvl", *command, *more),
            stdout=out,
            stderr=err,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": folder.name},
        )
    made = Replica(process, folder)
    try:
        await until(lambda: made.said("started") or process.returncode is not None, "it starts")
        assert process.returncode is None, (folder / "stderr").read_text()
        with anyio.fail_after(600):
            while (await made.get("/readyz")).status_code != 200:
                await anyio.sleep(0.02)
        yield made
        if process.returncode is None:
            made.send(signal.SIGCONT)
            made.send(signal.SIGTERM)
            assert await process.wait() == 0
        assert (folder / "stderr").read_text() == ""
        for line in made.lines():
            assert {"time", "level", "msg", "component"} <= line.keys(), line
            assert line["level"] in {"debug", "info", "warning"}, line
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
