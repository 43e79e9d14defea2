"""Which topology file NCCL gets: what the images carry, what is not there and why, and who is asked
first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import anyio
import pytest
from preflight_proto import names
from preflight_proto.check import Inconclusive, SettingsError
from preflight_proto.check.settings import read
from preflight_proto.check.topology import (
    TopologyFile,
    TopologySettings,
    find_topology,
    not_built_in,
)

PACKAGE = Path(__file__).resolve().parents[1]
BUILT_IN = PACKAGE / "nccl-topologies"
FACTS = tomllib.loads((PACKAGE / "src/preflight_proto/check/topologies.toml").read_text())
ADR = {
    "Standard_ND96isr_H100_v5": "azure-ndv5.xml",
    "Standard_ND96amsr_A100_v4": "azure-ndv4.xml",
    "p5.48xlarge": "aws-p5.48xlarge.xml",
    "a3-megagpu-8g": "gcp-a3-mega.xml",
}
"""ADR-026's example mapping."""
FILES = sorted(path.name for path in BUILT_IN.glob("*.xml"))


def find(environ: Mapping[str, str] | None = None, **variables: str) -> TopologyFile:
    given = {"PREFLIGHT_TOPOLOGY_DIR": str(BUILT_IN), **variables}
    return anyio.run(find_topology, read(TopologySettings, given), environ or {})


def mapped(mapping: Mapping[str, str]) -> str:
    return ",".join(f"{kind}={file}" for kind, file in mapping.items())


def test_each_of_adr_026_s_platforms_is_built_in_or_said_to_be_absent() -> None:
    assert {*FACTS} == {*ADR.values(), "oci-bm-gpu-a100.xml"}
    assert {*FACTS} == {*FILES} | {*not_built_in()}
    assert {kind for about in FACTS.values() for kind in about["instance_types"]} >= {*ADR}


def test_each_platform_says_where_it_is_known_from() -> None:
    assert [
        name
        for name, about in FACTS.items()
        if "/" not in about["source"] and "documentation" not in about["source"]
    ] == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_a_tree_that_nccl_can_read(name: str) -> None:
    system = ElementTree.parse(BUILT_IN / name).getroot()
    assert (system.tag, system.attrib) == ("system", {"version": "1"})
    devices = list(system.iter("pci"))
    addresses = [one.attrib["busid"] for one in devices]
    assert len(addresses) == len({*addresses})
    kinds = [one.attrib["class"] for one in devices]
    assert kinds.count("0x030200") == 8  # GPUs
    assert len([one for one in kinds if one in {"0x020000", "0x020700"}]) == 8  # network cards
    for cpu in system:
        # What NCCL reads from the node only where a GPU of the pod hangs on this CPU, and fails
        # without.
        assert cpu.attrib.keys() == {"numaid", "arch", "vendor", "familyid", "modelid"}
    assert " />" not in (BUILT_IN / name).read_text()


def test_the_files_are_what_their_generator_makes(tmp_path: Path) -> None:
    script = (PACKAGE / "nccl_topologies.py").read_text()
    (tmp_path / "nccl_topologies.py").write_text(script)
    target = tmp_path / "src" / "preflight_proto" / "check"
    target.mkdir(parents=True)
    (target / "topologies.toml").write_text(
        (PACKAGE / "src/preflight_proto/check/topologies.toml").read_text()
    )
    subprocess.run([sys.executable, "nccl_topologies.py"], cwd=tmp_path, check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "nccl-topologies").glob("*.xml")}
    assert made == {name: (BUILT_IN / name).read_text() for name in FILES}


def test_the_built_in_file_of_the_instance_type_is_chosen() -> None:
    found = find(PREFLIGHT_TOPOLOGY_MAP=mapped(ADR), NODE_INSTANCE_TYPE="Standard_ND96isr_H100_v5")
    assert found.path == f"{BUILT_IN}/azure-ndv5.xml"
    assert found.why == f"{BUILT_IN}/azure-ndv5.xml for the instance type Standard_ND96isr_H100_v5"


