"""Records that are kept and unpacked within bounds, whoever has written the ConfigMaps."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from gangs import NS, a_member, gang
from gangs import record as a_record
from hostile import DEEP, gang_map, giant_record
from preflight_gang.api.types import ConfigMap
from preflight_gang.core.plan import config_map, record_of
from preflight_gang.core.records import LeftOut, NotYet, Records


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def found(body: dict[str, Any], version: int = 1) -> ConfigMap:
    about = {"namespace": NS, "uid": "u", "resourceVersion": str(version)} | body["metadata"]
    return msgspec.convert(body | {"metadata": about}, ConfigMap)


def place(one: ConfigMap) -> tuple[str, str]:
    return one.metadata.namespace, one.metadata.name


def a_gang(version: int = 1) -> ConfigMap:
    return found(config_map(gang(), a_record(a_member("a", ip="10.0.0.1")), ""), version)


def test_of_a_config_map_that_is_no_gangs_by_its_name_nothing_is_kept() -> None:
    for name in ("x", "preflight-other"):
        one = found(gang_map(NS, "job-1", name=name, data={"members": "x" * 1000}))
        assert (one.data, one.gang) == ({}, None)


def test_of_a_gangs_config_map_only_the_record_is_kept() -> None:
    assert set(a_gang().data) == {"generation", "members"}


def test_a_record_is_unpacked_once_a_version() -> None:
    records = Records(Hands())
    records.keep(a_gang())
    first = records.record(place(a_gang()))
    assert first is not None
    records.keep(a_gang())
    assert records.record(place(a_gang())) == first
    records.keep(found(gang_map(NS, "job-1", data={"members": "{"}), 2))
    assert records.record(place(a_gang())) is None


def test_an_older_version_does_not_replace_a_newer_one() -> None:
    records = Records(Hands())
    records.keep(a_gang(2))
    records.keep(found(gang_map(NS, "job-1", data={"members": "{"}), 1))
    assert records.record(place(a_gang())) is not None


@pytest.mark.parametrize("members", [DEEP, "[" * 100_000, "9" * 10_000, '{"v":1}', "null"])
def test_whatever_a_record_holds_it_is_read_as_none(members: str) -> None:
    assert (
        record_of(found(gang_map(NS, "job-1", data={"generation": "9" * 9999, "members": members})))
        is None
    )


def test_a_record_of_64_mib_is_not_unpacked_further_than_its_bytes_can_mean() -> None:
    one = found(giant_record(NS, "job-1"))
    tracemalloc.start()
    assert record_of(one) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32 << 20


def test_a_large_one_that_changes_all_the_time_is_looked_at_now_and_then() -> None:
    clock = Hands()
    records = Records(clock)
    body = giant_record(NS, "job-1")
    records.keep(found(body))
    assert records.record((NS, "preflight-job-1.labels")) is None
    records.keep(found(body, 2))
    with pytest.raises(NotYet) as caught:
        records.record((NS, "preflight-job-1.labels"))
    assert 0 < caught.value.seconds < 5
    clock.now += caught.value.seconds
    assert records.record((NS, "preflight-job-1.labels")) is None


def test_a_namespace_that_is_full_holds_up_its_own_gangs_and_no_others() -> None:
    records = Records(Hands())
    for number in range(20):
        one = found(gang_map(NS, f"evil-{number}", data={"members": "x" * 1_000_000}))
        records.keep(one)
    with pytest.raises(LeftOut, match="more than 16 MiB together"):
        records.record((NS, "preflight-evil-19.labels"))
    other = found(config_map(gang(), a_record(a_member("a", ip="10.0.0.1")), "") | {})
    other = msgspec.structs.replace(
        other, metadata=msgspec.structs.replace(other.metadata, namespace="other")
    )
    records.keep(other)
    assert records.record(("other", "preflight-job-1.labels")) is not None
    for number in range(12):
        records.drop((NS, f"preflight-evil-{number}.labels"))
    assert (NS, "preflight-evil-19.labels") in records.left_out()


def test_one_that_cannot_be_read_is_not_asked_for_again_but_named_to_its_gang() -> None:
    records = Records(Hands())
    records.keep(a_gang())
    records.cannot_read((NS, "preflight-job-1.labels"), "it is nested too deeply")
    with pytest.raises(LeftOut, match="cannot be read"):
        records.record((NS, "preflight-job-1.labels"))
    assert list(records.left_out()) == []
    records.keep(a_gang(2))
    assert records.record((NS, "preflight-job-1.labels")) is not None
