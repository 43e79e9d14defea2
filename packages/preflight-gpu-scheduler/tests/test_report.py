"""A node's status from NVML's facts: islands, ids that stay with their UUIDs, health, who else
hands out GPUs.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.gpu_node_status import Device, InventoryStatus, complaints
from preflight_gpu_scheduler.api.types import Condition, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.node.status import (
    APPLICATION_XIDS,
    LOST,
    Facts,
    Link,
    bus_id,
    changed,
    conflicts,
    health,
    ids,
    islands,
    status,
)
from preflight_testing.matrix.scenario import fatal_subjects
from shapes import node, pod

NOW = "2026-01-01T00:00:00Z"
NONE: dict[str, str] = {}
EMPTY = InventoryStatus()


def place(slot: int, *links: Link, uuid: str = "", **more: Any) -> Facts:
    at = f"00000000:{slot:02X}:00.0"
    return Facts(uuid=uuid, pci_bus_id=at, links=links, pcie=32.0, **more)


def to(slot: int) -> Link:
    return Link(ends="gpu", remote=f"0000:{slot:02x}:00.0", bandwidth=25.0)


SWITCH = Link(ends="switch", bandwidth=25.0)


def facts(uuid: str, slot: int, **more: Any) -> Facts:
    return place(slot, uuid=uuid, **{"numa": 0, **more})


def written(
    found: list[Facts] | None,
    previous: InventoryStatus = EMPTY,
    pods: tuple[Pod, ...] = (),
    said: dict[str, str] = NONE,
    leased: dict[int, str] | None = None,
    boot: str = "boot-1",
) -> InventoryStatus:
    holders = dict.fromkeys(range(4), "uid-user") if leased is None else leased
    return status(previous, found, said, pods, "node-a", holders=holders, observed=NOW, boot=boot)


def user(gpus: str, name: str = "user", phase: str = "Running", where: str = "node-a") -> Pod:
    said = {names.ALLOCATED_ANNOTATION: f"{where}:{gpus}"}
    return pod(name, annotations=said, node_name=where, phase=phase)


def ids_of(found: InventoryStatus) -> dict[str, int]:
    return {device.uuid: device.id for device in found.devices}


def usable(found: InventoryStatus) -> list[bool]:
    return [device.usable for device in found.devices]


def complained(
    kind: str, message: str = "", status: str = "True", named: tuple[str, ...] = ()
) -> dict[str, str]:
    """What a node's one condition says of its GPUs."""
    condition = Condition(type=kind, status=status, message=message)
    return complaints(node(conditions=(condition,)), named)


def test_where_the_status_is_lost_gpus_have_the_ids_that_their_pods_have_them_by() -> None:
    """GPU-a was missing at the first boot: GPU-b and GPU-c were 0 and 1."""
    said = {names.ALLOCATED_ANNOTATION: "node-a:0,1", names.NVIDIA_ANNOTATION: "GPU-b,GPU-c"}
    runs = pod("runs", annotations=said, node_name="node-a", phase="Running")
    found = [facts("GPU-a", 1), facts("GPU-b", 2), facts("GPU-c", 3)]
    assert ids_of(written(found, pods=(runs,))) == {"GPU-a": 2, "GPU-b": 0, "GPU-c": 1}
    lost = written(found[:2], pods=(runs,))  # what its pod still names is given to no other
    assert ids_of(lost) == {"GPU-a": 2, "GPU-b": 0}


def test_what_the_status_remembers_counts_before_what_a_pod_says() -> None:
    before = written([facts("GPU-a", 1), facts("GPU-b", 2)])
    said = {names.ALLOCATED_ANNOTATION: "node-a:0", names.NVIDIA_ANNOTATION: "GPU-b"}
    forged = pod("forged", annotations=said, node_name="node-a", phase="Running")
    after = written([facts("GPU-a", 1), facts("GPU-b", 2)], before, (forged,))
    assert ids_of(after) == {"GPU-a": 0, "GPU-b": 1}


