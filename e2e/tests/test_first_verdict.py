"""The README's way to a first verdict: no command of it is without a test on a cluster, and its
files are what the charts take.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from preflight_e2e import first_verdict
from preflight_e2e.first_verdict import (
    README,
    STEPS,
    VERDICT,
    Shell,
    WalkError,
    commands,
    files,
    local,
    step,
)
from preflight_testing.helm import UMBRELLA, render

PAGE = README.read_text()


def test_every_command_is_known_to_the_test_on_a_cluster_and_every_step_is_in_the_readme() -> None:
    assert [step(command) for command in commands(PAGE)] == list(STEPS)


def test_a_command_that_nothing_expects_anything_of_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"kubectl get nodes: the README has a command"):
        step("kubectl get nodes")


@pytest.mark.parametrize("language", ["sh", "", "bash", "console"])
def test_a_new_block_is_found_whatever_its_language_is_called(language: str) -> None:
    page = PAGE.replace(
        "\n## First verdict\n",
        f"\n## First verdict\n\n```{language}\nkubectl \\\n  get nodes\n```\n",
    )
    assert commands(page)[0].split() == ["kubectl", "get", "nodes"]


def test_an_image_without_substitute_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"registry\.example/other:1: the README names an image"):
        local("image: registry.example/other:1")


def test_the_values_install_the_webhook_the_controller_and_one_check_that_only_observes() -> None:
    values = yaml.safe_load(local(files(PAGE)["values.yaml"]))
    objects = render(UMBRELLA, values)
    images = {
        container["image"]
        for one in objects
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"preflight-webhook:dev", "preflight-gang:dev"}
    assert values["global"]["preflight"]["checks"] == [
        {"name": "dcgm-diag", "image": "preflight-dcgm-diag:e2e", "enforcement": "observe"}
    ]


def test_of_a_command_only_files_and_uv_are_substituted(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "kubeconfig", tmp_path, files(PAGE))
    assert shell.words("kubectl -n training create -f pod.yaml")[-1] == str(tmp_path / "pod.yaml")
    assert shell.words(".venv/bin/uv run x")[1:] == ["run", "x"]
    assert shell.words("helm install preflight charts/preflight") == [
        "helm",
        "install",
        "preflight",
        "charts/preflight",
    ]


def test_the_time_to_the_verdict_is_told_and_a_command_that_does_otherwise_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {one.begins: one.says.strip("^$") for one in STEPS}

    def run(_: Shell, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, printed[step(command).begins], "")

    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.setattr(Shell, "run", run)
    assert [command.startswith(VERDICT) for command in commands(PAGE)].count(True) == 1
    assert first_verdict.main() == 0
    assert "\nfirst verdict after 0." in capsys.readouterr().out
    printed["kubectl create namespace training"] = "no"
    assert first_verdict.main() == 1
    assert (
        "first verdict: kubectl create namespace training: ended with 0" in capsys.readouterr().err
    )
    with pytest.raises(WalkError, match="does not match 'created'"):
        Shell.follow(Shell.__new__(Shell), "kubectl create namespace training")
