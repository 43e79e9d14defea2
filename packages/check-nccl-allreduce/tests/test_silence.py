"""What a node tells of itself besides its ports: what others moved while nothing of the gang ran,
and what its GPUs say of their clocks and of PCIe.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
import pytest
import trees
from check_nccl_allreduce import equipment, nics, ports, probing, ranks, sysfs
from check_nccl_allreduce.control.messages import (
    Failure,
    Opened,
    ProbeOrder,
    RankReport,
    RankStage,
    StoreOrder,
    decode,
    encode,
)
from check_nccl_allreduce.ports import PortFault
from preflight_proto.check import Gpu
from preflight_proto.check.scan import CounterSample
from preflight_testing.fakes import NVML, build_nvml, nvml_node
from test_control import Gang
from test_judge import hellos, start
from worlds import HEALTHY, Answer, World, took

BYTES = ("port_xmit_data", "port_rcv_data")


def test_words_of_four_bytes_are_counted_by_the_busier_direction(tmp_path: Path) -> None:
    tree = trees.node(2, 400)
    for number, (sent, received) in enumerate([(100, 7), (50, 3)]):
        folder = f"sys/class/infiniband/mlx5_{number}/ports/1/counters"
        tree |= {f"{folder}/port_xmit_data": str(sent), f"{folder}/port_rcv_data": str(received)}
    trees.write(tmp_path, tree)
    read = sysfs.counters(nics.ports(tree), tmp_path)
    assert ports.carried(dict.fromkeys(read, 0), read) == 600
    assert ports.carried({key: min(value, 60) for key, value in read.items()}, read) == 160


def test_efa_roce_and_plain_interfaces_count_bytes(tmp_path: Path) -> None:
    tree = trees.node(1, 100, "Ethernet") | trees.node(
        1, 100, "Unspecified", pci=trees.EFA, name="rdmap", first=1
    )
    roce = "sys/class/infiniband/mlx5_0"
    tree |= {
        f"{roce}/ports/1/counters/port_xmit_data": "2",
        f"{roce}/ports/1/counters/port_rcv_data": "1",
        f"{roce}/device/net/eth2/statistics/tx_bytes": "100",
        f"{roce}/device/net/eth2/statistics/rx_bytes": "9",
        "sys/class/infiniband/rdmap1/ports/1/hw_counters/tx_bytes": "1000",
        "sys/class/infiniband/rdmap1/ports/1/hw_counters/rx_bytes": "8",
        "sys/class/net/eth0/device/vendor": "0x8086",
        "sys/class/net/eth0/statistics/tx_bytes": "20000",
        "sys/class/net/eth0/statistics/rx_bytes": "5",
    }
    trees.write(tmp_path, tree)
    watched = [*nics.ports(tree), *sysfs.interface("eth0", tmp_path)]
    read = sysfs.counters(watched, tmp_path)
    assert ports.carried(dict.fromkeys(read, 0), read) == 8 + 100 + 1000 + 20000


def test_an_interface_that_shows_no_neighbor_is_not_watched(tmp_path: Path) -> None:
    for path in ("veth0/statistics/tx_bytes", "eth1/device/physfn/vendor"):
        trees.write(tmp_path, {f"sys/class/net/{path}": "1"})
    for name in ("veth0", "eth1", "gone", None):
        assert sysfs.interface(name, tmp_path) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({("a", "symbol_error"): 0}, {("a", "symbol_error"): 0}),  # no bytes are counted
        ({("a", name): 5 for name in BYTES}, {("a", name): 4 for name in BYTES}),  # reset
        ({("a", name): 5 for name in BYTES}, {("a", name): 2**32 - 1 for name in BYTES}),  # full
        ({("a", name): 5 for name in BYTES}, {("a", BYTES[0]): 6}),
        ({("a", BYTES[0]): 5}, {("a", name): 6 for name in BYTES}),
        (
            {(port, name): 5 for port in "ab" for name in BYTES},
            {("a", BYTES[0]): 5, ("a", BYTES[1]): 5, ("b", "symbol_error"): 0},
        ),
    ],
)
def test_where_bytes_cannot_be_counted_they_are_unknown_and_not_none_at_all(
    before: ports.Reading, after: ports.Reading
) -> None:
    assert ports.carried(before, after) is None


class Clocked(sysfs.Counters):
    """Counters of one port, with what they say at each reading, and a clock that goes on by ten
    seconds with each.
    """

    def __init__(self, *sent: int, model: str = "ib 0x15b3:0x1021") -> None:
        super().__init__([nics.Port("a", "1", "ib", model, "ACTIVE", 400, usable=True)])
        self.sent, self.now = list(sent), 0.0

    async def read(self) -> Mapping[tuple[str, str], int]:
        self.now += 10
        return dict.fromkeys((("a:1", name) for name in BYTES), self.sent.pop(0) // 4)


class Accounted(Clocked):
    """No byte is counted, and a hundred ticks of the processors pass from one reading to the next:
    at each so many are ``taken``, of all since the first.
    """

    def __init__(self, *taken: int) -> None:
        super().__init__(*[5] * len(taken))
        idle = [100 * number - ticks for number, ticks in enumerate(taken)]
        self.accounts = [
            f"cpu  {ticks} 0 0 {rest} 0 0 0 0" for ticks, rest in zip(taken, idle, strict=True)
        ]

    def processors(self) -> str:
        return self.accounts.pop(0)


def joined(counters: sysfs.Counters, gpus: tuple[Gpu, ...] = ()) -> ranks.Ranks:
    member = ranks.Ranks({}, "127.0.0.1", print)
    member.join(Gang().roster(0), 1, {}, gpus, counters)
    return member


def reports(
    counters: Clocked,
    monkeypatch: pytest.MonkeyPatch,
    *results: RankReport,
    detail: bool = False,
    renewed: int = 0,
) -> list[RankReport]:
    """What a member that has just joined reports of each round; ``renewed``: of the round that
    begins with new workers.
    """
    monkeypatch.setattr("anyio.current_time", lambda: counters.now)

    async def given(result: RankReport) -> RankReport:
        return result

    class Workers:
        async def open(self, number: int, _: str, *, store: bool) -> Opened:
            return Opened(number)

    async def workers(*_: object, **__: object) -> Workers:
        return Workers()

    async def all_of_them() -> list[RankReport]:
        member = joined(counters)
        await member.listen()
        order = ProbeOrder(1, 0, 0, 2, "h", 1, "nccl", 10**9, 3, 1, 1.0, 2.0, detail=detail)
        monkeypatch.setattr(member, "_probers", workers)
        told = []
        for one in results:
            if one.round == renewed:
                await member.execute(StoreOrder(renewed, fresh=True), lambda _: None)
            told.append(await member._watched(order, given(one)))
        return told

    return anyio.run(all_of_them)


G = 10**9
BROKEN = RankReport(1, trouble=Failure("class", "X", "x"))
SILENCES: dict[str, tuple[Clocked, list[RankReport], bool, list[tuple[float, float | None]]]] = {
    "others' bytes": (
        *(Clocked(0, 20 * G, 90 * G, 90 * G, 200 * G), [RankReport(1), RankReport(2)], False),
        [(10.0, 2.0), (10.0, 0.0)],
    ),
    "counters that do not count the gang's own": (
        *(Clocked(5, 5, 9, 9, 9), [RankReport(1), RankReport(2)], False),
        [(0.0, None), (0.0, None)],
    ),
    "a virtual function, whose silence does not count": (
        *(Clocked(0, 20 * G, 90 * G, model="ib 0x15b3:0x101e"), [RankReport(1)], False),
        [(0.0, 2.0)],
    ),
    "after trouble": (
        *(Clocked(0, 0, 9 * G, 50 * G, 90 * G), [BROKEN, RankReport(2)], False),
        [(10.0, 0.0), (0.0, None)],
    ),
    "after a detail that never came": (
        *(Clocked(0, 0, 9 * G, 50 * G, 90 * G), [RankReport(1), RankReport(2)], True),
        [(10.0, 0.0), (0.0, None)],
    ),
}
"""Counters, rounds, whether these ask for details, and of the silence before each its seconds and
what others moved in it."""


@pytest.mark.parametrize(("counters", "rounds", "detail", "told"), SILENCES.values(), ids=SILENCES)
def test_a_member_tells_what_others_moved_while_nothing_of_the_gang_ran(
    counters: Clocked,
    rounds: list[RankReport],
    told: list[tuple[float, float | None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    detail: bool,
) -> None:
    said = reports(counters, monkeypatch, *rounds, detail=detail)
    assert [(one.silence, one.foreign) for one in said] == told


@pytest.mark.parametrize(
    ("taken", "renewed", "loads"),
    [
        ((0, 0, 0, 95, 95), 0, [None, 0.95]),
        ((0, 100, 100), 0, [None]),  # before the first round it is the gang's own
        # And so is what new workers take: the fourth is as their order comes, the fifth thereafter.
        ((0, 0, 0, 25, 125, 125, 175, 175), 2, [None, 0.25, 0.5]),
    ],
)
def test_a_member_tells_what_others_took_of_the_processors_though_no_bytes_are_counted(
    taken: tuple[int, ...],
    renewed: int,
    loads: list[float | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = [RankReport(1 + i) for i in range(len(loads))]
    told = reports(Accounted(*taken), monkeypatch, *rounds, renewed=renewed)
    assert [one.load for one in told] == loads
    assert not any(one.silence or one.foreign for one in told)


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 1", "cpu  10 20 5 40 20 1 1 3 30 0\ncpu0 2", 0.4),
        ("", "", None),
        ("cpu  1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7 8", None),  # no time has passed
        ("cpu  1 2 3 9 5 6 7 8", "cpu  9 9 9 4 9 9 9 9", None),  # went back
        ("cpu  1 2 3", "cpu  4 5 6", None),
        ("cpu  a b c", "cpu  1 2 3 4 5 6 7 8", None),
    ],
)
def test_processor_time_is_what_was_neither_idle_nor_waiting_for_disks(
    before: str, after: str, share: float | None
) -> None:
    assert ports.taken(before, after) == (share if share is None else pytest.approx(share))


def test_of_an_adapter_that_is_split_silence_does_not_count(tmp_path: Path) -> None:
    tree = trees.node(2, 400)
    tree["sys/class/infiniband/mlx5_1/device/sriov_numvfs"] = "8"
    tree["sys/class/infiniband/mlx5_0/device/sriov_numvfs"] = "0"
    trees.write(tmp_path, tree)
    watched = nics.recognize(sysfs.snapshot(tmp_path)).watched
    assert [sysfs.Counters([port]).whole for port in watched] == [True, False]


def quiet(rounds: list[dict[int, RankReport]]) -> tuple[float, float, float]:
    local = equipment.local((0, 1), rounds)
    return local.silence, local.foreign, local.load


def test_a_node_was_silent_where_all_its_pods_say_so_and_is_as_busy_as_the_busiest_while() -> None:
    both = {0: RankReport(1, silence=30, foreign=0.5), 1: RankReport(1, silence=20, foreign=0.0)}
    blind = {0: RankReport(2, silence=45, foreign=3.0), 1: RankReport(2)}
    assert quiet([both, blind]) == (20, 3.0, 0.0)
    loaded = {0: RankReport(3, load=0.25), 1: RankReport(3, load=0.97)}
    assert quiet([loaded]) == (0.0, 0.0, 0.97)
    hostile = {
        0: RankReport(3, silence=-1.0, foreign=1e300, load=1e300),
        1: RankReport(3, silence=1e300, load=-1.0),
    }
    assert quiet([hostile, {}]) == (0.0, 0.0, 0.0)


def test_what_others_moved_comes_as_it_was_sent_and_an_older_member_says_nothing() -> None:
    report = RankReport(1, silence=45.5, foreign=0.0)
    assert decode(encode(report)) == report
    old = msgspec.json.decode(encode(report))
    del old["silence"], old["foreign"]
    assert decode(msgspec.json.encode(old)) == RankReport(1)
    results = {0: msgspec.structs.replace(report, watched=1.0), 1: RankReport(1)}
    shape = probing.EndpointMap.of(hellos(2), start(2)).counted([results])
    assert [one.local.silence for one in shape.endpoints] == [45.5, 0.0]


@pytest.mark.parametrize(
    ("silence", "foreign", "outcome", "blamed"),
    [
        (45.0, 0.0, "failed", {1: "NODE_SLOW"}),
        (0.0, None, "failed", {}),  # nobody knows what else passed
        (45.0, 9.0, "inconclusive", {}),
        (0.0, 9.0, "inconclusive", {}),
    ],
)
def test_a_slow_node_beside_good_ones_on_its_leaf_is_blamed_where_its_adapters_were_silent(
    silence: float, foreign: float | None, outcome: str, blamed: dict[int, str]
) -> None:
    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        result = msgspec.structs.replace(took(HEALTHY * (6 if 1 in group else 1)), watched=1.0)
        own = msgspec.structs.replace(result, silence=silence, foreign=foreign)
        return {rank: own if rank == 1 else result for rank in group}

    verdict = World(8, told, backend="nccl", workers=2, leaf=True).run()
    assert (verdict.outcome, verdict.blamed) == (outcome, blamed)
    assert verdict.metadata["named"] == "node-1"


def busy(foreign: float, factor: float = 6.0) -> Answer:
    """Rank 1 is slow by this factor, and its adapters carry so many GB/s of somebody else's."""

    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        result = took(HEALTHY * (factor if 1 in group else 1))
        own = msgspec.structs.replace(result, silence=45.0, foreign=foreign)
        return {rank: own if rank == 1 else result for rank in group}

    return told


