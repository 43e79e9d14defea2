"""What must hold while anything is sent: programs live and are ready, their memory is bounded,
nobody else waits.

Large objects keep the API server busy too, and a gate's machine has few cores. So a pod that no
webhook is asked about is created all along, and what that one waited is taken off what the others
did.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from preflight_e2e.bench.admission import pod as training_pod
from preflight_e2e.bench.cluster import PREFIX, addressed, record_name

from .place import ORDINARY, VICTIM, FuzzPlace, Program
from .shots import MERGE, Shot, ShotSender, pod_path

_TICK = 0.25
_GROUPS, _GROUP_LABEL = "scheduling.x-k8s.io/v1alpha1", "scheduling.x-k8s.io/pod-group"


@dataclass(frozen=True)
class WatchLimits:
    """In seconds: until a complete gang is sealed, until an ordinary pod is admitted, of a
    readiness that is lost, between two victims.
    """

    victim: float = 2.0
    ordinary: float = 1.0
    unready: float = 5.0
    every: float = 2.0


@dataclass
class WatchedProperty:
    """One property: what was seen of it, ``worst`` in its unit, and its ``limit``."""

    name: str
    unit: str
    limit: float
    seen: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.seen, default=0.0)

    @property
    def held(self) -> bool:
        return self.worst <= self.limit


class Watch:
    """Probes in threads of their own, and a list of what did not hold. ``on_violation`` hears of
    each at once.
    """

    def __init__(
        self,
        place: FuzzPlace,
        client: ShotSender,
        limits: WatchLimits,
        on_violation: Callable[[str], None],
    ) -> None:
        self._place, self._client, self._limits, self._on_violation = (
            place,
            client,
            limits,
            on_violation,
        )
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=loop)
            for loop in (self._health, self._victims, self._ordinary, self._alone)
        ]
        self.paused = threading.Event()
        self._round = self._done = 0
        self._busy, self._next = False, threading.Event()
        self.victims = WatchedProperty("a complete gang is sealed within", "s", limits.victim)
        self.pods = WatchedProperty("an ordinary pod is admitted within", "s", limits.ordinary)
        self.unready = {
            program.name: WatchedProperty(f"{program.name} is not ready for", "s", limits.unready)
            for program in place.programs
        }
        self.memory = {
            program.name: WatchedProperty(f"{program.name} resident", "MiB", program.limit)
            for program in place.programs
        }
        self.exits = WatchedProperty("programs that ended", "", 0)
        self.alone = WatchedProperty(
            "(a pod without webhook is admitted within)", "s", float("inf")
        )
        self._asked = time.monotonic()
        self._waits: deque[tuple[float, float]] = deque(maxlen=400)

    def rows(self) -> list[WatchedProperty]:
        return [
            self.exits,
            *self.unready.values(),
            *self.memory.values(),
            self.victims,
            self.pods,
            self.alone,
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._next.set()
        for thread in self._threads:
            thread.join()

    def _net(self, since: float) -> float:
        """Seconds from ``since`` to now, without the longest that the API server itself took
        meanwhile.
        """
        now = time.monotonic()
        waits = [seconds for ended, seconds in list(self._waits) if ended >= since]
        return max(0.0, now - since - max([*waits, now - self._asked, 0.0]))

    def _alone(self) -> None:
        spec = {"containers": [{"name": "c", "image": "x"}]}
        shot = Shot(
            "alone",
            "POST",
            pod_path("default", dry=True),
            {"metadata": {"name": "o"}, "spec": spec},
        )
        while not self._ended.is_set():
            self._asked = time.monotonic()
            self._client.send(shot)
            now = time.monotonic()
            self._waits.append((now, now - self._asked))
            self.alone.seen.append(round(now - self._asked, 3))
            self._ended.wait(_TICK / 2)
            self._asked = time.monotonic()

    def _health(self) -> None:
        lost: dict[str, float] = {}
        dead: set[str] = set()
        while not self._ended.wait(_TICK):
            for program in self._place.programs:
                if program.stopping or program.process is None:
                    lost.pop(program.name, None)
                    continue
                if (status := program.exit_status()) is not None:
                    lost.pop(program.name, None)
                    if program.name not in dead:
                        dead.add(program.name)
                        self.exits.seen.append(len(self.exits.seen) + 1)
                        self._on_violation(
                            f"{program.name} ended with status {status}: {program.last_words()}"
                        )
                    continue
                dead.discard(program.name)
                self._alive(program, lost)

    def _alive(self, program: Program, lost: dict[str, float]) -> None:
        program.memory()
        self.memory[program.name].seen.append(round(program.peak, 1))
        if program.peak > program.limit and "memory" not in program.reported:
            program.reported.add("memory")
            self._on_violation(
                f"{program.name} has {program.peak:.0f} MiB, more than {program.limit:g}"
            )
        asked = time.monotonic()
        ready = program.ready(self._limits.unready + 1)
        if program.stopping:
            return
        seconds = self._net(lost.get(program.name, asked))
        if ready:
            lost.pop(program.name, None)
        else:
            lost.setdefault(program.name, asked)
        self.unready[program.name].seen.append(round(seconds, 2))
        if seconds > self._limits.unready and "ready" not in program.reported:
            program.reported.add("ready")
            self._on_violation(f"{program.name} was not ready for {seconds:.1f} s")

    def prove(self) -> None:
        """Have a gang formed now, and wait until it is sealed or that has failed."""
        wanted = self._round + 2 if self._busy else self._round + 1
        self._next.set()
        end = time.monotonic() + 2 * (self._limits.victim * 5 + self._limits.every)
        while self._done < wanted and time.monotonic() < end:
            self._next.set()
            time.sleep(0.02)

    def _victims(self) -> None:
        while not self._ended.is_set():
            self._next.wait(self._limits.every)
            self._next.clear()
            if self._ended.is_set():
                return
            if self.paused.is_set():
                continue
            self._busy, self._round = True, self._round + 1
            seconds = self._one_gang(f"v{self._round}")
            self._busy, self._done = False, self._round
            if self.paused.is_set():
                continue
            if self._ended.is_set() and seconds > self._limits.victim:
                return
            self.victims.seen.append(round(seconds, 3))
            if seconds > self._limits.victim:
                self._on_violation(
                    f"a complete gang of another namespace was not sealed within {seconds:.1f} s"
                )

    def _one_gang(self, gang: str) -> float:
        """Seconds from the last member's address until both have a sealed roster; by labels and by
        a PodGroup, in turn.
        """
        names = [f"{gang}-{i}" for i in range(2)]
        grouped = self._round % 2 == 0
        if grouped:
            group = {
                "apiVersion": _GROUPS,
                "kind": "PodGroup",
                "metadata": {"name": gang},
                "spec": {"minMember": 2},
            }
            self._client.send(
                Shot("victim", "POST", f"/apis/{_GROUPS}/namespaces/{VICTIM}/podgroups", group)
            )
        for name in names:
            pod = copy.deepcopy(training_pod(name, gang="" if grouped else gang))
            labels = {_GROUP_LABEL: gang} if grouped else {"app.kubernetes.io/gang-size": "2"}
            pod["metadata"].setdefault("labels", {}).update(labels)
            pod["spec"]["nodeName"] = f"node-{name}"
            code, body = self._client.send(Shot("victim", "POST", pod_path(VICTIM), pod))
            if code != 201:
                if not self.paused.is_set():
                    self._on_violation(
                        f"a pod of another namespace was refused: {code} {body[:200]!r}"
                    )
                return self._limits.victim * 5
        for number, name in enumerate(names, 1):
            path = pod_path(VICTIM, name) + "/status"
            self._client.send(
                Shot("victim", "PATCH", path, addressed(self._round * 2 + number), MERGE)
            )
        started = time.monotonic()
        waiting = set(names)
        while waiting and self._net(started) < self._limits.victim * 5:
            waiting = {name for name in waiting if not self._sealed(name)}
            time.sleep(0.02)
        seconds = self._limits.victim * 5 if waiting else self._net(started)
        if grouped:
            self._client.send(
                Shot("victim", "DELETE", f"/apis/{_GROUPS}/namespaces/{VICTIM}/podgroups/{gang}")
            )
        for name in names:
            self._client.send(
                Shot("victim", "DELETE", pod_path(VICTIM, name) + "?gracePeriodSeconds=0")
            )
        record = record_name(gang, "coscheduling" if grouped else "labels")
        self._client.send(
            Shot("victim", "DELETE", f"/api/v1/namespaces/{VICTIM}/configmaps/{record}")
        )
        return seconds

    def _sealed(self, name: str) -> bool:
        code, body = self._client.send(Shot("victim", "GET", pod_path(VICTIM, name)))
        if code != 200:
            return False
        roster = json.loads(body)["metadata"].get("annotations", {}).get(PREFIX + "roster", "")
        return '"answer":"sealed"' in roster

    def _ordinary(self) -> None:
        gpu = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        shot = Shot(
            "ordinary",
            "POST",
            pod_path(ORDINARY, dry=True),
            {"metadata": {"name": "o"}, "spec": {"containers": [gpu]}},
        )
        while not self._ended.wait(_TICK):
            started = time.monotonic()
            code, body = self._client.send(shot)
            seconds = self._net(started)
            if self.paused.is_set():
                continue
            if self._ended.is_set():
                return
            self.pods.seen.append(round(seconds, 3))
            if code != 201:
                self._on_violation(f"an ordinary pod was refused: {code} {body[:200]!r}")
                self.pods.seen.append(self._limits.ordinary * 10)
            elif seconds > self._limits.ordinary:
                self._on_violation(f"an ordinary pod was admitted after {seconds:.1f} s")
