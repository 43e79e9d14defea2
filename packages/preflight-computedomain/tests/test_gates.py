from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain.config import IGNORED, KNOWN, OFF, GatesInvalid, read_gates


def problems(text: str, **more: str) -> tuple[str, ...]:
    with pytest.raises(GatesInvalid) as caught:
        read_gates(text, **more)
    return caught.value.problems


def test_nothing_given_is_off() -> None:
    assert problems("") == (OFF,)


def test_host_managed_forces_two_gates_and_says_so() -> None:
    assert read_gates(" HostManagedIMEX=true , ").notes == tuple(
        f"Feature gate {name} is forced to false, because IMEX is host-managed."
        for name in ("IMEXDaemonsWithDNSNames", "ComputeDomainCliques")
    )


def test_a_mode_that_contradicts_the_gate_is_told_to_have_no_effect() -> None:
    gates = read_gates("HostManagedIMEX=true", mode="driverManaged")
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
    assert read_gates(f"HostManagedIMEX=true,{wrong}").notes
    assert problems(wrong) == (
        "feature gate ComputeDomainCliques requires IMEXDaemonsWithDNSNames to also be enabled",
    )


def test_the_alias_needs_gate_and_mode() -> None:
    assert read_gates("HostManagedIMEXDaemon=true", mode="hostManaged").notes
    for mode in ("", "driverManaged"):
        assert problems("HostManagedIMEXDaemon=true", mode=mode) == (OFF,)
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
    gates = read_gates(",".join(f"{name}=true" for name in ("HostManagedIMEX", *IGNORED)))
    assert sum("means nothing" in note for note in gates.notes) == len(IGNORED)


@given(st.text())
def test_no_text_ends_in_another_error(text: str) -> None:
    try:
        read_gates(text, mode=text[:3], isolation=text[3:])
    except GatesInvalid as error:
        assert error.problems
        assert all("\n" not in problem for problem in error.problems)


@pytest.mark.parametrize("on", [True, False])
def test_a_broken_fabric_ends_the_plugin_unless_its_gate_is_off(on: bool) -> None:
    text = f"HostManagedIMEX=true,CrashOnNVLinkFabricErrors={str(on).lower()}"
    assert read_gates(text).crash_on_fabric_errors == on
    assert read_gates("HostManagedIMEX=true").crash_on_fabric_errors