PEER = RankReport(0, trouble=Failure("peer", "NCCL_REMOTE_ERROR", "a peer ended"))
HUNG = RankStage("measuring", 1)


@pytest.mark.parametrize(
    ("nodes", "answer", "gang", "outcome", "code"),
    [
        (6, busy(9.0), took(5 * HEALTHY), "inconclusive", "BUSY_NODE"),
        (6, busy(9.0), HUNG, "inconclusive", "BUSY_NODE"),
        (6, busy(9.0), took(HEALTHY, wrong=3), "failed", "WRONG_DATA"),
        (6, busy(9.0), PEER, "failed", "NCCL_REMOTE_ERROR"),
        (2, busy(1e-6, 1), took(HEALTHY, wrong=3), "failed", "WRONG_DATA"),
        (2, busy(1e-6, 1), PEER, "failed", "NCCL_REMOTE_ERROR"),
        (2, busy(1e-6, 1), HUNG, "inconclusive", "ALLREDUCE_STALLED"),
    ],
)
def test_somebody_elses_traffic_explains_that_a_gang_is_slow_and_nothing_else(
    nodes: int, answer: Answer, gang: RankReport | RankStage, outcome: str, code: str
) -> None:
    whole = dict.fromkeys(range(nodes), gang)
    verdict = World(nodes, answer, gang=whole, backend="nccl", workers=2).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == (outcome, code, {})


