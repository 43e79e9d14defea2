from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from claimed import CLIQUE, DOMAIN, NODE, ref, uid
from msgspec import Raw
from msgspec.structs import replace
from preflight_computedomain.api.checkpoint import (
    ABORTED,
    COMPLETED,
    STARTED,
    Channel,
    Entry,
    completed,
)
from preflight_computedomain.core.claims import ChannelRequest, Refusal, decide, known

NOW = datetime(2026, 5, 1, tzinfo=UTC)
REQUEST = ChannelRequest(ref(1), "channel", DOMAIN, b'{"a":1}')


def entry(state: str, number: int = 1) -> Entry:
    entry = Entry(state, Raw(b'{ "a": 1 }'), name=f"claim-{number}", namespace="team-a")
    if state == COMPLETED:
        entry = replace(entry, devices=completed(("channel",), NODE, uid(number), DOMAIN))
    return entry


def aborted(seconds: float) -> Entry:
    return replace(entry(ABORTED), aborted_at=NOW - timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("own", "other", "domains", "clique", "expected"),
    [
        (None, None, {DOMAIN}, CLIQUE, "prepare"),
        (entry(STARTED), None, {DOMAIN}, CLIQUE, "prepare"),
        (entry(COMPLETED), None, {DOMAIN}, CLIQUE, "done"),
        (entry(COMPLETED), None, set(), "", "done"),
        (None, None, set(), "", "no-domain"),
        (None, entry(COMPLETED, 2), set(), CLIQUE, "no-domain"),
        (None, entry(COMPLETED, 2), {DOMAIN}, "", "no-clique"),
        (None, entry(COMPLETED, 2), {DOMAIN}, CLIQUE, "channel-in-use"),
        (entry(STARTED), entry(COMPLETED, 2), {DOMAIN}, CLIQUE, "channel-in-use"),
        (None, entry(STARTED, 2), {DOMAIN}, CLIQUE, "prepare"),
        (None, entry(ABORTED, 2), {DOMAIN}, CLIQUE, "prepare"),
        (aborted(89), None, {DOMAIN}, CLIQUE, "aborted"),
        (aborted(90), None, {DOMAIN}, CLIQUE, "prepare"),
        (aborted(-1), None, {DOMAIN}, CLIQUE, "prepare"),
        (replace(aborted(1), status=Raw(b"{}")), None, {DOMAIN}, CLIQUE, "prepare"),
    ],
)
def test_what_is_done(
    own: Entry | None, other: Entry | None, domains: set[str], clique: str, expected: str
) -> None:
    entries = {key: one for key, one in ((uid(1), own), (uid(2), other)) if one is not None}
    said = decide(REQUEST, domains, clique, entries, NOW)
    shown = (
        said.reason
        if isinstance(said, Refusal)
        else "done"
        if isinstance(said, Channel)
        else "prepare"
    )
    assert shown == expected
    if isinstance(said, Refusal):
        assert said.permanent == (expected != "channel-in-use")


def test_who_has_the_channel_is_named() -> None:
    said = decide(REQUEST, {DOMAIN}, CLIQUE, {uid(2): entry(COMPLETED, 2)}, NOW)
    assert isinstance(said, Refusal)
    assert "team-a/claim-2" in said.sentence
    assert uid(2) in said.sentence


def test_a_prepared_daemon_of_the_other_mode_is_neither_given_nor_in_the_way() -> None:
    daemon = Entry(COMPLETED, devices=Raw(b'[{"devices":[{"channel":null,"daemon":{}}]}]'))
    assert isinstance(known({uid(1): daemon}, ref(1)), Refusal)
    assert decide(REQUEST, {DOMAIN}, CLIQUE, {uid(2): daemon}, NOW) is None


def test_a_channel_that_the_other_mode_gave_without_a_device_is_not_called_a_daemons() -> None:
    device = b'{"channel":{"info":{"id":0},"device":{"CDIDeviceIDs":[]}},"daemon":null}'
    other = Entry(COMPLETED, devices=Raw(b'[{"devices":[' + device + b"]}]"))
    said = known({uid(1): other}, ref(1))
    assert isinstance(said, Refusal)
    assert "without a channel" in said.sentence
    assert "daemon claims" not in said.sentence
