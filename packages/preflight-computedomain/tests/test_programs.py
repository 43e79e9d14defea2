"""The programs as they are started: what they say before they work, and that whoever leads next
goes on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from driven import User, until
from preflight_computedomain.api.crd import crd
from preflight_computedomain.api.names import DOMAINS, FINALIZER, LABEL
from preflight_computedomain.config import OFF, OWN
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_testing.apiserver import ApiServer, free_port

BIN = Path(sys.executable).parent
PROGRAMS = ("compute-domain-controller", "compute-domain-kubelet-plugin")


def started(program: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("KUBECONFIG", "FEATURE_GATES")
    }
    return subprocess.run(
        [BIN / program, *args],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_value_by_which_the_chart_is_deployed_is_known() -> None:
    schema = Path(__file__).parents[3] / "charts" / "schema"
    own = json.loads((schema / "preflight-computedomain.json").read_text())["properties"]
    common = json.loads((schema / "common.json").read_text())
    library = "preflight-common"  # Helm adds its values
    assert {*own, *common["shared"], *common["each"], library} == {*OWN}


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_the_gate_off_a_program_ends_with_2_and_says_what_to_set(program: str) -> None:
    done = started(program, FEATURE_GATES="")
    assert (done.returncode, done.stderr.strip(), done.stdout) == (2, OFF, "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_problems_are_said_at_once_and_without_a_traceback(program: str) -> None:
    done = started(
        program, FEATURE_GATES="HostManagedIMX=true,HostManagedIMEX=yes", LOG_LEVEL="loud"
    )
    assert done.returncode == 2
    assert "'HostManagedIMX' is not a feature gate" in done.stderr
    assert "HostManagedIMEX has 'yes'" in done.stderr
    assert "LOG_LEVEL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_gates_are_forced_before_they_are_judged_in_both_programs(program: str) -> None:
    gates = "ComputeDomainCliques=true,IMEXDaemonsWithDNSNames=false"
    refused = started(program, FEATURE_GATES=gates)
    assert "ComputeDomainCliques requires IMEXDaemonsWithDNSNames" in refused.stderr
    taken = started(program, FEATURE_GATES=f"HostManagedIMEX=true,{gates}")
    assert taken.stderr.startswith("KUBECONFIG is not set")  # what is judged next


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_cluster_a_program_ends_with_2(program: str) -> None:
    done = started(program, FEATURE_GATES="HostManagedIMEX=true")
    assert done.returncode == 2
    assert done.stderr.startswith("KUBECONFIG is not set")


def test_on_a_node_without_the_channels_major_the_plugin_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("Character devices:\n  1 mem\n")
    done = started(
        PROGRAMS[1],
        FEATURE_GATES="HostManagedIMEX=true",
        NODE_NAME="node-1",
        ALT_PROC_DEVICES_PATH=str(tmp_path / "devices"),
        KUBECONFIG=str(_kubeconfig(tmp_path)),
    )
    assert done.returncode == 1
    for gate in ("ComputeDomainCliques", "IMEXDaemonsWithDNSNames"):
        assert f"Feature gate {gate} is forced to false" in done.stderr + done.stdout
    assert "no character device nvidia-caps-imex-channels; load the NVIDIA driver" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def _kubeconfig(folder: Path) -> Path:
    named = {"name": "x"}
    path = folder / "kubeconfig"
    config = {
        "clusters": [{**named, "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{**named, "user": {"token": "t"}}],
        "contexts": [{**named, "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_definition_is_printed() -> None:
    done = started("preflight-computedomain", "crd")
    assert yaml.safe_load(done.stdout) == crd()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("featureGates: {HostManagedIMEX: true}", "no problem found"),
        (
            "preflight-computedomain: {featureGates: {HostManagedIMEX: 'true'}, image: {tag: x}}",
            "no problem found",
        ),
        ("featureGates: {HostManagedIMX: true}", "featureGates"),
        ("featureGates: {HostManagedIMEX: false}", OFF),
        ("featureGates: {HostManagedIMEX: true}\nleaseSeconds: 0", "leaseSeconds"),
        (
            "preflight-computedomain: {featureGates: {}, colour: red}",
            "preflight-computedomain.colour",
        ),
        ("[", "not YAML"),
    ],
)
def test_values_are_judged_as_the_programs_will(tmp_path: Path, values: str, said: str) -> None:
    (tmp_path / "values.yaml").write_text(values)
    done = started("preflight-computedomain", "validate-config", str(tmp_path / "values.yaml"))
    assert said in done.stdout + done.stderr
    assert done.returncode == (0 if said == "no problem found" else 2)


def test_values_that_are_wrong_in_several_ways_are_told_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        "logLevel: loud\nleaseSeconds: 0\nfeatureGates: {HostManagdIMEX: true, Foo: true}\n"
    )
    done = started("preflight-computedomain", "validate-config", str(tmp_path / "values.yaml"))
    said = done.stdout + done.stderr
    for word in ("logLevel", "leaseSeconds", "HostManagdIMEX", "Foo"):
        assert word in said
    assert (done.returncode, "Traceback" in said) == (2, False)


def test_the_runbook_needs_no_cluster() -> None:
    done = started("preflight-computedomain", "doctor", "--runbook")
    assert done.returncode == 0
    assert "Delete all ComputeDomains" in done.stdout


# --- against a real API server


@pytest.fixture
def kubeconfig(real_api_server: ApiServer, tmp_path: Path) -> Path:
    real_api_server.define(crd())
    return real_api_server.kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
async def user(kubeconfig: Path) -> AsyncIterator[User]:
    async with Client(connection({"KUBECONFIG": str(kubeconfig)}), agent="user") as client:
        made = User(client)
        await made.begin()
        yield made


class Replica:
    """A controller as a process; its log is lines of JSON."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path, name: str) -> None:
        self.port, self.log = free_port(), folder / f"{name}.log"
        environ = {
            **os.environ,
            "FEATURE_GATES": "HostManagedIMEX=true,ComputeDomainCliques=true,",
            "KUBECONFIG": str(kubeconfig),
            "POD_NAME": name,
        }
        words = [
            str(BIN / PROGRAMS[0]),
            "--namespace",
            namespace,
            "--port",
            str(self.port),
            "--lease-seconds",
            "2",
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    async def leads(self) -> bool:
        return "compute_domain_leader 1.0" in self.ask("/metrics")[1]


@contextmanager
def replica(kubeconfig: Path, namespace: str, folder: Path, name: str) -> Iterator[Replica]:
    made = Replica(kubeconfig, namespace, folder, name)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


@pytest.mark.anyio
async def test_of_two_replicas_one_leads_and_the_other_goes_on_when_it_is_killed(
    user: User, kubeconfig: Path, tmp_path: Path
) -> None:
    with replica(kubeconfig, user.namespace, tmp_path, "one") as first:
        await until(first.leads)
        with replica(kubeconfig, user.namespace, tmp_path, "two") as second:

            async def ready() -> bool:
                return second.ask("/readyz")[0] == 200

            await until(ready)
            await user.create()
            await user.ready()
            assert not await second.leads()
            first.process.kill()
            first.process.wait()
            await user.create("train-b")
            await user.ready("train-b")
            assert await second.leads()
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(timeout=30) == 0
            said = [line["msg"] for line in second.lines()]
            assert any("ComputeDomainCliques is forced to false" in one for one in said)
            assert any("IMEXDaemonsWithDNSNames is forced to false" in one for one in said)
            done = [line for line in second.lines() if line["msg"] == "ComputeDomain reconciled"]
            assert {
                "time",
                "level",
                "component",
                "namespace",
                "computedomain",
                "uid",
                "actions",
            } <= done[0].keys()


@pytest.mark.anyio
async def test_doctor_names_what_is_left_over_stale_or_in_conflict_and_explain_goes_down_to_the_claims(
    user: User, kubeconfig: Path
) -> None:
    environ = {"KUBECONFIG": str(kubeconfig)}
    made = await user.create(mode="All")
    await user.claim("stale", "no-such-uid", "node-7")
    await user.claim("good", made["metadata"]["uid"], "node-8")
    template = {
        "spec": {"containers": [{"name": "x", "image": "x"}]},
        "metadata": {"labels": {"a": "b"}},
    }
    daemon = {
        "metadata": {"name": "old", "labels": {LABEL: "some-uid"}},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    await user.client.create(user.at("/apis/apps/v1/daemonsets"), daemon)
    done = started("preflight-computedomain", "doctor", **environ)
    assert done.returncode == 1
    for said in (
        f"DaemonSet {user.namespace}/old",
        f"{user.namespace}/train-a has allocationMode All",
        f"{user.namespace}/stale on node-7",
    ):
        assert said in done.stdout
    assert f"{user.namespace}/good" not in done.stdout
    told = started("preflight-computedomain", "explain", "-n", user.namespace, "train-a", **environ)
    assert told.returncode == 0
    assert "claim good: channel 0 of node-8; used by no pod" in told.stdout
    assert "ResourceClaimTemplate train-a-channel: missing" in told.stdout
    nobody = started(
        "preflight-computedomain", "explain", "-n", user.namespace, "nobody", **environ
    )
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "no ComputeDomain nobody" in nobody.stderr
    assert FINALIZER not in str(await user.domain())
    await user.delete(DOMAINS, "train-a")