def test_a_busy_node_of_a_gang_that_is_below_no_floor_holds_nobody_up() -> None:
    whole = {rank: took(HEALTHY * (2 if rank == 1 else 1)) for rank in range(6)}
    world = World(6, busy(9.0), gang=dict(whole), backend="nccl", workers=2, threshold=None)
    verdict = world.run()
    assert (verdict.outcome, verdict.code) == ("passed", "OK")
    assert "somebody else kept busy node-1 (9 GB/s" in verdict.reason


HOT = PortFault("GPU-3", "throttle", "the hardware slows the clocks down for heat (800 MHz)", "")


def test_what_gpus_say_is_told_once_with_the_round_since_which_it_is_so() -> None:
    nonsense = PortFault("GPU-3", "state", "x", "y")
    rounds = [
        {0: RankReport(1), 1: RankReport(1, devices=(HOT,))},
        {0: RankReport(2, devices=(HOT, nonsense))},
        {0: RankReport(3, devices=(HOT,))},
    ]
    [fault] = equipment.local((0,), rounds).faults
    assert (fault.port, fault.kind) == ("GPU-3", "throttle")
    assert fault.sentence.startswith(
        "GPU-3 has said since round 2: the hardware slows the clocks down"
    )
    shape = probing.EndpointMap.of(hellos(2), start(2)).counted(rounds)
    assert [len(one.local.faults) for one in shape.endpoints] == [1, 1]


