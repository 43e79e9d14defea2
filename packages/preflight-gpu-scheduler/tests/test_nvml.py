"""What the agent's reader makes of a driver's library in C, and of one GPU that is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.fakes import DRIVERS, NVML, NvmlError, build_nvml, nvml_node

PROGRAM = """
import json
from preflight_gpu_scheduler.node.nvml import NvmlFailed, NvmlProcess

try:
    print(json.dumps([
        [one.uuid, one.answers, one.processes, len(one.links), one.mig, list(one.xids)]
        for one in NvmlProcess().facts()
    ]))
except NvmlFailed as error:
    print(json.dumps(str(error)))
"""
Read = Callable[..., Any]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    made = {driver: tmp_path_factory.mktemp(f"nvml{driver}") for driver in DRIVERS}
    try:
        for driver, folder in made.items():
            build_nvml(NVML, folder / "libnvidia-ml.so.1", driver=driver)
    except NvmlError as error:
        pytest.skip(str(error))
    return made


@pytest.fixture
def read(folders: dict[int, Path], tmp_path: Path) -> Read:
    def of(node: dict[str, Any], driver: int = DRIVERS[-1]) -> Any:
        (tmp_path / "node.json").write_text(json.dumps(node))
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folders[driver]),
            "FAKE_NODE_JSON": str(tmp_path / "node.json"),
            "NVIDIA_VISIBLE_DEVICES": "all",
        }
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return of


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_branch_of_the_driver_is_read(read: Read, driver: int) -> None:
    seen = read(nvml_node("h100"), driver)
    assert seen == [[f"GPU-{i}", True, 0, 18, False, []] for i in range(8)]


@pytest.mark.parametrize("faults", ["", "nvmlDeviceRegisterEvents=15", "nvmlDeviceGetName=15"])
def test_an_xid_is_its_gpu_s_whatever_another_one_says(read: Read, faults: str) -> None:
    seen = read(nvml_node("h100", {3: {"faults": faults}, 5: {"xid": 79}}))
    assert [one[0] for one in seen if one[5] == [79]] == ["GPU-5"]


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetRemappedRows",
        "*",
    ],
)
@pytest.mark.parametrize("model", ["h100", "l40s"])
def test_one_lost_gpu_is_one_lost_gpu(read: Read, model: str, call: str) -> None:
    seen = read(nvml_node(model, {3: {"faults": f"{call}=15"}}))
    well = [uuid for uuid, answers, *_ in seen if answers]
    others = [f"GPU-{i}" for i in range(8) if i != 3]
    assert [uuid for uuid in well if uuid != "GPU-3"] == others
    if call != "nvmlDeviceGetP2PStatus":  # which others ask, too
        assert well == others


def test_a_driver_that_is_being_reloaded_is_no_lost_gpu(read: Read) -> None:
    node = nvml_node("h100")
    for gpu in node["gpus"]:
        gpu["faults"] = "nvmlDeviceGetUUID=1"
    assert read(node) == "NVML cannot be read (Uninitialized); is the driver being reloaded?"


AGENT = """
import json, os, sys
from preflight_gpu_scheduler.api.gpu_node_status import InventoryStatus
from preflight_gpu_scheduler.node.nvml import NvmlFailed, NvmlProcess, reader
from preflight_gpu_scheduler.node.status import status

said = []
reader.start(said.append, lasting=True)
known = InventoryStatus()
for line in sys.stdin:
    world = json.loads(line)
    with open(os.environ["FAKE_NODE_JSON"], "w") as file:
        json.dump(world["node"], file)
    reader.SILENCE = world.get("silence", 60.0)
    if world.get("killed"):
        os.kill(reader._Helper.pid, 9)
        reader._Helper.pipe.poll(60.0)
    if world.get("waited"):
        reader._Helper.again = 0.0
    if world.get("anew"):  # as after a reload of the driver
        reader.ask(reader.renew, patience=60.0, otherwise=str)
    try:
        facts, failure = NvmlProcess().facts(), ""
    except NvmlFailed as error:
        facts, failure = None, str(error)
    known = status(known, facts, {}, (), "a", holders={}, observed="")
    devices = [[one.uuid, one.health, one.reason, one.processes, one.island] for one in known.devices]
    print(json.dumps([devices, known.reason, known.total, failure, said]), flush=True)
    said.clear()
"""


class Looks:
    """A program that looks as the agent does, at one node after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.devices: list[list[Any]] = []
        self.reason, self.failure = "", ""
        self.total: int | None = None
        self.said: list[str] = []

    def look(self, node: dict[str, Any], **world: Any) -> list[list[Any]]:
        """What the status says of each GPU. Fails where the program has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"node": node, "anew": True, **world}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the agent ended with status {self._process.wait()}"
        self.devices, self.reason, self.total, self.failure, self.said = json.loads(line)
        return self.devices

    @property
    def health(self) -> list[str]:
        return [health for _, health, *_ in self.devices]


@pytest.fixture
def looks(folders: dict[int, Path], tmp_path: Path) -> Callable[[int], Any]:
    @contextmanager
    def of(driver: int) -> Iterator[Looks]:
        environ = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folders[driver]),
            "FAKE_NODE_JSON": str(tmp_path / "node.json"),
            "NVIDIA_VISIBLE_DEVICES": "all",
        }
        with subprocess.Popen(
            [sys.executable, "-c", AGENT],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield Looks(process)

    return of


def calls() -> list[str]:
    """Functions of the binding that the agent's reader names, as the library has them."""
    import preflight_gpu_scheduler.node.nvml

    text = Path(preflight_gpu_scheduler.node.nvml.__file__).read_text()
    names = set(re.findall(r"\b(nvml(?:Init|Shutdown|System|Device|Event)\w+)\(", text))
    names |= set(re.findall(r'"(nvml\w+)"', text))
    versions = {"nvmlDeviceGetCount": "_v2", "nvmlDeviceGetHandleByIndex": "_v2"}
    versions |= {"nvmlDeviceGetPciInfo": "_v3", "nvmlDeviceGetNvLinkRemotePciInfo": "_v2"}
    names.add("nvmlInitWithFlags")
    return sorted(name + versions.get(name, "") for name in names - {"nvmlInit"})


