"""Files that people give to its commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_gpu_scheduler.cli import _parser, main
from preflight_testing.attacks import reading, refuses_bomb


@pytest.mark.parametrize("arguments", reading(_parser(), "bomb"), ids=" ".join)
def test_every_command_refuses_a_file_that_stands_for_more_than_it_holds(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuses_bomb(main, arguments, tmp_path, monkeypatch, capsys)
