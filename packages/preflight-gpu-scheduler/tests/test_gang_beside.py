"""A gang that needs all of a full cluster, beside small pods that come without end."""

from __future__ import annotations

import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import GangStart, written
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core.filter_prioritize import ExtenderArgs
from preflight_gpu_scheduler.core.gpu_selection import choose
from shapes import claim, node, pod

pytestmark = pytest.mark.component  # computes for seconds
GANG, GPUS = 128, 8
A_SECOND, LASTS, WAIT, ASKED_EVERY = 64, 20, 60, 10
"""Small pods that come; seconds for which one runs, after which GPUs are kept, and after which the
scheduler asks about a member once more.
"""
NODES = [f"node-{n}" for n in range(GANG)]


class Crowd(Mirrors):
    """Nodes for exactly the gang. Small pods are bound where they pass, and end after a while."""

    def __init__(self) -> None:
        super().__init__(count_resource="", gang_max_wait=f"{WAIT}s")
        for mirror in self.state.reflectors:
            mirror.synced.set()
        for name in NODES:
            self.show("node", node(name))
            self.status(name, *({"id": n, "uuid": f"GPU-{name}-{n}"} for n in range(GPUS)))
        self.claim("one", 1)
        self.claim("g", GPUS, gang="g")
        start = written(GangStart(start="g", need=GANG))
        member = {names.CLAIM_ANNOTATION: "g", names.RESERVED_ANNOTATION: start}
        self.show("pod", *(pod(f"g-{n}", annotations=member) for n in range(GANG)))
        self.running: list[tuple[float, str, Pod]] = []

    def passes(self, asked: Pod) -> tuple[str, ...]:
        return (
            self.extender.filter(ExtenderArgs(pod=asked, node_names=tuple(NODES))).node_names or ()
        )

    def small(self, name: str) -> None:
        asked = pod(name, annotations={names.CLAIM_ANNOTATION: "one"})
        for where in self.passes(asked)[:1]:
            seen = self.state.view(where)
            self.state.hold(where, choose(seen.slots, seen.free, claim(1).want).ids, asked)
            self.running.append((self.now + LASTS, where, asked))

    def second(self, n: int) -> None:
        self.now += 1
        for end, where, ended in self.running:
            if end <= self.now:
                self.state.let_go(where, ended)
        self.running = [one for one in self.running if one[0] > self.now]
        for m in range(A_SECOND):
            self.small(f"small-{n}-{m}")

    def held(self) -> int:
        """GPUs that are the gang's."""
        return sum(len(self.state.others(name)) for name in NODES) - len(self.running)


def test_a_gang_of_128_times_8_starts_beside_64_small_pods_a_second_once_those_before_it_end() -> (
    None
):
    seen = Crowd()
    for n in range(WAIT):
        seen.second(n)
        if not n % ASKED_EVERY and n > LASTS:
            assert not seen.passes(seen.state.pods.store["team/g-0"])
        assert seen.held() == 0, "all or none"
    assert len(seen.running) == GANG * GPUS, "they take every GPU"
    for n in range(LASTS + ASKED_EVERY):
        if not n % ASKED_EVERY and seen.passes(seen.state.pods.store["team/g-0"]):
            break
        seen.second(WAIT + n)
        assert seen.held() == 0, "all or none"
    else:
        raise AssertionError(f"the gang does not start; {len(seen.running)} small pods run")
    assert seen.held() == GANG * GPUS