def test_what_gpus_say_comes_as_it_was_sent_and_is_bounded() -> None:
    report = RankReport(1, devices=(HOT,))
    assert decode(encode(report)) == report
    shouts = tuple(PortFault(f"\x1b{i}", "replay", "y" * 9000, "z") for i in range(99))
    found = equipment.local((0,), [{0: RankReport(1, devices=shouts)}]).faults
    assert len(found) == ports.MOST
    assert all(one.sentence.isprintable() and len(one.sentence) < 400 for one in found)


def test_a_slow_node_whose_gpu_says_that_it_is_slowed_down_is_blamed_with_the_reason() -> None:
    def told(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        result = took(HEALTHY * (6 if 1 in group else 1))
        hot = msgspec.structs.replace(result, round=3, devices=(HOT,))
        return {rank: hot if rank == 1 else result for rank in group}

    verdict = World(8, told, backend="nccl", workers=2).run()
    assert verdict.blamed == {1: "NODE_SLOW"}
    assert "GPU-3 has said since round 3: the hardware slows the clocks down" in verdict.reason


def test_two_nodes_without_hairpins_have_a_verdict_when_the_second_gpu_throttles_later() -> None:
    hot = msgspec.structs.replace(took(5 * HEALTHY), devices=(HOT,))
    verdict = World(
        2, lambda group: dict.fromkeys(group, hot), gang={0: hot, 1: took(1)}, backend="nccl"
    ).run()
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "LOW_BANDWIDTH", {})


