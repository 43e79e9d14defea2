"""Whole gangs: real processes, real torchrun, gloo over loopback."""

from __future__ import annotations

from gangs import Gang, needs_torch

pytestmark = needs_torch


def test_two_members_pass_together(gang: Gang) -> None:
    gang.start(0, 1)
    gang.seal()
    ends = gang.all_ended()
    assert [(end.exit_code, end.result.outcome, end.result.code) for end in ends] == [(0, "passed", "OK")] * 2
    assert ends[0].result.measured == ends[1].result.measured
    assert ends[0].result.reason == ends[1].result.reason
