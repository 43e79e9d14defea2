from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain.core.facts import (
    COMPLETED,
    FabricBroken,
    FabricInfo,
    Unfit,
    boot_id,
    clique,
    driver_fits,
    imex_major,
    node_name,
)

DEVICES = """Character devices:
  1 mem
195 nvidia
235 nvidia-caps-imex-channels
236 nvidia-caps-imex-channels-other

Block devices:
259 nvidia-caps-imex-channels
"""
CLUSTER = bytes(range(16))


def test_the_major_is_of_the_character_device_with_the_exact_name() -> None:
    assert imex_major(DEVICES) == 235


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "NVreg_CreateImexChannel0=1"),
        ("Block devices:\n259 nvidia-caps-imex-channels\n", "load the NVIDIA driver"),
        ("235 nvidia-caps-imex-channels\n", "no character device"),
        (DEVICES.replace("195 nvidia\n", "240 nvidia-caps-imex-channels\n"), "2 times (240, 235)"),
        (DEVICES.replace("235", "many"), "'many'"),
        (DEVICES.replace("235", "0"), "'0'"),
        (DEVICES.replace("235", "4096"), "'4096'"),
    ],
)
def test_a_major_that_is_absent_twice_or_no_number_is_refused(text: str, word: str) -> None:
    with pytest.raises(Unfit) as caught:
        imex_major(text, "/there")
    assert word in str(caught.value)
    assert str(caught.value).startswith("/there: ")


@given(st.text())
def test_no_text_ends_in_another_error(text: str) -> None:
    for judge in (imex_major, boot_id, node_name, driver_fits):
        try:
            judge(text)
        except Unfit as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "version", ["570.158.01", "570.158.1", "570.172.08", "580.65.06", "1000.0"]
)
def test_a_driver_of_570_158_01_or_newer_fits(version: str) -> None:
    assert re.fullmatch(r"([1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}", driver_fits(version))


@pytest.mark.parametrize(
    "version", ["570.124.06", "570.158", "535.261.03", "", "new", "570.158.x", "٥٧٠.158.01"]
)
def test_an_older_driver_does_not(version: str) -> None:
    with pytest.raises(Unfit, match=r"570\.158\.01"):
        driver_fits(version)


def gpu(
    name: str = "GPU-1",
    state: int = COMPLETED,
    status: int = 0,
    cluster: bytes = CLUSTER,
    ident: int = 7,
) -> FabricInfo:
    return FabricInfo(name, state, status, cluster, ident)


def test_the_clique_is_cluster_and_id() -> None:
    assert clique([gpu(), gpu("GPU-2")]) == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"


@pytest.mark.parametrize(
    "gpus",
    [
        [],
        [FabricInfo("GPU-1")],
        [gpu(cluster=bytes(16))],
        [FabricInfo("a"), gpu(cluster=bytes(16))],
    ],
)
def test_a_node_without_a_fabric_has_no_clique(gpus: list[FabricInfo]) -> None:
    assert clique(gpus) == ""


@pytest.mark.parametrize(
    "bad", [gpu(state=1), gpu(state=2), gpu(status=9), gpu(state=2, cluster=bytes(16))]
)
def test_a_registration_that_has_not_succeeded_refuses_to_start_unless_the_gate_is_off(
    bad: FabricInfo,
) -> None:
    with pytest.raises(FabricBroken, match="refusing to start"):
        clique([gpu("GPU-2"), bad])
    assert clique([bad], crash=False) == ""
    assert clique([gpu("GPU-2"), bad], crash=False).endswith(".7")


@pytest.mark.parametrize("other", [gpu("GPU-2", ident=8), gpu("GPU-2", cluster=bytes(15) + b"x")])
@pytest.mark.parametrize("crash", [True, False])
def test_two_cliques_on_one_node_are_always_refused(other: FabricInfo, crash: bool) -> None:
    with pytest.raises(
        FabricBroken, match=r"2 NVLink cliques.*GPU-1.*GPU-2|2 NVLink cliques.*GPU-2.*GPU-1"
    ):
        clique([gpu(), other], crash=crash)


@given(
    st.lists(
        st.builds(
            gpu,
            st.just("GPU"),
            st.integers(0, 4),
            st.integers(0, 2),
            st.sampled_from([CLUSTER, bytes(16), b"short"]),
            st.integers(0, 1),
        )
    ),
    st.booleans(),
)
def test_whatever_nvml_says_ends_in_a_clique_none_or_one_sentence(
    gpus: list[FabricInfo], crash: bool
) -> None:
    try:
        assert clique(gpus, crash=crash) in (
            "",
            *(f"00010203-0405-0607-0809-0a0b0c0d0e0f.{i}" for i in (0, 1)),
        )
    except FabricBroken as error:
        assert "\n" not in str(error)
