"""Main flow: what has changed → which wrappers → snapshot → decide → write → act → again."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import anyio
from preflight_kube.api.kinds import kind_of
from preflight_kube.client.client import Client
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller as Reconciler
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.event_recorder import EventRecorder
from preflight_kube.runtime.events import Regarding
from preflight_kube.runtime.workqueue import Key, Queue
from preflight_kube.runtime.writes import Answer, Lost, Refused, Stored, gather

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import API_VERSION, COMPONENT, KIND
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import DEPLOYED, AppWrapper
from preflight_appwrapper.controller.apply import WrapperApplier
from preflight_appwrapper.controller.cache import WrapperCache
from preflight_appwrapper.core.brake import Brake, suspicion
from preflight_appwrapper.core.decode import PartialObject
from preflight_appwrapper.core.phase_context import expired
from preflight_appwrapper.core.plan import (
    Confirm,
    CreateComponent,
    DeleteObject,
    Finalizer,
    List,
    WrapperAction,
    WrapperPlan,
)
from preflight_appwrapper.core.reconcile import BAD_ANNOTATION, reconcile
from preflight_appwrapper.core.snapshot import HeldEvacuation, LeaderState, WrapperSnapshot, observe
from preflight_appwrapper.metrics import Metrics

_WORKERS: Final = 128
"""More than requests under way at once: most of them wait for one list."""
_DELETION_WORKERS: Final = 8
"""Deletions wait for each other, and nothing whose period is over waits for them."""
_MAX_RECONCILES: Final = 100
"""Decisions at one go (64 components take one each), before others go first."""
_REST: Final = 0.01
"""Seconds between two looks at a wrapper: sixteen pods that change at once are one look."""
_BEGINS: Final = frozenset({"resume", "retry"})
_VERIFIED: Final = frozenset(
    {"leftover", "succeeded", "reset", "evacuate", "failed", "create-late", "create-last"}
)
"""Rows that cannot be taken back: they are decided once more, on what the API server says."""
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of names that are made up: without those that are mistaken for others, or make words."""

log = get_logger(__name__)


