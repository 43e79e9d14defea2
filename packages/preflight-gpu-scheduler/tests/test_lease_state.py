"""Whose a lease is, as a table; and that what is final stays so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.types import Lease, LeaseSpec, Metadata, Pod, PodSpec, PodStatus
from preflight_gpu_scheduler.core.ledger import (
    FirstSeen,
    Holder,
    LeaseState,
    is_own,
    judge,
    reason,
)

NODE = "ip-10-0-0-1.ec2.internal"


def pod(
    uid: str = "u",
    *,
    node: str = "",
    phase: str = "Pending",
    deleting: bool = False,
    reclaimed: str = "",
    allocated: str = "",
) -> Pod:
    about = {names.RECLAIMED_ANNOTATION: reclaimed, names.ALLOCATED_ANNOTATION: allocated}
    metadata = Metadata(
        name="p",
        namespace="team",
        uid=uid,
        deletion_timestamp="now" if deleting else None,
        annotations={k: v for k, v in about.items() if v},
    )
    return Pod(metadata=metadata, spec=PodSpec(node_name=node), status=PodStatus(phase=phase))


def lease(number: int = 1, gpu: int = 0, **changes: Any) -> Lease:
    about = {names.POD_ANNOTATION: "team/p", names.NODE_ANNOTATION: NODE}
    metadata = Metadata(
        name=names.lease_name(NODE, gpu),
        uid="l",
        resource_version="1",
        labels={names.MANAGED_LABEL: "true"},
        annotations=about,
    )
    made = Lease(metadata=metadata, spec=LeaseSpec(holder_identity="u", lease_transitions=number))
    return msgspec.structs.replace(made, **changes)


@pytest.mark.parametrize(
    ("found", "seen", "state"),
    [
        (lease(), pod(node=NODE, phase="Running"), LeaseState.HELD),
        (lease(), pod(node=NODE, phase="Running", allocated=f"{NODE}:0"), LeaseState.HELD),
        (lease(), pod(node=NODE, phase="Running", allocated=f"{NODE}:1"), LeaseState.FREE),
        (
            lease(),
            pod(node=NODE, phase="Running", deleting=True, allocated=f"{NODE}:0"),
            LeaseState.HELD,
        ),
        (lease(), pod(node=NODE, phase="Succeeded"), LeaseState.FREE),
        (lease(), pod(node=NODE, phase="Failed"), LeaseState.FREE),
        (lease(), pod(node="other", phase="Running"), LeaseState.FREE),
        (lease(), pod(deleting=True), LeaseState.FREE),
        (lease(), pod(), LeaseState.RESERVED),
        (lease(), pod(reclaimed="1"), LeaseState.VOID),
        (lease(2), pod(reclaimed="1"), LeaseState.RESERVED),
        (lease(), pod(reclaimed="nonsense"), LeaseState.RESERVED),
        (lease(), pod(uid="another"), LeaseState.UNSURE),
        (lease(), None, LeaseState.UNSURE),
        (lease(spec=LeaseSpec(holder_identity="u")), pod(), LeaseState.FOREIGN),
        (lease(metadata=Metadata(name=names.lease_name(NODE, 0))), pod(), LeaseState.FOREIGN),
    ],
)
def test_the_table(found: Lease, seen: Pod | None, state: LeaseState) -> None:
    assert judge(found, Holder(seen)) is state
    live = judge(found, Holder(seen, live=True))
    assert live is (LeaseState.FREE if state is LeaseState.UNSURE else state)
    when_over = LeaseState.OVER if state is LeaseState.RESERVED else live
    if found.locks and not found.ours:  # one of ours that somebody has changed
        when_over = LeaseState.FREE
    assert judge(found, Holder(seen, live=True), over=True) is when_over


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "gone"),
        (pod(uid="another"), "gone"),
        (pod(node=NODE, phase="Succeeded"), "ended"),
        (pod(node="other", phase="Running"), "elsewhere"),
        (pod(deleting=True), "deleted"),
        (pod(reclaimed="1"), "void"),
    ],
)
def test_why_a_lease_was_collected_is_one_word(seen: Pod | None, why: str) -> None:
    assert reason(lease(), Holder(seen)) == why


def test_a_number_that_no_annotation_can_carry_is_somebody_elses_and_goes_when_its_time_is_over() -> (
    None
):
    """With it the fence would be raised to what reads as none."""
    edited = lease(2**31 - 1)
    assert judge(edited, Holder(pod())) is LeaseState.FOREIGN
    assert judge(edited, Holder(pod()), over=True) is LeaseState.FREE
    assert judge(lease(10**9), Holder(pod(reclaimed="999999999"))) is LeaseState.RESERVED


def test_only_the_lease_of_the_current_number_is_ones_own() -> None:
    assert is_own(lease(), pod())
    assert not is_own(lease(), pod(reclaimed="1"))
    assert not is_own(lease(), pod(uid="another"))


class Life:
    """A pod as the API server lets it change: bound once, fenced only while unbound, never back
    from its end.
    """

    def __init__(self) -> None:
        self.now: Pod | None = pod()

    def go(self, what: str) -> None:
        p = self.now
        if p is None or p.ended:
            self.now = None if what == "vanish" else p
            return
        match what:
            case "bind" if not p.bound and not p.deleting:
                said = {
                    **(p.metadata.annotations or {}),
                    names.ALLOCATED_ANNOTATION: f"{NODE}:{p.reclaimed}",
                }
                self.now = msgspec.structs.replace(
                    p,
                    spec=PodSpec(node_name=NODE),
                    metadata=msgspec.structs.replace(p.metadata, annotations=said),
                )
            case "elsewhere" if not p.bound and not p.deleting:
                self.now = msgspec.structs.replace(p, spec=PodSpec(node_name="other"))
            case "fence" if not p.bound:
                said = {
                    **(p.metadata.annotations or {}),
                    names.RECLAIMED_ANNOTATION: str(p.reclaimed + 1),
                }
                self.now = msgspec.structs.replace(
                    p, metadata=msgspec.structs.replace(p.metadata, annotations=said)
                )
            case "delete":
                self.now = msgspec.structs.replace(
                    p, metadata=msgspec.structs.replace(p.metadata, deletion_timestamp="now")
                )
            case "end":
                self.now = msgspec.structs.replace(p, status=PodStatus(phase="Failed"))
            case "vanish":
                self.now = None


@given(
    st.lists(
        st.sampled_from(["bind", "elsewhere", "fence", "fence", "delete", "end", "vanish"]),
        max_size=6,
    ),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_free_stays_free_and_void_never_becomes_held(
    history: list[str], number: int, gpu: int
) -> None:
    life, final = Life(), None
    for what in ["", *history]:
        life.go(what)
        state = judge(lease(number, gpu), Holder(life.now, live=True))
        if final is LeaseState.FREE:
            assert state is LeaseState.FREE
        # A pod that was bound since with this very id has it by a lease of its later number, which
        # cannot be this one.
        if final is LeaseState.VOID and state is LeaseState.HELD:
            assert life.now is not None
            assert life.now.number > number
        if state in {LeaseState.FREE, LeaseState.VOID} and final is not LeaseState.FREE:
            final = state


def test_an_observer_counts_from_when_it_first_saw_the_value() -> None:
    seen = FirstSeen()
    assert seen.note("lease", ("uid", "10:00"), 100.0) == 0.0
    assert seen.note("lease", ("uid", "10:00"), 130.0) == 30.0
    assert seen.note("lease", ("uid", "10:07"), 150.0) == 0.0
    seen.forget("lease")
    assert seen.note("lease", ("uid", "10:07"), 160.0) == 0.0, "it is the first again"


@given(
    st.text(alphabet="abc0-.", min_size=1, max_size=260),
    st.text(alphabet="abc0-.", min_size=1, max_size=260),
    st.integers(0, names.MOST_ID),
    st.integers(0, names.MOST_ID),
)
def test_two_gpus_never_share_a_lease_name_and_none_is_too_long(
    one: str, other: str, a: int, b: int
) -> None:
    assert (names.lease_name(one, a) == names.lease_name(other, b)) == ((one, a) == (other, b))
    assert len(names.lease_name(one, a)) <= 253
    split = names.split_lease_name(names.lease_name(one, a))
    assert split is not None
    assert split[1] == a
    if len(one) < 240:
        assert split[0] == one


@given(st.text(max_size=300))
def test_any_text_is_a_lease_name_or_none(text: str) -> None:
    found = names.split_lease_name(text)
    assert found is None or f"gpu-{found[0]}-{found[1]}" == text


def test_a_node_named_like_a_hash_is_hashed_too() -> None:
    long = "n" * 250
    digest = names.lease_name(long, 0).removeprefix("gpu-").removesuffix("-0")
    assert names.lease_name(digest, 0) != names.lease_name(long, 0)


def test_the_lock_of_an_earlier_release_is_read() -> None:
    golden = (Path(__file__).parent / "golden/v1/lease.json").read_bytes()
    lease = msgspec.json.decode(golden, type=Lease)
    assert lease.ours
    assert (lease.holder, lease.pod, lease.number) == ("uid-a", ("training", "a"), 2)
    assert (lease.gpu, lease.uuid) == (("node-a", 3), "GPU-3")
