"""The kit beside a driver's library in C: the branches R470 to R580, the GPUs that are sold, and
whatever goes wrong in a call.
"""

from __future__ import annotations

import _ctypes
import ast
import ctypes
import inspect
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import settings
from preflight_testing.fakes import (
    DEVICES,
    DRIVERS,
    NVML,
    NvmlError,
    build_nvml,
    nvml_header,
    nvml_node,
)

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: no NVML stand-in",
)
PACKAGES = Path(__file__).resolve().parents[2]
WORLDS = settings().max_examples
"""How many combinations of driver, GPU and fault; some thousands take minutes."""


def called() -> dict[str, Path]:
    """Functions of the binding that any member's source names → a file that does."""
    found = {}
    for path in PACKAGES.glob("*/src/**/*.py"):
        text = path.read_text()
        if "pynvml" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            name = ""
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = node.attr if node.value.id in {"pynvml", "nvml"} else ""
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
            if name.startswith("nvml") and inspect.isfunction(getattr(pynvml, name, None)):
                found[name] = path
    return found


def symbols(function: Callable[..., Any]) -> set[str]:
    """What a function of the binding looks for in the library."""
    text = inspect.getsource(inspect.unwrap(function))
    found = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text))
    for name in re.findall(r"\b(nvml\w+)\(", text):
        other = getattr(pynvml, name, None)
        if inspect.isfunction(other) and inspect.unwrap(other) is not inspect.unwrap(function):
            found |= symbols(other)
    return found


def test_the_stand_in_has_every_function_that_a_member_calls(library: Library) -> None:
    wanted = called()
    assert {"nvmlDeviceGetGpuFabricInfoV", "nvmlEventSetWait_v2", "nvmlDeviceGetP2PStatus"} <= (
        wanted.keys()
    )
    has = ctypes.CDLL(str(library(DRIVERS[-1]) / "libnvidia-ml.so.1"))
    lacks = {
        f"{symbol} ({path.relative_to(PACKAGES)}: {name})"
        for name, path in wanted.items()
        for symbol in symbols(getattr(pynvml, name))
        if not hasattr(has, symbol)
    }
    # Else whatever asks for a library of this name in this process gets this one.
    _ctypes.dlclose(has._handle)
    assert not lacks


STRUCTURES = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlProcessInfo_v2_t": pynvml.c_nvmlProcessInfo_v2_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlGpuFabricInfo_t": pynvml.c_nvmlGpuFabricInfo_t,
    "nvmlGpuFabricInfo_v2_t": pynvml.c_nvmlGpuFabricInfo_v2_t,
    "nvmlGpuFabricInfo_v3_t": pynvml.c_nvmlGpuFabricInfo_v3_t,
    "nvmlEccSramErrorStatus_v1_t": pynvml.c_nvmlEccSramErrorStatus_v1_t,
}


def test_the_binding_lays_structures_out_as_the_header_does(tmp_path: Path) -> None:
    wanted = [
        (name, [field for field, _ in made._fields_], made) for name, made in STRUCTURES.items()
    ]
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <nvml.h>", "int main(void) {"]
    for name, fields, _ in wanted:
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{f} %zu\\n", offsetof({name}, {f}));' for f in fields]
    versions = [name for name in STRUCTURES if re.search(r"_v\d_t$", name)]
    numbered = [name[:-2] for name in versions if name[:-2] != "nvmlProcessInfo_v2"]
    lines += [f'printf("{name} %zu\\n", (size_t){name});' for name in numbered]
    (tmp_path / "layout.c").write_text("\n".join([*lines, "return 0; }"]))
    compiler = shutil.which("cc") or "gcc"
    words = [compiler, f"-I{nvml_header().parent}", "-o", str(tmp_path / "layout")]
    subprocess.run([*words, str(tmp_path / "layout.c")], check=True)
    printed = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True)
    said = {word: int(number) for word, number in map(str.split, printed.stdout.splitlines())}
    expected = {name: ctypes.sizeof(made) for name, _, made in wanted}
    expected |= {f"{n}.{f}": getattr(made, f).offset for n, fields, made in wanted for f in fields}
    expected |= {name: getattr(pynvml, name) for name in numbered}
    assert said == expected


