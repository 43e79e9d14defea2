"""The variables of this check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight_proto import names, time_limits
from preflight_proto.check import duration, endpoints, setting, text, text_list, whole_number
from preflight_proto.settings import endpoint_problems

if TYPE_CHECKING:
    from .catalogue import KnownError

TIMEOUTS: Final = time_limits.DCGM_DIAG
"""Seconds a diagnostic of each level may take."""


@dataclass(frozen=True)
class Settings:
    """The check's variables, read once at the start."""

    level: int = setting(
        names.ENV_DCGM_LEVEL,
        whole_number(1, 4),
        default=1,
        help="depth of the diagnostic: 1 tests software only (seconds), 2 adds memory and PCIe (minutes), 3 and 4 stress",
    )
    addresses: tuple[str, ...] = setting(
        names.ENV_DCGM_HOSTENGINE,
        endpoints(
            "host:port",
            "host:port of the node's hostengine, e.g. $(NODE_IP):5555, or several separated by commas",
        ),
        help="where the DCGM hostengine of this pod's own node may be, tried in this order; best by IP: a name is what the pod's own "
        "/etc/hosts or DNS makes of it",
    )
    tools: tuple[str, ...] = setting(
        "DCGMI",
        text_list("a list of programs", "names or paths separated by commas"),
        default=("dcgmi", "dcgmi3"),
        help="dcgmi programs, newest first; the next one is tried when the engine is too old for the one before",
    )
    queue_timeout: float | None = setting(
        "DCGM_QUEUE_TIMEOUT",
        duration(),
        default=None,
        help="how long to wait while another diagnostic occupies the engine; by default as long as one of this level may take",
    )
    optional_tests: tuple[str, ...] = setting(
        "DCGM_OPTIONAL_TESTS",
        text_list("a list of DCGM's tests", "e.g. targeted_power,pulse_test"),
        default=(),
        help="tests that DCGM may skip on these GPUs; without it, one that the level has and that did not run is inconclusive, NOT_TESTED",
    )
    errors_file: str | None = setting(
        "DCGM_ERRORS_FILE",
        text("a path", "the path of a mounted TOML file"),
        default=None,
        help="rows in the form of the check's errors.toml that replace those of its error table",
    )

    @property
    def optional(self) -> frozenset[str]:
        """The tests of ``optional_tests`` by their canonical names."""
        from .catalogue import canonical_test

        return frozenset(canonical_test(name) for name in self.optional_tests)

    def table(self) -> dict[int, KnownError]:
        """The error table, with the operator's rows in it. Raises :class:`.BadTable`."""
        from .catalogue import BadTable, known, overridden

        if self.errors_file is None:
            return known()
        try:
            text = Path(self.errors_file).read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise BadTable(
                f"DCGM_ERRORS_FILE: {self.errors_file} cannot be read ({why}); mount it or unset the variable."
            ) from None
        return overridden(text, f"DCGM_ERRORS_FILE: {self.errors_file}")

    def problems(self) -> list[str]:
        """Problems of several variables together, one sentence each."""
        problems = endpoint_problems(names.ENV_DCGM_HOSTENGINE, ",".join(self.addresses))
        if not self.optional_tests and self.errors_file is None:
            return problems
        from .catalogue import BadTable, canonical_test, required

        levels = required(4)
        problems += [
            f'DCGM_OPTIONAL_TESTS: "{name}" is not a test that a level requires; they are {", ".join(sorted(levels))}.'
            for name in self.optional_tests
            if canonical_test(name) not in levels
        ]
        try:
            self.table()
        except BadTable as error:
            problems.append(str(error))
        return problems