def test_what_ended_a_member_of_two_counts_though_the_other_ones_gpu_throttles_by_then() -> None:
    hot = msgspec.structs.replace(took(5 * HEALTHY), devices=(HOT,))
    dead = RankReport(0, trouble=Failure("device", "GPU_ECC", "an uncorrectable error"))
    gang: dict[int, RankReport | RankStage] = {0: hot, 1: took(1)}
    world = World(2, lambda _: {0: dead, 1: hot}, gang=gang, backend="nccl")
    verdict = world.run()
    assert len(world.probes()) == 1
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "GPU_ECC", {0: "GPU_ECC"})


@pytest.mark.parametrize(
    ("timeout", "asked"), [(60.0, [2.0, 2.0]), (12.0, [2.0, 0.5]), (9.0, [2.0])]
)
def test_gpus_are_asked_for_no_longer_than_a_quarter_of_what_the_round_has_left(
    monkeypatch: pytest.MonkeyPatch, timeout: float, asked: list[float]
) -> None:
    clock, times = Clocked(0, 0, 0), []

    async def sample(_: object, within: float) -> tuple[()]:
        times.append(within)
        return ()

    async def given() -> RankReport:
        return RankReport(1)

    async def one_round() -> None:
        member = joined(clock, (Gpu(0, "GPU-0", "H100", "0:0"),))
        await member.listen()
        await member._watched(
            ProbeOrder(1, 0, 0, 2, "h", 1, "nccl", 1, 3, 1, 1.0, timeout), given()
        )

    monkeypatch.setattr("anyio.current_time", lambda: clock.now)
    monkeypatch.setattr("preflight_proto.check.counters.sample", sample)
    anyio.run(one_round)
    assert times == asked


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([0x08, 0, 0x08], [0, 0, 0]),
        ([0x08, 0x08, 0x08], [0, 1, 1]),
        ([0x48, 0, 0x88], [1, 0, 1]),  # for heat, and for the power supply
    ],
)
def test_that_the_hardware_slows_clocks_and_not_why_counts_from_the_second_look_in_a_row(
    monkeypatch: pytest.MonkeyPatch, looks: list[int], found: list[int]
) -> None:
    coming = iter(looks)

    async def sample(_: object, within: float) -> tuple[CounterSample, ...]:
        return (CounterSample("GPU-0", reasons=next(coming), clock=800),)

    async def told() -> list[int]:
        member = joined(sysfs.Counters(()), (Gpu(0, "GPU-0", "H100", "0:0"),))
        return [len(await member._faults_of_gpus(1.0)) for _ in looks]

    monkeypatch.setattr("preflight_proto.check.counters.sample", sample)
    assert anyio.run(told) == found


