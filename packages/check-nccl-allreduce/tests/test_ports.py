"""A node's own ports: what its kernel says of them, what a gang makes of it side by side, and a
gang whose nodes have folders for /sys.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
import trees
from allreduce_testing.worlds.simulation import play
from check_nccl_allreduce import (
    check,
    equipment,
    gate,
    judge,
    localise,
    nics,
    ports,
    probing,
    ranks,
    sysfs,
)
from check_nccl_allreduce.control.channel import FIRST_MESSAGE
from check_nccl_allreduce.control.member import MemberSession
from check_nccl_allreduce.control.messages import (
    Hello,
    RankReport,
    RankStage,
    VerdictMessage,
    decode,
    encode,
)
from check_nccl_allreduce.control.rounds import LaunchRound
from check_nccl_allreduce.ports import PortErrors, PortFault
from check_nccl_allreduce.settings import Settings
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import Run, Verdict
from preflight_proto.check.gang import GangSettings
from preflight_proto.roster import Roster
from test_control import Gang
from test_judge import at, hellos, start, trouble
from worlds import HEALTHY, World, took

PCIE = dict(zip(nics.PCIE, ("32.0 GT/s PCIe", "32.0 GT/s PCIe", "16", "16"), strict=True))


def with_pcie(tree: dict[str, str], **odd: str) -> dict[str, str]:
    """``odd``: of mlx5_3 alone."""
    found = dict(tree)
    for path in tree:
        if path.endswith("/device/vendor"):
            own = PCIE | odd if "mlx5_3/" in path else PCIE
            found |= {path.replace("vendor", name): text for name, text in own.items()}
    return found


def test_the_physical_state_says_why_a_port_is_down() -> None:
    tree = trees.node(8, 400, states={3: "1: DOWN"}) | {
        "sys/class/infiniband/mlx5_3/ports/1/phys_state": "3: Disabled"
    }
    assert nics.recognize(tree).findings == ("mlx5_3:1 is DOWN (Disabled), not ACTIVE",)


def test_a_pcie_link_that_could_do_more_is_found() -> None:
    narrow = nics.recognize(with_pcie(trees.node(8, 400), current_link_width="8"))
    told = "mlx5_3:1 has a PCIe link of 8 lanes at 32 GT/s, and can do 16 at 32"
    assert (narrow.findings, [one.kind for one in narrow.faults]) == ((told,), ["pcie"])
    assert nics.recognize(with_pcie(trees.node(8, 400))).faults == ()


@pytest.mark.parametrize("text", ["", "Unknown", "0", "63", "255", "16\n\0", "-4", "²"])
def test_what_is_no_width_of_a_pcie_link_says_nothing(text: str) -> None:
    assert nics.recognize(with_pcie(trees.node(8, 400), current_link_width=text)).faults == ()


def test_slots_that_are_all_narrow_are_no_finding_of_the_node() -> None:
    tree = with_pcie(trees.node(8, 400)) | {
        f"sys/class/infiniband/mlx5_{i}/device/current_link_width": "8" for i in range(8)
    }
    found = nics.recognize(tree)
    assert (found.findings, len(found.faults)) == ((), 8)  # whether other nodes are so too decides


def test_counters_are_read_of_the_ports_that_the_workload_uses(tmp_path: Path) -> None:
    tree = trees.counters(
        trees.node(2, 400) | trees.node(1, 400, first=2, usable=False), symbol_error=5
    )
    trees.write(tmp_path, tree)
    watched = nics.recognize(sysfs.snapshot(tmp_path)).watched
    found = sysfs.counters(watched, tmp_path)
    assert {port for port, _ in found} == {"mlx5_0:1", "mlx5_1:1"}
    assert (found["mlx5_0:1", "symbol_error"], found["mlx5_1:1", "link_downed"]) == (5, 0)


def test_roce_and_efa_have_counters_of_their_own(tmp_path: Path) -> None:
    tree = trees.node(1, 100, "Ethernet") | trees.node(
        1, 100, "Unspecified", pci=trees.EFA, name="rdmap", first=1
    )
    tree |= {
        "sys/class/infiniband/mlx5_0/device/net/eth2/statistics/rx_crc_errors": "3",
        "sys/class/infiniband/mlx5_0/device/net/eth2/carrier_changes": "4",
        "sys/class/infiniband/rdmap1/hw_counters/no_completion_cmds": "2",
    }
    trees.write(tmp_path, tree)
    assert sysfs.counters(nics.ports(tree), tmp_path) == {
        ("mlx5_0:1", "rx_crc_errors"): 3,
        ("mlx5_0:1", "carrier_changes"): 4,
        ("rdmap1:1", "no_completion_cmds"): 2,
    }


def joined(
    monkeypatch: pytest.MonkeyPatch, kernel: dict[str, str], later: dict[str, str]
) -> tuple[Hello, set[str]]:
    """What a member brings whose kernel says something else once its gang is there, and the ports
    whose counters it reads.
    """
    said: list[Hello] = []
    read: set[str] = set()

    async def gather(_: object) -> tuple[Roster, check.Equipment]:
        kernel.update(later)
        return Gang().roster(0), check.Equipment("nccl")

    async def take_part(_: object, __: object, member: MemberSession, ___: object) -> None:
        said.append(member.hello)

    def join(*given: Any) -> None:
        read.update(port.name for port in given[-1]._watched)

    async def listen() -> None: ...

    monkeypatch.setattr(sysfs, "snapshot", lambda: dict(kernel))
    monkeypatch.setattr(check, "_gather", gather)
    monkeypatch.setattr(check, "_take_part", take_part)
    kit = GangSettings(node_name="n", pod_uid="u", pod_ip="127.0.0.1")
    ranks: Any = SimpleNamespace(join=join, listen=listen)

    async def story() -> Verdict | None:
        run = Run(check.CHECK, Settings(), kit, say=print, started=0.0)
        return await check._once(run, ranks, "lo", {}, "")

    assert anyio.run(story) is None
    return said[0], read


def test_a_port_that_came_up_while_the_gang_was_awaited_is_none_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    booting, up = trees.node(8, 400, states={3: "2: INIT"}), trees.node(8, 400)
    hello, _ = joined(monkeypatch, booting, up)
    assert (hello.fabric, hello.ports, hello.adapters) == ("ib-8x400", (), ())


def test_a_member_on_a_host_with_hundreds_of_ports_that_are_down_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    functions = trees.node(400, 400, states=dict.fromkeys(range(8, 400), "1: DOWN"))
    functions |= trees.node(8, 400, rates={7: 200}, pci=("0x15b3", "0x1023"))
    hello, _ = joined(monkeypatch, functions, {})
    assert len(encode(hello)) < FIRST_MESSAGE
    assert hello.adapters[0] == hello.ports[0].sentence  # of the workload's own adapters, first
    assert hello.ports[0].port == "mlx5_7:1"


def test_counters_are_those_of_the_ports_that_came_up_while_the_gang_was_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = trees.node(1, 200, "Ethernet", pci=("0x15b3", "0x101d"), first=8)
    booting = trees.node(8, 400, states=dict.fromkeys(range(8), "2: INIT")) | storage
    _, read = joined(monkeypatch, booting, trees.node(8, 400))
    assert read == {f"mlx5_{number}:1" for number in range(8)}


def test_without_adapters_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    assert anyio.run(sysfs.Counters((), tmp_path).read) == {}
    port = nics.ports(trees.node(1, 400))
    assert anyio.run(sysfs.Counters(port, tmp_path / "nowhere").read) == {}


@given(
    st.dictionaries(
        st.sampled_from(["rate", "state", "phys_state", "link_layer", "counters/symbol_error"]),
        st.binary(max_size=600),
    )
)
def test_whatever_the_files_say_nothing_is_raised(texts: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        trees.write(root, trees.counters(with_pcie(trees.node(2, 400))))
        for file, content in texts.items():
            (root / "sys/class/infiniband/mlx5_1/ports/1" / file).write_bytes(content)
        found = nics.recognize(sysfs.snapshot(root))
        before = sysfs.counters(found.watched, root)
        assert all(0 <= value < 10**20 for value in before.values())
        encode(
            Hello(
                0,
                "p",
                "n",
                "nccl",
                8,
                ports=found.faults,
                listed=found.listed,
                adapters=found.findings,
            )
        )


def test_files_that_are_none_hold_up_nobody(tmp_path: Path) -> None:
    trees.write(tmp_path, trees.counters(trees.node(3, 400)))
    folder = tmp_path / "sys/class/infiniband"
    for path in ("mlx5_0/ports/1/counters/symbol_error", "mlx5_1/ports/1/state"):
        (folder / path).unlink()
        os.mkfifo(folder / path)
    (folder / "mlx5_2/ports/1/counters/symbol_error").unlink()
    (folder / "mlx5_2/ports/1/counters/symbol_error").mkdir()
    (folder / "loop").symlink_to(folder)
    watched = nics.recognize(sysfs.snapshot(tmp_path)).watched
    assert not any(
        name == "symbol_error" and port != "mlx5_1:1"
        for port, name in sysfs.counters(watched, tmp_path)
    )


def test_a_counter_that_never_comes_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = [], threading.Event()

    def hangs(*_: object) -> dict[tuple[str, str], int]:
        asked.append(1)
        over.wait()
        return {("p", "symbol_error"): 1}

    monkeypatch.setattr(sysfs, "counters", hangs)
    one = sysfs.Counters(nics.ports(trees.node(1, 400)), within=0.05)
    assert [anyio.run(one.read), anyio.run(one.read)] == [{}, {}]
    over.set()
    assert len(asked) == 1


def test_what_grew_is_the_difference_and_a_reset_is_nothing() -> None:
    before = {("a", "symbol_error"): 10, ("a", "link_downed"): 5, ("b", "symbol_error"): 1}
    after = {
        ("a", "symbol_error"): 40,
        ("a", "link_downed"): 2,
        ("b", "symbol_error"): 1,
        ("c", "symbol_error"): 9,
    }
    assert ports.grown(before, after, 5.0) == (PortErrors("a", "symbol_error", 30, 5.0),)
    assert ports.grown(before, after, 0.0) == ()


def test_a_nodes_rounds_are_put_together_and_its_two_pods_count_once() -> None:
    grew = PortErrors("a", "symbol_error", 30, 5.0)
    both = {
        0: RankReport(1, watched=5.0, errors=(grew,)),
        1: RankReport(1, watched=4.0, errors=(grew,)),
    }
    quiet = {0: RankReport(2, watched=5.0), 1: RankReport(2, watched=5.0)}
    found = equipment.local((0, 1), [both, quiet])
    assert found == ports.Local((), (PortErrors("a", "symbol_error", 30, 10.0, 1),), counted=True)
    assert equipment.local((0, 1), [{0: RankReport(1)}]) == ports.UNKNOWN


@given(
    st.lists(
        st.tuples(
            st.floats(),
            st.lists(
                st.builds(
                    PortErrors,
                    st.text(),
                    st.sampled_from(["symbol_error", "x"]),
                    st.integers(),
                    st.floats(),
                )
            ),
        )
    )
)
def test_figures_that_cannot_be_are_left_out(rounds: list[tuple[float, list[PortErrors]]]) -> None:
    reports = [{0: RankReport(1, watched=s, errors=tuple(grew))} for s, grew in rounds]
    for one in equipment.local((0,), reports).errors:
        assert one.counter == "symbol_error"
        assert one.count > 0
        assert one.seconds > 0
        assert one.rate > 0
        assert one.port.isprintable()


NAMES = tuple(f"mlx5_{i}:1" for i in range(8))


def fleet(size: int = 8, **odd: Any) -> dict[int, Hello]:
    """Rank 1 differs from the others, which have eight adapters."""
    those = hellos(size, nic="ib 8x400", listed=NAMES)
    return those | {1: msgspec.structs.replace(those[1], **odd)}


def test_a_node_that_lost_a_port_is_compared_with_what_the_fleet_has_and_the_port_is_named() -> (
    None
):
    those = fleet(nic="ib 7x400", fabric="ib-7x400", listed=NAMES[:3] + NAMES[4:])
    shape = probing.EndpointMap.of(those, start(64))
    assert len({(one.kind, one.nic) for one in shape.endpoints}) == 1
    [lost] = shape.endpoints[1].local.faults
    assert lost.sentence == (
        "mlx5_3:1 is not listed by the kernel, which has 7 ports there, where it lists 8, as on 7 of 8 nodes"
    )
    assert all(one.local.faults == () for i, one in enumerate(shape.endpoints) if i != 1)
    assert gate.fabric_of(those) == "ib-8x400"  # and the gang keeps its floor


@pytest.mark.parametrize(("left", "blamed"), [(7, ()), (6, (1,))])
def test_a_node_that_lost_ports_is_named_with_them_and_blamed_where_it_is_slow_for_it(
    left: int, blamed: tuple[int, ...]
) -> None:
    those = fleet(nic=f"ib {left}x400", fabric=f"ib-{left}x400", listed=NAMES[:left])
    state = localise.State(probing.EndpointMap.of(those, start(64)).endpoints, 7).after_gang(
        localise.Zone.BELOW, 40.0
    )

    def measure(one: localise.Round) -> list[localise.Result]:
        shares = [left / 8 if 1 in probe.members else 1.0 for probe in one.probes]
        return [localise.Result(localise.Status.OK, 100 * share) for share in shares]

    verdict, _ = play(state, measure)
    assert (verdict.named, verdict.fatal_for) == ((1,), blamed)
    assert "node-1: mlx5_" in verdict.reason
    assert f"which has {left} ports there, where it lists 8, as on 7 of 8 nodes" in verdict.reason


def test_a_lost_port_is_in_the_log_from_the_start_and_in_the_failed_gangs_events() -> None:
    those = fleet(nic="ib 7x400", fabric="ib-7x400", listed=NAMES[:3] + NAMES[4:])
    [warning] = judge.warnings(Settings(), those, start(64))
    assert warning.startswith(
        "warning: rank 1 (pod-1 on node-1): network adapter mlx5_3:1 is not listed by the kernel"
    )
    broken = LaunchRound(
        start(64), {rank: trouble("class") if rank == 1 else at(400) for rank in those}
    )
    verdict = judge.next_step(judge.JudgePlan(Settings(), (1,), 0.1), those, [broken])
    assert isinstance(verdict, VerdictMessage)
    assert "mlx5_3:1 is not listed" in verdict.named[1]


def test_a_node_all_of_whose_ports_are_down_is_of_its_kind() -> None:
    down = tuple(PortFault(name, "state", "is DOWN", "not ACTIVE") for name in NAMES)
    shape = probing.EndpointMap.of(fleet(nic="", fabric="", ports=down, listed=NAMES), start(64))
    assert len({(one.kind, one.nic) for one in shape.endpoints}) == 1
    assert shape.endpoints[1].local.faults == down


@pytest.mark.parametrize(
    "odd",
    [
        {"nic": "ib 6x400"},  # its pod was given fewer: the kernel lists them all
        {"nic": "ib 4x400", "listed": NAMES[:4]},  # half of them: another sort of node
        {"nic": "ib 7x200", "listed": NAMES[:7]},
        {"nic": "roce 7x400", "listed": NAMES[:7]},
        {"nic": "ib 7x400", "listed": ()},  # a member that does not say
        {"nic": "tcpxo 7", "listed": NAMES[:7]},
        {"nic": "ib 99999999x400", "listed": NAMES[:7]},
    ],
)
def test_other_nodes_are_not_compared_with_the_fleet(odd: dict[str, Any]) -> None:
    shape = probing.EndpointMap.of(fleet(**odd), start(64))
    assert shape.endpoints[1].nic == odd["nic"]
    assert shape.endpoints[1].local.faults == ()


def test_where_many_nodes_lack_a_port_there_are_two_sorts_of_nodes() -> None:
    those = hellos(8, nic="ib 8x400", listed=NAMES)
    few = {
        rank: msgspec.structs.replace(those[rank], nic="ib 7x400", listed=NAMES[:7])
        for rank in range(3)
    }
    assert len({one.nic for one in probing.EndpointMap.of(those | few, start(64)).endpoints}) == 2


def test_messages_without_ports_are_read_and_what_is_new_is_skipped() -> None:
    old = msgspec.json.decode(encode(Hello(0, "p", "n", "nccl", 8)))
    del old["ports"], old["listed"]
    hello = decode(msgspec.json.encode(old | {"from_the_future": 1}))
    assert isinstance(hello, Hello)
    assert (hello.ports, hello.listed) == ((), ())
    report = msgspec.json.decode(encode(RankReport(1)))
    del report["errors"], report["watched"]
    assert decode(msgspec.json.encode(report)) == RankReport(1)


def test_a_hostile_members_words_are_bounded_and_printable() -> None:
    shouts = tuple(PortFault("\x1b[2J" + "x" * 9000, "state", "\n", "y" * 9000) for _ in range(99))
    faults = probing.EndpointMap.of(fleet(ports=shouts), start(64)).endpoints[1].local.faults
    assert len(faults) <= ports.MOST
    assert all(
        one.sentence.isprintable() and len(one.sentence) <= 3 * ports.TEXT + 4 for one in faults
    )


def reported(grew: int) -> RankReport:
    """What a member reports of a round in which the symbol errors of a port grew by so many."""
    readings = iter([{("mlx5_1:1", "symbol_error"): 5}, {("mlx5_1:1", "symbol_error"): 5 + grew}])

    class Read(sysfs.Counters):
        async def read(self) -> Mapping[tuple[str, str], int]:
            return next(readings)

    async def moved() -> RankReport:
        return took(HEALTHY)

    async def watched() -> RankReport:
        member = ranks.Ranks({}, "127.0.0.1", print)
        member.join(Gang().roster(0), 1, {}, (), Read(()))
        return await member._watched(start(1), moved())

    return anyio.run(watched)


def counting(*sick: int, backend: str = "nccl") -> VerdictMessage:
    """The verdict of eight nodes, of which node 2 is slow and these count symbol errors."""
    healthy, errors = reported(0), reported(10**6)

    def answer(group: tuple[int, ...]) -> dict[int, RankReport | RankStage]:
        times = (HEALTHY * (3 if 2 in group else 1),) * 3
        return {
            rank: msgspec.structs.replace(errors if rank in sick else healthy, times=times)
            for rank in group
        }

    down = (2,) if backend == "gloo" else ()
    return World(8, answer, backend=backend, down=down).run()


def test_a_sick_port_that_counts_errors_is_told_in_the_verdict_of_the_gang() -> None:
    verdict = counting(2)
    assert (verdict.blamed, verdict.metadata["named"]) == ({}, "node-2")
    assert "node-2: mlx5_1:1 counted" in verdict.reason
    assert "to settle it: measure it to itself over its own NICs" in verdict.named[2]


def test_errors_that_all_nodes_count_or_of_gloo_are_told_of_none() -> None:
    for verdict in (counting(*range(8)), counting(2, backend="gloo")):
        assert verdict.metadata["named"] == "node-2"
        assert "mlx5_" not in verdict.reason


def test_reading_counters_takes_little_of_a_round(tmp_path: Path, *, timed: bool) -> None:
    trees.write(tmp_path, trees.counters(trees.node(16, 400)))
    watched = nics.recognize(sysfs.snapshot(tmp_path)).watched
    began = time.perf_counter()
    assert len(sysfs.counters(watched, tmp_path)) == 32
    if timed:
        assert time.perf_counter() - began < 1