DECIDES = {
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetRemappedRows",
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("what", ["crash", "3", "10", "13", "999"])
def test_whatever_goes_wrong_in_a_call_no_gpu_is_lost_free_or_gone_by_it(
    looks: Callable[[int], Any], driver: int, what: str
) -> None:
    """The status is the one without the fault, or says what is not known."""
    with looks(driver) as agent:
        plain = agent.look(nvml_node("h100", {2: {"processes": 1}}))
        for call in calls():
            node = nvml_node("h100", {2: {"processes": 1}})
            for gpu in node["gpus"]:
                gpu["faults"] = f"{call}={what}"
            seen = agent.look(node | {"driver_faults": f"{call}={what}"}, waited=True)
            world = (call, what, driver, seen[2], agent.reason, agent.said)
            assert [uuid for uuid, *_ in seen] == [uuid for uuid, *_ in plain], world
            if what == "999":  # unknown error, which drivers say of a GPU that has fallen off
                assert seen[2][1] != "Healthy" or seen == plain or call not in DECIDES, world
                continue
            assert "Unhealthy" not in agent.health, world
            if what == "crash":
                assert [one[4] for one in seen] == [one[4] for one in plain], world
            if what in {"crash", "10"} and call in DECIDES and agent.said:
                assert "Healthy" not in agent.health or seen[2][3] == 1, world
            if seen[2][1] == "Healthy":
                lacks = what in {"3", "13"} and "Processes" in call
                assert seen[2][3] == plain[2][3] or lacks, world


def test_a_silence_is_unknown_and_ends_when_the_library_answers_again(
    looks: Callable[[int], Any],
) -> None:
    node = nvml_node("h100", {3: {"faults": "nvmlDeviceGetComputeRunningProcesses_v3=hang"}})
    node["gpus"][3]["faults"] += ",nvmlDeviceGetComputeRunningProcesses_v2=hang"
    with looks(580) as agent:
        agent.look(node, silence=0.5)
        assert agent.health == ["Unknown"] * 8
        assert [text.split(" gave")[0] for text in agent.said] == [
            "NVML: nvmlDeviceGetComputeRunningProcesses_v3",
            "NVML: nvmlDeviceGetComputeRunningProcesses_v2",
        ]
        agent.look(nvml_node("h100"))
        assert agent.health == ["Unknown"] * 8  # not before its pause is over
        agent.look(nvml_node("h100"), waited=True)
        assert agent.health == ["Healthy"] * 8


def test_a_library_that_crashes_at_once_leaves_every_gpu_its_place_and_unknown(
    looks: Callable[[int], Any],
) -> None:
    broken = nvml_node("h100") | {"driver_faults": "nvmlInitWithFlags=crash"}
    with looks(580) as agent:
        assert agent.look(broken) == []
        assert (agent.reason, agent.total) == ("NVML does not answer", None)
        agent.look(nvml_node("h100"), waited=True)
        assert (agent.health, agent.reason, agent.total) == (["Healthy"] * 8, "", 8)
        agent.look(broken)
        assert (agent.health, agent.reason, agent.total) == (
            ["Unknown"] * 8,
            "NVML does not answer",
            8,
        )


def test_the_process_that_asks_is_begun_anew_where_it_was_killed(
    looks: Callable[[int], Any],
) -> None:
    node = nvml_node("h100")
    with looks(580) as agent:
        agent.look(node)
        agent.look(node, killed=True, anew=False)
        assert (agent.health, agent.reason) == (["Unknown"] * 8, "NVML does not answer")
        assert "is gone" in agent.failure
        agent.look(node, waited=True)
        assert (agent.health, agent.reason) == (["Healthy"] * 8, "")


def test_an_xid_is_said_until_it_is_kept_and_outlives_the_library_s_process(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    (tmp_path / "node.json").write_text(json.dumps(nvml_node("h100", {5: {"xid": 79}})))
    (tmp_path / "well.json").write_text(json.dumps(nvml_node("h100")))
    program = """
import os
from preflight_gpu_scheduler.node.nvml import NvmlProcess, reader

reader.start(print, lasting=True)
driver = NvmlProcess()
for step in range(3):
    print([one.uuid for one in driver.facts() if one.xids == (79,)])
    if step == 0:  # the library says it once, and then its process ends
        os.replace("well.json", "node.json")
        reader.ask(os.abort, patience=60.0, otherwise=str)
    else:
        driver.kept()
"""
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folders[580]),
        "FAKE_NODE_JSON": str(tmp_path / "node.json"),
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert said == ["['GPU-5']", "['GPU-5']", "[]"]
