"""Which GPUs are there, and which are missing, shared, lost or cut into slices; against an NVML of
plain functions and a real one of C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import gpus, presence
from preflight_proto.check.child import Completed, ToolMissing
from preflight_proto.check.events import events
from preflight_proto.check.verdict import (
    NODE,
    Inconclusive,
    Outcome,
    Skipped,
    Subject,
    Verdict,
)

pytestmark = pytest.mark.anyio

UUIDS = tuple(f"GPU-{i}{i}{i}{i}{i}{i}{i}{i}-0000-0000-0000-00000000000{i}" for i in range(8))
LOST, UNKNOWN, NO_PERMISSION = (
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_UNKNOWN,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


def pci(index: int) -> str:
    return f"00000000:{0x1B + 16 * index:02X}:00.0"


@dataclass
class Driver:
    """NVML of ``count`` GPUs; ``bad`` index → NVML's error code; ``mig`` index → UUIDs of its
    slices.
    """

    count: int = 8
    bad: dict[int, int] = field(default_factory=dict)
    mig: dict[int, list[str]] = field(default_factory=dict)
    dead: str = ""

    def answer(self, index: int) -> int:
        if index in self.bad:
            raise pynvml.NVMLError(self.bad[index])
        return index

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def init() -> None:
            if self.dead:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

        def by_pci(name: bytes) -> int:
            return self.answer(
                [pci(i).lower() for i in range(self.count)].index(name.decode().lower())
            )

        def of_slice(parent: int, number: int) -> tuple[int, int]:
            if number >= len(self.mig[parent]):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return parent, number

        def mode(index: int) -> list[int]:
            if index not in self.mig:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return [1, 1]

        given: dict[str, Callable[..., Any]] = {
            "nvmlInit": init,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": self.answer,
            "nvmlDeviceGetHandleByPciBusId": by_pci,
            "nvmlDeviceGetTemperature": lambda *_: 40,
            "nvmlDeviceGetUUID": lambda h: (
                self.mig[h[0]][h[1]] if isinstance(h, tuple) else UUIDS[h]
            ),
            "nvmlDeviceGetName": lambda _: b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetPciInfo": lambda h: type("Pci", (), {"busId": pci(h).encode()}),
            "nvmlDeviceGetSerial": lambda h: f"16{h}",
            "nvmlDeviceGetMigMode": mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": of_slice,
        }
        for name, function in given.items():
            monkeypatch.setattr(pynvml, name, function)


def smi(output: str = "", status: int = 0) -> gpus.Command:
    async def command(argv: Sequence[str], _: float) -> Completed:
        if not output:
            raise ToolMissing(argv[0])
        return Completed(tuple(argv), status, output, "", False, False, 0.1)

    return command


class Node:
    """What a container sees of its GPUs: by NVML, by the kernel's files, by nvidia-smi."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.places = gpus.Places(folder / "driver", folder / "devices", folder / "mounted")
        self._monkeypatch = monkeypatch

    def driver(self, **how: Any) -> None:
        Driver(**how).patch(self._monkeypatch)

    def listed(self, *indices: int, lost: int | None = None) -> None:
        """What the driver says of these GPUs; and the bus, where one of them is lost."""
        for index in indices or range(8):
            address, gone = presence.address(pci(index)), index == lost
            uuid = "GPU-????????-????-????-????-????????????" if gone else UUIDS[index]
            (driver := self.places.driver / address).mkdir(parents=True)
            (driver / "information").write_text(
                f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n"
            )
            if lost is not None:
                (bus := self.places.devices / address).mkdir(parents=True)
                (bus / "config").write_bytes(
                    (b"\xff" * 4 if gone else b"\xde\x10\x30\x23") + bytes(60)
                )

    async def find(
        self, command: gpus.Command, expected: int | None, environ: dict[str, str]
    ) -> tuple[tuple[gpus.Gpu, ...], str]:
        return await gpus.find(command, expected, environ, self.places)

    async def gone(
        self,
        environ: dict[str, str],
        command: gpus.Command | None = None,
        expected: int | None = 8,
    ) -> gpus.GpusMissing:
        with pytest.raises(gpus.GpusMissing) as caught:
            await self.find(command or smi(), expected, environ)
        return caught.value


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    return Node(monkeypatch, tmp_path)


def rows(*indices: int) -> str:
    return "".join(
        f"{i}, {UUIDS[i]}, NVIDIA H100 80GB HBM3, {pci(i)}, 16{i}, Disabled\n" for i in indices
    )