def test_gpus_that_links_join_are_one_island_over_others_too() -> None:
    chain = {0: place(1, to(2)), 1: place(2, to(1), to(3)), 2: place(3, to(2)), 3: place(4, numa=1)}
    assert islands(chain) == {
        0: ("nvlink-0", 25.0),
        1: ("nvlink-0", 50.0),
        2: ("nvlink-0", 25.0),
        3: ("pcie-1", 32.0),
    }


def test_all_gpus_on_a_switch_are_one_island() -> None:
    found = islands({n: place(n, *[SWITCH] * 18) for n in range(8)})
    assert {island for island, _ in found.values()} == {"nvlink-0"}


def test_without_links_the_numa_node_then_the_gpu_itself() -> None:
    found = islands({0: place(1, numa=1), 1: place(2), 2: place(3, numa=1)})
    assert found == {0: ("pcie-1", 32.0), 1: ("pcie-gpu-1", 32.0), 2: ("pcie-1", 32.0)}


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
        )
    )
)
def test_two_gpus_share_an_nvlink_island_exactly_when_a_path_of_links_joins_them(
    matrix: tuple[int, set[tuple[int, int]]],
) -> None:
    count, edges = matrix
    found = islands(
        {n: place(n, *(to(b) for a, b in sorted(edges) if a == n)) for n in range(count)}
    )
    reach = {(n, n) for n in range(count)} | edges | {(b, a) for a, b in edges}
    for k in range(count):
        reach |= {
            (a, b)
            for a in range(count)
            for b in range(count)
            if (a, k) in reach and (k, b) in reach
        }
    for a in range(count):
        for b in range(count):
            if a != b and (a, b) in reach:
                assert found[a][0] == found[b][0]
            elif a != b:
                assert not found[a][0].startswith("nvlink") or found[a][0] != found[b][0]


def test_a_bus_id_is_one_in_both_spellings() -> None:
    assert bus_id("00000000:3B:00.0") == bus_id("0000:3b:00.0") == "0000:3b:00.0"


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_after_a_reboot_in_any_order_and_without_some_every_uuid_has_its_id(
    order: list[int], gone: set[int]
) -> None:
    first = written([facts(f"GPU-{n}", n) for n in range(6)])
    found = [facts(f"GPU-{n}", slot) for slot, n in enumerate(order) if n not in gone]
    again = written(found, first)
    assert ids_of(again).items() <= ids_of(first).items()
    assert all(not one.usable for one in again.devices if int(one.uuid[4:]) in gone)


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 9)),
    st.lists(st.text(max_size=3), unique=True, max_size=6),
)
def test_a_new_gpu_never_gets_an_id_that_another_one_has(
    known: dict[str, int], uuids: list[str]
) -> None:
    found = ids(known, uuids)
    assert all(found[one] == known[one] for one in uuids if one in known)
    fresh = [found[one] for one in uuids if one not in known]
    assert not set(fresh) & set(known.values())
    assert len(set(fresh)) == len(fresh)


def test_a_gpu_that_vanished_keeps_its_id_until_another_is_in_its_slot_and_no_pod_has_it() -> None:
    first = written([facts("A", 1), facts("B", 2)])
    gone = written([facts("B", 2)], first)
    assert [(one.uuid, one.id, one.health) for one in gone.devices] == [
        ("A", 0, "Unhealthy"),
        ("B", 1, "Healthy"),
    ]
    used = written([facts("C", 1), facts("B", 2)], gone, (user("0"),))
    assert ids_of(used) == {"A": 0, "B": 1, "C": 2}
    free = written([facts("C", 1), facts("B", 2)], gone)
    assert ids_of(free) == {"C": 0, "B": 1}


