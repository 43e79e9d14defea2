"""Who is to blame: from the gang's endpoints and all results so far to the next round of probes, or
the verdict.

Pure and deterministic: no clock, no I/O, no chance. Whoever runs probes calls :func:`next`, runs
the round it returns, adds the results to the state and calls again::

    state = localise.State(endpoints, seed).after_gang(zone, gbps)  # round 1 and its gate
    while isinstance(step := localise.next(state, now(), until), localise.Round):
        await sleep(step.wait)
        state = state.after(step, await run(step), now())

Floors decide whether the gang fails. Contrast convicts a position: a node that is slow, wrong or
dead with known-good partners on paths that serve others well (*path*), and to itself, over its own
NICs, where known-good nodes are not (*local*; *data* where it computes wrong sums), is named. It is
blamed where a witness (:mod:`.witness`) shows that the cause is its own: a fact of its own device,
or a good node that shares all that its hairpin passes.

The names of :mod:`.model` and the functions below are for simulators too, which find them here.
"""

from ..ports import Local, PortErrors, PortFault
from . import model
from .model import *  # noqa: F403
from .rounds import chance
from .score import APART, FATAL
from .steps import most_rounds, next, suspected
from .table import many
from .words import matrix

__all__ = [
    "APART",
    "FATAL",
    "Local",
    "PortErrors",
    "PortFault",
    "chance",
    "many",
    "matrix",
    "most_rounds",
    "next",
    "suspected",
]
__all__ += model.__all__
