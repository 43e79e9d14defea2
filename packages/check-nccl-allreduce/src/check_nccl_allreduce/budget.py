"""How CHECK_TIMEOUT, which runs from the sealed gang to the verdict, is shared: 40 % the gang's own
all-reduce, 50 % localisation, 10 s the report. Pure.

A second launch is paid by localisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GANG_SHARE: Final = 0.4
LOCALIZATION_SHARE: Final = 0.5
REPORT: Final = 10.0
"""Seconds in which the verdict reaches every member; a tenth of a shorter CHECK_TIMEOUT."""
LONG_REPORT: Final = 0.015
"""Of a CHECK_TIMEOUT longer than eleven minutes, as that of a large gang is."""
LEAST_REPORT: Final = 2.0
LEAST_LOCALIZATION: Final = 0.5
"""Of localisation's share, what a launch without topology files leaves of it: where that launch is
slow too, pairs are still measured.
"""
LONGER: Final = 1.5
"""Times what the last launch or iteration took, for the next to fit: none ends at the same second
as another."""
ENDS: Final = 0.5
"""Share of the time that is left once the communicator works, in which iterations are begun: the
last one has as much to end.
"""


@dataclass(frozen=True)
class Budget:
    """``allowed``: CHECK_TIMEOUT. All in seconds; ``spent`` counts from the first launch."""

    allowed: float

    @property
    def report(self) -> float:
        """Seconds kept back for the verdict and its report."""
        return min(max(REPORT, LONG_REPORT * self.allowed), max(LEAST_REPORT, 0.1 * self.allowed))

    @property
    def launch(self) -> float:
        """What the first launch may take, and what must be left for another."""
        return GANG_SHARE * self.allowed

    def left(self, spent: float) -> float:
        """Until the verdict must be on its way."""
        return self.allowed - self.report - spent

    def spare(self, spent: float, took: float) -> float:
        """For a launch without topology files after one that ``took`` so long; 0 where it does not
        fit.
        """
        most = self.left(spent) - LEAST_LOCALIZATION * LOCALIZATION_SHARE * self.allowed
        return most if most >= LONGER * took else 0.0

    def probes(self, spent: float, since: float) -> float:
        """The same for probes, the first of which could start at ``since``."""
        return min(self.left(spent), LOCALIZATION_SHARE * self.allowed - (spent - since))


def is_last(now: float, begun: float, until: float, took: float) -> bool:
    """Tell whether the iteration that begins ``now`` is to be the last, so that all have ended
    ``until`` then. ``begun``: when the communicator worked; ``took``: the longest one so far.
    """
    return now >= begun + ENDS * (until - begun) or now + (1 + LONGER) * took > until
