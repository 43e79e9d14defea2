"""What each rule costs: `python tests/hindrances.py 300` plays so many gangs of each world with bad
nodes and prints a table.

A rule is counted once in a gang, if it keeps a bad node from being blamed that has a healthy
neighbor; `alone`, if for such a node nothing else does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from allreduce_testing.worlds.fabrics import Fabric, FabricWorld
from allreduce_testing.worlds.simulation import play, worlds
from check_nccl_allreduce.localise import State, Verdict, witness

NOT_SUSPECT = "not a suspect at the end"
ANOTHER = "another verdict, or the cap"
RULES = [NOT_SUSPECT, *(rule.name for rule in witness.RULES), ANOTHER]


@dataclass
class Count:
    """Of one world: bad nodes with a healthy neighbor, how many of them were blamed, and by rule
    the gangs in which it stood in the way.
    """

    gangs: int = 0
    bad: int = 0
    blamed: int = 0
    stood: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)

    def add(self, bad: Iterable[int], verdict: Verdict, state: State) -> None:
        found = witness.Court(state).obstacles
        stood: set[str] = set()
        alone: set[str] = set()
        self.gangs += 1
        for one in bad:
            self.bad += 1
            if one in verdict.blamed:
                self.blamed += 1
                continue
            rules = (
                [rule.name for rule in found[one]] or [ANOTHER] if one in found else [NOT_SUSPECT]
            )
            stood.update(rules)
            alone.update(rules if len(rules) == 1 else ())
        self.stood.update(stood)
        self.alone.update(alone)


def counted(world: FabricWorld) -> Count:
    count = Count()
    for number in range(world.gangs):
        fabric = Fabric(world, number)
        verdict, state = play(fabric.state, fabric.measure)
        count.add(sorted(fabric.judged), verdict, state)
    return count


def rows(name: str, count: Count) -> Iterator[str]:
    yield f"{name}: {count.blamed} of {count.bad} bad nodes blamed in {count.gangs} gangs"
    for rule in RULES:
        if count.stood[rule]:
            yield f"  {rule:46} {count.stood[rule]:5} gangs {count.alone[rule]:5} alone"


def main(gangs: int, chosen: Iterable[str]) -> None:
    groups = worlds()
    for group in ("bad_nodes", "victims"):
        members = groups[group]
        assert isinstance(members, dict)
        for key, world in members.items():
            if not chosen or key in chosen:
                print(
                    "\n".join(rows(f"{group} {key}", counted(replace(world, gangs=gangs)))),
                    flush=True,
                )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
