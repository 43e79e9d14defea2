from __future__ import annotations

import asyncio
import ctypes
from functools import partial
from pathlib import Path

import pytest
from preflight_computedomain.core.facts import COMPLETED, FabricInfo, NodeFacts, Unfit
from preflight_computedomain.node import nvml as library
from preflight_computedomain.node.host import (
    ChannelMajor,
    CliqueOwner,
    NvmlUnavailable,
    node_facts,
)

pytestmark = pytest.mark.anyio
DEVICES = "Character devices:\n235 nvidia-caps-imex-channels\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "devices").write_text(DEVICES)
    (tmp_path / "boot").write_text("0b6c1d8e-0000-0000-0000-000000000000\n")
    return {
        "NODE_NAME": "node-1",
        "ALT_PROC_DEVICES_PATH": str(tmp_path / "devices"),
        "ALT_BOOT_ID_PATH": str(tmp_path / "boot"),
    }


async def test_the_facts_are_read_from_the_files_that_are_named(environ: dict[str, str]) -> None:
    assert node_facts(environ) == NodeFacts("node-1", "0b6c1d8e-0000-0000-0000-000000000000")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"NODE_NAME": ""}, "NODE_NAME"),
        ({"ALT_PROC_DEVICES_PATH": "/nowhere/devices"}, "/nowhere/devices"),
        ({"ALT_PROC_DEVICES_PATH": "/"}, "/: cannot be read"),
        ({"ALT_BOOT_ID_PATH": "/nowhere/boot"}, "/nowhere/boot"),
    ],
)
async def test_a_fact_that_cannot_be_had_is_one_sentence(
    environ: dict[str, str], change: dict[str, str], word: str
) -> None:
    def read() -> None:
        ChannelMajor({**environ, **change})()
        node_facts({**environ, **change})

    with pytest.raises(Unfit) as caught:
        read()
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_the_major_is_that_of_the_driver_of_now_and_each_change_is_logged_once(
    environ: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    major, devices = ChannelMajor(environ), tmp_path / "devices"
    assert (major(), major()) == (235, 235)
    assert caplog.records == []
    devices.write_text("Character devices:\n511 nvidia-caps-imex-channels\n235 ttyUSB\n")
    assert (major(), major()) == (511, 511)
    devices.write_text("Character devices:\n235 ttyUSB\n")
    for _ in range(2):
        with pytest.raises(Unfit, match="load the NVIDIA driver"):
            major()
    logged = [record.getMessage() for record in caplog.records]
    assert [text.split(";")[0] for text in logged] == [
        "the driver was loaded anew",
        "no channel's major any more",
    ]


class Fake:
    """NVML as a test wants it."""

    def __init__(self, version: str = "570.158.01", gpus: tuple[FabricInfo, ...] = ()) -> None:
        self.version, self.gpus, self.asked = version, list(gpus), 0
        self.error: NvmlUnavailable | None = None

    def __call__(self) -> tuple[str, list[FabricInfo]]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.version, self.gpus


GPU = FabricInfo("GPU-1", COMPLETED, 0, bytes(range(16)), 3)
CLIQUE = "00010203-0405-0607-0809-0a0b0c0d0e0f.3"


async def test_the_clique_is_read_at_the_start_and_anew() -> None:
    nvml = Fake(gpus=(GPU,))
    owner = CliqueOwner(nvml)
    assert await owner.start() == owner.current == CLIQUE
    nvml.gpus = []
    assert await owner.refreshed() == owner.current == ""


async def test_what_nvml_cannot_say_later_leaves_the_clique_as_it_was() -> None:
    nvml = Fake(gpus=(GPU,))
    up: list[bool] = []
    owner = CliqueOwner(nvml, answers=up.append)
    await owner.start()
    nvml.error = NvmlUnavailable("NVML: busy")
    assert await owner.refreshed() == CLIQUE
    nvml.error = None
    assert await owner.refreshed() == CLIQUE
    assert up == [True, False, True]


async def test_a_driver_that_has_gone_leaves_no_clique_and_its_sentence() -> None:
    nvml = Fake(gpus=(GPU,))
    owner = CliqueOwner(nvml)
    await owner.start()
    nvml.error = NvmlUnavailable("NVML: Driver Not Loaded", gone=True)
    assert await owner.refreshed() == owner.current == ""
    assert owner.unknown == "NVML: Driver Not Loaded"
    nvml.error = None
    assert await owner.refreshed() == CLIQUE
    assert owner.unknown == ""


async def test_a_fabric_that_breaks_later_is_no_clique() -> None:
    nvml = Fake(gpus=(GPU,))
    owner = CliqueOwner(nvml)
    await owner.start()
    for state, says in ((1, "has not started"), (2, "is in progress"), (COMPLETED, "status 15")):
        nvml.gpus = [FabricInfo("GPU-1", state, 15)]
        assert await owner.refreshed() == ""
        assert says in owner.unknown  # so that the claim waits
    nvml.gpus = [GPU]
    assert await owner.refreshed() == CLIQUE
    assert owner.unknown == ""


async def test_without_the_gate_a_node_waits_for_its_only_gpus_to_join_their_fabric() -> None:
    nvml = Fake(gpus=(FabricInfo("GPU-1", 2),))
    owner = CliqueOwner(nvml, crash=False)
    assert await owner.start() == await owner.refreshed() == ""
    assert "is in progress" in owner.unknown
    nvml.gpus = []
    assert await owner.refreshed() == owner.unknown == ""


async def test_callers_at_once_share_one_reading() -> None:
    nvml = Fake(gpus=(GPU,))
    owner = CliqueOwner(nvml)
    assert set(await asyncio.gather(*(owner.refreshed() for _ in range(10)))) == {CLIQUE}
    assert nvml.asked == 1


async def test_a_machine_without_nvml_is_one_sentence() -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        with pytest.raises(Unfit, match=r"NVML: .*is the NVIDIA driver installed"):
            await CliqueOwner(partial(library.read, "")).start()
    else:
        pytest.skip("this machine has NVML")