def test_while_nvml_cannot_be_read_nothing_is_known_and_nothing_forgotten() -> None:
    first = written([facts("A", 1), facts("B", 2)])
    found = written(None, first, (user("1"),))
    assert [(one.uuid, one.id, one.health, one.in_use_by) for one in found.devices] == [
        ("A", 0, "Unknown", ()),
        ("B", 1, "Unknown", ("uid-user",)),
    ]


def test_a_lost_gpu_stays_in_its_island_and_is_not_usable() -> None:
    first = written([facts("A", 1), facts("B", 2)])
    again = written([facts("A", 1), facts("B", 2, answers=False)], first)
    assert [(one.island, one.usable) for one in again.devices] == [
        ("pcie-0", True),
        ("pcie-0", False),
    ]


@pytest.mark.parametrize(
    ("changes", "complaint", "expected"),
    [
        ({}, "", "Healthy"),
        ({"answers": False}, "", "Unhealthy"),
        ({"ecc_pending": True}, "", "Unhealthy"),
        ({"remap_failed": True}, "", "Unhealthy"),
        ({"xids": (79,)}, "", "Unhealthy"),
        ({"xids": tuple(APPLICATION_XIDS)}, "", "Healthy"),
        ({"recovery": 0}, "", "Healthy"),
        ({"recovery": 1}, "", "Unhealthy"),
        ({"recovery": 3}, "", "Unhealthy"),
        ({"recovery": 5}, "", "Healthy"),
        ({"recovery": 0, "xids": (154,)}, "", "Healthy"),
        ({"xids": (154,)}, "", "Unhealthy"),
        ({}, "node condition DcgmDiagnostic", "Unhealthy"),
    ],
)
def test_health_is_the_worst_of_what_is_said(
    changes: dict[str, Any], complaint: str, expected: str
) -> None:
    found, why = health(facts("A", 1, **changes), complaint)
    assert found == expected
    assert bool(why) == (expected != "Healthy")


def test_a_gpu_that_was_reset_is_well_though_an_xid_says_that_no_reset_is_asked_for_any_more() -> (
    None
):
    sick = stored(written([facts("GPU-a", 1, xids=(79, 154), recovery=1)]))
    assert sick.devices[0].reason == "XID 79"
    assert written([facts("GPU-a", 1, xids=(154,), recovery=0)], sick).devices[0].usable


def test_a_condition_about_one_gpu_takes_that_one_out_and_its_clearing_brings_it_back() -> None:
    message = "ErrorCode:X GPU_UUID:A memory is bad Recommended Action=NONE;"
    both = [facts("A", 1), facts("AB", 2)]
    sick = written(both, said=complained("DcgmDiagnosticMemory", message))
    assert usable(sick) == [False, True]
    cleared = complained("DcgmDiagnosticMemory", message, "False")
    assert usable(written(both, sick, said=cleared)) == [True, True]


def test_a_condition_about_the_node_takes_all_its_gpus_out_and_one_that_is_not_named_none() -> None:
    for kind, well in (("NCCLLoopbackTest", False), ("DiskPressure", True)):
        said = complained(kind, "x", named=("NCCLLoopbackTest",))
        assert usable(written([facts("A", 1), facts("B", 2)], said=said)) == [well, well]


@pytest.mark.parametrize(("condition", "names_a_gpu"), sorted(fatal_subjects()))
def test_every_fatal_condition_of_the_matrix_takes_its_gpu_out_or_all_of_the_node(
    condition: str, names_a_gpu: bool
) -> None:
    message = "ErrorCode:X GPU_UUID:A sick" if names_a_gpu else "ErrorCode:X sick"
    for state, well in (("True", [False, names_a_gpu]), ("False", [True, True])):
        said = complained(condition, message, state, Config().node_conditions)
        assert usable(written([facts("A", 1), facts("B", 2)], said=said)) == well


def test_a_fatal_condition_that_lost_the_name_of_its_gpu_takes_all_of_the_node_out() -> None:
    assert "" in complained("DcgmDiagnosticMemory", named=Config().node_conditions)


