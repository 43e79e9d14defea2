"""A gang whose members must share a zone, or be spread over zones: what kube-scheduler asks in its
turns, by a model of it, and what it is answered.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from preflight_gpu_scheduler.api import messages
from shapes import node, pod
from test_gang_start import Gangs

ZONES = {f"{zone}{n}": zone for zone in "xyz" for n in range(2)}
GPUS, GANG = 4, 6
MOST_BACKOFF = 10.0
RESERVATION = 60


class Zones(Gangs):
    """A kube-scheduler that looks at the pods that are due one after the other, has all of a gang
    in the zone of the first one, and waits for longer after each time in vain, 10 s at most.
    ``others``: how many GPUs of a node other pods have; ``seed``: of the order and the times.
    """

    def __init__(self, seed: int = 0, **config: str) -> None:
        super().__init__(stale_after="24h", **config)
        self.random = Random(seed)
        self.others = dict.fromkeys(ZONES, 0)
        self.due: dict[str, tuple[float, float]] = {}  # when a member is looked at, its back-off
        self.assumed: dict[str, str] = {}  # those that wait to be bound, and where
        self.said: dict[str, str] = {}
        self.attempts: list[str] = []  # the zone of each
        self.seconds_held = 0
        for name in ZONES:
            self.show("node", node(name))
            self.status(name, *({"id": n, "uuid": f"GPU-{name}-{n}"} for n in range(GPUS)))

    def taken(self, name: str, count: int) -> None:
        """So many GPUs of the node are other pods'."""
        self.others[name] = count
        self.state.hold(name, range(count), pod(f"others-{name}"))

    def held(self) -> set[tuple[str, int]]:
        """GPUs that are held for the gang."""
        return {
            (name, gpu)
            for name, others in self.others.items()
            for gpu in self.state.others(name)
            if gpu >= others
        }

    def run(self, seconds: int) -> bool:
        """Whether the gang runs after so many seconds at most."""
        members = [f"g-{n}" for n in range(GANG)]
        for _ in range(seconds):
            for name in self.random.sample(members, GANG):
                when, _ = self.due.setdefault(name, (self.now, 1.0))
                if name not in self.assumed and when <= self.now:
                    self._look(name)
                    self._refuse()
            if len(self.assumed) == GANG:
                return True
            self.seconds_held += bool(self.held())
            self.now += 1
            self.ask("single", list(ZONES))
            self._refuse()
        return False

    def takes(self, zone: str) -> bool:
        """Whether the zone may have one more of the gang."""
        return {ZONES[where] for where in self.assumed.values()} <= {zone}

    def _look(self, name: str) -> None:
        places = list(self.assumed.values())
        nodes = [
            where
            for where, zone in ZONES.items()
            if self.takes(zone) and self.others[where] + places.count(where) < GPUS
        ]
        answer = self.ask(name, nodes) if nodes else "no node is in the zone and has a GPU"
        if answer in ZONES:
            if not self.assumed:
                self.attempts.append(ZONES[answer])
            self.assumed[name] = answer
            return
        self._back_off(name)
        if self.said.get(name) != answer:  # the scheduler writes no condition twice
            self.said[name] = answer
            why = "SchedulerError" if nodes else "Unschedulable"
            said = {"type": "PodScheduled", "reason": why, "message": answer}
            self.says(name, conditions=[said])

    def _refuse(self) -> None:
        """Those that wait to be bound are told that they cannot be, once nothing is held."""
        if not self.held():
            for name in self.assumed:
                self._back_off(name)
            self.assumed = {}

    def _back_off(self, name: str) -> None:
        _, wait = self.due[name]
        late = self.random.choice([0, 0, 1, 2])
        self.due[name] = self.now + wait + late, min(2 * wait, MOST_BACKOFF)


class Spread(Zones):
    """Has no zone with two members more than another one."""

    def takes(self, zone: str) -> bool:
        counts = Counter(ZONES[where] for where in self.assumed.values())
        return counts[zone] == min(counts[other] for other in "xyz")


def _crowded(seed: int, **config: str) -> Zones:
    """No zone has room for the gang, and all together have."""
    seen = Zones(seed, **config)
    for name in ZONES:
        seen.taken(name, 2 if name.endswith("0") else 1)
    seen.gang("g", GANG, GANG)
    return seen


@pytest.mark.parametrize("seed", range(8))
def test_a_gang_for_which_no_zone_has_room_is_tried_in_each_once_a_reservation_at_most(
    seed: int,
) -> None:
    seen = _crowded(seed)
    assert not seen.run(10 * RESERVATION)
    assert max(map(seen.attempts.count, "xyz")) <= 10
    assert seen.seconds_held < 10 * RESERVATION / 6


def test_what_does_not_help_a_gang_of_one_zone_is_another_gangs_and_single_pods() -> None:
    seen = _crowded(0)
    assert not seen.run(RESERVATION // 2)
    assert seen.held() == set()
    assert seen.ask("single", list(ZONES)).split(",") == list(ZONES)
    seen.gang("h", 4, 4)
    assert {seen.ask(f"h-{n}", list(ZONES)) for n in range(4)} <= ZONES.keys()


@pytest.mark.parametrize("zone", "xyz")
@pytest.mark.parametrize("seed", range(8))
def test_a_gang_starts_in_the_zone_that_gets_room_within_a_reservation(
    seed: int, zone: str
) -> None:
    seen = _crowded(seed)
    assert not seen.run(2 * RESERVATION + seed)
    seen.taken(f"{zone}0", 1)
    assert seen.run(RESERVATION)
    assert seen.attempts[-1] == zone


@pytest.mark.parametrize("zone", "xyz")
@pytest.mark.parametrize("seed", range(4))
def test_a_gang_starts_in_the_one_zone_that_has_room_though_another_fits_better(
    seed: int, zone: str
) -> None:
    seen = _crowded(seed)
    seen.taken(f"{zone}0", 1)
    assert seen.run(RESERVATION)
    assert seen.attempts[-1] == zone


def test_gpus_are_kept_for_a_gang_of_one_zone_in_one_zone() -> None:
    seen = _crowded(0, gang_max_wait="10s")
    assert not seen.run(2 * RESERVATION)
    for name in ZONES:
        seen.taken(name, 3)
    answers = {name: seen.ask("single", [name]) for name in ZONES}
    kept = {ZONES[name] for name, answer in answers.items() if answer == messages.KEPT}
    assert len(kept) == 1
    assert {name for name, answer in answers.items() if answer == name} == {
        name for name, zone in ZONES.items() if zone not in kept
    }


@pytest.mark.parametrize("seed", range(8))
def test_a_gang_that_is_spread_over_all_that_is_free_starts_in_whatever_order_it_is_asked_about(
    seed: int,
) -> None:
    seen = Spread(seed)
    for name in ZONES:
        seen.taken(name, 3)
    seen.gang("g", GANG, GANG)
    assert seen.run(1)
    assert len(seen.attempts) == 1
