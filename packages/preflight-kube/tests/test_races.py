"""The explorer of races: two replicas of the example, whose world is taken apart.

Their API server is the double's store without HTTP, their time is the test's. At each step the test
chooses what happens next: a write arrives, its answer is slow or never comes, it is lost, or it
arrives long after it was sent; a watch brings an event, or says that it has grown too old; a
replica dies, with its writes under way; a person changes or deletes something; time goes on to the
next timer, or leaps over many. The first of these is the usual one, and each other one is a
deviation. ``hasty``: people do not wait for an answer, nor do watches.

Every play with one deviation is gone through (in the short form every sixth), and plays with
several are drawn.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import settings
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, WatchEvent
from preflight_kube.client.responses import refusal
from preflight_kube.clock import Clock
from preflight_kube.errors import Fenced, Gone, KubeError
from preflight_kube.runtime.controller import RuntimeMetrics
from preflight_kube.runtime.lease import Leadership, lead
from preflight_testing.apidouble import RESOURCES, Resource
from preflight_testing.apidouble.http import Api, ApiRequest
from preflight_testing.apidouble.store import Object, Store

_SPEC: Any = importlib.util.spec_from_file_location(
    "greeting", Path(__file__).parents[1] / "examples" / "greeting" / "greeting.py"
)
greeting: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(greeting)

NOWHERE = Connection("http://127.0.0.1:1", ssl.create_default_context())
KINDS = {it.plural: it for it in (*RESOURCES, Resource("example.com/v1", "greetings", "Greeting"))}
PLACE = ("default", "hello")
QUIET = 45.0
"""Seconds after the last thing that happens in which all must be well."""

Act = tuple[str, Callable[[], None]]


class Choices:
    """Says at each step which of some acts is next: 0, except where ``deviations`` say another."""

    def __init__(self, deviations: dict[int, int], hasty: bool) -> None:
        self._deviations, self._hasty, self.offered = deviations, hasty, list[int]()

    def pick(self, acts: list[Act]) -> Act:
        if self._hasty:
            acts.sort(key=lambda act: act[0] not in {"an event", "a person"})
        chosen = self._deviations.get(len(self.offered), 0)
        self.offered.append(len(acts))
        return acts[chosen % len(acts)]


class VirtualTime(asyncio.SelectorEventLoop):
    """Its time is what the test says."""

    now = 0.0

    def time(self) -> float:
        return self.now

    async def settle(self) -> None:
        """Until nobody has anything to do without an answer, an event or a timer."""
        for _ in range(3):
            await asyncio.sleep(0)
        while self._ready:  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    def next_timer(self) -> float:
        due = [it.when() for it in self._scheduled if not it.cancelled()]  # type: ignore[attr-defined]
        return min(due, default=self.now + 1.0)


class Sent:
    """A write under way."""

    def __init__(self, request: ApiRequest, answer: asyncio.Future[Any]) -> None:
        self.request, self.answer = request, answer


class Replica(Client):
    """One replica and its way to the API server. Its clock is some days from those of others."""

    def __init__(self, world: World, number: int) -> None:
        clock = Clock(lambda: world.loop.now + number * 86_400.0)
        super().__init__(NOWHERE, agent=f"replica-{number}", clock=clock)
        self.world, self.name, self.dead = world, f"replica-{number}", False
        self.metrics = RuntimeMetrics()
        self.leadership: list[Leadership] = []
        self.watches: list[Watch] = []
        self.forgotten = 0  # versions that no watch begins from any more
        self.caches: list[Any] = []
        self.task = world.loop.create_task(self.run())

    async def run(self) -> None:
        parts = await greeting.build(self.metrics, self)
        self.caches = parts.reflectors

        async def body(leadership: Leadership) -> None:
            self.leadership.append(leadership)
            await parts.lead(leadership)

        async with anyio.create_task_group() as group:
            for cache in self.caches:
                group.start_soon(cache.run)
                await cache.wait_synced()
            at = partial(lead, self, namespace="default", name="greeting")
            await at(identity=self.name, retry=4.0, body=body)

    def sibling(self, **_: Any) -> Client:
        return self

    async def aclose(self) -> None:
        pass

    async def _send(
        self, verb: str, method: str, path: str, take: Any, *, data: bytes = b"", **more: Any
    ) -> Any:
        params = {key: str(value) for key, value in (more.get("params") or {}).items()}
        headers = {"content-type": more.get("kind", "")}
        request = ApiRequest(method, path, params, headers, data)
        if self.dead:
            raise KubeError("dead")
        if method == "GET":
            answer = self.world.api.answer(request)
        else:
            if self._may_write is not None and not self._may_write():
                raise Fenced(f"{path}: the right to write had ended")
            led = any(leadership.valid() for leadership in self.leadership)
            assert led or "/leases" in path, "who does not lead writes"
            answer = await self.world.sent(request)
        body = msgspec.json.encode(answer.body)
        if answer.code >= 400:
            raise refusal(answer.code, body, f"{verb} {path}")

        async def pieces() -> AsyncIterator[bytes]:
            yield body

        return answer.code, await take(pieces())

    @asynccontextmanager
    async def watch(self, path: str, type_: Any, **about: Any) -> AsyncIterator[Any]:
        if int(about["resource_version"]) < self.forgotten:
            raise Gone("too old", 410)
        watch = Watch(self.world, path, type_, about)
        self.watches.append(watch)
        try:
            yield watch.events()
        finally:
            self.watches.remove(watch)


class Watch:
    """What one watch has still to bring."""

    def __init__(self, world: World, path: str, type_: Any, about: Any) -> None:
        self._world, self._type, self._at = world, type_, int(about["resource_version"])
        self._request = ApiRequest("GET", path, dict(about["params"] or {}), {}, b"")
        self._brought: asyncio.Queue[WatchEvent[Any] | KubeError] = asyncio.Queue()

    async def events(self) -> AsyncIterator[WatchEvent[Any]]:
        while True:
            event = await self._brought.get()
            if isinstance(event, KubeError):
                raise event
            yield event

    def waiting(self) -> bool:
        return self._next() is not None

    def _next(self) -> tuple[str, Object] | None:
        target = self._world.api.target(self._request.path)
        assert target is not None
        for write in self._world.api.store.since(self._at):
            event = write.event(target.resource, target.namespace, self._request.matches())
            if event is not None:
                return event
        return None

    def bring(self) -> None:
        event = self._next()
        assert event is not None
        kind: Any = event[0]
        item = msgspec.convert(event[1], self._type)
        self._at = int(event[1]["metadata"]["resourceVersion"])
        self._brought.put_nowait(WatchEvent(kind, item, resource_version=str(self._at)))

    def forget(self) -> None:
        self._brought.put_nowait(Gone("too old", 410))


class World:
    """An API server without HTTP, its clients, and what is under way between them."""

    def __init__(self, loop: VirtualTime, choices: Choices) -> None:
        self.loop, self._choices = loop, choices
        self.api = Api(Store(), set(KINDS.values()), set())
        self.under_way: list[Sent] = []
        self.slow: list[Callable[[], None]] = []
        self.late: list[ApiRequest] = []
        self.log: list[str] = []
        self._create("namespaces", {"metadata": {"name": "default"}})
        about = {"name": PLACE[1], "namespace": PLACE[0]}
        self._create("greetings", {"metadata": about, "spec": {"text": "1"}})
        self._people: list[Act] = [
            ("a person", lambda: self._text("2")),
            ("a person", self._drop),
            ("a person", lambda: self._text("3")),
        ]
        self._numbers = itertools.count()
        self.replicas = [Replica(self, next(self._numbers)) for _ in range(2)]

    def stored(self, plural: str) -> Object | None:
        return self.api.store.objects.get(KINDS[plural], {}).get(PLACE)

    def _create(self, plural: str, body: Object) -> None:
        self.api.store.create(KINDS[plural], body["metadata"].get("namespace", ""), body)

    def _text(self, text: str) -> None:
        stored = self.stored("greetings")
        assert stored is not None
        self.api.store.update(KINDS["greetings"], stored, {**stored, "spec": {"text": text}})

    def _drop(self) -> None:
        if (stored := self.stored("configmaps")) is not None:
            self.api.store.delete(KINDS["configmaps"], stored, {})

    async def sent(self, request: ApiRequest) -> Any:
        """What comes of a write. Where its sender has gone meanwhile it may arrive later."""
        sent = Sent(request, self.loop.create_future())
        self.under_way.append(sent)
        try:
            return await sent.answer
        finally:
            if sent in self.under_way:
                self.under_way.remove(sent)
                self.late.append(request)

    def _arrives(self, sent: Sent, *, answered: bool, done: bool = True) -> None:
        self.under_way.remove(sent)
        answer = self.api.answer(sent.request) if done else None
        if answered:
            sent.answer.set_result(answer)
        else:
            sent.answer.set_exception(KubeError("no answer"))

    def _is_slow(self, sent: Sent) -> None:
        self.under_way.remove(sent)
        answer = self.api.answer(sent.request)

        def answers() -> None:
            if not sent.answer.done():
                sent.answer.set_result(answer)

        self.slow.append(answers)

    def _answers(self, answer: Callable[[], None]) -> None:
        self.slow.remove(answer)
        answer()

    def _put_off(self, sent: Sent) -> None:
        self.late.append(sent.request)
        self._arrives(sent, answered=False, done=False)

    def _dies(self, replica: Replica) -> None:
        replica.dead = True
        replica.task.cancel()
        self.replicas[self.replicas.index(replica)] = Replica(self, next(self._numbers))

    def _forgets(self, replica: Replica) -> None:
        replica.forgotten = self.api.store.version
        for watch in replica.watches:
            watch.forget()

    def _goes_on(self, seconds: float = 0.001) -> None:
        self.loop.now = max(self.loop.now + seconds, self.loop.next_timer())

    def acts(self) -> Iterator[Act]:
        """All that may happen next, the usual first."""
        waiting = [it for replica in self.replicas for it in replica.watches if it.waiting()]
        for sent in self.under_way:
            yield "it arrives", partial(self._arrives, sent, answered=True)
        for watch in waiting:
            yield "an event", watch.bring
        for answer in self.slow:
            yield "an answer", partial(self._answers, answer)
        for sent in self.under_way:
            yield "its answer is slow", partial(self._is_slow, sent)
            yield "no answer", partial(self._arrives, sent, answered=False)
            yield "it is lost", partial(self._arrives, sent, answered=False, done=False)
            yield "it is put off", partial(self._put_off, sent)
        for request in self.late:
            yield "it arrives late", partial(self._arrives_late, request)
        if not self.under_way and not waiting:
            yield from self._people[:1]
        yield "time", self._goes_on
        yield from self._people[:1]
        for replica in self.replicas:
            yield "it dies", partial(self._dies, replica)
            yield "its watches are too old", partial(self._forgets, replica)
        yield "a leap", partial(self._goes_on, 20.0)

    def _arrives_late(self, request: ApiRequest) -> None:
        self.late.remove(request)
        self.api.answer(request)

    def leaders(self) -> list[str]:
        return [
            it.name
            for it in self.replicas
            if not it.dead and any(leadership.valid() for leadership in it.leadership)
        ]

    async def play(self) -> None:
        """Until all has happened and time has passed. Raises AssertionError for what is wrong."""
        await self.loop.settle()
        last, quiet = self.loop.now, -1
        while self.loop.now < last + QUIET:
            what, act = self._choices.pick(list(self.acts()))
            self.log.append(what)
            act()
            self._people = [it for it in self._people if it[1] is not act]
            if what not in {"time", "it arrives"} or self._people:
                last = self.loop.now
            await self.loop.settle()
            assert len(self.leaders()) <= 1, "two have the right to write"
            wanted, stored = self.stored("greetings"), self.stored("configmaps")
            if self.loop.now > last + QUIET / 2 and quiet < 0:
                quiet = self.api.store.version
        assert wanted is not None
        assert stored is not None, "there is no ConfigMap"
        assert stored["data"] == wanted["spec"], "it has another text"
        assert self.leaders(), "nobody leads"
        for replica in self.replicas:
            for cache, item in zip(replica.caches, (wanted, stored), strict=True):
                [shown] = cache.store.values()
                assert shown.metadata.uid == item["metadata"]["uid"]
                assert shown.metadata.resource_version == item["metadata"]["resourceVersion"]
        written = self.api.store.since(quiet)
        assert {it.resource.plural for it in written} <= {"leases"}, "somebody writes for nothing"

    async def close(self) -> None:
        for replica in self.replicas:
            replica.dead = True
            replica.task.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        while others:
            await self.loop.settle()
            self._goes_on()
            others = {it for it in asyncio.all_tasks() if it is not asyncio.current_task()}


def played(deviations: dict[int, int], hasty: bool) -> list[int]:
    """Play the world once; how many acts there were to choose from at each step."""
    random.seed(0)
    choices = Choices(deviations, hasty)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTime)
        world = World(loop, choices)
        try:
            await world.play()
        except AssertionError as error:
            error.add_note(f"{deviations}, {hasty}: {', '.join(world.log)}")
            raise
        finally:
            await world.close()

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        runner.run(main())
    return choices.offered


EARLY = 32
"""Steps in which what happens is of another kind each time; then leases are renewed."""


@pytest.mark.parametrize("hasty", [False, True], ids=["patient", "hasty"])
def test_whatever_goes_wrong_once_it_ends_well(hasty: bool) -> None:
    usual = played({}, hasty)
    deviations = [
        {step: act} for step, offered in enumerate(usual[:EARLY]) for act in range(1, offered)
    ]
    assert len(deviations) > 200
    for deviation in deviations[:: max(1, 150 // settings().max_examples)]:
        played(deviation, hasty)


def test_whatever_goes_wrong_several_times_it_ends_well() -> None:
    draw = random.Random(7)
    for _ in range(2 * settings().max_examples):
        deviations = {draw.randrange(60): draw.randrange(1, 30) for _ in range(draw.randint(2, 6))}
        played(deviations, draw.random() < 0.5)