def test_a_condition_whose_gpus_were_cut_off_takes_all_of_the_node_out_and_names_no_unknown_one() -> (
    None
):
    message = "ErrorCode:X GPU_UUID:A is... Recommended Action=NONE;ErrorCode:X GPU_UUID:GPU-5c1... Recommended Action=NONE;"
    assert set(complained("K", message)) == {"", "A"}


def test_a_condition_that_holds_counts_however_many_stand_before_it_that_do_not() -> None:
    others = tuple(Condition(type=f"Other{n}", status="False") for n in range(100))
    sick = Condition(type="XidError", status="True", message="GPU_UUID:A is sick")
    assert "A" in complaints(node(conditions=(*others, sick)), ())


def test_where_the_status_of_before_gives_two_gpus_one_id_each_has_one_of_its_own_again() -> None:
    """As after a restore, or one that was written by hand: else the node were out for ever."""
    twice = InventoryStatus(devices=(Device(id=0, uuid="GPU-a"), Device(id=0, uuid="GPU-b")))
    found = written([facts("GPU-a", 1), facts("GPU-b", 2)], twice)
    assert sorted(one.id for one in found.devices) == [0, 1]


def test_of_another_machine_with_the_name_no_gpu_of_the_one_before_is_missed_but_those_of_its_pods() -> (
    None
):
    before = written([facts(f"GPU-{n}", n) for n in range(8)])
    now = [facts(f"GPU-new-{n}", n) for n in range(4)]
    assert {one.uuid for one in written(now, before).devices} == {one.uuid for one in now}
    used = written(now, before, (user("6"),), leased={6: "uid-user"}).devices
    assert [(one.id, one.uuid) for one in used if one.reason == LOST] == [(6, "GPU-6")]
    some = written([*now, facts("GPU-7", 7)], before).devices
    assert [one.uuid for one in some if one.reason == LOST] == ["GPU-4", "GPU-5", "GPU-6"]
    assert len(written([], before).devices) == 8


def test_people_can_name_a_gpu_on_the_node() -> None:
    said = complaints(node(annotations={names.UNHEALTHY_ANNOTATION: "B, C,"}), ())
    assert set(said) == {"B", "C"}


@pytest.mark.parametrize("around", ["{}.", "{})", '"{}"', "{}|x", "{}:", "({})", "{};", "{}"])
def test_a_gpu_is_named_without_what_stands_around_it_in_a_sentence(around: str) -> None:
    uuid = "GPU-8d1f2a-0b"
    message = f"XID 79 GPU_UUID:{around.format(uuid)} is lost"
    assert set(complained("X", message)) == {uuid}


@given(st.text(max_size=200))
def test_whatever_a_condition_says_is_read(message: str) -> None:
    assert not any(uuid.isspace() for uuid in complained("X", message))


def test_who_uses_a_gpu_is_who_was_given_it_here_and_has_not_ended() -> None:
    pods = (user("1"), user("0", "ended", "Failed"), user("0", "else", where="b"))
    found = written([facts("A", 1), facts("B", 2)], pods=pods)
    assert [device.in_use_by for device in found.devices] == [(), ("uid-user",)]


@pytest.mark.parametrize(
    ("leased", "users"),
    [
        ({0: "uid-user", 1: "uid-user"}, ("uid-user",)),
        ({0: "uid-user"}, ()),
        ({1: "uid-another"}, ()),
        ({}, ()),
    ],
)
def test_a_pod_that_says_it_was_given_a_gpu_is_believed_where_the_lease_says_so(
    leased: dict[int, str], users: tuple[str, ...]
) -> None:
    both = [facts("A", 1), facts("B", 2)]
    found = written(both, pods=(user("1"), user("1")), leased=leased)
    assert [one.in_use_by for one in found.devices] == [(), users]


