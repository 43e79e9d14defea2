from __future__ import annotations

import json
import string
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from preflight_computedomain.api.checkpoint import (
    ABORTED,
    COMPLETED,
    STARTED,
    Channel,
    Checkpoint,
    Corrupt,
    Entry,
    checksum,
    completed,
    decode,
    encode,
)

STATUS = Raw(b'{"allocation":{"devices":{"results":[{"checksum":17,"x":"<&>"}]}}}')


def whole() -> Checkpoint:
    devices = completed(("channel",), "node-1", "u-1", "d-1")
    return Checkpoint(
        {
            "u-1": Entry(COMPLETED, STATUS, devices, "one", "team-a"),
            "u-2": Entry(STARTED, STATUS, name="two", namespace="team-a"),
        },
        "boot-1",
    )


def signed(v1: str = "", v2: str = "") -> bytes:
    """A file with right checksums around text of somebody else's. ``v2`` has N where its checksum
    stands.
    """
    parts = []
    if v1:
        parts.append(f'"v1":{v1}')
    older = checksum(("{" + ",".join(['"checksum":0', *parts]) + "}").encode())
    if v2:
        parts.append('"v2":' + v2.replace(":N", f":{checksum(v2.replace(':N', ':0').encode())}"))
    return ("{" + ",".join([f'"checksum":{older}', *parts]) + "}").encode()


def test_the_checksum_is_the_kubelets() -> None:
    assert checksum(b"ab") == 72496377
    assert checksum(b'{"a":1}') == 1187653614


def test_a_written_file_is_this_byte_for_byte() -> None:
    devices = (
        '[{"devices":[{"channel":{"info":{"id":0},"device":{"Requests":["channel"],"PoolName":"node-1","DeviceName":"channel-0",'
        '"CDIDeviceIDs":["k8s.compute-domain.nvidia.com/claim=u-1-channel-0"]}},"daemon":null}],'
        '"configState":{"Type":"channel","ComputeDomain":"d-1"}}]'
    )
    status = bytes(STATUS).decode()
    v1 = f'{{"preparedClaims":{{"u-1":{{"status":{status},"preparedDevices":{devices}}}}}}}'
    v2 = (
        f'{{"checksum":N,"preparedClaims":{{"u-1":{{"checkpointState":"PrepareCompleted","status":{status},"preparedDevices":{devices},'
        f'"name":"one","namespace":"team-a"}},"u-2":{{"checkpointState":"PrepareStarted","status":{status},"name":"two",'
        f'"namespace":"team-a"}}}},"nodeBootID":"boot-1"}}'
    )
    assert encode(whole()) == signed(v1, v2)


def test_an_empty_file_has_both_versions() -> None:
    assert encode(Checkpoint()) == b'{"checksum":1083090442,"v1":{},"v2":{"checksum":4166374854}}'


def test_what_was_written_is_read() -> None:
    assert decode(encode(whole())) == whole()
    read = decode(encode(whole())).claims["u-1"]
    assert read.channel("u-1") == Channel(("channel",), "node-1")


TEXT = st.text(string.printable + "äß✓", max_size=8)


@given(
    st.dictionaries(
        TEXT,
        st.builds(
            Entry,
            st.sampled_from([STARTED, COMPLETED, ABORTED]),
            st.dictionaries(TEXT, TEXT, max_size=2).map(
                lambda one: Raw(json.dumps(one, indent=1).replace("\n", " ").encode())
            ),
            st.sampled_from([Entry().devices, Raw(b"[]"), Raw(b'[{"x":1}]')]),
            TEXT,
            TEXT,
            st.none()
            | st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(
                lambda at: at.replace(microsecond=0, tzinfo=UTC)
            ),
        ),
        max_size=3,
    ),
    TEXT,
)
def test_every_checkpoint_comes_back_as_it_was(claims: dict[str, Entry], boot: str) -> None:
    assert decode(encode(Checkpoint(claims, boot))) == Checkpoint(claims, boot)


def test_what_others_wrote_is_written_as_one_line_and_with_a_status() -> None:
    claims = '"a":{{"checkpointState":"PrepareStarted","status":{{{}"z":{}[1, 2]}}}},"b":{{"checkpointState":"PrepareStarted"{}}}'
    v2 = '{{"checksum":N,"preparedClaims":{{{}}}}}'
    read = decode(signed("{}", v2.format(claims.format("\n", "\r\n", ""))))
    assert encode(read) == signed("{}", v2.format(claims.format(" ", "  ", ',"status":{}')))


def test_a_claim_without_a_state_is_prepared_in_version_1_alone() -> None:
    devices = bytes(completed(("channel",), "node-1", "u", "d")).decode()
    v1 = f'{{"preparedClaims":{{"u":{{"preparedDevices":{devices}}}}}}}'
    assert decode(signed(v1)).claims["u"].channel("u") == Channel(("channel",), "node-1")
    v2 = f'{{"checksum":N,"preparedClaims":{{"u":{{"checkpointState":"","preparedDevices":{devices}}}}}}}'
    assert decode(signed(v1, v2)).claims["u"].channel("u") is None


@given(st.data())
def test_a_flipped_byte_is_found_or_changes_no_prepared_claim(data: st.DataObject) -> None:
    good = encode(whole())
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    try:
        read = decode(bytes(bad))
    except Corrupt:
        return
    # The names of the two versions are under no checksum; the one that is left says the same of
    # what is prepared.
    assert {uid for uid, one in read.claims.items() if one.state == COMPLETED} == {"u-1"}
    assert read.claims["u-1"].devices == whole().claims["u-1"].devices


@given(st.integers(0, len(encode(whole())) - 1))
def test_a_file_that_is_cut_is_found(length: int) -> None:
    with pytest.raises(Corrupt):
        decode(encode(whole())[:length])


@given(st.binary())
def test_no_bytes_end_in_another_error(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(data)


def test_an_aborted_claim_has_its_time() -> None:
    v2 = (
        '{"checksum":N,"preparedClaims":{"u":{"checkpointState":"PrepareAborted","status":{},"name":"n","namespace":"s",'
        '"abortedAt":"2026-05-01T12:00:00Z"}}}'
    )
    entry = decode(signed("{}", v2)).claims["u"]
    assert (entry.state, entry.aborted_at) == (ABORTED, datetime(2026, 5, 1, 12, tzinfo=UTC))


def test_devices_of_the_other_mode_are_kept_and_are_no_channel() -> None:
    daemon = '[{"devices":[{"channel":null,"daemon":{"info":{"id":0},"device":null}}],"configState":{"Type":"daemon"}}]'
    v2 = f'{{"checksum":N,"preparedClaims":{{"u":{{"checkpointState":"PrepareCompleted","status":{{}},"preparedDevices":{daemon}}}}}}}'
    read = decode(signed("{}", v2))
    assert read.claims["u"].channel("u") is None
    assert decode(encode(read)).claims["u"].devices == Raw(daemon.encode())