ALLOTTED = {"NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS)}


async def test_all_that_were_allotted_are_listed_with_address_and_serial(node: Node) -> None:
    node.driver()
    found, source = await node.find(smi(), 8, ALLOTTED)
    assert (source, [gpu.uuid for gpu in found]) == ("NVML", list(UUIDS))
    assert (found[3].pci_bus_id, found[3].serial, found[3].mig) == (pci(3).lower(), "163", False)


async def test_a_lost_gpu_costs_no_other_its_place_and_is_named_and_fatal(node: Node) -> None:
    node.driver(bad={3: LOST})
    error = await node.gone(ALLOTTED)
    assert [gpu.uuid for gpu in error.seen] == [uuid for uuid in UUIDS if uuid != UUIDS[3]]
    assert (error.verdict.outcome, error.verdict.code) == (Outcome.FAILED, "GPU_MISSING")
    [finding] = error.verdict.findings
    assert (finding.fatal, finding.subject) == (True, Subject("Presence", UUIDS[3]))
    assert UUIDS[3] in error.verdict.reason


async def test_an_unknown_error_alone_is_not_fatal_and_with_nvidia_smi_it_is(node: Node) -> None:
    node.driver(bad={3: UNKNOWN})
    alone = await node.gone(ALLOTTED)
    assert [finding.fatal for finding in alone.verdict.findings] == [False]
    said = (
        rows(0, 1, 2, 4, 5, 6, 7)
        + f"Unable to determine the device handle for GPU{pci(3)}: Unknown Error\n"
    )
    both = await node.gone(ALLOTTED, smi(said, 255))
    [finding] = both.verdict.findings
    assert (finding.fatal, finding.subject.gpu_uuid, finding.metadata["pci_bus_id"]) == (
        True,
        UUIDS[3],
        "0000:4b:00.0",
    )


async def test_a_gpu_whose_bus_answers_with_ones_is_lost_by_a_second_source(node: Node) -> None:
    node.driver(bad={3: UNKNOWN})
    node.listed(lost=3)
    error = await node.gone(ALLOTTED)
    [one] = error.missing
    assert (one.uuid, one.pci_bus_id, set(one.lost), one.fatal) == (
        UUIDS[3],
        "0000:4b:00.0",
        {"NVML", "PCI"},
        True,
    )


async def test_rows_of_nvidia_smi_count_though_it_exits_non_zero(node: Node) -> None:
    node.driver(dead="yes")
    said = (
        rows(0, 1, 2, 4, 5, 6, 7)
        + f"Unable to determine the device handle for GPU3: {pci(3)}: GPU is lost\n"
    )
    error = await node.gone(ALLOTTED, smi(said, 15))
    assert ([one.uuid for one in error.missing], len(error.seen)) == ([UUIDS[3]], 7)


async def test_a_gpu_that_is_only_absent_fails_and_quarantines_nobody(node: Node) -> None:
    node.driver(count=7)
    error = await node.gone(ALLOTTED)
    assert [(f.fatal, f.subject.gpu_uuid) for f in error.verdict.findings] == [(False, UUIDS[7])]


@pytest.mark.parametrize("visible", ["all", "0,1,2,3,4,5,6,7", ""])
async def test_without_names_the_drivers_own_list_names_the_missing_one(
    node: Node, visible: str
) -> None:
    node.driver(bad={5: UNKNOWN})
    node.listed()
    error = await node.gone({"NVIDIA_VISIBLE_DEVICES": visible})
    assert [one.uuid for one in error.missing] == [UUIDS[5]]


async def test_a_missing_gpu_that_nobody_names_is_the_nodes(node: Node) -> None:
    node.driver(count=6)
    error = await node.gone({})
    assert [finding.subject for finding in error.verdict.findings] == [NODE]
    assert len(error.missing) == 2


async def test_a_gpu_of_somebody_else_is_passed_over(node: Node) -> None:
    node.driver(bad={6: NO_PERMISSION, 7: LOST})
    found, _ = await node.find(smi(), 2, {"NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS[:2])})
    assert [gpu.uuid for gpu in found] == list(UUIDS[:2])


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("mine", [8, 4, 1])
@pytest.mark.parametrize("named", [True, False])
async def test_gpus_that_nvml_may_not_show_are_no_missing_ones(
    node: Node, mine: int, named: bool, listed: bool
) -> None:
    node.driver(bad=dict.fromkeys(range(8 - mine, 8), NO_PERMISSION))
    if listed:
        node.listed()
    with pytest.raises(Inconclusive, match="no permission to talk to GPUs") as caught:
        await node.find(smi(), 8, ALLOTTED if named else {})
    assert caught.value.code == "NO_GPU"


@pytest.mark.parametrize("listed", [True, False])
async def test_a_gpu_that_nvml_may_not_show_is_not_the_lost_one_of_somebody_else(
    node: Node, listed: bool
) -> None:
    node.driver(count=3, bad={0: LOST, 2: NO_PERMISSION})
    if listed:
        node.listed(0, 1, 2)
    own = {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[1]},{UUIDS[2]}"}
    with pytest.raises(Inconclusive, match="no permission to talk to GPUs"):
        await node.find(smi(), 2, own)


async def test_gpus_that_nvidia_smi_may_not_show_are_no_missing_ones(node: Node) -> None:
    node.driver(dead="yes")
    said = (
        rows(0, 1, 2, 4, 5, 6, 7)
        + f"Unable to determine the device handle for GPU3: {pci(3)}: Insufficient Permissions\n"
    )
    with pytest.raises(Inconclusive, match="no permission to talk to GPUs"):
        await node.find(smi(said, 4), 8, ALLOTTED)


async def test_an_nvidia_smi_that_stops_at_a_lost_gpu_calls_no_other_one_missing(
    node: Node,
) -> None:
    node.driver(dead="yes")
    said = f"Unable to determine the device handle for GPU3: {pci(3)}: GPU is lost\n"
    error = await node.gone(ALLOTTED, smi(said, 255))
    assert [(one.uuid, one.pci_bus_id) for one in error.missing] == [("", "0000:4b:00.0")]
    [only] = (await node.gone({}, smi(said, 255), 1)).missing
    assert only.pci_bus_id == "0000:4b:00.0"


async def test_a_lost_gpu_is_missing_beside_others_that_nvml_may_not_show(node: Node) -> None:
    node.driver(bad={3: LOST, 5: NO_PERMISSION})
    node.listed(lost=3)
    error = await node.gone(ALLOTTED)
    assert [one.uuid for one in error.missing] == [UUIDS[3]]


async def test_an_absent_gpu_is_missing_beside_others_gpus_that_nvml_may_not_show(
    node: Node,
) -> None:
    node.driver(count=7, bad={5: NO_PERMISSION, 6: NO_PERMISSION})
    node.listed(*range(7))
    own = {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[7]}"}
    error = await node.gone(own, expected=2)
    assert [one.uuid for one in error.missing] == [UUIDS[7]]


@pytest.mark.parametrize(
    "visible", [f"{UUIDS[0]},{UUIDS[0]}", UUIDS[0], f"{UUIDS[0]}::0,{UUIDS[0]}::3"]
)
async def test_one_gpu_for_a_pod_that_was_given_two_is_shared_and_not_missing(
    node: Node, visible: str
) -> None:
    node.driver(count=1)
    with pytest.raises(Skipped) as caught:
        await node.find(smi(), 2, {"NVIDIA_VISIBLE_DEVICES": visible})
    assert caught.value.code == "GPU_SHARED"


@pytest.mark.parametrize("expected", [2, 0])
async def test_more_than_were_given_cannot_be_judged(node: Node, expected: int) -> None:
    node.driver()
    with pytest.raises(Inconclusive, match=f"was given {expected}") as caught:
        await node.find(smi(), expected, {"NVIDIA_VISIBLE_DEVICES": "all"})
    assert caught.value.code == "GPU_COUNT"


async def test_without_a_driver_there_is_no_verdict(node: Node) -> None:
    node.driver(dead="yes")
    for command in (smi(), smi("No devices were found\n", 6)):
        with pytest.raises(Inconclusive) as caught:
            await node.find(command, 8, ALLOTTED)
        assert caught.value.code == "NO_GPU"


@pytest.mark.parametrize("slices", [["MIG-a"], ["MIG-a", "MIG-b"], []])
async def test_slices_of_a_gpu_are_seen_as_such(node: Node, slices: list[str]) -> None:
    node.driver(count=1, mig={0: slices})
    found, _ = await node.find(
        smi(), len(slices) or 1, {"NVIDIA_VISIBLE_DEVICES": ",".join(slices)}
    )
    assert [gpu.uuid for gpu in found] == (slices or [UUIDS[0]])
    assert all(gpu.mig for gpu in found)


async def test_nvidia_smi_tells_of_slices_too(node: Node) -> None:
    node.driver(dead="yes")
    row = f"0, {UUIDS[0]}, NVIDIA A100-SXM4-80GB, {pci(0)}, 1320, Enabled\n"
    found, _ = await node.find(smi(row), 2, {"NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
    assert [gpu.mig for gpu in found] == [True]


async def test_an_old_nvidia_smi_is_asked_for_less(node: Node) -> None:
    node.driver(dead="yes")

    async def command(argv: Sequence[str], _: float) -> Completed:
        old = "mig" not in argv[1]
        text = (
            f"0, {UUIDS[0]}, Tesla V100, {pci(0)}\n"
            if old
            else 'Field "mig.mode.current" is not a valid field to query.\n'
        )
        return Completed(tuple(argv), 0 if old else 2, text, "", False, False, 0.1)

    found, source = await node.find(command, 1, {})
    assert (source, found[0].name, found[0].serial) == ("nvidia-smi", "Tesla V100", "")


@pytest.mark.parametrize(
    ("driver", "lost"),
    [
        (Driver(bad={1: LOST, 2: pynvml.NVML_ERROR_NOT_SUPPORTED}), [1]),
        (Driver(bad={1: UNKNOWN}), [1]),
        (Driver(bad={0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN}), []),
        (Driver(dead="yes"), []),
    ],
    ids=["lost", "unknown where the others answer", "unknown of all", "without a driver"],
)
async def test_a_lost_gpu_is_named_and_its_neighbours_are_not(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, lost: list[int]
) -> None:
    listed = tuple(gpus.Gpu(i, UUIDS[i], "H100", pci(i).lower()) for i in range(3))
    driver.patch(monkeypatch)
    assert list(await gpus.lost(listed)) == [UUIDS[i] for i in lost]


def test_a_pass_clears_what_a_missing_gpu_raised() -> None:
    one = presence.MissingDevice(UUIDS[2], "0000:3b:00.0", {"NVML": "GPU is lost"}, conclusive=True)
    raised = events("c", "C", "Node", presence.verdict([one], 8, UUIDS[:2]))
    passed = Verdict(
        Outcome.PASSED, "OK", "fine.", clears=frozenset({Subject(presence.PRESENCE, UUIDS[2])})
    )
    cleared = {event.identity for event in events("c", "C", "Node", passed) if event.healthy}
    assert {event.identity for event in raised if not event.healthy} <= cleared


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for GPU0000:B3:00.0: Unknown Error",
        "Unable to determine the device handle for GPU 0000:B3:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "Unable to determine the device handle for GPU3: 0000:B3:00.0: Unknown Error",
        "Unable to determine the device handle for gpu 0000:B3:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "Unable to determine the device handle for GPU3: 0000:B3:00.0: GPU requires reset",
        "3, [GPU is lost], [GPU is lost], 00000000:B3:00.0, [GPU is lost], [GPU is lost]",
        "3, [Unknown Error], NVIDIA H100 80GB HBM3, 00000000:B3:00.0, [Unknown Error], [Unknown Error]",
        "3, [GPU requires reset], NVIDIA A100-SXM4-40GB, 00000000:B3:00.0, [GPU requires reset], [N/A]",
        "3, ERR!, ERR!, 00000000:B3:00.0, ERR!, ERR!",
    ],
)
def test_nvidia_smis_ways_to_say_that_a_gpu_is_lost(line: str) -> None:
    assert list(presence.parse_unreachable(f"fine\n{line}\n")) == ["0000:b3:00.0"]


@pytest.mark.parametrize(
    "line",
    [
        # A serial number that cannot be read.
        f"0, {UUIDS[0]}, NVIDIA H100 80GB HBM3, 00000000:B3:00.0, [Unknown Error], Disabled",
        # A device that the container was not given.
        "Unable to determine the device handle for GPU 0000:B3:00.0: Not Found",
        "WARNING: infoROM is corrupted at gpu 0000:B3:00.0",
        "Failed to initialize NVML: Driver/library version mismatch",
        "No devices were found",
    ],
)
def test_what_else_nvidia_smi_says_calls_no_gpu_lost(line: str) -> None:
    assert presence.parse_unreachable(line) == {}


@pytest.mark.parametrize("said", ["0", "N/A", "[Unknown Error]", ""])
async def test_what_nvml_says_of_a_board_without_a_serial_number_is_none(
    monkeypatch: pytest.MonkeyPatch, node: Node, said: str
) -> None:
    node.driver()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSerial", lambda _: said)
    found, _ = await node.find(smi(), 8, ALLOTTED)
    assert {gpu.serial for gpu in found} == {""}


@pytest.mark.parametrize("printed", ["ERR!", "[Unknown Error]", "[N/A]", "N/A", "0", ""])
def test_what_nvidia_smi_prints_for_a_serial_number_that_it_cannot_read_is_none(
    printed: str,
) -> None:
    [gpu] = gpus.parse_smi(f"0, {UUIDS[0]}, NVIDIA H100 80GB HBM3, {pci(0)}, {printed}, Disabled\n")
    assert gpu.serial == ""


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\n",
            "drain the node and restart it",
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed",
            "No NVIDIA driver is loaded on the node",
        ),
        ("Failed to initialize NVML: Unknown Error\n", "start the pod again"),
        ("Failed to initialize NVML: Insufficient Permissions\n", "NVIDIA's container toolkit"),
    ],
)
async def test_a_driver_that_answers_for_no_gpu_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, node: Node, said: str, advice: str
) -> None:
    def init() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    with pytest.raises(Inconclusive) as caught:
        await node.find(smi(said, 255), 8, ALLOTTED)
    assert caught.value.code == "NO_GPU"
    assert said.strip().splitlines()[0] in caught.value.reason
    assert advice in caught.value.reason


