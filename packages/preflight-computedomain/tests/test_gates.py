from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain.config import IGNORED, KNOWN, Gates, GatesInvalid, read_gates


def problems(text: str, **more: str) -> tuple[str, ...]:
    with pytest.raises(GatesInvalid) as caught:
        read_gates(text, **more)
    return caught.value.problems


def test_nothing_given_is_off_and_forces_nothing() -> None:
    assert read_gates("") == Gates(
        host_managed=False, dns_names=True, cliques=True, crash_on_fabric_errors=True
    )


def test_host_managed_forces_two_gates_and_says_so() -> None:
    gates = read_gates(" HostManagedIMEX=true , ")
    assert (gates.host_managed, gates.dns_names, gates.cliques) == (True, False, False)
    assert len(gates.notes) == 2


def test_a_mode_that_contradicts_the_gate_is_told_to_have_no_effect() -> None:
    gates = read_gates("HostManagedIMEX=true", mode="driverManaged")
    assert gates.host_managed
    assert "IMEX_MODE driverManaged has no effect, because IMEX is host-managed." in gates.notes


def test_forcing_is_silent_about_what_is_false_already() -> None:
    assert (
        read_gates(
            "HostManagedIMEX=true,IMEXDaemonsWithDNSNames=false,ComputeDomainCliques=false"
        ).notes
        == ()
    )


def test_gates_are_forced_before_they_are_judged() -> None:
    wrong = "ComputeDomainCliques=true,IMEXDaemonsWithDNSNames=false"
    assert read_gates(f"HostManagedIMEX=true,{wrong}").host_managed
    assert problems(wrong) == (
        "feature gate ComputeDomainCliques requires IMEXDaemonsWithDNSNames to also be enabled",
    )


def test_the_alias_needs_gate_and_mode() -> None:
    assert read_gates("HostManagedIMEXDaemon=true", mode="hostManaged").host_managed
    assert not read_gates("HostManagedIMEXDaemon=true").host_managed
    assert not read_gates("HostManagedIMEXDaemon=true", mode="driverManaged").host_managed
    assert "HostManagedIMEX" in problems("", mode="hostManaged")[0]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"mode": "mine"}, "'mine'"),
        ({"isolation": "channel"}, "channel"),
        ({"isolation": "pod"}, "'pod'"),
    ],
)
def test_a_mode_or_isolation_that_is_not_there_is_refused(more: dict[str, str], word: str) -> None:
    assert word in problems("HostManagedIMEX=true", **more)[0]


def test_every_problem_is_told_at_once() -> None:
    found = problems("HostManagedIMEX=yes,Host=true,Crash", mode="mine")
    assert len(found) == 5
    assert "'yes'" in found[0]
    assert "'Host'" in found[1]
    assert all(name in found[1] for name in KNOWN)


def test_a_gate_given_both_ways_is_refused() -> None:
    assert "as true and as false" in problems("HostManagedIMEX=true,HostManagedIMEX=false")[0]


def test_gates_of_the_other_driver_are_ignored_with_a_line_each() -> None:
    gates = read_gates(",".join(f"{name}=true" for name in sorted(IGNORED)))
    assert len(gates.notes) == len(IGNORED)


@given(st.text())
def test_no_text_ends_in_another_error(text: str) -> None:
    try:
        read_gates(text, mode=text[:3], isolation=text[3:])
    except GatesInvalid as error:
        assert error.problems
        assert all("\n" not in problem for problem in error.problems)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), st.booleans()))
def test_host_managed_never_leaves_the_two_gates_on(chosen: dict[str, bool]) -> None:
    text = ",".join(
        f"{name}={str(on).lower()}" for name, on in {**chosen, "HostManagedIMEX": True}.items()
    )
    gates = read_gates(text)
    assert (gates.dns_names, gates.cliques) == (False, False)
    assert gates.crash_on_fabric_errors == chosen.get("CrashOnNVLinkFabricErrors", True)
