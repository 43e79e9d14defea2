"""The main flow: what changes → which gangs to look at → decide → commit → publish rosters.

Both replicas mirror the cluster; the one that leads acts. All of its state stands in the pods and
in one ConfigMap a gang, so whoever leads next goes on from there.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import anyio
import msgspec
from preflight_kube.client.client import (
    Client,
    Conflict,
    Fenced,
    KubeError,
    Unreadable,
    Unusable,
)
from preflight_kube.logs import get_logger
from preflight_kube.runtime.controller import Controller as Reconciler
from preflight_kube.runtime.events import timestamp
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_kube.runtime.retry import Obstructed, Refusals, cause_of
from preflight_kube.runtime.workqueue import Queue
from preflight_proto import names
from preflight_proto.gang_source import BUILT_IN
from preflight_proto.stamp import ContractError

from preflight_gang.api.error_codes import OTHER
from preflight_gang.api.sources import SizedKind
from preflight_gang.api.types import ConfigMap, Pod
from preflight_gang.config import Config, sources_of
from preflight_gang.controller.apply import Writer
from preflight_gang.controller.auditor import Auditor
from preflight_gang.controller.overrides import OverrideController
from preflight_gang.controller.reports import Reports
from preflight_gang.controller.workload_watch import WorkloadWatch
from preflight_gang.core.gangs import Gangs, GangState
from preflight_gang.core.membership import GangMember, Key, MemberStage, Place, config_map_of
from preflight_gang.core.participants import GangSize, object_of
from preflight_gang.core.plan import TooLarge, obstacle, plan, seal
from preflight_gang.core.reconcile import GangDecision, MemberAnswer, decide
from preflight_gang.core.records import LeftOut, NotYet, Records
from preflight_gang.core.snapshot import GangView, assemble
from preflight_gang.core.waiting import AnswerPace, refused_event, waiting_event
from preflight_gang.metrics import Metrics

LOOK_AGAIN: Final = 0.1
"""Seconds until the watch has brought, mostly, what somebody else has written."""
OBSTRUCTED: Final = 5.0
"""Seconds after which it is seen whether a ConfigMap that could not be kept can be by now."""
MIN_INTERVAL, MAX_INTERVAL = 100e-6, 0.25
"""Seconds a member, and at most, from one look at a gang to the next: it costs 4 µs a member."""
WORKERS: Final = 48
"""Gangs looked at at the same time, two thirds of one namespace; mostly they wait for answers."""

log = get_logger(__name__)


class Controller:
    """Mirrors from construction to the end of :meth:`mirror`; acts while :meth:`lead` runs."""

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        self._client, self._metrics = client, metrics
        self._sources = sources_of(config)
        self._gangs = Gangs(self._stamp_ignored)
        self._config_maps = Records(client.clock)
        self._refused: Refusals[Key] = Refusals(random.random)  # records
        self._writer: Writer | None = None  # while this one leads
        self.gangs = Queue(
            "gang",
            lambda key: min(MAX_INTERVAL, MIN_INTERVAL * len(self._gangs.members(key))),
            client.clock,
            lambda: self._gangs,
        )
        self.reports = Reports(client, config, metrics)
        self._config = config
        self._audit = Auditor(client, config, metrics, self.reports)
        self._policies = OverrideController(client, metrics)
        self._objects = WorkloadWatch(client, self._object_changed, self._sources)
        self._reflectors: list[Reflector[Any]] = [
            Reflector(
                client,
                "/api/v1/pods",
                Pod,
                on_change=self._pod_changed,
                params={"labelSelector": selector},
            )
            for selector in (names.GANG_LABEL, f"!{names.GANG_LABEL},{names.CHECKED_LABEL}=true")
        ]
        self._reflectors.append(
            Reflector(
                client,
                "/api/v1/configmaps",
                ConfigMap,
                on_change=self._config_map_changed,
                on_unreadable=self._config_map_unreadable,
                kept=lambda found: ConfigMap(metadata=found.metadata),
                params={"labelSelector": f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"},
            )
        )

    # --- what changes in the cluster

    async def mirror(self) -> None:
        """Keep up with the cluster until cancelled."""
        async with anyio.create_task_group() as group:
            for mirror in (self._objects.run, self.reports.mirror, self._policies.mirror):
                group.start_soon(mirror)
            for reflector in self._reflectors:
                group.start_soon(reflector.run)
            group.start_soon(self._read_left_out)

    @property
    def synced(self) -> bool:
        """Whether everything has been read once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    async def wait_synced(self) -> None:
        """Until every mirror has read the cluster once."""
        for reflector in self._reflectors:
            await reflector.wait_synced()

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod, uid = change.object, change.key
        if change.kind == "deleted":
            self.reports.gone(uid)
            if self._writer is not None:
                self._writer.forget(uid)
        elif pod.metadata.labels.get(names.CHECKED_LABEL) == names.CHECKED:
            self.reports.seen(pod)
        before, now = self._gangs.place(pod, gone=change.kind == "deleted")
        if before is not None and before not in self._gangs:
            self._refused.done(before)
        if now is not None:
            state, one = self._gangs[now], self._gangs[now].members[uid]
            if state.pace is None and one.ip and one.alive:
                state.pace = AnswerPace(self._client.clock())
        self._metrics.gangs.set(len(self._gangs))
        for key in {before, now}:
            if key is not None:
                self.gangs.add(key)

    def _stamp_ignored(self, uid: str, error: ContractError) -> None:
        self._metrics.config_errors.labels("stamp").inc()
        log.warning("invalid gang stamp ignored", uid=uid, error=str(error))

    def _config_map_changed(self, change: Change[ConfigMap]) -> None:
        found = change.object
        place = (found.metadata.namespace, found.metadata.name)
        if (of := found.gang) is None:  # no gang's, whatever its labels say
            if self._config_maps.at(place) is not None:
                self._config_maps.drop(place)
                self._look_at(place)
            return
        if change.kind == "deleted":
            self._config_maps.drop(place)
        else:
            self._config_maps.keep(found)
        key = (place[0], of)
        if (state := self._gangs.get(key)) is not None and state.departed:
            self._forget_departed(state, place)
        if change.kind == "deleted":  # what was in the way may have been this one
            self._refused.done(key)
        self.gangs.add(key)

    def _config_map_unreadable(self, one: Unreadable, there: bool) -> None:
        """It may be a gang's: then its members wait, with this reason, for no second record."""
        place = (one.metadata.namespace, one.metadata.name)
        if there and place[1].startswith(names.GANG_CONFIGMAP_PREFIX):
            self._config_maps.cannot_read(place, one.why)
        else:
            self._config_maps.drop(place)
        self._look_at(place)

    def _look_at(self, place: Place) -> None:
        for key in self._gangs.at(place):
            self.gangs.add(key)

    async def _read_left_out(self) -> None:
        """See now and then whether what could not be kept can be kept by now."""
        while True:
            await anyio.sleep(OBSTRUCTED)
            for namespace, name in self._config_maps.left_out():
                path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
                try:
                    found = await self._client.get_or_none(path, ConfigMap)
                except KubeError:
                    continue
                if found is None:
                    self._config_maps.drop((namespace, name))
                else:
                    self._config_maps.keep(found)
                self._look_at((namespace, name))

    def _forget_departed(self, state: GangState, place: Place) -> None:
        """Forget those that the record counts as passed, or does not contain."""
        with suppress(LeftOut, NotYet):
            if (record := self._config_maps.record(place)) is not None:
                sealed = {assigned.uid for assigned in record.assignments}
                state.forget_departed(but=set() if record.passed else sealed)

    def _object_changed(self, kind: SizedKind, namespace: str, name: str) -> None:
        """Have the gangs looked at that an object concerns; without a name, all of its kind."""
        for key in self._gangs:
            if namespace in {"", key[0]}:
                source, of = object_of(tuple(self._gangs.members(key))) or ("", "")
                if kind in self._sources.get(source, ()) and name in {"", of}:
                    self.gangs.add(key)

    # --- what the leader does

    async def lead(self, leadership: Leadership) -> None:
        """Settle every gang and report every result, until cancelled."""
        await self.wait_synced()
        await self.reports.wait_nodes()
        client = self._client.fenced(leadership.valid)
        writer = Writer(client, leadership.epoch, self._metrics, self._config.writes)
        self._writer = writer
        reconciler = Reconciler(
            "gang",
            self.gangs,
            lambda key: self._reconcile(writer, key),
            workers=WORKERS,
            metrics=self._metrics.runtime,
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(reconciler.run)
                group.start_soon(self.reports.lead, writer)
                group.start_soon(self.reports.health.lead, client)
                group.start_soon(self._policies.lead, client)
                group.start_soon(self._audit.lead)
        finally:
            self._writer = None

    def gang(self, key: Key, obstructed: str = "") -> GangView | None:
        """All that is known of a gang now; None when it is gone, or its record not readable yet."""
        if (state := self._gangs.get(key)) is None:
            return None
        place, record = config_map_of(key), None
        try:
            record = self._config_maps.record(place)
        except LeftOut as error:
            obstructed = str(error)
        except NotYet as error:
            self.gangs.add_after(key, error.seconds)
            return None
        members = state.members.values()
        source, name = object_of(tuple(members)) or ("", "")
        return assemble(
            key,
            members,
            self._objects.find,
            self._sources,
            config_map=place[1],
            record=record,
            owner=self._objects.reference(source, key[0], name),
            obstacle=obstructed,
            departed=tuple(state.departed.values()),
            refused=self._unreachable(members),
        )

    def _unreachable(self, members: Iterable[GangMember]) -> dict[str, str]:
        """Those whose pods cannot be written to, and why."""
        if self._writer is None or not self._writer.pods:
            return {}
        causes = ((one.uid, self._writer.pods.cause(one.uid)) for one in members)
        return {uid: f"its pod cannot be annotated: {cause}" for uid, cause in causes if cause}

    async def _reconcile(self, writer: Writer, key: Key) -> float | None:
        """One look at one gang; returns after how many seconds to look again, if unasked."""
        held_back = self._refused.left(key, self._client.clock())
        gang = self.gang(key, self._refused.cause(key) if held_back else "")
        if gang is None:
            return None
        decision = decide(gang)
        if (decision.seal or decision.note_pass) and not held_back:
            try:
                gang = await self._write(writer, key, gang, decision)
            except Fenced:
                raise
            except KubeError as error:
                why = f"the ConfigMap {config_map_of(key)[1]} cannot be written: {cause_of(error)}"
                cause = str(error) if isinstance(error, Obstructed) else why
                held_back = self._hold_back(key, error, cause)
            if held_back:
                gang = self.gang(key, self._refused.cause(key))
            if gang is None:
                return None
            decision = decide(gang)
        if decision.seal:
            # The record was refused, and it is too early to say why; or a member has changed while
            # the others were sealed.
            return held_back or LOOK_AGAIN
        answers = decision.answers
        due, again = self._due_answers(key, gang, answers)
        times = [held_back or None, again, await self._publish(writer, key, gang, due)]
        if self._unreachable(gang.members).keys() != gang.refused.keys():
            times.append(0.0)  # it concerns the answers of the others, too
        if self.reports.namespaces.opted_in(key[0]):
            asking = (one.uid for one in gang.members if one.stage is MemberStage.WAITING)
            waits = any(uid in answers and answers[uid].answer == "wait" for uid in asking)
            if waits or writer.pods:
                times.append(await self._emit_events(writer, key, answers, waits=waits))
        return min((seconds for seconds in times if seconds is not None), default=None)

    def _due_answers(
        self, key: Key, gang: GangView, answers: dict[str, MemberAnswer]
    ) -> tuple[dict[str, MemberAnswer], float | None]:
        """The answers that are to be written now, and after how many seconds there may be more."""
        state, now = self._gangs.get(key), self._client.clock()
        if state is None:
            return answers, None
        pace = state.pace or AnswerPace(now)
        due, again = pace.due(gang.members, answers, now)
        waits = any(answer.answer == "wait" for answer in answers.values())
        state.pace = pace if waits else None
        return due, again

    async def _publish(
        self, writer: Writer, key: Key, gang: GangView, answers: Mapping[str, MemberAnswer]
    ) -> float | None:
        """Write the rosters that the answers make; after how many seconds to try again, if so."""
        writes = plan(gang, answers, writer.epoch)
        whole = [self.reports.completed(write) for write in writes]
        written, again = await writer.send(key[0], whole)
        for write in written:
            self._gangs.published(key, write)
        return again

    async def _write(
        self, writer: Writer, key: Key, gang: GangView, decision: GangDecision
    ) -> GangView | None:
        """The gang once its record holds what was decided, or as it is where none can hold that.

        Raises :class:`KubeError`.
        """
        at = self._config_maps.at((gang.namespace, gang.config_map))
        state = self._gangs.get(key) or GangState()
        if decision.seal:
            record = seal(gang, decision.seal, secrets.token_hex(32))
        else:
            assert gang.record is not None
            record = msgspec.structs.replace(gang.record, passed=True)
        try:
            written = await writer.commit(gang, record, at)
        except TooLarge as error:
            if not state.too_large:
                state.too_large = True
                log.warning("gang skipped: record too large", gang="/".join(key), error=str(error))
            self._refused.done(key)
            return msgspec.structs.replace(gang, sized=GangSize(skip=str(error)))
        if written is None:
            await self._locate_record(writer, gang)
        self._config_maps.keep(written, ours=True)
        if (now := self._gangs.get(key)) is not None:
            now.forget_departed()
            if decision.seal:
                self._formed(key, now)
        self._refused.done(key)
        return self.gang(key)

    def _formed(self, key: Key, state: GangState) -> None:
        """Show how long the gang took, as it is sealed now."""
        pace, state.pace = state.pace, None
        if pace is not None and self.reports.namespaces.opted_in(key[0]):
            source = key[1].partition(":")[0]
            source = source if source in self._sources or source in BUILT_IN else OTHER
            self._metrics.gang_wait.labels(source).observe(self._client.clock() - pace.since)

    def _hold_back(self, key: Key, error: KubeError, cause: str) -> float:
        """Seconds until the record may be written again."""
        seconds = self._refused.refused(key, error, self._client.clock(), cause)
        if self._refused.first(key) and not isinstance(error, Conflict):
            log.warning("gang record not written, requeued", gang="/".join(key), error=str(error))
        return seconds

    async def _emit_events(
        self, writer: Writer, key: Key, answers: Mapping[str, MemberAnswer], *, waits: bool
    ) -> float | None:
        """Events on members that have waited for long, if some wait, and on those whose pods take
        no annotation, with their answers; after how many seconds there may be more.
        """
        gang, state = self.gang(key), self._gangs.get(key)  # with what was written just now
        if gang is None or state is None:
            return None
        times: list[float] = []
        if waits:
            due, again = state.waiting.due(gang, self._client.clock())
            for one in due:
                if await writer.event(waiting_event(gang, one, _now())) is None:
                    again = writer.left(one.uid) or LOOK_AGAIN
                    break
                state.waiting.emitted(one)
            times += [again] if again is not None else []
        silent = gang.refused.keys() & answers.keys() - state.with_event
        for one in gang.members:
            if one.uid not in silent:
                continue
            if await writer.event(refused_event(gang, one, answers[one.uid], _now())) is None:
                times.append(writer.left(one.uid) or LOOK_AGAIN)
            else:
                state.with_event.add(one.uid)
        return min(times, default=None)

    async def _locate_record(self, writer: Writer, gang: GangView) -> NoReturn:
        """See what is there after a write that came to nothing. Raises :class:`KubeError`."""
        place = (gang.namespace, gang.config_map)
        # Somebody else wrote, or has taken the name, or it was deleted: the cluster knows, and the
        # watch may be behind.
        try:
            found = await writer.read(gang)
        except Unusable as error:
            self._config_maps.cannot_read(place, str(error))
            raise Obstructed(
                f"the ConfigMap {gang.config_map} cannot be read ({error}); delete it", 409
            ) from error
        if found is None:
            self._config_maps.drop(place)
        elif why := obstacle(found):
            raise Obstructed(why, 409)
        else:
            self._config_maps.keep(found)
        raise Conflict(
            f"the ConfigMap {gang.config_map} has been written by somebody else meanwhile", 409
        )


def _now() -> str:
    return timestamp(datetime.now(UTC))