PROGRAM = """
import json, sys
import anyio
from check_nccl_allreduce import ranks
from check_nccl_allreduce.control.messages import Failure, ProbeOrder, RankReport
from preflight_proto import nvml
from preflight_proto.check import Gpu

nvml.start(print)
ranks.SAMPLE_WITHIN = 60.0  # on a busy machine a process takes its time to start
said = []

async def told():
    member = ranks.Ranks({}, "127.0.0.1", said.append)
    member._gpus = tuple(Gpu(i, f"GPU-{i}", "H100", f"00000000:{0x1B + 16 * i:02X}:00.0") for i in range(8))
    await member.listen()
    order = ProbeOrder(1, 0, 0, 2, "h", 1, "nccl", 1, 3, 1, 1.0, 600.0)
    async def ended(report):
        return report
    good = await member._watched(order, ended(RankReport(4)))
    bad = await member._watched(order, ended(RankReport(5, trouble=Failure("peer", "X", "y"))))
    return [[[one.port, one.kind, one.found] for one in report.devices] for report in (good, bad)]

print("TOLD " + json.dumps([anyio.run(told), said]))
"""


@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: no NVML stand-in",
)
def test_a_member_asks_the_driver_after_a_round_that_went_well_and_after_no_other(
    tmp_path: Path,
) -> None:
    build_nvml(NVML, tmp_path / "libnvidia-ml.so.1")
    node = nvml_node(
        "h100", {3: {"reasons": 0x48, "clock": 800}, 5: {"pcie_replays_grow": 50, "reasons": 4}}
    )
    (tmp_path / "node.json").write_text(json.dumps(node))
    here = {
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_NODE_JSON": str(tmp_path / "node.json"),
        "NVIDIA_VISIBLE_DEVICES": "all",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        check=False,
    )
    [line] = [one for one in done.stdout.splitlines() if one.startswith("TOLD ")] or [done.stderr]
    (good, bad), said = json.loads(line.removeprefix("TOLD "))
    (replay, throttle) = sorted(good)[::-1]
    assert throttle == [
        "GPU-3",
        "throttle",
        "the hardware slows the clocks down for heat (800 MHz, 40 C)",
    ]
    assert replay[:2] == ["GPU-5", "replay"]
    assert replay[2].startswith("PCIe repeated transfers under load (+")
    assert bad == []
    assert (
        "round 4: GPU-3 says: the hardware slows the clocks down for heat (800 MHz, 40 C)" in said
    )