class Controller:
    """One leadership of it. ``client`` is fenced by that."""

    def __init__(self, client: Client, rules: WrapperRules, metrics: Metrics) -> None:
        self._rules, self._metrics = rules, metrics
        self._queue = Queue("wrapper", lambda _: _REST, client.clock)
        self._deletions = Queue("deletion", lambda _: _REST, client.clock)
        self._busy: set[Key] = set()  # of both queues, and those that changed meanwhile
        self._again: set[Key] = set()
        self._taken: set[Key] = set()  # what the brake has let through, and is not written yet
        self._clock = client.clock
        kinds = RESTMapper(client)
        self._cache = WrapperCache(client, kinds, rules, self._changed)
        metrics.statuses = lambda: (
            wrapper.status for wrapper in self._cache.wrappers.store.values()
        )
        self._applier = WrapperApplier(client, kinds, rules, metrics)
        self._events = EventRecorder(client, COMPONENT, counted=metrics.event)
        self._states: dict[Key, LeaderState] = {}
        self._brake = Brake(rules.brake, client.clock)
        self._leaving: dict[Key, tuple[str, str]] = {}  # node and code

    async def run(self) -> None:
        """Look after every wrapper until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._cache.run)
            group.start_soon(self._events.run)
            await self._cache.synced()
            # What an earlier leader has let through counts as if it were now.
            for wrapper in self._cache.wrappers.store.values():
                if wrapper.status.migration_count and wrapper.status.phase in DEPLOYED:
                    self._brake.take(wrapper.metadata.key)
            for name, queue, workers in (
                (KIND, self._queue, _WORKERS),
                (f"{KIND}Deletion", self._deletions, _DELETION_WORKERS),
            ):
                do, metrics = partial(self._reconcile, queue), self._metrics.runtime
                reconciler = Reconciler(name, queue, do, workers=workers, metrics=metrics)
                group.start_soon(reconciler.run)

    def _changed(self, key: Key) -> None:
        self._queue_of(self._cache.wrapper(key)).add(key)

    def _queue_of(self, wrapper: AppWrapper | None) -> Queue:
        deletes = wrapper is not None and c.is_true(wrapper.status, c.DELETING)
        return self._deletions if deletes else self._queue

    # --- one look

    async def _reconcile(self, queue: Queue, key: Key) -> float | None:
        """Decide and act until nothing is left to do now; seconds until the next look."""
        if key in self._busy:
            self._again.add(key)
            return None
        self._busy.add(key)
        try:
            return await self._settle(queue, key)
        finally:
            self._give_back(key)
            self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self._changed(key)

    async def _settle(self, queue: Queue, key: Key) -> float | None:
        verified = False
        for _ in range(_MAX_RECONCILES):
            wrapper = self._cache.wrapper(key)
            if wrapper is None:
                self._states.pop(key, None)
                self._leaving.pop(key, None)
                return None
            if self._queue_of(wrapper) is not queue:
                self._again.add(key)
                return None
            await self._cache.follow(wrapper)
            state = self._state(key, wrapper)
            began, now = time.thread_time(), datetime.now(UTC)
            snapshot = observe(
                wrapper,
                self._cache.view(key, wrapper),
                state,
                suffix="".join(random.choices(_LETTERS, k=5)),  # noqa: S311 - tells names apart
                now=now,
                clock=self._clock(),
                held=self._held(key, now),
            )
            plan = reconcile(wrapper, snapshot, self._rules, now)
            self._leave(key, plan, snapshot)
            self._metrics.looks.observe(time.thread_time() - began)
            if plan.row in _VERIFIED and not verified:
                await self._survey(key, wrapper, state)
                verified = True
                continue
            verified = False
            if plan.status != wrapper.status:
                if not await self._write(key, wrapper, plan, state, now):
                    continue
                if plan.row:
                    self._taken.discard(key)
                wrapper = self._cache.wrapper(key) or wrapper
            for event in filter(state.record, plan.say):
                self._events.event(
                    Regarding(API_VERSION, KIND, key[1], wrapper.metadata.uid, key[0]),
                    about=event.key,
                    reason=event.reason,
                    message=event.message,
                    warning=event.warning,
                )
                if event.reason == BAD_ANNOTATION:
                    log.warning("annotation ignored", **_about(wrapper), why=event.message)
                if event.reason == "DeletionBlocked":
                    log.warning("deletion blocked", **_about(wrapper), by=list(plan.blocked))
            if plan.actions and self._queue_of(wrapper) is queue:
                await self._act(key, wrapper, plan.actions, state, snapshot)
            elif plan.status == wrapper.status and not plan.row:
                return self._timer(key, plan, now)
        coming = plan.next.what if plan.next else ""
        log.warning(
            "AppWrapper not settled yet, tried again", namespace=key[0], name=key[1], next=coming
        )
        return 1.0

    def _held(self, key: Key, now: datetime) -> HeldEvacuation | None:
        total = sum(self._cache.wrappers.count("phase", phase) for phase in DEPLOYED)
        wait = self._brake.wait(key, total)
        if wait is None:
            return None
        why = (
            suspicion(self._leaving.values()),
            self._rules.brake.sentence("the running workloads"),
        )
        sentence = "; ".join(filter(None, why))
        return HeldEvacuation(sentence=sentence, at=now + timedelta(seconds=wait))

    def _leave(self, key: Key, plan: WrapperPlan, snapshot: WrapperSnapshot) -> None:
        """Take the share of the brake for what is evacuated, unless somebody has released it."""
        leaves = plan.judgment.leaves if plan.judgment else None
        if leaves is not None:
            self._leaving[key] = leaves.pod.node, leaves.code
        elif not c.is_true(plan.status, c.DELETING):
            self._leaving.pop(key, None)
        if leaves is None or not plan.row:
            self._give_back(key)
        elif snapshot.held is None and self._brake.take(key):
            self._taken.add(key)

    def _give_back(self, key: Key) -> None:
        if key in self._taken:
            self._taken.discard(key)
            self._brake.give_back(key)

    async def _survey(self, key: Key, wrapper: AppWrapper, state: LeaderState) -> bool:
        """Read all of a wrapper as it is now; whether there is anything. Raises KubeError."""
        components = self._applier.read_components(wrapper, state)
        return any(await gather([self._cache.read_pods(key), components]))

    def _state(self, key: Key, wrapper: AppWrapper) -> LeaderState:
        known = self._states.get(key)
        if known is None or known.uid != wrapper.metadata.uid:
            known = self._states[key] = LeaderState(uid=wrapper.metadata.uid)
        return known

    async def _write(
        self, key: Key, wrapper: AppWrapper, plan: WrapperPlan, state: LeaderState, now: datetime
    ) -> bool:
        """Write the status; False where the wrapper is another by now."""
        answer = await self._applier.write(wrapper, plan.status)
        if await self._settled(key, wrapper, answer) is None:
            return False
        if plan.row in _BEGINS:
            state.begin()
            self._cache.forget_departed(wrapper.metadata.uid)
        if not c.is_true(wrapper.status, c.DELETING):
            state.empty.clear()
        if plan.row:
            self._moved(wrapper, plan, state, now)
        return True

    async def _settled(self, key: Key, wrapper: AppWrapper, answer: Answer) -> PartialObject | None:
        """The wrapper as it was stored. None where it is another by now, or may be: then what it is
        was read, for a watch may be behind. Raises :class:`KubeError` where it was refused.
        """
        if isinstance(answer, Stored):
            stored = answer.object(PartialObject)
            self._cache.wrappers.wrote(stored)
            return stored
        current = await self._applier.read(*key)
        if current is None or current.metadata.uid != wrapper.metadata.uid:
            self._cache.wrappers.deleted(wrapper.metadata.uid)
        if current is not None:
            self._cache.wrappers.wrote(current)
        match answer:
            case Refused(error=error, stale=False) | Lost(error=error) if error.status:
                raise error
        return None

    def _moved(
        self, before: AppWrapper, plan: WrapperPlan, state: LeaderState, now: datetime
    ) -> None:
        """Count and log a transition."""
        metadata = before.metadata
        if state.due is not None and state.due <= now:
            self._metrics.lateness.observe((datetime.now(UTC) - state.due).total_seconds())
        state.due = None
        phase = plan.status.phase
        if phase != before.status.phase:
            self._metrics.phases.labels(metadata.namespace, phase).inc()
        if phase == "Resetting" and before.status.phase != "Resetting":
            unhealthy = c.find(plan.status, c.UNHEALTHY)
            counted = plan.status.resetting_count > before.status.resetting_count
            reason = unhealthy.reason if unhealthy else ""
            self._metrics.resets.labels(reason, str(counted).lower()).inc()
        start = c.since(before.status, c.DELETING)
        deleted = c.is_true(before.status, c.DELETING) and not c.is_true(plan.status, c.DELETING)
        if start is not None and deleted:
            forced = str(expired(start, plan.parameters.forceful_deletion, now)).lower()
            self._metrics.deletion.labels(forced).observe(max(0.0, (now - start).total_seconds()))
        moved = {"transition": plan.row, "from": before.status.phase, "to": phase}
        log.info("transition", **_about(before), **moved, resets=plan.status.resetting_count)

    def _timer(self, key: Key, plan: WrapperPlan, now: datetime) -> float | None:
        """Seconds until what comes next by itself; None for nothing."""
        at = plan.next.at if plan.next is not None else None
        state = self._states.get(key)
        if state is not None:
            state.due = at
            if state == LeaderState(uid=state.uid):
                del self._states[key]  # thousands may be queued, of which nothing is known better
        return None if at is None else max(0.0, (at - now).total_seconds())

    # --- what is done

    async def _act(
        self,
        key: Key,
        wrapper: AppWrapper,
        actions: tuple[WrapperAction, ...],
        state: LeaderState,
        snapshot: WrapperSnapshot,
    ) -> None:
        namespace = key[0]
        at_once: list[DeleteObject] = []
        for action in actions:
            if not isinstance(action, List):
                state.empty.clear()
            match action:
                case Finalizer(wanted=wanted):
                    answer = await self._applier.finalizer(wrapper, wanted=wanted)
                    stored = await self._settled(key, wrapper, answer)
                    if stored is not None and not wanted and not stored.metadata.finalizers:
                        self._cache.wrappers.deleted(wrapper.metadata.uid)
                case CreateComponent():
                    await self._applier.create(wrapper, action, state)
                case Confirm(index=index) if index < len(wrapper.status.component_status):
                    known = wrapper.status.component_status[index]
                    shown = snapshot.component(index).uid
                    name = (kind_of(known.api_version, known.kind), known.name)
                    await self._applier.look(namespace, name, state, known.uid, shown)
                case DeleteObject():
                    at_once.append(action)
                case List():
                    state.attempts[action] = datetime.now(UTC)
                    if await self._survey(key, wrapper, state):
                        state.empty.clear()
                    else:
                        state.empty.append(self._clock())
        await gather(self._applier.delete(namespace, action, state) for action in at_once)


def _about(wrapper: AppWrapper) -> dict[str, str]:
    metadata = wrapper.metadata
    return {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