def test_a_signature_that_the_header_does_not_have_does_not_compile(tmp_path: Path) -> None:
    text = NVML.read_text()
    wrong = text.replace(
        "nvmlDeviceGetUUID(nvmlDevice_t g, char *out, unsigned size)",
        "nvmlDeviceGetUUID(nvmlDevice_t g, char *out, unsigned long size)",
    )
    assert wrong != text
    (tmp_path / "nvml.c").write_text(wrong)
    with pytest.raises(NvmlError):
        build_nvml(tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1")


Library = Callable[[int], Path]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    made: dict[int, Path] = {}

    def of(driver: int) -> Path:
        """The folder with the library of a driver's branch."""
        if driver not in made:
            made[driver] = tmp_path_factory.mktemp(f"nvml{driver}")
            build_nvml(NVML, made[driver] / "libnvidia-ml.so.1", driver=driver)
        return made[driver]

    return of


PROGRAM = """
import json, os, sys
import anyio
from preflight_proto import nvml
from preflight_proto.check import alive, counters, gpus, log, scan
from preflight_proto.check.child import Completed, ToolMissing
from preflight_proto.check.verdict import Inconclusive, Outcome, Verdict

nvml.start(log.echo)
world = json.loads(sys.stdin.readline() or "null")

async def smi(argv, patience):
    rows = world.get("smi")
    if not rows:
        raise ToolMissing(argv[0])
    return Completed(tuple(argv), 0, rows, "", False, False, 0.1)

async def judged(expected):
    facts = ()
    try:
        found, source = await gpus.find(smi, expected, {"NVIDIA_VISIBLE_DEVICES": "all"})
    except Inconclusive as error:
        verdict, source = Verdict.inconclusive(error.code, error.reason), ""
    except gpus.GpusMissing as error:
        verdict, source = error.verdict, ""
    else:
        facts = await counters.snapshot(found)
        seen = [one.uuid for one in facts if one.complete]
        verdict = scan.with_signs(
            Verdict(Outcome.PASSED, "OK", "fine."), scan.scan(facts), seen
        )
        await gpus.lost(found)
    accused = sorted({one.subject.gpu_uuid for one in verdict.findings if one.subject.gpu_uuid})
    return {"outcome": verdict.outcome.value, "code": verdict.code, "reason": verdict.reason,
            "accused": accused, "clears": len(verdict.clears), "source": source,
            "facts": [{name: repr(getattr(one, name)) for name in one.__dataclass_fields__} for one in facts],
            "silent": sorted(await alive.silent(found, world["within"])) if "within" in world else [],
            "domain": await counters.nvlink_domain(found) if facts else "",
            "samples": [[one.uuid, one.reasons, one.pcie_replays]
                for one in await counters.sample(found, world["sampled"])] if "sampled" in world else [],
            "then": len(await counters.snapshot(found)) if "sampled" in world else 0}

while world:
    with open(os.environ["FAKE_NODE_JSON"], "w") as file:
        json.dump(world["node"], file)
    nvml._Helper.avoided = nvml._Helper.hung = frozenset()
    nvml.ask(nvml.renew, patience=60.0, otherwise=str)  # each look is a check of its own
    nvml.SILENCE = world.get("silence", 60.0)
    gpus.PATIENCE = counters.PATIENCE = world.get("patience", 60.0)
    answer = anyio.run(judged, len(world["node"]["gpus"]))
    print("ANSWER " + json.dumps(answer), flush=True)
    world = json.loads(sys.stdin.readline() or "null")
os._exit(0)
"""


class Driver:
    """A program that looks at one node after the other with the library of one branch; ``said`` are
    its lines about the last one.
    """

    def __init__(self, folder: Path, node: Path) -> None:
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(folder),
                "FAKE_NODE_JSON": str(node),
                "NVIDIA_VISIBLE_DEVICES": "all",
            },
        )

    def look(self, node: dict[str, Any], **world: Any) -> dict[str, Any]:
        """What it makes of ``node``. Fails where it ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"node": node, **world}) + "\n")
        self._process.stdin.flush()
        self.said = []
        while line := self._process.stdout.readline():
            if line.startswith("ANSWER "):
                answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return answer
            self.said.append(line.rstrip("\n"))
        pytest.fail(f"the check ended with status {self._process.wait()}")

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


Start = Callable[[int], Driver]


@pytest.fixture(scope="session")
def start(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    running: dict[int, Driver] = {}

    def of(driver: int) -> Driver:
        if driver in running and running[driver].over:
            running.pop(driver).close()
        if driver not in running:
            running[driver] = Driver(library(driver), tmp_path_factory.mktemp("node") / "node.json")
        return running[driver]

    yield of
    for one in running.values():
        one.close()


def smi(node: dict[str, Any]) -> str:
    return "".join(
        f"{i}, {g['uuid']}, {g['name']}, {g['pci']}, [N/A], Disabled\n"
        for i, g in enumerate(node["gpus"])
    )


@pytest.mark.parametrize(
    ("driver", "unknown"),
    [
        (470, "sram_threshold fabric_state fabric_status fabric_health"),
        (535, "sram_threshold fabric_health"),
        (550, ""),
        (570, ""),
        (580, ""),
    ],
)
def test_a_driver_says_what_its_branch_knows(start: Start, driver: int, unknown: str) -> None:
    answer = start(driver).look(nvml_node("h100"))
    assert (answer["outcome"], answer["code"]) == ("passed", "OK")
    [facts, *_] = answer["facts"]
    silent = {name for name, value in facts.items() if value == "None"} - {"recovery"}
    assert silent == set(unknown.split())
    assert facts["fabric_state"] == ("None" if driver < 525 else "3")
    assert facts["recovery"] == ("None" if driver < 570 else "0")
    assert answer["clears"] == 8


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("model", DEVICES)
def test_no_healthy_gpu_is_accused(start: Start, model: str, driver: int) -> None:
    node = nvml_node(model)
    answer = start(driver).look(node)
    assert (answer["outcome"], answer["code"], answer["accused"]) == ("passed", "OK", [])
    slices = 2 if model == "a100-mig" else 1
    assert len(answer["facts"]) == len(node["gpus"]) * slices
    rack = "6f0c2a3e-0000-4000-8000-00000000aa00.32766"
    assert answer["domain"] == (rack if model == "gb200" and driver >= 525 else "")


@pytest.mark.parametrize("driver", [470, 580])
def test_one_sample_says_why_clocks_are_low_and_how_often_pcie_repeated_itself(
    start: Start, driver: int
) -> None:
    node = nvml_node("h100", {3: {"reasons": 0x48, "pcie_replays_grow": 50}})
    samples = {uuid: said for uuid, *said in start(driver).look(node, sampled=60.0)["samples"]}
    assert len(samples) == 8
    assert (samples["GPU-2"], samples["GPU-3"][0]) == ([0, 0], 0x48)
    assert samples["GPU-3"][1] > 0


def test_a_sample_that_does_not_come_frees_the_driver_for_the_next_question(start: Start) -> None:
    node = nvml_node("h100", {3: {"faults": "nvmlDeviceGetClockInfo=hang"}})
    answer = start(580).look(node, sampled=0.2, silence=3.0)
    assert (answer["samples"], answer["then"]) == ([], 8)


@pytest.mark.parametrize(
    ("state", "code", "outcome"),
    [
        ({"fabric_state": 1}, "OK", "passed"),  # an event beside it
        ({"fabric_state": 2}, "OK", "passed"),
        ({"fabric_status": 15}, "FABRIC_STATUS", "failed"),
        ({"fabric_health": 0b01_10_10_10 | 256}, "OK", "passed"),  # a timeout is being recovered
        ({"fabric_health": 0b10_01_10_10 | 256}, "FABRIC_HEALTH", "failed"),  # a route
        ({"fabric_health": 0b10_10_10_01 | 256}, "FABRIC_HEALTH", "failed"),  # half of it
        ({"fabric_health": 0b10_10_10_10 | 5 << 8}, "OK", "passed"),  # too few NVLinks: an event
    ],
)
def test_a_rack_s_fabric_that_is_not_well_is_named(
    start: Start, state: dict[str, int], code: str, outcome: str
) -> None:
    answer = start(580).look(nvml_node("gb200", {2: state}))
    assert (answer["outcome"], answer["code"]) == (outcome, code)
    assert answer["accused"] in ([], ["GPU-2"])


def test_a_crash_costs_what_it_was_asked_and_clears_nothing(start: Start) -> None:
    driver = start(580)
    node = nvml_node("h100", {3: {"faults": "nvmlDeviceGetSramEccErrorStatus=crash"}})
    answer = driver.look(node)
    assert (answer["outcome"], answer["clears"]) == ("passed", 0)
    assert [facts["sram_threshold"] for facts in answer["facts"]] == ["None"] * 8
    assert [facts["fabric_health"] for facts in answer["facts"]] == ["426"] * 8
    assert driver.said == [
        "NVML: nvmlDeviceGetSramEccErrorStatus ended by SIGSEGV; what it would say is not known."
    ]


ASKED = """
import os, signal
from preflight_proto import nvml
def ask(question, *given):
    return nvml.ask(question, *given, patience=60.0, otherwise=str)
