"""Which of several addresses is the node's own engine."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from check_dcgm import candidates
from check_dcgm.candidates import Candidates
from check_dcgm.hostengine import Hostengine
from preflight_proto.check import Completed, Gpu, Inconclusive

OURS, OTHERS = "GPU-aaaa", "GPU-cccc"
GPU = Gpu(index=0, uuid=OURS, name="H100", pci_bus_id="00000000:10:00.0", serial="111")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "AGAIN", (0.0, 0.0))


@pytest.fixture
def listening() -> Iterator[Callable[[], str]]:
    """Makes an address on which something listens."""
    sockets: list[socket.socket] = []

    def make() -> str:
        sockets.append(one := socket.create_server(("127.0.0.1", 0)))
        return f"127.0.0.1:{one.getsockname()[1]}"

    yield make
    for one in sockets:
        one.close()


def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return f"127.0.0.1:{one.getsockname()[1]}"


@dataclass
class Engines:
    """Address → (UUIDs, serial number of each) of the engine there."""

    at: dict[str, tuple[tuple[str, ...], str]]
    lists: int = 0  # exit status of a listing
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def command(self, argv: Sequence[str], timeout: float) -> Completed:
        address = argv[-1]
        self.asked.append(address)
        out, code = "Error: unable to establish a connection", 235
        if "-v" in argv:
            out, code = "Version : 4.4.2\nVersion : 4.4.2", 0
        elif address in self.at:
            uuids, serial = self.at[address]
            out, code = f"{len(uuids)} GPUs found.\n", self.lists if "-l" in argv else 0
            for number, uuid in enumerate(uuids):
                if "--gpuid" in argv:
                    out += f"| UUID | {uuid} |\n| Serial Number | {serial} |\n"
                else:
                    out += f"| {number} | Name: H100 |\n|   | Device UUID: {uuid} |\n"
        return Completed(tuple(argv), code, out, "", timed_out=False, truncated=False, duration=0.0)

    def ours(self, *addresses: str) -> Hostengine:
        return anyio.run(
            Candidates(addresses, ("dcgmi",), self.command, self.said.append).ours, [GPU]
        )


def test_the_first_address_that_is_the_nodes_own_is_taken(listening: Callable[[], str]) -> None:
    right, never = listening(), listening()
    engines = Engines({right: ((OURS,), "111"), never: ((OURS,), "111")})
    assert engines.ours(right, never).address == right
    assert never not in engines.asked
    assert engines.said == [f"hostengine {right} is this node's"]


def test_an_address_where_nobody_listens_is_passed_over_without_asking_dcgmi(
    listening: Callable[[], str],
) -> None:
    dead, right = closed(), listening()
    engines = Engines({right: ((OURS,), "111")})
    assert engines.ours(dead, right).address == right
    assert dead not in engines.asked
    assert engines.said[0].startswith(f"passed over: hostengine {dead}: cannot be reached (")


@pytest.mark.parametrize(
    ("uuid", "serial", "why"), [(OTHERS, "111", "does not list"), (OURS, "999", "other serial")]
)
def test_another_nodes_engine_is_passed_over(
    listening: Callable[[], str], uuid: str, serial: str, why: str
) -> None:
    foreign, right = listening(), listening()
    engines = Engines({foreign: ((uuid,), serial), right: ((OURS,), "111")})
    assert engines.ours(foreign, right).address == right
    assert why in engines.said[0]
    assert foreign in engines.said[0]


def test_where_none_is_right_each_address_is_named_with_its_reason(
    listening: Callable[[], str],
) -> None:
    dead, foreign = closed(), listening()
    with pytest.raises(Inconclusive) as error:
        Engines({foreign: ((OTHERS,), "111")}).ours(dead, foreign)
    assert error.value.code == "WRONG_HOSTENGINE"
    assert f"hostengine {dead}: cannot be reached (" in error.value.reason
    assert f"hostengine {foreign} does not list {OURS}" in error.value.reason


def test_an_engine_that_ends_when_it_lists_its_gpus_is_not_asked_again(
    listening: Callable[[], str],
) -> None:
    for addresses in [(listening(),), (listening(), closed())]:
        engines = Engines({addresses[0]: ((OURS,), "111")}, lists=235)
        with pytest.raises(Inconclusive, match="ended when it was asked for its GPUs") as raised:
            engines.ours(*addresses)
        assert raised.value.code == "ENGINE_STOPPED"
        assert engines.asked.count(addresses[0]) == 2  # its version, and the list


def test_where_none_answers_the_engine_is_unreachable_and_was_asked_twice() -> None:
    one, other = closed(), closed()
    engines = Engines({})
    with pytest.raises(Inconclusive) as error:
        engines.ours(one, other)
    assert error.value.code == "ENGINE_UNREACHABLE"
    assert f"asking once more: {one}, {other}" in engines.said


def test_a_gpu_that_is_gone_is_asked_of_the_engine_that_knows_it_and_of_no_other(
    listening: Callable[[], str],
) -> None:
    foreign, right = listening(), listening()
    engines = Engines({foreign: ((OTHERS,), "9"), right: ((OURS,), "111")})
    wanted = Candidates((foreign, right), ("dcgmi",), engines.command, engines.said.append)
    assert anyio.run(wanted.that_knows, [OURS]).address == right
    with pytest.raises(Inconclusive, match="none of the engines"):
        anyio.run(wanted.that_knows, ["GPU-dddd"])


@pytest.mark.parametrize("asked", ["ours", "that_knows"])
def test_an_engine_behind_a_name_that_the_pod_redirects_is_asked_nothing(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts").write_text("10.0.0.9 dcgm.ns.svc\n")
    monkeypatch.setattr(candidates, "HOSTS", str(tmp_path / "hosts"))
    engines = Engines({"dcgm.ns.svc:5555": ((OURS,), "111")})
    one = Candidates(("dcgm.ns.svc:5555",), ("dcgmi",), engines.command, engines.said.append)
    question: Any
    question, given = (one.ours, [GPU]) if asked == "ours" else (one.that_knows, [OURS])
    with pytest.raises(Inconclusive, match="redirects"):
        anyio.run(question, given)
    assert engines.asked == []
