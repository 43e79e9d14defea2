"""A simulation that was stopped goes on where it was, and only with what the same
code has played.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from allreduce_testing.worlds import kept, simulation
from allreduce_testing.worlds.stages import StagedWorld
from allreduce_testing.worlds.tally import Tally

WORLD = StagedWorld("kept", gangs=120, nodes=(8, 8))


def figures(played: dict[str, Tally]) -> dict[str, object]:
    return played["kept"].figures()


def test_a_run_that_was_stopped_in_a_line_goes_on_and_has_the_figures_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kept.jsonl"
    whole = figures(simulation.simulate([WORLD], kept=kept.Kept.open(file)))
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 3
    file.write_text("\n".join([*lines[:2], lines[2][:40]]))
    again = kept.Kept.open(file)
    assert len(again.parts) == 1
    assert figures(simulation.simulate([WORLD], kept=again)) == whole
    assert len(file.read_text().splitlines()) == 1 + 3


def test_what_other_code_has_played_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text(json.dumps({"code": "another"}) + "\n")
    with pytest.raises(
        ValueError, match=r"kept.jsonl: was played by other code; remove it, or name another file\."
    ):
        kept.Kept.open(file)
