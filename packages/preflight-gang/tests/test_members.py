"""Pods come, change and go; what is known of gangs follows."""

from __future__ import annotations

import msgspec
import pytest
from gangs import injected, stamp
from preflight_gang.api.types import Pod
from preflight_gang.core.gangs import Gangs
from preflight_proto import names
from preflight_proto.stamp import ContractError, configmap_name, encode_stamp

NAMESPACE = "training"
ONE, OTHER = (NAMESPACE, "labels:one"), (NAMESPACE, "labels:other")
CONFIG_MAP = configmap_name(NAMESPACE, "one", "labels")


def pod(uid: str, gang: str = "one", **annotations: str) -> Pod:
    body = injected(uid, stamp(gang, namespace=NAMESPACE), NAMESPACE, roster=None)
    body["metadata"]["annotations"] |= annotations
    return msgspec.convert({"metadata": {"uid": uid, **body["metadata"]}}, Pod)


@pytest.fixture
def ignored() -> list[str]:
    return []


@pytest.fixture
def members(ignored: list[str]) -> Gangs:
    def hear(uid: str, error: ContractError) -> None:
        ignored.append(f"{uid}: {error}")

    return Gangs(hear)


def test_a_gang_is_there_from_its_first_member_to_its_last(members: Gangs) -> None:
    assert members.place(pod("a"), gone=False) == (None, ONE)
    assert members.place(pod("b"), gone=False) == (None, ONE)
    assert [one.uid for one in members.members(ONE)] == ["a", "b"]
    assert members.at((NAMESPACE, CONFIG_MAP)) == [ONE]
    assert members.place(pod("a"), gone=True) == (ONE, None)
    assert members.place(pod("b"), gone=True) == (ONE, None)
    assert (list(members), list(members.members(ONE)), members.at((NAMESPACE, CONFIG_MAP))) == (
        [],
        [],
        [],
    )


def test_a_pod_is_a_member_of_the_gang_that_it_is_stamped_for_now(members: Gangs) -> None:
    plain = msgspec.convert({"metadata": {"name": "p", "namespace": NAMESPACE, "uid": "p"}}, Pod)
    assert members.place(plain, gone=False) == (None, None)
    members.place(pod("a"), gone=False)
    assert members.place(pod("a", "other"), gone=False) == (ONE, OTHER)
    assert list(members) == [OTHER]


OWN = stamp("one", namespace=NAMESPACE)


@pytest.mark.parametrize(
    "forged",
    [
        encode_stamp(msgspec.structs.replace(OWN, config_map=f"{OWN.config_map}x")),
        encode_stamp(stamp("other", namespace=NAMESPACE)),  # the label does not follow from it
        encode_stamp(msgspec.structs.replace(OWN, v=9)),
        "no JSON",
    ],
    ids=["another record", "another id", "a higher version", "no JSON"],
)
def test_a_stamp_that_does_not_follow_from_the_pod_makes_no_member(
    forged: str, members: Gangs, ignored: list[str]
) -> None:
    assert members.place(pod("a", **{names.GANG_ANNOTATION: forged}), gone=False) == (None, None)
    assert len(ignored) == 1


def test_a_stamp_that_cannot_be_believed_is_said_once_until_its_pod_goes(
    members: Gangs, ignored: list[str]
) -> None:
    forged = pod("a", **{names.GANG_ANNOTATION: "{"})
    for _ in range(2):
        assert members.place(forged, gone=False) == (None, None)
    assert len(ignored) == 1
    members.place(forged, gone=True)
    members.place(forged, gone=False)
    assert len(ignored) == 2


def test_a_member_that_goes_untested_is_no_departed_one(members: Gangs) -> None:
    members.place(pod("a"), gone=False)
    members.place(pod("b"), gone=False)
    members.place(pod("a"), gone=True)
    assert (state := members.get(ONE)) is not None
    assert not state.departed
