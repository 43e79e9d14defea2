"""A kubeconfig whose user a plug-in logs in, against a real API server,
which believes one token.
"""

from __future__ import annotations

import os
import ssl
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kube_world import Item
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client import transport
from preflight_kube.client.client import Client
from preflight_kube.errors import KubeError
from preflight_testing.apidouble import ApiDouble
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.anyio

PLUGIN = """#!{python}
import json, pathlib
folder = pathlib.Path(__file__).parent
with (folder / "asked").open("a") as asked:
    asked.write("x")
status = {{"token": (folder / "token").read_text()}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


class LogIn:
    """A plug-in that answers with what stands in the file ``token``."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._folder, script = folder, folder / "log-in"
        script.write_text(PLUGIN.format(python=sys.executable))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.kubeconfig = server.kubeconfig(folder / "kubeconfig")
        told = yaml.safe_load(self.kubeconfig.read_text())
        exec_ = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./log-in",
            "interactiveMode": "Never",
        }
        told["users"][0]["user"] = {"exec": exec_}
        self.kubeconfig.write_text(yaml.safe_dump(told))
        self.answers(server.token)

    def answers(self, token: str) -> None:
        (self._folder / "token").write_text(token)

    @property
    def asked(self) -> int:
        return len((self._folder / "asked").read_text())


@pytest.fixture
def log_in(real_api_server: ApiServer, tmp_path: Path) -> LogIn:
    return LogIn(real_api_server, tmp_path)


async def reads(client: Client) -> bool:
    return (await client.get("/api/v1/namespaces/default", Item)).metadata.name == "default"


async def test_the_plug_in_s_token_is_believed_and_asked_for_once(log_in: LogIn) -> None:
    async with Client(
        connection({**os.environ, "KUBECONFIG": str(log_in.kubeconfig)}), agent="tests"
    ) as client:
        assert await reads(client)
        assert await reads(client)
    assert log_in.asked == 1


async def test_a_token_that_is_refused_is_asked_for_anew(
    log_in: LogIn, real_api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ASK_AGAIN", 0.0)
    log_in.answers("revoked")
    target = connection({**os.environ, "KUBECONFIG": str(log_in.kubeconfig)})
    log_in.answers(real_api_server.token)
    async with Client(target, agent="tests") as client:
        assert await reads(client)
    assert log_in.asked == 2


async def test_a_plug_in_s_certificate_that_is_refused_is_asked_for_anew_before_the_next_request() -> (
    None
):
    """The double believes everybody once the plug-in has been asked: it reads no certificate."""
    asked = 0
    async with ApiDouble(token="new") as double:
        old = Connection(double.url, ssl.create_default_context())

        def again() -> Connection:
            nonlocal asked
            asked += 1
            double.token = None
            return old

        async with Client(replace(old, again=again), agent="tests") as client:
            with pytest.raises(KubeError, match="401"):
                await reads(client)
            assert await reads(client)
            assert await reads(client)
    assert asked == 1


async def test_a_plug_in_that_has_nothing_better_leaves_the_server_s_refusal(log_in: LogIn) -> None:
    log_in.answers("wrong")
    async with Client(
        connection({**os.environ, "KUBECONFIG": str(log_in.kubeconfig)}), agent="tests"
    ) as client:
        with pytest.raises(KubeError, match="401"):
            await reads(client)
