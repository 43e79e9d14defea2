"""Clears what checks have raised about a GPU that is no longer in the node::

    python3 -m preflight_proto.check.replaced UUID CHECK=CONDITION...

No run can: it names the GPUs that it sees, and one that was replaced looks to it like one that has
fallen off the bus. Whoever has changed the card says so, by starting this on the node with the
variables of a check. Exit status: 0 the platform connector has taken it, 1 it has not, 2 bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

import anyio

from ..names import container_name
from . import log, report
from .events import GPU_COMPONENT, GPU_ENTITY, EventDraft
from .kit import KitSettings
from .runner import EXIT_MISCONFIGURED
from .settings import SettingsError, read
from .verdict import Action


def farewell(uuid: str, conditions: Iterable[tuple[str, str]]) -> list[EventDraft]:
    """A healthy event for each (check, condition) that was raised about the GPU."""
    return [
        EventDraft(
            agent=container_name(check),
            component=GPU_COMPONENT,
            check_name=condition,
            fatal=False,
            healthy=True,
            message="the GPU was replaced",
            action=Action.NONE,
            entities=((GPU_ENTITY, uuid),),
        )
        for check, condition in conditions
    ]


async def conduct(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Send them; the exit status."""
    uuid, *pairs = arguments or [""]
    conditions = [
        (check, name) for check, is_one, name in (p.partition("=") for p in pairs) if is_one
    ]
    if not uuid or len(conditions) != len(pairs) or not conditions:
        log.echo(
            f"misconfigured: {' '.join(arguments) or 'nothing'} is not UUID CHECK=CONDITION..."
        )
        return EXIT_MISCONFIGURED
    try:
        kit = read(KitSettings, environ)
    except SettingsError as error:
        for problem in error.problems:
            log.echo(f"misconfigured: {problem}")
        return EXIT_MISCONFIGURED
    if await report.send(farewell(uuid, conditions), kit, log.echo):
        return 1
    log.echo(f"{uuid}: cleared {', '.join(name for _, name in conditions)}.")
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(conduct, sys.argv[1:], os.environ))