async def test_a_driver_that_hangs_is_told_to_be_looked_at_and_not_the_toolkit(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    async def hangs(argv: Sequence[str], _: float) -> Completed:
        return Completed(tuple(argv), -9, "", "", True, False, 60.0, True)

    monkeypatch.setattr(gpus, "_listed", lambda: "nvmlInit_v2 gave no answer within 60 s")
    with pytest.raises(Inconclusive) as caught:
        await node.find(hangs, 8, ALLOTTED)
    assert caught.value.code == "NO_GPU"
    assert "(dmesg, Xid) and restart the node" in caught.value.reason
    assert "toolkit" not in caught.value.reason


texts = st.text(max_size=80)
addresses = st.sampled_from([presence.address(pci(i)) for i in range(4)] + ["index 0", "index 1"])


@given(
    st.dictionaries(st.sampled_from(UUIDS[:4]), st.sampled_from([pci(i) for i in range(4)])),
    st.none() | st.integers(0, 4),
    st.builds(
        presence.PresenceEvidence,
        st.lists(st.sampled_from(UUIDS[:4]), unique=True).map(tuple),
        st.dictionaries(addresses, st.sampled_from([*UUIDS[:4], ""])),
        st.dictionaries(
            addresses, st.dictionaries(st.sampled_from(["NVML", "nvidia-smi", "PCI"]), texts)
        ),
        st.frozensets(addresses),
    ),
)
def test_whatever_is_said_no_gpu_that_is_there_is_missing(
    seen: dict[str, str], expected: int | None, evidence: presence.PresenceEvidence
) -> None:
    found = presence.missing(seen, expected, evidence)
    assert not {one.uuid for one in found} & set(seen)
    assert {uuid for uuid in evidence.allotted if uuid not in seen} <= {one.uuid for one in found}
    if found:
        verdict = presence.verdict(found, expected or 0, list(seen))
        assert len({finding.subject for finding in verdict.findings}) == len(verdict.findings)


@given(
    st.text()
    | st.lists(st.sampled_from(["GPU", "0000:B3:00.0", ":", "lost", "\n", "Unknown Error"])).map(
        " ".join
    )
)
def test_no_words_make_the_readers_raise(text: str) -> None:
    presence.parse_unreachable(text)
    presence.parse_information(text)
    presence.allotted(text, [text])


def test_gpus_that_nobody_names_are_counted_in_one_word() -> None:
    gone = [presence.MissingDevice("GPU-a"), *[presence.MissingDevice()] * 7]
    found = presence.verdict(gone, 9, ["GPU-b"])
    assert "missing: GPU-a, 7 GPUs that nobody names; see" in found.reason
    assert "missing: 1 GPU that nobody names; see" in presence.verdict(gone[-1:], 2, []).reason
