"""`preflight-gang show` with a kubeconfig whose user logs in by a plug-in, as managed clusters have
it.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gangs import NS, pod_json
from preflight_gang.cli import main
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.documents import CommandEnd, ended

TOKEN = "of-the-plug-in"
CREDENTIAL = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}


@pytest.fixture(scope="module")
def double() -> Iterator[ApiDouble]:
    with ApiDouble(token=TOKEN) as double:
        double.within(lambda: double.create("namespaces", {"metadata": {"name": NS}}))
        double.within(lambda: double.create("pods", pod_json("pod-0", ip="10.0.0.1")))
        yield double


def shown(
    double: ApiDouble, monkeypatch: pytest.MonkeyPatch, folder: Path, token: str
) -> CommandEnd:
    """How `show` ends where the plug-in gives ``token``."""
    plugin = folder / "log-in"
    plugin.write_text(
        f"#!{sys.executable}\nprint({json.dumps({**CREDENTIAL, 'status': {'token': token}})!r})\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    login = {
        "apiVersion": CREDENTIAL["apiVersion"],
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    kubeconfig = write_kubeconfig(folder / "config", double.url, user={"exec": login})
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return ended(main, "show", "-n", NS)


def test_a_gang_is_shown_to_who_logs_in_by_a_plug_in(
    double: ApiDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, out, err = shown(double, monkeypatch, tmp_path, TOKEN)
    assert (status, err) == (0, "")
    assert out.startswith(f"gang {NS}/job-1 ")


def test_a_token_that_the_api_server_refuses_is_one_sentence_and_no_gang(
    double: ApiDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, out, err = shown(double, monkeypatch, tmp_path, "another")
    assert (status, out) == (1, "")
    assert "401" in err or "Unauthorized" in err
    assert err.count("\n") == 1
