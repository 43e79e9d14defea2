"""Whether the driver answers for each GPU, and which NVLink domain it says they are in; against an
NVML of plain functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from uuid import UUID

import pynvml
import pytest
from preflight_proto import nvml as library
from preflight_proto.check import Gpu, alive, counters

pytestmark = pytest.mark.anyio
GPUS = tuple(Gpu(i, f"GPU-{i}", "H100", f"0000:0{i}:00.0") for i in range(3))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[int, int]], None]]:
    """Has the GPUs of these numbers answer with these errors; 0: not at all, until the test is
    over.
    """
    over = threading.Event()

    def install(bad: dict[int, int]) -> None:
        def temperature(handle: bytes, _: int) -> int:
            error = bad.get(next(gpu.index for gpu in GPUS if gpu.pci_bus_id.encode() == handle))
            if error == 0:
                over.wait(60)
            elif error is not None:
                raise pynvml.NVMLError(error)
            return 40

        for name in ("nvmlInit", "nvmlShutdown"):
            monkeypatch.setattr(pynvml, name, lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByPciBusId", lambda pci: pci)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", temperature)

    yield install
    over.set()


async def test_a_gpu_for_which_the_driver_never_answers_is_told_and_its_neighbours_are_not(
    nvml: Callable[[dict[int, int]], None],
) -> None:
    nvml({1: 0})
    assert await alive.silent(GPUS, 0.3) == {"GPU-1": "no answer within 0.3 s"}


async def test_lost_and_unknown_are_no_answers_and_not_supported_is_one(
    nvml: Callable[[dict[int, int]], None],
) -> None:
    nvml(
        {
            0: pynvml.NVML_ERROR_GPU_IS_LOST,
            1: pynvml.NVML_ERROR_UNKNOWN,
            2: pynvml.NVML_ERROR_NOT_SUPPORTED,
        }
    )
    assert sorted(await alive.silent(GPUS, 60)) == ["GPU-0", "GPU-1"]


async def test_where_there_is_no_driver_nobody_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert await alive.silent(GPUS, 60) == {}


@pytest.mark.parametrize(
    ("why", "words"),
    [(library.STUCK, library.STUCK), ("the process that asks it is gone", None)],
)
async def test_where_nvml_itself_cannot_be_ended_the_driver_answers_for_no_gpu(
    monkeypatch: pytest.MonkeyPatch, why: str, words: str | None
) -> None:
    monkeypatch.setattr(library._Helper, "pipe", None)
    monkeypatch.setattr(library._Helper, "gone", why)
    unanswered = {gpu.uuid: words for gpu in GPUS} if words else {}
    assert await alive.silent(GPUS, 60) == unanswered


def fabric(cluster: str, clique: int = 7, state: int = 3) -> SimpleNamespace:
    return SimpleNamespace(state=state, clusterUuid=UUID(cluster).bytes, cliqueId=clique)


RACK = "6f0c2a3e-0000-4000-8000-0000000000aa"


@pytest.mark.parametrize(
    ("infos", "domain"),
    [
        ([fabric(RACK)] * 3, f"{RACK}.7"),
        ([fabric(RACK), fabric(RACK), fabric(RACK, 8)], ""),
        ([fabric(RACK, state=2)] * 3, ""),
        ([fabric(str(UUID(int=0)))] * 3, ""),  # a node by itself
        ([None] * 3, ""),
    ],
    ids=["one clique", "two cliques", "not joined yet", "no other node", "not known to NVML"],
)
async def test_an_nvlink_domain_is_one_cluster_and_one_clique(
    infos: list[SimpleNamespace | None], domain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(infos)
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByPciBusId", lambda pci: pci)
    monkeypatch.setattr("preflight_proto.nvml.fabric_info", lambda handle: left.pop(0))
    assert await counters.nvlink_domain(GPUS) == domain
