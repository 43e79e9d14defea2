"""The page: what changes in the cluster → which gangs to look at → decide → commit → tell; and results into counts and Events,
PreflightConfigs into verdicts.

Both replicas mirror the cluster; the one that leads acts. It keeps no state of its own that matters: all of it stands in the pods
and in one ConfigMap a gang, so whoever leads next goes on from there.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

import anyio
import msgspec
from preflight_proto import names
from preflight_proto.roster import decode_roster
from preflight_proto.stamp import ContractError, configmap_name

from .audit import Audit
from .config import Config, sources_of
from .delivery import TooLarge
from .kube.client import Client
from .kube.lease import Leadership
from .kube.reflector import Change, Reflector
from .lookup import Objects
from .membership import Key, Member, Stage, key_of, member
from .metrics import Metrics
from .objects import ConfigMap, Pod
from .pacing import Pace
from .policies import Policies
from .reports import Reports
from .sealing import Answer, Gang, Record, decide
from .sizes import Kind
from .sizing import Sized, object_of, size
from .waiting import Waiting, waiting_event
from .workqueue import Queue
from .writer import Writer, obstacle, record_in

__all__ = ["Controller"]

RETRY: Final = 1.0
"""Seconds after which what the API server refused or did not answer is tried again."""
LOOK_AGAIN: Final = 0.1
OBSTRUCTED: Final = 5.0
"""Seconds after which it is seen whether a ConfigMap that is not ours has given way."""
REST, MOST_REST = 100e-6, 0.25
"""Seconds a member, and at most, between two looks at a gang: a look costs 4 µs a member, a burst of changes needs one."""
SETTLERS: Final = 8

log = logging.getLogger(__name__)


class Controller:
    """Mirrors from construction to the end of :meth:`mirror`; acts while :meth:`lead` runs."""

    def __init__(self, client: Client, config: Config, metrics: Metrics) -> None:
        self._client, self._metrics = client, metrics
        self._sources = sources_of(config)
        self._members: dict[Key, dict[str, Member]] = {}
        self._key_by_uid: dict[str, Key] = {}
        self._config_maps: dict[tuple[str, str], ConfigMap] = {}
        self._host_ports = anyio.Lock()
        self._ignored: set[str] = set()  # pods whose stamp cannot be believed, told once each
        self._departed: dict[Key, dict[str, Member]] = {}  # had passed when they went, while it is not written down
        self._waits: dict[Key, Waiting] = {}
        self._too_large: set[Key] = set()  # told once each
        self._paces: dict[Key, Pace] = {}  # of gangs that have an address and are not sealed yet
        self.gangs: Queue[Key] = Queue(
            "gang", lambda key: min(MOST_REST, REST * len(self._members.get(key, ()))), client.clock
        )
        self.reports = Reports(client, config, metrics)
        self._audit = Audit(client, config, metrics)
        self._policies = Policies(client, metrics)
        self._objects = Objects(client, self._object_changed, self._sources)
        selected = (names.GANG_LABEL, f"!{names.GANG_LABEL},{names.CHECKED_LABEL}=true")
        self._reflectors = [
            Reflector(client, "/api/v1/pods", Pod, on_change=self._pod_changed, params={"labelSelector": selector})
            for selector in selected
        ]
        self._records = Reflector(
            client,
            "/api/v1/configmaps",
            ConfigMap,
            on_change=self._config_map_changed,
            params={"labelSelector": f"{names.MANAGED_BY_LABEL}={names.MANAGED_BY}"},
        )

        self._synced = [*(reflector.synced for reflector in self._reflectors), self._records.synced]

    # --- what changes in the cluster

    async def mirror(self) -> None:
        """Keep up with the cluster until cancelled."""
        async with anyio.create_task_group() as group:
            beside = (self._objects.run, self.reports.mirror, self._policies.mirror)
            for run in (*(r.run for r in self._reflectors), self._records.run, *beside):
                group.start_soon(run)

    @property
    def synced(self) -> bool:
        """Whether everything has been read once."""
        return all(event.is_set() for event in self._synced)

    async def wait_synced(self) -> None:
        for event in self._synced:
            await event.wait()

    def _pod_changed(self, change: Change[Pod]) -> None:
        pod, uid = change.object, change.key
        if change.kind == "deleted":
            self.reports.gone(uid)
            self._ignored.discard(uid)
        elif names.CHECKED_LABEL in pod.metadata.labels:
            self.reports.seen(pod)
        before = self._key_by_uid.get(uid)
        key = self._place(pod, gone=change.kind == "deleted")
        self._metrics.gangs.set(len(self._members))
        for one in {before, key} - {None}:
            assert one is not None
            self.gangs.add(one)

    def _place(self, pod: Pod, *, gone: bool) -> Key | None:
        """Put the pod's member where it belongs; the gang it belongs to now."""
        uid = pod.metadata.uid
        try:
            stamped = None if gone else key_of(pod)
        except ContractError as error:
            stamped = None
            if uid not in self._ignored:
                self._ignored.add(uid)
                self._metrics.config_errors.labels("stamp").inc()
                log.warning("a stamp is ignored", extra={"about": {"uid": uid, "error": str(error)}})
        before = self._key_by_uid.pop(uid, None)
        if before is not None and (stamped is None or stamped[0] != before):
            gang = self._members[before]
            gang.pop(uid, None)
            if gone and (last := _as_it_was(pod)) is not None:
                self._departed.setdefault(before, {})[uid] = last
            if not gang:
                del self._members[before]
                self._paces.pop(before, None)
                self._departed.pop(before, None)
                self._waits.pop(before, None)
                self._too_large.discard(before)
        if stamped is None:
            return None
        key, stamp = stamped
        one = member(pod, stamp)
        self._members.setdefault(key, {})[uid] = one
        self._key_by_uid[uid] = key
        if one.ip and one.alive:
            self._paces.setdefault(key, Pace(self._client.clock()))
        return key

    def _config_map_changed(self, change: Change[ConfigMap]) -> None:
        about = change.object.metadata
        place = (about.namespace, about.name)
        if change.kind == "deleted":
            self._config_maps.pop(place, None)
        else:
            self._keep(change.object)
        if raw := about.annotations.get(names.PREFIX + "gang-id"):
            self._forget_departed((about.namespace, raw), record_in(self._config_maps.get(place)))
            self.gangs.add((about.namespace, raw))

    def _forget_departed(self, key: Key, record: Record | None) -> None:
        """Those of whom the record says it, or does not speak."""
        if (departed := self._departed.get(key)) is not None and record is not None:
            seats = set() if record.passed else {seat.uid for seat in record.seats}
            self._departed[key] = {uid: one for uid, one in departed.items() if uid in seats}

    def _keep(self, found: ConfigMap) -> None:
        """The newer of what is known and what is found: our own write may be ahead of the watch."""
        place = (found.metadata.namespace, found.metadata.name)
        known = self._config_maps.get(place)
        if known is None or known.metadata.uid != found.metadata.uid or _version(known) <= _version(found):
            self._config_maps[place] = found

    def _object_changed(self, kind: Kind, namespace: str, name: str) -> None:
        """Have the gangs looked at that an object concerns; without a name, all that have asked for its kind."""
        for key, members in self._members.items():
            if namespace and key[0] != namespace:
                continue
            named = object_of(tuple(members.values()))
            if named is not None and kind in self._sources.get(named[0], ()) and (not name or named[1] == name):
                self.gangs.add(key)

    # --- what the leader does

    async def lead(self, leadership: Leadership) -> None:
        """Settle every gang and report every result, until cancelled."""
        await self.wait_synced()
        await self.reports.wait_nodes()
        writer = Writer(self._client.fenced(leadership.valid), leadership.epoch, self._metrics)
        for key in self._members:
            self.gangs.add(key)
        async with anyio.create_task_group() as group:
            for _ in range(SETTLERS):
                group.start_soon(self.gangs.work, lambda key: self._settle(writer, key), RETRY)
            group.start_soon(self.reports.lead, writer)
            group.start_soon(self._policies.lead, writer)
            group.start_soon(self._audit.lead)

    def gang(self, key: Key, obstructed_by: ConfigMap | None = None) -> Gang | None:
        """All that is known of a gang now; None when it has no member left."""
        members = self._members.get(key)
        if not members:
            return None
        namespace, raw = key
        name = configmap_name(namespace, raw)
        everyone = tuple(sorted(members.values(), key=lambda m: (m.name, m.uid)))
        named = object_of(everyone)
        return Gang(
            namespace=namespace,
            id=raw,
            config_map=name,
            members=everyone,
            sized=size(namespace, raw, everyone, self._objects.find, self._sources),
            record=record_in(self._config_maps.get((namespace, name))),
            owner=self._objects.reference(named[0], namespace, named[1]) if named is not None else None,
            obstacle=obstacle(obstructed_by),
            departed=tuple(self._departed.get(key, {}).values()),
        )

    async def _settle(self, writer: Writer, key: Key) -> float | None:
        """One look at one gang; returns after how many seconds to look again, if unasked."""
        gang = self.gang(key)
        if gang is None:
            return None
        decision = decide(gang)
        if decision.seal:
            gang = await self._commit(writer, key, gang, decision.seal)
            if gang is None:
                return LOOK_AGAIN
            decision = decide(gang)
        elif decision.note_pass and not await self._note_pass(writer, key, gang):
            return LOOK_AGAIN
        asking = (decision.answers.get(one.uid) for one in gang.members if one.stage is Stage.WAITING)
        waits = any(answer is not None and answer.answer == "wait" for answer in asking)
        again = self._pace(key, gang, decision.answers)
        if not await writer.tell(
            gang, decision.answers, lambda one, roster: self._heard(key, one, roster), self.reports.with_roster
        ):
            return RETRY
        said = await self._say_who_is_missing(writer, key) if waits else None
        again = min((seconds for seconds in (again, said) if seconds is not None), default=None)
        return OBSTRUCTED if gang.obstacle else again

    async def _say_who_is_missing(self, writer: Writer, key: Key) -> float | None:
        """Events on members that have waited for long; after how many seconds there may be more."""
        gang = self.gang(key)  # as it has been told just now
        if gang is None:
            return None
        waits = self._waits.setdefault(key, Waiting())
        due, again = waits.due(gang, self._client.clock())
        for one in due:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if await writer.event(waiting_event(gang, one, now)) is None:
                return RETRY
            waits.said(one)
        return again

    async def _commit(self, writer: Writer, key: Key, gang: Gang, chosen: tuple[Member, ...]) -> Gang | None:
        """The gang as it is after the attempt to seal it; None when it must be looked at again first."""
        place = (gang.namespace, gang.config_map)
        try:
            if any(one.host_network for one in chosen):
                async with self._host_ports:  # one after the other: the next one sees what this one has taken
                    taken = self._taken({one.node for one in chosen})
                    written = await writer.commit(gang, chosen, self._config_maps.get(place), taken)
                    if written is not None:
                        self._keep(written)
            else:
                written = await writer.commit(gang, chosen, self._config_maps.get(place))
        except TooLarge as error:
            if key not in self._too_large:
                self._too_large.add(key)
                log.warning("not tested", extra={"about": {"gang": "/".join(key), "error": str(error)}})
            return msgspec.structs.replace(gang, sized=Sized(skip=str(error)))
        if written is not None:
            self._keep(written)
            self._sealed(key)
            return self.gang(key)
        return await self._found(writer, key, gang)

    async def _note_pass(self, writer: Writer, key: Key, gang: Gang) -> bool:
        """Have the record say that its generation has passed; False when the gang must be looked at again first."""
        at = self._config_maps.get((gang.namespace, gang.config_map))
        written = await writer.note_pass(gang, at) if at is not None else None
        if written is None:
            await self._found(writer, key, gang)
            return False
        self._keep(written)
        self._departed.pop(key, None)
        return True

    async def _found(self, writer: Writer, key: Key, gang: Gang) -> Gang | None:
        """After a write of the record that came to nothing: the gang, where a ConfigMap that is not ours is in its way."""
        place = (gang.namespace, gang.config_map)
        # Somebody else wrote, or has taken the name, or it was deleted: the cluster knows, and the watch may be behind.
        found = await writer.read(gang)
        if found is None:
            self._config_maps.pop(place, None)
        elif obstacle(found):
            return self.gang(key, found)
        else:
            self._keep(found)
        return None

    def _taken(self, nodes: set[str]) -> set[int]:
        """The ports on these nodes that gangs have been given, the asking one's last ones among them."""
        records = (record_in(found) for found in self._config_maps.values())
        return {r.master_port for r in records if r is not None and any(seat.node in nodes for seat in r.seats)}

    def _pace(self, key: Key, gang: Gang, answers: dict[str, Answer]) -> float | None:
        """Leave out the waits whose turn it is not; after how many seconds it is.

        Who was never told anything and does not ask yet (its gang check does not run) is not told to wait: most gangs are complete
        before their first member asks.
        """
        waiting: dict[str, bool] = {}
        for one in gang.members:
            answer = answers.get(one.uid)
            if answer is None or answer.answer != "wait":
                continue
            if one.told is None and one.stage is not Stage.WAITING:
                del answers[one.uid]
            else:
                told = one.told
                waiting[one.uid] = told is None or (told.answer, told.generation) != ("wait", answer.generation)
        if not waiting:
            return None
        now = self._client.clock()
        turn, again = self._paces.setdefault(key, Pace(now)).turn(waiting, now)
        for uid in waiting.keys() - set(turn):
            del answers[uid]
        return again

    def _heard(self, key: Key, one: Member, roster: str) -> None:
        """What a member has been told just now; the watch says so, too, a moment later."""
        members = self._members.get(key, {})
        if (known := members.get(one.uid)) is not None:
            members[one.uid] = msgspec.structs.replace(known, roster=roster, told=decode_roster(roster))

    def _sealed(self, key: Key) -> None:
        self._departed.pop(key, None)
        pace = self._paces.pop(key, None)
        if pace is not None:
            owner = next((m.owner for m in self._members[key].values() if m.owner is not None), None)
            workload = f"{owner.kind}/{owner.name}" if owner is not None else "Pod"
            self._metrics.gang_wait.labels(self._metrics.bounded("workload", workload)).observe(
                self._client.clock() - pace.since
            )


def _as_it_was(pod: Pod) -> Member | None:
    """The member that a deleted pod was, if it had passed the test of a generation."""
    try:
        stamped = key_of(pod)
    except ContractError:
        return None
    last = member(pod, stamped[1]) if stamped is not None else None
    sealed = last is not None and last.told is not None and last.told.answer == "sealed"
    return last if last is not None and last.passed and sealed else None


def _version(found: ConfigMap) -> int:
    """Resource versions of one resource are comparable as numbers (KEP-5504); what is no number counts as oldest."""
    text = found.metadata.resource_version
    return int(text) if text.isdigit() else 0
