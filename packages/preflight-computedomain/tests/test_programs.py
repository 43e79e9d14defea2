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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from driven import User, until
from preflight_computedomain import cli
from preflight_computedomain.api.crd import crd
from preflight_computedomain.api.names import CONTROLLER, DOMAINS, FINALIZER, LABEL, PLUGIN
from preflight_computedomain.config import OFF, OWN
from preflight_kube.auth.connection import Connection
from preflight_testing.apiserver import free_port

BIN = Path(sys.executable).parent
both_programs = pytest.mark.parametrize("program", [CONTROLLER, PLUGIN])
Ends = Callable[..., tuple[object, str, str]]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ends:
    """What a program that does not get to work ends with: status, output, errors."""
    mains = {CONTROLLER: cli.controller, PLUGIN: cli.plugin}

    def run(program: str, *args: str, **environ: str) -> tuple[object, str, str]:
        with monkeypatch.context() as within:
            within.delenv("KUBECONFIG", raising=False)
            for key, value in environ.items():
                within.setenv(key, value)
            within.setattr(sys, "argv", [program, *args])
            with pytest.raises(SystemExit) as ended:
                mains.get(program, cli.main)()
        return (ended.value.code, *capsys.readouterr())

    return run


def test_every_value_by_which_the_chart_is_deployed_is_known() -> None:
    schema = Path(__file__).parents[3] / "charts" / "schema"
    own = json.loads((schema / "preflight-computedomain.json").read_text())["properties"]
    common = json.loads((schema / "common.json").read_text())
    library = "preflight-common"  # Helm adds its values
    assert {*own, *common["shared"], *common["each"], library} == {*OWN}


@both_programs
def test_with_the_gate_off_a_program_ends_with_2_and_says_what_to_set(
    ends: Ends, program: str
) -> None:
    assert ends(program, FEATURE_GATES="") == (2, "", f"{OFF}\n")


@both_programs
def test_all_problems_are_said_at_once_and_without_a_traceback(ends: Ends, program: str) -> None:
    gates = "HostManagedIMX=true,HostManagedIMEX=yes"
    status, _, said = ends(program, FEATURE_GATES=gates, LOG_LEVEL="loud")
    assert status == 2
    for word in (
        "'HostManagedIMX' is not a feature gate",
        "HostManagedIMEX has 'yes'",
        "LOG_LEVEL",
    ):
        assert word in said
    assert "Traceback" not in said


@both_programs
def test_gates_are_forced_before_they_are_judged_in_both_programs(ends: Ends, program: str) -> None:
    gates = "ComputeDomainCliques=true,IMEXDaemonsWithDNSNames=false"
    status, _, said = ends(program, FEATURE_GATES=gates)
    assert status == 2
    assert "ComputeDomainCliques requires IMEXDaemonsWithDNSNames" in said
    status, _, said = ends(program, FEATURE_GATES=f"HostManagedIMEX=true,{gates}")
    assert status == 2
    assert said.startswith("KUBECONFIG is not set")  # what is judged next


def test_the_definition_is_printed(ends: Ends) -> None:
    assert yaml.safe_load(ends("preflight-computedomain", "crd")[1]) == crd()


GOOD = ("no problem found",)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("featureGates: {HostManagedIMEX: true}", GOOD),
        (
            "preflight-computedomain: {featureGates: {HostManagedIMEX: 'true'}, image: {tag: x}}",
            GOOD,
        ),
        ("featureGates: {HostManagedIMEX: false}", (OFF,)),
        ("featureGates: {HostManagedIMEX: true}\nleaseSeconds: 0", ("leaseSeconds",)),
        (
            "logLevel: loud\nleaseSeconds: 0\nfeatureGates: {HostManagdIMEX: true, Foo: true}\n",
            ("logLevel", "leaseSeconds", "featureGates", "HostManagdIMEX", "Foo"),
        ),
        (
            "preflight-computedomain: {featureGates: {}, colour: red}",
            ("preflight-computedomain.colour",),
        ),
        ("[", ("not YAML",)),
    ],
)
def test_values_are_judged_as_the_programs_will_and_all_that_is_wrong_is_said_at_once(
    ends: Ends, tmp_path: Path, values: str, said: tuple[str, ...]
) -> None:
    (tmp_path / "values.yaml").write_text(values)
    path = str(tmp_path / "values.yaml")
    status, *output = ends("preflight-computedomain", "validate-config", path)
    for word in said:
        assert word in "".join(output)
    assert status == (0 if said == GOOD else 2)
    assert "Traceback" not in "".join(output)


def test_the_runbook_needs_no_cluster(ends: Ends) -> None:
    status, said, _ = ends("preflight-computedomain", "doctor", "--runbook")
    assert status == 0
    assert "Delete all ComputeDomains" in said


# --- against a real API server


@pytest.fixture
def kubeconfig(target: Connection, tmp_path: Path) -> Path:
    return tmp_path / "kubeconfig"


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
        words = [str(BIN / CONTROLLER), "--namespace", namespace, "--port", str(self.port)]
        words += ["--lease-seconds", "2"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)

    def lines(self) -> list[dict[str, Any]]:
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def ask(self, path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{self.port}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def leads(self) -> bool:
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
            await until(lambda: second.ask("/readyz")[0] == 200)
            await user.create()
            await user.ready()
            assert not second.leads()
            first.process.kill()
            first.process.wait()
            await user.create("train-b")
            await user.ready("train-b")
            assert second.leads()
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(timeout=30) == 0
            said = [line["msg"] for line in second.lines()]
            assert any("ComputeDomainCliques is forced to false" in one for one in said)
            assert any("IMEXDaemonsWithDNSNames is forced to false" in one for one in said)
            done = [line for line in second.lines() if line["msg"] == "ComputeDomain reconciled"]
            about = {"namespace", "computedomain", "uid", "actions"}
            assert about | {"time", "level", "component"} <= done[0].keys()


@pytest.mark.anyio
async def test_doctor_names_what_is_left_over_stale_or_in_conflict_and_explain_goes_down_to_the_claims(
    user: User, kubeconfig: Path
) -> None:
    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "preflight-computedomain", *words],
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

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
    done = asked("doctor")
    assert done.returncode == 1
    for said in (
        f"DaemonSet {user.namespace}/old",
        f"{user.namespace}/train-a has allocationMode All",
        f"{user.namespace}/stale on node-7",
    ):
        assert said in done.stdout
    assert f"{user.namespace}/good" not in done.stdout
    told = asked("explain", "-n", user.namespace, "train-a")
    assert told.returncode == 0
    assert "claim good: channel 0 of node-8; used by no pod" in told.stdout
    assert "ResourceClaimTemplate train-a-channel: missing" in told.stdout
    nobody = asked("explain", "-n", user.namespace, "nobody")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "no ComputeDomain nobody" in nobody.stderr
    assert FINALIZER not in str(await user.domain())
    await user.delete(DOMAINS, "train-a")
