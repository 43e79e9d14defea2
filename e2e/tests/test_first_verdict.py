"""The README's way to a first verdict: no command of it is without a test on a cluster, and its
files are what the charts take.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from preflight_e2e.first_verdict import README, STEPS, Shell, commands, files, local, step
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