def test_the_workload_s_own_file_comes_first() -> None:
    found = find(
        {"NCCL_TOPO_FILE": "/theirs.xml"},
        PREFLIGHT_TOPOLOGY_MAP=mapped(ADR),
        NODE_INSTANCE_TYPE="Standard_ND96isr_H100_v5",
    )
    assert (found.path, found.why) == ("/theirs.xml", "/theirs.xml, the workload's NCCL_TOPO_FILE")


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "NCCL's own detection, as no instance type is mapped to a file"),
        (
            {"NODE_INSTANCE_TYPE": ""},
            "NCCL's own detection, as no instance type is mapped to a file",
        ),
        (
            {"PREFLIGHT_TOPOLOGY_MAP": mapped(ADR)},
            "NCCL's own detection, as the node's instance type is not known",
        ),
        (
            {"PREFLIGHT_TOPOLOGY_MAP": mapped(ADR), "NODE_INSTANCE_TYPE": "ours"},
            "NCCL's own detection, as the instance type ours is not mapped to a file",
        ),
        (
            {"PREFLIGHT_TOPOLOGY_MAP": mapped(ADR), "NODE_INSTANCE_TYPE": "p5.48xlarge"},
            "NCCL's own detection instead of aws-p5.48xlarge.xml for the instance type p5.48xlarge: "
            + not_built_in()["aws-p5.48xlarge.xml"],
        ),
        (
            {"PREFLIGHT_TOPOLOGY_MAP": "ours=lost.xml", "NODE_INSTANCE_TYPE": "ours"},
            f"NCCL's own detection instead of lost.xml for the instance type ours: there is none in {BUILT_IN}",
        ),
    ],
)
def test_where_there_is_no_file_nccl_finds_out_and_it_is_said_why(
    variables: dict[str, str], why: str
) -> None:
    assert find({}, **variables) == TopologyFile(None, why)


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(names, "USER_TOPOLOGY_DIR", str(tmp_path))
    return tmp_path


def moved(file: Path) -> dict[str, str]:
    return {"NCCL_TOPO_FILE": str(file), "PREFLIGHT_USER_TOPOLOGY": "/etc/nccl/h100.xml"}


def test_a_file_that_was_moved_goes_by_the_workloads_own_path(volume: Path) -> None:
    (volume / "..data").mkdir()
    (volume / "..data/h100.xml").write_text("<system/>")
    (volume / "h100.xml").symlink_to("..data/h100.xml")  # as the kubelet mounts a ConfigMap
    found = find(moved(volume / "h100.xml"))
    assert found == TopologyFile(
        str(volume / "h100.xml"), "/etc/nccl/h100.xml, the workload's NCCL_TOPO_FILE"
    )


@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "folder", "nothing"])
def test_a_file_of_the_workload_is_a_regular_file_of_its_volume(volume: Path, kind: str) -> None:
    file = volume / "h100.xml"
    match kind:
        case "link":
            file.symlink_to("/etc/hostname")
        case "loop":
            file.symlink_to(file)
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
    with pytest.raises(Inconclusive) as raised:
        find(moved(file))
    assert raised.value.code == "TOPOLOGY_FILE_UNREADABLE"
    assert "/etc/nccl/h100.xml" in raised.value.reason


def test_without_fallback_that_is_no_verdict() -> None:
    with pytest.raises(Inconclusive) as raised:
        find(
            PREFLIGHT_TOPOLOGY_MAP=mapped(ADR),
            NODE_INSTANCE_TYPE="a3-megagpu-8g",
            PREFLIGHT_TOPOLOGY_FALLBACK="false",
        )
    assert raised.value.code == "NO_TOPOLOGY"
    assert "Google publishes none" in raised.value.reason


def test_the_instance_type_may_stand_in_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "instance-type").write_text("Standard_ND96amsr_A100_v4")
    found = find(PREFLIGHT_TOPOLOGY_MAP=mapped(ADR), NODE_INSTANCE_TYPE_PATH=str(file))
    assert found.path == f"{BUILT_IN}/azure-ndv4.xml"


@pytest.fixture
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waits(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s")

    monkeypatch.setattr("preflight_proto.check.node.anyio.sleep", waits)


@pytest.mark.usefixtures("never_waits")
def test_a_node_without_an_instance_type_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "instance-type").write_text("")
    (tmp_path / "topology").write_text("{}")
    found = find(
        PREFLIGHT_TOPOLOGY_MAP=mapped(ADR),
        NODE_INSTANCE_TYPE_PATH=str(tmp_path / "instance-type"),
        NODE_TOPOLOGY_PATH=str(tmp_path / "topology"),
    )
    assert found.why == "NCCL's own detection, as the node's instance type is not known"


@pytest.mark.usefixtures("never_waits")
def test_nobody_waits_where_nothing_is_mapped(tmp_path: Path) -> None:
    find(NODE_INSTANCE_TYPE_PATH=str(tmp_path / "never"))


def test_a_mapping_that_cannot_be_read_is_one_sentence() -> None:
    with pytest.raises(SettingsError) as raised:
        read(TopologySettings, {"PREFLIGHT_TOPOLOGY_MAP": "p5=/etc/x.xml"})
    [sentence] = raised.value.problems
    assert sentence.startswith(
        'PREFLIGHT_TOPOLOGY_MAP: "p5=/etc/x.xml" is not a list of instance-type=file; set e.g.'
    )
