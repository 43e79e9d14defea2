"""Lines of a log: what is in them, and that none is lost or out of order."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from preflight_kube import logs
from preflight_kube.logs import get_logger


class Written:
    """What was written, line by line."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._capfd.readouterr().out.splitlines()]

    def line(self) -> dict[str, Any]:
        [found] = self.lines()
        return found


@pytest.fixture
def written(capfd: pytest.CaptureFixture[str]) -> Iterator[Written]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.set_up("tests", "info")
    yield Written(capfd)
    root.handlers[:] = handlers
    root.setLevel(level)


log = get_logger("preflight_kube.tests")


def test_a_line_has_time_level_message_component_and_its_fields_in_that_order(
    written: Written,
) -> None:
    log.info("gang sealed", gang="llm", generation=3)
    line = written.line()
    assert list(line) == ["time", "level", "msg", "component", "gang", "generation"]
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert (line["level"], line["msg"], line["component"]) == ("info", "gang sealed", "tests")
    assert (line["gang"], line["generation"]) == ("llm", 3)


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_each_level_is_named(written: Written, level: str) -> None:
    getattr(log, level)("something")
    assert written.line()["level"] == level


def test_what_is_below_the_level_is_not_written_and_its_fields_are_not_looked_at(
    written: Written,
) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("nobody asked")

    quiet = get_logger("preflight_kube.tests.quiet")
    logging.getLogger("preflight_kube.tests.quiet").setLevel(logging.ERROR)
    quiet.info("something", field=Costly())
    assert not log.enabled("debug")
    assert log.enabled("info")
    assert written.lines() == []


def test_a_message_is_written_as_it_is_and_a_field_that_json_does_not_have_as_its_text(
    written: Written,
) -> None:
    log.info("100 %s of %(all)s", error=ValueError("bad"), where=complex(1, 2))
    line = written.line()
    assert (line["msg"], line["error"], line["where"]) == ("100 %s of %(all)s", "bad", "(1+2j)")


def test_an_exception_is_one_line_with_its_kind_and_its_innermost_frames(written: Written) -> None:
    try:
        raise ExceptionGroup("several", [KeyError("x")])
    except ExceptionGroup:
        log.exception("a fault", pod="p")
    line = written.line()
    assert (line["level"], line["pod"], line["error"]) == ("error", "p", "KeyError: 'x'")
    assert "at" in line


def test_lines_of_libraries_and_extra_fields_go_the_same_way(written: Written) -> None:
    logging.getLogger("some.library").warning("its %s", "words", extra={"about": {"field": 1}})
    line = written.line()
    assert (line["msg"], line["level"]) == ("its words", "warning")
    assert (line["component"], line["field"]) == ("tests", 1)


def test_a_fault_is_one_critical_line(written: Written) -> None:
    logs.fault("ended", RuntimeError("why"))
    line = written.line()
    assert (line["level"], line["error"]) == ("critical", "RuntimeError: why")


def test_lines_that_may_wait_are_written_together_and_before_the_next_ordinary_one(
    written: Written, capfd: pytest.CaptureFixture[str]
) -> None:
    async def many() -> None:
        logs.line("info", "one", {"n": 1})
        logs.line("info", "two", {"n": 2})
        assert capfd.readouterr().out == "", "they wait for others"
        log.info("three")

    asyncio.run(many())
    one, two, three = written.lines()
    assert (one["msg"], one["level"], one["component"]) == ("one", "info", "tests")
    assert (two["msg"], three["msg"]) == ("two", "three")


def test_a_line_of_a_part_and_its_own_fields_is_as_any_other(written: Written) -> None:
    common = logs.part("info", "reviewed", {"result": "injected"})
    logs.line_of(common, {"pod": "p"})
    line = written.line()
    assert list(line) == ["time", "level", "msg", "component", "result", "pod"]
    assert [line[key] for key in ("msg", "result", "pod")] == ["reviewed", "injected", "p"]


def test_lines_that_may_wait_do_not_wait_for_ever_nor_where_there_is_no_event_loop(
    written: Written,
) -> None:
    logs.line("info", "at once", {})
    assert written.line()["msg"] == "at once"

    async def later() -> list[dict[str, Any]]:
        logs.line("info", "soon", {})
        while not (found := written.lines()):
            await asyncio.sleep(0.005)
        return found

    assert [line["msg"] for line in asyncio.run(asyncio.wait_for(later(), 20))] == ["soon"]


def test_many_lines_that_may_wait_are_written_without_waiting(written: Written) -> None:
    async def many() -> None:
        for number in range(200):
            logs.line("info", "x" * 100, {"n": number})
        assert written.lines(), "more than a few kilobytes do not wait"
        logs.flush()

    asyncio.run(many())