nvml.start(print)
first = ask(os.getpid)
print(first != os.getpid(), ask(os.getpid) == first)
print(ask(os.kill, first, signal.SIGSEGV))
print(ask(os.getpid) not in {first, os.getpid()})
os._exit(0)
"""


def test_one_process_answers_all_questions_and_another_once_it_has_crashed() -> None:
    done = subprocess.run(
        [sys.executable, "-uc", ASKED], capture_output=True, text=True, check=True
    )
    ended = "the process ended by SIGSEGV"
    assert done.stdout.splitlines() == [
        "True True",
        f"NVML: {ended}; what it would say is not known.",
        ended,
        "True",
    ]


def test_a_call_that_hangs_costs_what_it_was_asked(start: Start) -> None:
    driver = start(580)
    node = nvml_node("h100", {3: {"faults": "nvmlDeviceGetNvLinkState=hang"}})
    answer = driver.look(node, silence=0.5)
    assert (answer["outcome"], answer["clears"]) == ("passed", 0)
    assert [facts["links"] for facts in answer["facts"]] == ["{}"] * 8
    assert [facts["sram_threshold"] for facts in answer["facts"]] == ["False"] * 8
    [line] = driver.said
    assert line.startswith("NVML: nvmlDeviceGetNvLinkState gave no answer within ")


def test_a_gpu_that_gives_no_answer_is_told_even_where_its_silence_has_cost_a_look_before(
    start: Start,
) -> None:
    node = nvml_node("h100", {5: {"faults": "nvmlDeviceGetTemperature=hang"}})
    answer = start(580).look(node, silence=0.5, within=2.0)
    assert answer["silent"] == ["GPU-5"]


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_library_that_cannot_list_leaves_it_to_nvidia_smi(start: Start, call: str) -> None:
    node = nvml_node("h100") | {"driver_faults": f"{call}=crash"}
    answer = start(580).look(node, smi=smi(node))
    assert (answer["outcome"], answer["source"]) == ("passed", "nvidia-smi")
    answer = start(580).look(node)
    assert (answer["outcome"], answer["code"]) == ("inconclusive", "NO_GPU")


SICK: dict[str, dict[str, int]] = {
    "ROW_REMAP_FAILED": {"remap_failed": 1},
    "SRAM_THRESHOLD": {"sram_threshold": 1},
    "RECOVERY_NEEDED": {"recovery_action": 1},
    "NVLINK_DOWN": {"links_up": 17},
    "PCIE_WIDTH": {"pcie_width": 8},
}
LIBRARY = {"crash", "hang", "3", "7", "13", "25"}
"""Faults that are the library's: no GPU is accused of them."""
GPU = {"15", "16", "999"}
"""GPU is lost, needs a reset, or is not to be reached."""


