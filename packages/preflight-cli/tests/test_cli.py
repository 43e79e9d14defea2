"""One grammar over what the parts register, whichever are installed."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from preflight_cli import cli
from preflight_kube.cli import commands
from preflight_kube.errors import KubeError
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.apidouble.http import ApiAnswer

PARTS = {
    "doctor.computedomain",
    "doctor.install",
    "evacuations",
    "report",
    "revalidate",
    "explain.appwrapper",
    "explain.computedomain",
    "explain.gpuclaim",
    "explain.pod",
    "explain.podcliqueset",
    "node",
    "nodes",
    "show.gang",
    "show.gpus",
    "show.podcliqueset",
    "validate.appwrapper",
    "validate.computedomain",
    "validate.gang",
    "validate.gpu-scheduler",
    "validate.injector",
    "validate.mnnvl",
}


def ended(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["preflight", *argv])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


def add_green(parser: argparse.ArgumentParser) -> None:
    """Say that all is well."""
    parser.add_argument("--loud", action="store_true")
    parser.set_defaults(run=_green)


def _green(args: argparse.Namespace) -> int:
    print("well" + "!" * args.loud)
    return commands.DONE


def add_red(parser: argparse.ArgumentParser) -> None:
    """Say what is not well."""
    parser.set_defaults(run=_red)


def _red(_: argparse.Namespace) -> int:
    print("ill")
    return commands.FAILED


def add_away(parser: argparse.ArgumentParser) -> None:
    """Say that the cluster refuses."""
    parser.set_defaults(run=_away)


def _away(_: argparse.Namespace) -> int:
    raise KubeError("the answer is none of an API server; is it one?", 503)


@pytest.fixture
def two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name, f"parts:{value}", cli.GROUP)
        for name, value in {
            "doctor.green": "add_green",
            "doctor.red": "add_red",
            "show.broken": "add_nothing",
            "evacuations": "add_green",
        }.items()
    ]
    monkeypatch.setitem(sys.modules, "parts", sys.modules[__name__])
    monkeypatch.setattr(cli, "entry_points", lambda group: points)


@pytest.mark.usefixtures("two_parts")
def test_doctor_without_a_kind_asks_every_part_and_ends_as_the_worst_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "doctor") == commands.FAILED
    assert capsys.readouterr().out == "green:\nwell\nred:\nill\n"
    assert ended(monkeypatch, "doctor", "green", "--loud") == commands.DONE
    assert capsys.readouterr().out == "well!\n"


@pytest.mark.usefixtures("two_parts")
def test_doctor_without_a_kind_asks_the_other_parts_though_one_cannot_say_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [
        EntryPoint(f"doctor.{name}", f"parts:add_{name}", cli.GROUP)
        for name in ("away", "green", "gone")
    ]
    monkeypatch.setattr(cli, "entry_points", lambda group: points)
    assert ended(monkeypatch, "doctor") == commands.FAILED
    told = capsys.readouterr()
    assert told.out == "away:\ngone:\ngreen:\nwell\n"
    assert "is it one?\n" in told.err
    assert "doctor.gone cannot be loaded" in told.err


@pytest.mark.usefixtures("two_parts")
def test_a_verb_that_no_installed_part_has_is_no_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "explain", "pod") == commands.BAD_INPUT
    told = capsys.readouterr().err
    assert "invalid choice: 'explain' (choose from 'doctor', 'evacuations', 'show')" in told
    assert ended(monkeypatch, "evacuations") == commands.DONE


@pytest.mark.usefixtures("two_parts")
def test_a_part_of_another_version_is_named_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "show", "broken") == commands.FAILED
    told = capsys.readouterr().err
    assert "show.broken cannot be loaded" in told
    assert "Traceback" not in told


@pytest.mark.component  # loads every part
def test_every_part_answers_and_each_kind_has_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {point.name for point in entry_points(group=cli.GROUP)} == PARTS
    for name in sorted(PARTS):
        verb, _, kind = name.partition(".")
        assert ended(monkeypatch, verb, *([kind] if kind else []), "--help") == 0
        assert f"usage: preflight {verb} {kind}".rstrip() in capsys.readouterr().out
        assert ended(monkeypatch, verb, "--help") == 0
        assert kind in capsys.readouterr().out


@pytest.mark.component  # loads every part
def test_the_checks_of_a_set_have_the_claim_that_multi_node_nvlink_gives_its_pods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    clique = {"name": "w", "spec": {"replicas": 2, "podSpec": {"containers": [container]}}}
    found = {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodCliqueSet",
        "metadata": {"name": "t", "annotations": {"grove.io/mnnvl-enabled": "true"}},
        "spec": {"replicas": 1, "template": {"cliques": [clique]}},
    }
    (tmp_path / "set.yaml").write_text(json.dumps(found))
    (tmp_path / "config.yaml").write_text('checks: [{name: nccl-loopback, image: "l"}]')
    files = ["-f", str(tmp_path / "set.yaml"), "--config", str(tmp_path / "config.yaml")]
    assert ended(monkeypatch, "explain", "pod", *files, "-o", "json") == commands.DONE
    answer = json.loads(capsys.readouterr().out)
    (checks,) = (
        step["value"] for step in answer["patch"] if step["path"] == "/spec/initContainers"
    )
    assert [one["resources"]["claims"] for one in checks] == [[{"name": "mnnvl"}]]


@pytest.mark.component  # loads every part
def test_the_help_names_the_parts_whose_helm_values_are_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {name.partition(".")[2] for name in PARTS if name.startswith("validate.")}
    taken = set()
    for kind in kinds:
        file = tmp_path / f"{kind}.yaml"
        file.write_text(f"preflight-{kind}: {{enabled: true, imagePullPolicy: Always}}")
        ended(monkeypatch, "validate", kind, str(file))
        if "unknown key" not in capsys.readouterr().err:
            taken.add(kind)
    assert {kind for kind in kinds if kind in cli.VERBS["validate"]} == taken


@pytest.mark.component  # asks a double over HTTP
def test_what_may_not_be_read_is_not_said_to_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    double = ApiDouble()
    refused = {"kind": "Status", "message": "who asks may not", "code": 403}
    double.fault = lambda _: ApiAnswer(403, refused)
    with double:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", double.url)))
        assert ended(monkeypatch, "explain", "computedomain", "x") == commands.FAILED
        assert "answered 403 (who asks may not)" in capsys.readouterr().err
        assert ended(monkeypatch, "doctor", "install") == commands.FAILED
    told = capsys.readouterr()
    assert told.out == "nothing that could be read: no problems found.\n"
    assert "Not read: get /version: the API server answered 403" in told.err
    assert "apps/v1/deployments, " in told.err
    assert "whoever asks may not list them; a role with get and list would do." in told.err


@pytest.mark.component  # asks a double over HTTP
def test_who_is_not_known_is_told_so_and_not_that_there_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ApiDouble(token="of another") as double:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", double.url)))
        assert ended(monkeypatch, "doctor", "install") == commands.FAILED
    told = capsys.readouterr()
    assert told.out == ""
    assert "401" in told.err