def test_a_device_plugin_and_a_dra_driver_are_conflicts() -> None:
    assert conflicts(node(allocatable={"nvidia.com/gpu": "8"}), ["gpu.nvidia.com"]) == (
        "device-plugin",
        "dra-driver",
    )
    assert conflicts(node(allocatable={"nvidia.com/gpu": "0"}), ["compute-domain.nvidia.com"]) == ()


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpumem",
        "nvidia.com/vgpu-memory",
        "volcano.sh/vgpu-number",
    ],
)
def test_shared_renamed_sliced_and_virtual_gpus_of_a_device_plugin_are_a_conflict(
    resource: str,
) -> None:
    assert conflicts(node(allocatable={resource: "4"}), []) == ("device-plugin",)
    assert conflicts(node(allocatable={resource: "0", "nvidia.com/hostdev": "8"}), []) == ()


def test_a_heartbeat_alone_is_no_change() -> None:
    first = written([facts("A", 1)])
    assert not changed(first, msgspec.structs.replace(first, observed_time="later"))
    assert changed(first, written([facts("A", 1, ecc_pending=True)], first))
    assert Device(id=0).usable


def test_of_a_gpu_whose_processes_cannot_be_read_it_is_not_known_whether_it_is_free() -> None:
    well = written([facts("GPU-a", 1, processes=2)])
    [device] = written([facts("GPU-a", 1, unknown="NVML does not answer f")], well).devices
    assert (device.health, device.reason, device.processes) == (
        *("Unknown", "NVML does not answer f"),
        None,
    )
    assert not device.usable
    sick = facts("GPU-a", 1, unknown="NVML does not answer f", remap_failed=True)
    assert written([sick], well).devices[0].health == "Unhealthy"


def test_a_gpu_keeps_its_island_and_its_address_while_its_place_is_not_known() -> None:
    well = written([facts("GPU-a", 1), facts("GPU-b", 2)])
    dumb = [Facts(uuid=one, placed=False, unknown="it crashed") for one in ("GPU-a", "GPU-b")]
    for now, before in zip(written(dumb, well).devices, well.devices, strict=True):
        assert (now.island, now.pci_bus_id) == (before.island, before.pci_bus_id)


def test_a_node_whose_nvml_has_never_answered_has_no_number_of_gpus() -> None:
    silent = written(None)
    assert (silent.total, silent.reason) == (None, "NVML does not answer")
    assert written([], silent).total == 0


def stored(found: InventoryStatus) -> InventoryStatus:
    """As the next agent reads it."""
    return msgspec.convert(msgspec.to_builtins(found), InventoryStatus)


def test_no_restart_of_the_agent_forgives_a_gpu_its_xid_and_a_reboot_does() -> None:
    sick = written([facts("GPU-a", 1, xids=(79,)), facts("GPU-b", 2)])
    well = [facts("GPU-a", 1), facts("GPU-b", 2)]
    again = written(None, stored(sick))  # while NVML does not answer
    for previous in (sick, again, written(well, stored(again))):
        now = written(well, stored(previous))
        assert [(one.health, one.reason) for one in now.devices] == [
            ("Unhealthy", "XID 79"),
            ("Healthy", ""),
        ]
    assert written(well, stored(sick), boot="boot-2").devices[0].health == "Healthy"


@pytest.mark.parametrize(
    ("then", "now", "forgiven"),
    [
        *((1, 0, True), (4, 0, True), (6, 0, True)),
        *((0, 0, False), (1, None, False), (None, 0, False)),
        *((3, 0, False), (5, 0, False)),
    ],
)
def test_a_reset_that_the_driver_asked_for_forgives_the_gpu_when_it_no_longer_does(
    then: int | None, now: int | None, forgiven: bool
) -> None:
    sick = stored(written([facts("GPU-a", 1, xids=(79,), recovery=then)]))
    for _ in range(2):  # and stays so
        sick = stored(written([facts("GPU-a", 1, recovery=now)], sick))
        assert (sick.devices[0].health == "Healthy") == forgiven
