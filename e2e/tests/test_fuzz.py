"""The fuzzer's own parts, without a cluster: what it sends is what it says, and the same seed sends
the same.
"""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Self

import pytest
from preflight_e2e.fuzz import vectors
from preflight_e2e.fuzz.__main__ import main
from preflight_e2e.fuzz.objects import Maker
from preflight_e2e.fuzz.oddities import VECTORS
from preflight_e2e.fuzz.shots import Shot, deep, fields, nested
from preflight_e2e.fuzz.watch import WatchedProperty


@pytest.mark.component  # computes for a second
@pytest.mark.parametrize("name", VECTORS)
def test_every_known_attack_makes_requests_that_can_be_sent_and_saved(name: str) -> None:
    shots = [shot for shot, _ in zip(VECTORS[name](0.01), range(3), strict=False)]
    assert shots
    for shot in shots:
        assert shot.path.startswith(("/api/", "/apis/"))
        json.dumps(shot.saved())
        shot.encoded()


def test_depth_that_python_cannot_encode_is_sent_as_it_is_meant() -> None:
    sent = Shot("x", "POST", "/", {"a": deep(5_000), "b": fields(3), "c": nested(2)}).encoded()
    assert sent is not None
    assert sent.startswith(b'{"a": ' + b"[" * 5_000 + b"]" * 5_000)
    assert sent.endswith(
        b'"b": {"f:a":{"f:a":{"f:a":{}}}, "c": "[[]]"}'.replace(b"{}}}", b"{}}}}", 1)
    )


def test_the_same_seed_tells_the_same_stories_and_another_tells_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2026, 11, 29, tzinfo=tz)

    monkeypatch.setattr(vectors, "datetime", Stopped)  # results have times, to the second

    def told(seed: int) -> list[bytes | None]:
        maker = Maker(seed)
        return [shot.encoded() for _ in range(50) for shot in maker.story()]

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_stories_are_about_every_kind_of_object() -> None:
    maker = Maker(1)
    wanted = {
        *("pod", "status", "ConfigMap", "PodGroup", "JobSet", "PreflightConfig"),
        *("ResourceClaim", "ResourceClaimTemplate", "Namespace"),
    }
    for _ in range(300):
        wanted -= {shot.what for shot in maker.story()}
        if not wanted:
            break
    assert not wanted


def test_a_property_holds_up_to_its_limit_and_not_beyond() -> None:
    assert WatchedProperty("x", "s", 2, [0.1, 2.0]).held
    assert not WatchedProperty("x", "s", 2, [0.1, 2.1]).held


def test_without_binaries_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    assert main(["--save", str(tmp_path)]) == 2
    assert "KUBEBUILDER_ASSETS is not set" in capsys.readouterr().err


def test_a_program_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert main(["--webhook", "no-such-program", "--save", str(tmp_path)]) == 2
    assert "no-such-program is not a program here" in capsys.readouterr().err
