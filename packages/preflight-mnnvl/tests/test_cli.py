"""What people type, and what they read."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml
from cliques import DRIVER, ON, clique, group, pcs, support
from grove_world import NOW, Cluster
from preflight_kube.files.configfile import ConfigError
from preflight_mnnvl.cli import main
from preflight_mnnvl.config import Config, json_schema, parse
from preflight_mnnvl.report.explain import explain, text
from preflight_mnnvl.report.show import Pod, show
from preflight_testing.documents import ended

FIXTURES = Path(__file__).parent / "fixtures"


run = partial(ended, main)


def test_explain_tells_domains_members_nodes_and_patches() -> None:
    done = run(
        "explain", "-f", str(FIXTURES / "e1-distributed-training.yaml"), "--grove-nodes", "8"
    )
    assert (done.status, done.err) == (0, "")
    for said in (
        "2 ComputeDomains, 12 nodes needed",
        "distributed-training-1-cd  scope replica, 6 pods, 36 GPUs, owner PodGang distributed-training-1",
        "need 12 nodes, one each, and 8 carry the label",
        "+        claims:",
        "+      resourceClaimTemplateName: distributed-training-0-mnnvl-claim",
    ):
        assert said in done.out


def test_explain_in_json_and_yaml_says_the_same() -> None:
    path = str(FIXTURES / "e3-scalable-inference.yaml")
    as_json = json.loads(run("explain", "-f", path, "-o", "json").out)
    assert as_json == yaml.safe_load(run("explain", "-f", path, "-o", "yaml").out)
    assert [one["gang"].removeprefix("scalable-inference-0") for one in as_json["domains"]] == [
        "",
        "-inference-pool-0",
        "-inference-pool-1",
    ]


def test_explain_ends_with_one_where_the_set_would_be_refused() -> None:
    set_ = yaml.safe_dump(
        pcs("t", [clique("a")], annotations={**ON, "grove.io/mnnvl-scope": "pod"})
    )
    done = run("explain", "-f", "-", stdin=set_)
    assert done.status == 1
    assert (
        'refused  metadata.annotations[grove.io/mnnvl-scope]: the scope "pod" is unknown'
        in done.out
    )


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        ("", "standard input: has no PodCliqueSet; give a file with one."),
        ("kind: Pod", "standard input: has no PodCliqueSet; give a file with one."),
        ("a: [", "standard input: line 1, column 5: not YAML"),
        ("kind: PodCliqueSet\nspec: {template: {cliques: x}}", "standard input: document 1: it is not a PodCliqueSet: Expected `array | null`, got `str` - at `$.spec.template.cliques`; correct it."),
        ("a: 1\na: 2", "standard input: line 2, column 1: the key a is in line 1 already; keep one of the two."),
        ("a: 2020-01-01", "standard input: has no PodCliqueSet; give a file with one."),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_ends_with_two(stdin: str, says: str) -> None:
    done = run("explain", "-f", "-", stdin=stdin)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(says)
    assert "Traceback" not in done.err


def test_every_problem_of_a_configuration_is_said_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "mode: litteral\nfeature: on\ngpuResources: []\nplacment: any\ninstance: '-x'\n"
    )
    done = run("validate-config", str(path))
    assert done.status == 2
    assert done.err.splitlines() == [
        f"{path}: placment: unknown key; write placement instead, or remove it.",
        f"{path}: feature: must be one of auto, off; found true.",
        f"{path}: gpuResources: must not be empty; found an empty list.",
        f'{path}: instance: must match ^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$ (The value of a label); found the string "-x".',
        f'{path}: mode: must be one of driver, literal; found the string "litteral".',
    ]
    path.write_text("mode: literal\n")
    assert run("validate-config", str(path)).status == 0
    assert (
        run("validate-config", str(tmp_path / "none")).err
        == f"{tmp_path / 'none'}: No such file or directory; give a readable file.\n"
    )


def test_a_configuration_must_mean_something() -> None:
    assert parse("") == Config()
    with pytest.raises(ConfigError, match="fabric"):
        parse("mode: literal\nplacement: fabric\n")


def test_the_schema_is_one_and_takes_the_defaults() -> None:
    schema = json.loads(run("schema").out)
    assert schema == json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(msgspec.json.encode(Config())), schema)


def test_help_is_a_manual_of_what_there_is() -> None:
    command = [sys.executable, "-m", "preflight_mnnvl", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for word in (
        "explain",
        "validate-config",
        "schema",
        "grove.io/mnnvl-enabled",
        "scalingGroupReplica",
        "exit status",
    ):
        assert word in said


def test_explain_stops_at_a_bound() -> None:
    told = explain(pcs("t", [clique("a")], annotations=ON, replicas=2**31 - 1), DRIVER)
    assert not told.complete
    assert "more than 2000 PodCliques" in text(told)


def test_of_a_set_that_does_not_say_how_often_explain_says_that_it_makes_nothing() -> None:
    found = pcs("t", [clique("a")], annotations=ON)
    del found["spec"]["replicas"]
    told = explain(found, DRIVER)
    assert (told.domains, told.nodes_needed) == ([], 0)
    assert "spec.replicas is not written: Grove's default is 0" in text(told)


def test_show_goes_from_the_set_to_its_pods() -> None:
    cluster = Cluster(DRIVER)
    cluster.apply(pcs("t", [clique("w")], [group("g", [], None)], ON))
    cluster.grove("t")
    said = {"grove.io/mnnvl-one-fabric": "no: b with the claim of another domain"}
    cluster.store["pg"]["t-0"]["metadata"]["annotations"] |= said
    cluster.store["cd"]["t-0-cd"]["status"] = {
        "status": "Ready",
        "nodes": [{"name": "n1", "status": "Ready"}],
    }
    cluster.store["pclq"]["t-0-x"] = {
        "metadata": {
            "name": "t-0-x",
            "namespace": "default",
            "annotations": {"mnnvl.nvsentinel.nvidia.com/domain": "?"},
        }
    }
    pods = [
        msgspec.convert(
            {
                "metadata": {
                    "name": f"t-0-w-{i}",
                    "namespace": "default",
                    "labels": {"grove.io/podclique": "t-0-w"},
                },
                "spec": spec,
            },
            Pod,
        )
        for i, spec in enumerate([{"nodeName": "n1", "resourceClaims": [{"name": "mnnvl"}]}, {}])
    ]
    assert show(cluster.world(), pods, DRIVER, support(DRIVER), NOW).splitlines() == [
        "PodCliqueSet default/t",
        "  ComputeDomain t-0-cd: adopted",
        "    The ComputeDomain t-0-cd belongs to the PodGang t-0.",
        "    Ready; nodes: n1 (Ready)",
        "    PodClique t-0-w",
        "      t-0-w-0 on n1, with its claim",
        "      t-0-w-1 on no node yet, WITHOUT its claim",
        "  PodGang t-0, one fabric: no: t-0-w-1 without the claim; b with the claim of another domain",
        "ignored  PodClique default/t-0-x: the annotation mnnvl.nvsentinel.nvidia.com/domain is none that the webhook wrote",
    ]
    assert show(cluster.world(), pods, DRIVER, support(DRIVER), NOW, only="u").startswith("ignored")


@pytest.mark.parametrize("what", ["training", "pcs/", "pcs/A", "pod/training", "pcs/../x"])
def test_what_is_no_set_is_not_asked_for(what: str) -> None:
    done = run("explain", "--live", what)
    assert done.status == 2
    assert f'"{what}" is not a PodCliqueSet; write pcs/NAME' in done.err
