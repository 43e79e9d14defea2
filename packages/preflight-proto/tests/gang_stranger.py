"""A stranger's gang-wide check: joins its gang, says so, and holds on until the roster changes
(``GO=hold``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from preflight_proto.check import Check, Outcome, Run, Verdict, run_main


@dataclass(frozen=True)
class Settings:
    pass


async def probe(run: Run[Settings]) -> Verdict:
    roster = await run.roster()
    run.progress(f"joined {roster.generation} as {roster.rank}")
    if os.environ.get("GO") == "hold":
        now = await run.roster_changed(roster)
        run.progress(f"changed to {now.answer} of generation {now.generation}")
        roster = await run.roster()
    return Verdict(Outcome.PASSED, "OK", f"joined generation {roster.generation}.")


CHECK = Check(
    name="my-gang",
    condition="MyGang",
    component="Node",
    settings=Settings,
    probe=probe,
    timeout=20,
    gang=True,
)

if __name__ == "__main__":
    run_main(CHECK)
