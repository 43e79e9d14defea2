from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check.settings import (
    SettingsError,
    duration,
    endpoints,
    gbps,
    one_of,
    read,
    setting,
    text,
    text_list,
    whole_number,
)


@dataclass(frozen=True)
class Settings:
    level: int = setting("LEVEL", whole_number(1, 4), default=1)
    address: str = setting("ADDRESS", text("host:port", "host:port"))
    floor: float | None = setting("FLOOR", gbps(), default=None)
    wait: float = setting("WAIT", duration(least=1), default=300.0)
    mode: str = setting("MODE", one_of("a", "b"), default="a")
    tools: tuple[str, ...] = setting("TOOLS", text_list(), default=("x",))

    def problems(self) -> list[str]:
        return (
            ["LEVEL and MODE: do not go together; change one."]
            if (self.level, self.mode) == (4, "b")
            else []
        )


def test_every_problem_is_told_at_once_with_what_was_found_and_what_to_set() -> None:
    with pytest.raises(SettingsError) as caught:
        read(
            Settings, {"LEVEL": "five", "FLOOR": "fast", "WAIT": "10", "MODE": "c", "TOOLS": "a,,b"}
        )
    assert caught.value.problems == [
        'LEVEL: "five" is not a whole number from 1 to 4; set 1, 2, 3 or 4, or remove it to use 1.',
        "ADDRESS: not set; set host:port.",
        'FLOOR: "fast" is not a number of GB/s; set e.g. 150, or remove it to use the built-in behaviour.',
        'WAIT: "10" is not a duration of at least 1s; set e.g. 300s, 10m or 1h30m, or remove it to use 5m.',
        'MODE: "c" is not a or b; set a or b, or remove it to use a.',
        'TOOLS: "a,,b" is not a list; set names separated by commas, or remove it to use x.',
    ]


def test_values_are_read_and_the_rest_defaults() -> None:
    assert read(Settings, {"LEVEL": "2", "ADDRESS": " a:1 ", "WAIT": "2m"}) == Settings(
        level=2, address="a:1", wait=120.0
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    assert read(Settings, {"LEVEL": "", "ADDRESS": "a:1"}).level == 1


def test_a_class_may_refuse_a_combination() -> None:
    with pytest.raises(SettingsError, match="do not go together"):
        read(Settings, {"LEVEL": "4", "MODE": "b", "ADDRESS": "a:1"})


@given(
    st.dictionaries(
        st.sampled_from(["LEVEL", "ADDRESS", "FLOOR", "WAIT", "MODE", "TOOLS"]), st.text()
    )
)
def test_any_environment_is_read_or_refused(environ: dict[str, str]) -> None:
    try:
        assert 1 <= read(Settings, environ).level <= 4
    except SettingsError as error:
        assert error.problems


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e999"])
def test_a_bandwidth_is_a_positive_finite_number(value: str) -> None:
    with pytest.raises(SettingsError, match="FLOOR"):
        read(Settings, {"ADDRESS": "a:1", "FLOOR": value})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("10.0.0.1:5555", "10.0.0.1:5555"),
        ("fd00::1:5555", "[fd00::1]:5555"),
        ("::1:5555", "[::1]:5555"),
        ("[fd00::1]:5555", "[fd00::1]:5555"),
        ("engine.example:5555", "engine.example:5555"),
        ("engine", "engine"),
    ],
)
def test_an_ipv6_address_gets_the_brackets_that_part_it_from_its_port(
    raw: str, expected: str
) -> None:
    assert endpoints().parse(raw) == (expected,)


@pytest.mark.parametrize(
    ("variable", "raw"),
    [
        ("FLOOR", "nan"),
        ("FLOOR", "inf"),
        ("FLOOR", "1e308"),
        ("FLOOR", "9" * 5000),
        ("WAIT", "9" * 400 + "h"),
        ("WAIT", "9" * 5000 + "h"),
        ("WAIT", "1000000h"),
        ("LEVEL", "9" * 5000),
        ("COUNT", "9" * 30),
        ("ADDRESS", "host\x1b[2J:1"),
        ("ADDRESS", "host\u202e:1"),
        ("ADDRESS", "host\udcff:1"),
        ("TOOLS", "a,b\x00"),
    ],
)
def test_what_no_hardware_has_and_no_log_shows_is_refused_with_one_printable_sentence(
    variable: str, raw: str
) -> None:
    @dataclass(frozen=True)
    class Counting(Settings):
        count: int | None = setting("COUNT", whole_number(0), default=None)

    with pytest.raises(SettingsError) as caught:
        read(Counting, {"ADDRESS": "host:1"} | {variable: raw})
    [problem] = caught.value.problems
    assert problem.startswith(f"{variable}: ")
    assert problem.isprintable()
    assert len(problem) < 300