@pytest.mark.timeout(180 + 5 * WORLDS)
def test_whatever_goes_wrong_in_a_call_no_other_gpu_is_accused(start: Start) -> None:
    """No check ends by a signal; the verdict is the one without the fault, one in which what the
    call would have said is missing, or inconclusive with the reason.
    """
    chance = random.Random(7)
    functions = sorted({symbol for name in called() for symbol in symbols(getattr(pynvml, name))})
    plain: dict[tuple[int, str], dict[str, Any]] = {}
    for _ in range(WORLDS):
        driver, code = chance.choice(DRIVERS), chance.choice(["", *SICK])
        what = chance.choice(sorted((LIBRARY | GPU) - {"hang"}) * 4 + ["hang"])
        call, whose = chance.choice([*functions, "*"]), chance.choice([range(8), [5]])
        sick: dict[int, dict[str, object]] = {2: dict(SICK[code])} if code else {}
        node = nvml_node("h100", sick)
        if (driver, code) not in plain:
            plain[driver, code] = start(driver).look(node)
        was = plain[driver, code]
        for i in whose:
            node["gpus"][i]["faults"] = f"{call}={what}"
        of_node = chance.random() < 0.3
        if of_node:
            node["driver_faults"] = f"{call}={what}"
        rows = smi(node) if chance.random() < 0.5 else ""
        quick = {"silence": 0.5, "patience": 2.0} if what == "hang" else {}
        now = start(driver).look(node, smi=rows, **quick)
        world = (driver, code, call, what, list(whose), of_node, bool(rows), now["reason"])
        may = set(was["accused"])
        if what in GPU:
            may |= {f"GPU-{i}" for i in (range(8) if of_node else whose)}
        assert set(now["accused"]) <= may, world
        if what in LIBRARY:
            allowed = {was["code"], "OK", "NO_GPU"}
            assert now["code"] in allowed, world
        assert now["outcome"] != "inconclusive" or now["reason"], world
        if now["code"] == "OK" and was["code"] != "OK":  # what accused it is not known any more
            facts: dict[str, str] = next(
                (one for one in now["facts"] if one["uuid"] == "'GPU-2'"), {}
            )
            silent = {name for name, value in facts.items() if value in {"None", "{}"}}
            known = {name for name, value in was["facts"][2].items() if value not in {"None", "{}"}}
            assert not facts or silent & known, world
