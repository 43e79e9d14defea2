"""Gangs that start: the nodes that kube-scheduler would have each member on, a plan on those, and
the members in their binds until all of them are there.

Nothing is held outside of this process before all have arrived: then their leases are acquired, all
or none. When they are told, the first member's Binding goes before the others'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.allocation import GangStart, Reserved
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import filter_prioritize, gangs
from preflight_gpu_scheduler.core.bind import committed
from preflight_gpu_scheduler.core.filter_prioritize import FilterResult, NodeView, Question
from preflight_gpu_scheduler.core.protocol import Runner
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot, Key
from preflight_gpu_scheduler.webhook.gang_barrier import GangBarrier

_FRESH: Final = 30.0
"""Seconds for which the nodes count on which the scheduler would have had a member."""
_SOON: Final = 15.0
"""Seconds within which the scheduler asks about a pod again: its back-off is 10 at most."""
_MOST_REST: Final = 20.0
"""Seconds at most from an attempt that failed to the next."""
_PART: Final = 100
"""Nodes in a call from which on it may be of a part of them: in a large cluster the scheduler looks
for as many as that, or for 5 % of all, and goes on from there in the next call."""
_ROUND: Final = 300.0
"""Seconds within which it has come round."""
_KEPT_FOR: Final = 0.5
"""Seconds after which it is looked at anew what is kept."""
_MOST_GROUPS: Final = 64
"""Groups of nodes that are remembered of a gang."""
_AT_ONCE: Final = 256
"""Leases that are created side by side: the client bounds the requests, and each batch waits for
the slowest of the one before."""
_LOOK: Final = 0.5


class _Group(NamedTuple):
    """What an attempt that failed ``at`` that time has shown: the scheduler would have members on
    the nodes ``together``, and not beside these on those ``apart``.
    """

    at: float
    together: frozenset[str]
    apart: frozenset[str]


class _Attempt:
    """The state of the pods that start together."""

    def __init__(self, start: GangStart, now: float) -> None:
        self.start, self.since = start, now
        self.pods: dict[Key, Pod] = {}  # those that wait, as a mirror has them
        self.asked: dict[str, tuple[float, frozenset[str]]] = {}  # by uid: when, and which nodes
        # Nodes that the scheduler would have one on: when it said so, and of how many GPUs.
        self.ever: dict[str, tuple[float, int]] = {}
        self.roomy, self.turn = now, now  # when there was room for it; when GPUs may be kept for it
        self.last = now  # when it was asked about one
        self.failed, self.rests = 0, now
        self.begun: float | None = None
        self.placed: dict[str, gangs.Placement] = {}  # by uid, while it is tried
        self.refused: dict[Key, object] = {}  # what the scheduler had said when it began
        self.locked = False
        self.first: tuple[str, frozenset[str]] | None = None  # its uid, and nodes for it
        self.beside: frozenset[str] | None = None  # nodes for the second one
        self.told = set[str]()  # uids of those that it has asked about since it is tried
        self.groups: list[_Group] = []
        self.expects = True  # until gates that are about to open have been looked for

    def asks(self, uid: str, nodes: Sequence[str]) -> None:
        """Note what the scheduler asks about a member that has its place: ``nodes``."""
        self.told.add(uid)
        if self.first is None or self.first[0] == uid:
            self.first = uid, frozenset(nodes)
        elif self.beside is None:
            self.beside = frozenset(nodes)

    def learn(self, now: float) -> None:
        """Remember which nodes do not go together, where the attempt that fails has shown it."""
        if self.first is None or self.beside is None:
            return
        uid, nodes = self.first
        node = self.placed[uid][0]
        new = _Group(now, self.beside | {node}, nodes - self.beside - {node})
        known = [group for group in self.groups if node not in group.together]
        self.groups = [*known, *([new] if new.apart else [])][-_MOST_GROUPS:]

    def place(
        self,
        members: Sequence[gangs.Member],
        candidates: Mapping[str, frozenset[str]],
        nodes: Mapping[str, NodeView],
        since: float = float("-inf"),
    ) -> dict[str, gangs.Placement] | str:
        """As :func:`~.gangs.place`, on nodes that go together by what was seen after ``since``."""
        for without in self.without(since):
            less = {among: among - without for among in set(candidates.values())}
            among = {uid: less[among] for uid, among in candidates.items()}
            if not isinstance(planned := gangs.place(members, among, nodes, self.start.need), str):
                break
        return planned

    def without(self, since: float = float("-inf")) -> list[frozenset[str]]:
        """Nodes to be left out, so that the others may go together; the one way and the other."""
        groups = [group for group in self.groups if group.at > since]
        known = frozenset[str]().union(*(group.together for group in groups))
        return [known, *(group.apart for group in groups)]

    @property
    def priority(self) -> int:
        return max((pod.spec.priority or 0 for pod in self.pods.values()), default=0)

    @property
    def rank(self) -> tuple[int, float]:
        """The first one comes first."""
        return -self.priority, self.since


class GangStarts:
    """All in it is of one event loop; nothing but :meth:`arrive` waits."""

    def __init__(self, state: GpuSnapshot, config: Config, runner: Runner) -> None:
        self._state, self._config, self._runner = state, config, runner
        self._barrier = GangBarrier()
        self._tries: dict[GangStart, _Attempt] = {}
        self._of: dict[Key, GangStart] = {}
        self._grown: dict[str, tuple[int, float]] = {}  # free GPUs, and since when there are more
        self._kept: tuple[_Attempt | None, float, Mapping[str, int]] = (None, 0.0, {})

    # --- what changes

    def changed(self, key: Key, pod: Pod | None) -> None:
        """A pod is another one now, or None: gone."""
        if pod is not None:
            self._barrier.changed(pod)
        start = pod.start if pod is not None and pod.open else None
        before, uid = self._of.get(key), pod.uid if pod is not None else ""
        if before and (before != start or self._tries[before].pods[key].uid != uid):
            if _shut(pod) and self._tries[before].pods[key].uid == uid:
                return  # it is expected, or has been shown open already
            self._left(key, before)
        if start is None or pod is None:
            return
        self._of[key] = start
        if (mine := self._tries.get(start)) is None:
            mine = self._tries[start] = _Attempt(start, self._state.now())
        mine.pods[key] = pod
        refusal = pod.status.conditions
        waits = pod.uid in mine.placed and pod.uid not in self._barrier.uids(start.start)
        if waits and not mine.locked and refusal and refusal != mine.refused.get(key):
            if mine.beside is None and mine.failed:  # at first it may be an older word of its
                mine.beside = frozenset()
            self._fail(mine)  # the scheduler has no node for it beside the others

    def _left(self, key: Key, start: GangStart) -> None:
        del self._of[key]
        mine = self._tries[start]
        pod = mine.pods.pop(key)
        mine.asked.pop(pod.uid, None)
        if (given := mine.placed.get(pod.uid)) is not None:
            self._state.let_go(given[0], pod)
            if not mine.locked:
                self._fail(mine)
        self._barrier.ring(start.start, pod.uid)
        if not mine.pods:
            self._tries.pop(start, None)
        elif mine.locked and not any(other.uid in mine.placed for other in mine.pods.values()):
            self._over(mine)  # all are told; who is left comes by itself

    def _fail(self, mine: _Attempt) -> None:
        """Nobody keeps anything, and it is tried again after a while."""
        now = self._state.now()
        mine.failed += 1
        mine.rests = now + min(2.0 ** min(mine.failed - 1, 9), _MOST_REST)
        mine.asked.clear()
        mine.learn(now)
        self._over(mine)
        for key in [key for key, pod in mine.pods.items() if _shut(pod)]:
            del self._of[key], mine.pods[key]  # it should have opened by now
        if not mine.pods:
            self._tries.pop(mine.start, None)

    def _over(self, mine: _Attempt) -> None:
        for pod in mine.pods.values():
            if (given := mine.placed.get(pod.uid)) is not None:
                self._state.let_go(given[0], pod)
        mine.begun, mine.locked, mine.placed = None, False, {}
        mine.first, mine.beside, mine.told = None, None, set()
        self._barrier.ring(mine.start.start)

    # --- filter

    def filter(self, question: Question, nodes: Sequence[str]) -> FilterResult:
        """The one node that the member is to have; or why there is none yet."""
        now, pod = self._state.now(), question.pod
        self._expire(now)
        if (shown := self._state.pod(pod.key)) and shown.uid == pod.uid and _shut(shown):
            self.changed(pod.key, pod)  # the scheduler has seen its gate open already
        mine = self._tries.get(self._of.get(pod.key, GangStart()))
        if mine is None:
            return FilterResult(error=messages.GANG_NOT_RESERVED)
        if mine.expects and question.claim is not None:
            self._expect(mine, pod, question.claim)
        uid = pod.uid
        count = question.claim.count if question.claim is not None else 0
        mine.ever.update(dict.fromkeys(nodes, (now, count)))
        if mine.begun is None:
            self._forget(mine, len(nodes), now)
        if uid not in mine.placed:
            answered = filter_prioritize.filter_nodes(question, nodes, self._state.views())
            self._note(nodes, now)
            if mine.begun is None and (why := self._others_first(mine, now)):
                return FilterResult(error=why)
            mine.asked[uid] = (now, frozenset(answered.node_names or ()))
        mine.last = now
        if mine.begun is None and (why := self._begin(mine, now)):
            return FilterResult(error=why)
        given = mine.placed.get(uid)
        if given is None:
            return FilterResult(error=messages.GANG_TURN)
        mine.asks(uid, nodes)
        if given[0] not in nodes and not self._move(mine, pod, question.claim, nodes):
            self._fail(mine)
            return FilterResult(error=messages.GANG_TOO_FEW)
        return filter_prioritize.alone(nodes, mine.placed[uid][0])

    def _expect(self, mine: _Attempt, pod: Pod, claim: Claim) -> None:
        """Count the members whose gates are about to open: the leader opens those of a whole gang
        side by side, and the scheduler asks about the first ones meanwhile. Only once, and until an
        attempt fails: it costs a look at each.
        """
        mine.expects, owner = False, gangs.owner(pod)
        if len(mine.pods) >= mine.start.need:
            return
        for key, alike in self._state.gang_claims().items():
            for other in self._state.pods_of(key) if alike.gang == claim.gang else ():
                shut = _shut(other) and other.key not in self._of
                if shut and gangs.owner(other) == owner and not self._state.miscount(other):
                    self._of[other.key], mine.pods[other.key] = mine.start, other

    def _begin(self, mine: _Attempt, now: float) -> str:
        if now < mine.rests:
            return messages.GANG_RESTS
        planned = self._plan(mine, now)
        if isinstance(planned, str):
            return planned
        mine.begun, mine.placed = now, planned
        mine.refused = {key: pod.status.conditions for key, pod in mine.pods.items()}
        for pod in mine.pods.values():
            if (given := planned.get(pod.uid)) is not None:
                self._state.hold(*given, pod)
        return ""

    def _forget(self, mine: _Attempt, named: int, now: float) -> None:
        """Forget where the scheduler, which has just ``named`` so many nodes for the gang, would
        have no member any more: nodes that have GPUs for one that it would have had there, and that
        it has not named for a while.
        """
        late = now - (_FRESH if named < _PART else _ROUND)
        for name, count in [(name, n) for name, (at, n) in mine.ever.items() if at < late]:
            view = self._state.views().get(name)
            if view is None or view.free.bit_count() >= count:
                del mine.ever[name]

    def _note(self, nodes: Sequence[str], now: float) -> set[str]:
        """Those that have got GPUs since they were noted last."""
        views, more = self._state.views(), set[str]()
        for name in nodes:
            free = views[name].free.bit_count() if name in views else 0
            known, since = self._grown.get(name, (0, float("-inf")))
            if free > known:
                more.add(name)
            self._grown[name] = (free, now if free > known else since)
        return more

    def _new_for(self, attempt: _Attempt, now: float) -> set[str]:
        """Nodes with more GPUs since the scheduler was asked about the gang; it may be again."""
        grown = self._grown.items()
        return {name for name, (_, at) in grown if attempt.last < at and now - at < _SOON}

    def _others_first(self, mine: _Attempt, now: float) -> str:
        """A gang that comes before this one and may fit, as far as is known: on nodes that the
        scheduler would have it on, or that have got GPUs since it was asked.
        """
        rank = mine.rank
        for other in self._tries.values():
            if other.begun is not None or now < other.rests or not other.ever:
                continue
            if other.rank >= rank:  # as this one's own is
                continue
            if other.failed:
                fits = self._plan(other, now)
            else:
                among = self._new_for(other, now) & mine.ever.keys()
                if among or now - other.last < _SOON:
                    among |= other.ever.keys()
                members = self._members(other)
                alike = dict.fromkeys((member.pod.uid for member in members), frozenset(among))
                fits = gangs.place(members, alike, self._state.views(), other.start.need)
            if not isinstance(fits, str):
                return messages.GANG_TURN
        return ""

    def _plan(self, mine: _Attempt, now: float) -> dict[str, gangs.Placement] | str:
        """Once an attempt has failed the scheduler has to have asked about each, unless they are of
        a PodGroup of its own; else who is not known is believed to be like the others.
        """
        need = mine.start.need
        fresh = {uid: on for uid, (when, on) in mine.asked.items() if now - when <= _FRESH}
        native = any(pod.spec.scheduling_group is not None for pod in mine.pods.values())
        if fresh and (native or not mine.failed):
            alike = next(reversed(fresh.values()))
            fresh = {member.uid: fresh.get(member.uid, alike) for member in mine.pods.values()}
        if len(fresh) < need:
            return messages.GANG_GATHERS
        since = now - self._config.reservation_seconds
        return mine.place(self._members(mine), fresh, self._beside(mine), since)

    def _beside(self, mine: _Attempt) -> Mapping[str, NodeView]:
        """The nodes without what is kept for another gang."""
        views = self._state.views()
        less = {}
        kept = self.kept(mine.priority, mine=mine)
        for name in kept.keys() & views.keys():
            free = views[name].free
            for _ in range(kept[name]):
                free &= free - 1  # one GPU less, if there is one
            less[name] = msgspec.structs.replace(views[name], free=free)
        return {**views, **less} if less else views

    def _move(self, mine: _Attempt, pod: Pod, claim: Claim | None, nodes: Sequence[str]) -> bool:
        """Beside those that are placed already the scheduler would have it on ``nodes`` only."""
        uid, given = pod.uid, mine.placed[pod.uid]
        self._state.let_go(given[0], pod)
        if claim is None:
            return False
        member = gangs.Member(pod=pod, claim=claim)
        planned = gangs.place([member], {uid: frozenset(nodes)}, self._state.views(), 1)
        if isinstance(planned, str):  # who has not been asked for yet may change places with it
            others = (other for other in mine.pods.values() if other.uid not in mine.told)
            for other in others:
                where, ids = mine.placed.get(other.uid, given)
                if where in nodes and self._state.claim_of(other) == claim:
                    self._state.let_go(where, other)
                    mine.placed[other.uid] = given
                    self._state.hold(*given, other)
                    planned = {uid: (where, ids)}
                    break
            else:
                return False
        mine.placed[uid] = planned[uid]
        self._state.hold(*planned[uid], pod)
        return True

    def _expire(self, now: float) -> None:
        for mine in list(self._tries.values()):
            late = mine.begun is not None and now - mine.begun > self._config.seconds("gang_bind")
            if late and not mine.locked:
                self._fail(mine)

    # --- what is kept

    def kept(
        self, priority: int, nodes: Sequence[str] = (), mine: _Attempt | None = None
    ) -> Mapping[str, int]:
        """How many GPUs of each node are kept from pods of this priority, for which ``nodes`` are
        asked about: for the gang of the highest one that waits longest, once it has waited for
        ``gangMaxWait``; not from ``mine``, where that comes first.
        """
        now, patience = self._state.now(), self._config.seconds("gang_max_wait")
        self._expire(now)
        waiting = (
            attempt
            for attempt in self._tries.values()
            if attempt.begun is None
            and now - attempt.since > patience
            and now >= attempt.turn
            and len(attempt.pods) >= attempt.start.need  # else it starts in no case
            and attempt.priority >= priority
        )
        new = None
        for first in sorted(waiting, key=lambda each: each.rank):
            if mine is not None and first.rank >= mine.rank:
                break
            new = self._note(nodes, now) if new is None else new
            known, since, kept = self._kept
            if new - first.ever.keys() or known is not first or now - since > _KEPT_FOR:
                kept = self._keep(first, now)
                self._kept = first, now, kept
            if now >= first.turn:
                return kept
        return {}

    def _keep(self, first: _Attempt, now: float) -> Mapping[str, int]:
        """Choose what is kept for a gang, or end its turn for now."""
        views, members = self._state.views(), self._members(first)
        if len(members) < first.start.need:
            first.turn = now + _KEPT_FOR
            return {}
        ever = dict.fromkeys((member.pod.uid for member in members), frozenset(first.ever))
        if isinstance(first.place(members, ever, views), str):
            first.failed = min(first.failed, 1)
        elif first.failed > 1:  # the first time it may be an older word of the scheduler's
            first.turn = now + _KEPT_FOR  # what it lacks are not GPUs
            return {}
        likely, resource = set(first.ever), self._config.count_resource
        if any(resource in pod.status.insufficient for pod in first.pods.values()):
            likely |= self._new_for(first, now)  # it asks nobody about nodes that are full
        counts = sorted((member.claim.count for member in members), reverse=True)
        claims = {member.claim.name: member.claim for member in members}.values()
        least = counts[-1]
        may = (  # the others it would be asked about
            view for name, view in views.items() if name in likely or view.free.bit_count() < least
        )
        if sum(_room(view, claims) for view in may) >= first.start.need:
            first.roomy = now
        elif now - first.roomy > _FRESH:
            first.turn = now + _MOST_REST
            return {}
        every = [
            _fullest(likely - without, views, counts[: first.start.need])
            for without in first.without()
        ]
        return max(every, key=lambda kept: (sum(kept.values()), _free(kept, views)))

    def _members(self, mine: _Attempt) -> list[gangs.Member]:
        return [
            gangs.Member(pod=pod, claim=claim)
            for pod in mine.pods.values()
            if (claim := self._state.claim_of(pod)) is not None
        ]

    # --- bind

    async def arrive(self, pod: Pod, node: str) -> Pod | str:
        """The member as it may be bound to ``node`` now that its gang is there; or why not."""
        if pod.open and (why := await self._reserved(pod, node)):
            return why
        pod = self._state.pod(pod.key) or pod
        if pod.bound or (reserved := pod.reserved) is None:
            return pod
        return await self._turn(pod, reserved)

    async def _reserved(self, pod: Pod, node: str) -> str:
        """Wait until all are there, their leases stored and ``pod`` told; or why not."""
        uid, now = pod.uid, self._state.now()
        self._expire(now)
        mine = self._tries.get(self._of.get(pod.key, GangStart()))
        if mine is None or mine.begun is None or mine.placed.get(uid, ("",))[0] != node:
            return messages.GANG_NOT_RESERVED
        begun, room = mine.begun, mine.start.start
        gathers, locks = map(self._config.seconds, ("gang_bind", "bind_budget"))
        with self._barrier.joined(room, uid) as rung:
            whole = mine.placed.keys() <= self._barrier.uids(room) and not mine.locked
            if whole and (why := await self._lock(mine)):
                return why
            while (shown := self._state.pod(pod.key)) and shown.uid == uid:
                if shown.reserved is not None:
                    return ""
                if mine.begun != begun or uid not in mine.placed:
                    break
                end = begun + gathers + (locks if mine.locked else 0.0)
                if (left := end - self._state.now()) <= 0:
                    self._fail(mine)
                    continue
                await rung(min(left, _LOOK))
            return messages.GANG_NOT_TOGETHER

    async def _lock(self, mine: _Attempt) -> str:
        mine.locked = True
        state = self._state
        plan = [
            gangs.Assignment(pod=pod, node=given[0], ids=given[1], uuids=state.uuids(given[0]))
            for pod in mine.pods.values()
            if (given := mine.placed.get(pod.uid)) is not None
        ]
        steps = gangs.acquire(plan, state.look, at_once=_AT_ONCE)
        why = await self._runner.run(steps, self._config.seconds("bind_budget"))
        if why:
            self._fail(mine)
        return why

    async def _turn(self, pod: Pod, reserved: Reserved) -> Pod | str:
        """Wait until all of the plan are in their binds and the first one is bound; or why not."""
        end = self._state.now() + self._config.seconds("gang_bind")
        first_key = pod.namespace, reserved.first
        with self._barrier.joined(reserved.plan, pod.uid, reserved) as rung:
            while True:
                here = len(self._barrier.uids(reserved.plan))
                begun = committed(self._state.pod(first_key), reserved)
                # Once it has begun part of a gang would run without it.
                slots = () if begun else self._state.view(reserved.node).slots
                if not (begun or {slot.id for slot in slots}.issuperset(reserved.ids)):
                    return messages.TOO_SMALL
                if gangs.may_bind(pod, here, begun):
                    return pod
                if self._state.now() >= end:
                    return messages.GANG_NOT_TOGETHER
                await rung(_LOOK)
                shown = self._state.pod(pod.key)
                if shown is None or shown.uid != pod.uid or not shown.planned(reserved.plan):
                    return messages.GANG_NOT_RESERVED
                pod = shown


def _shut(pod: Pod | None) -> bool:
    """Tell whether the gate of a member has yet to be opened; one that is open never comes back."""
    return pod is not None and pod.gated and pod.open and pod.start is None


def _room(view: NodeView, claims: Iterable[Claim]) -> int:
    """For how many members, of whichever of these ``claims``, it has GPUs that are not sick."""
    fit = (
        claim
        for claim in claims
        if not filter_prioritize.refusal(view, claim.spec.selector.match_labels)
    )
    return max((len(view.slots) // claim.count for claim in fit), default=0)


def _fullest(
    among: Iterable[str], views: Mapping[str, NodeView], counts: Sequence[int]
) -> dict[str, int]:
    """GPUs by node for members of so many, where most are free, and room once all others have
    gone."""
    kept = dict[str, int]()
    room = {
        name: (views[name].free.bit_count(), len(views[name].slots))
        for name in among
        if name in views and not views[name].blocked
    }
    for count in counts:
        fits = [name for name, (_, left) in room.items() if left >= count]
        if not fits:
            break
        name = max(fits, key=lambda fit: (room[fit], fit))
        room[name] = (room[name][0] - count, room[name][1] - count)
        kept[name] = kept.get(name, 0) + count
    return kept


def _free(kept: Mapping[str, int], views: Mapping[str, NodeView]) -> int:
    """How many of those that are kept are free."""
    return sum(min(count, views[name].free.bit_count()) for name, count in kept.items())
