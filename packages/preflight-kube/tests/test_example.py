"""The manual's example of a service on the kit does what its page says, and its chart brings it."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from preflight_testing.apidouble import RESOURCES, ApiDouble, Resource, write_kubeconfig
from preflight_testing.waiting import until

EXAMPLE = Path(__file__).parents[1] / "examples" / "greeting"
KINDS = {it.plural: it for it in (*RESOURCES, Resource("example.com/v1", "greetings", "Greeting"))}
HELLO = {"metadata": {"name": "hello", "namespace": "default"}, "spec": {"text": "hello"}}


@pytest.mark.anyio
async def test_a_config_map_follows_its_greeting_and_comes_back(tmp_path: Path) -> None:
    async with ApiDouble(KINDS.values()) as double:
        greeting, maps = double.create("greetings", HELLO), KINDS["configmaps"]
        env = {**os.environ, "KUBECONFIG": str(write_kubeconfig(tmp_path / "config", double.url))}
        command = (str(EXAMPLE / "greeting.py"), "controller", "--port=0", "--namespace=default")
        process = await asyncio.create_subprocess_exec(sys.executable, *command, env=env)

        def text() -> str:
            stored = double.store.objects.get(maps, {}).get(("default", "hello"))
            return stored["data"]["text"] if stored else ""

        await until(lambda: text() == "hello", "a ConfigMap")
        double.store.update(KINDS["greetings"], greeting, {**greeting, "spec": {"text": "hi"}})
        await until(lambda: text() == "hi", "the new text")
        double.store.delete(maps, double.store.get(maps, "default", "hello"), {})
        await until(lambda: text() == "hi", "it is made anew")
        process.terminate()
        assert await process.wait() == 0


def test_its_chart_has_all_that_it_needs(tmp_path: Path) -> None:
    from preflight_testing.helm import CHARTS, render  # Go takes long to load

    chart = shutil.copytree(EXAMPLE / "chart", tmp_path / "chart")
    shutil.copytree(CHARTS / "preflight-common", chart / "charts" / "preflight-common")
    kinds = {it["kind"] for it in render(chart)}
    assert {"CustomResourceDefinition", "Deployment", "ClusterRole", "Role", "Lease"} <= kinds
