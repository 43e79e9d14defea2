"""What a real engine's dcgmi printed, judged again: `real/VERSION/ID.json` are recordings of
NVIDIA's own programs (`test_real_engine.py` makes them), and `real/rows.toml` says what was wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check_dcgm.catalogue import HARDWARE, known
from preflight_proto.check.testing import FakeConnector
from realdcgm import ERRORS, REAL, ROWS, played, replay, uuid

BY_ID = {row["id"]: row for row in ROWS}
ONCE = {("3.3.1", 86): 13, ("3.3.1", 87): 13}
"""Categories that an older version gave: another part of the hardware, the same verdict."""
RECORDINGS = sorted(REAL.glob("*/*.json"))


def test_there_are_at_least_25_recordings_and_each_is_of_a_row() -> None:
    assert len(RECORDINGS) >= 25
    assert {recording.stem for recording in RECORDINGS} <= set(BY_ID)


@pytest.mark.parametrize(
    "recording", RECORDINGS, ids=[f"{r.parent.name}-{r.stem}" for r in RECORDINGS]
)
def test_what_a_real_engine_said_is_judged_as_what_was_wrong_with_its_node(
    recording: Path, tmp_path: Path
) -> None:
    row = played(BY_ID[recording.stem], recording.parent.name)
    with FakeConnector(tmp_path / "connector.sock") as connector:
        ran = replay(recording, row, tmp_path, connector)
    assert (ran.result.outcome, ran.result.code) == (row["outcome"], row["code"]), ran.lines
    assert row.get("reason", "") in ran.lines[-1]
    assert ran.result.subject == (uuid(row["subject"]) if row.get("subject", -1) >= 0 else "")
    sick = {code for event in connector.events if not event.is_healthy for code in event.error_code}
    assert set(row.get("events", [])) <= sick


def test_a_recording_is_of_one_version_and_says_which() -> None:
    for recording in RECORDINGS:
        about = json.loads(recording.read_text())
        assert (about["v"], about["check"]) == (1, "dcgm-diag")
        assert about["dcgm"] == recording.parent.name


@pytest.mark.parametrize(
    "recorded", sorted(REAL.glob(f"*/{ERRORS}")), ids=lambda path: path.parent.name
)
def test_the_table_of_errors_has_every_id_as_the_library_says_it(recorded: Path) -> None:
    said = [tuple(map(int, line.split("\t"))) for line in recorded.read_text().splitlines()]
    assert len(said) > 100
    table = known()
    version = recorded.parent.name
    differ = [
        (number, severity, category)
        for number, severity, category in said
        if number not in table
        or category != ONCE.get((version, number), table[number].category)
        or severity not in {table[number].severity, *table[number].severity_once}
    ]
    assert differ == []
    assert {*ONCE.values(), *(table[number].category for _, number in ONCE)} <= HARDWARE
