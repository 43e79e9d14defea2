"""Whatever a kubelet, a user and the machine do, in any order: never two prepared claims, never a
file without one, never one without its file, and no call without its answers.

Files and time are in memory. One sequence for each fifty of them runs on the disk, with real
threads.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import random
import tempfile
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import pytest
from claimed import FACTS, Cluster, Node, ref, uid
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inmemory import Clockwork, Files, Paths
from preflight_computedomain.api import checkpoint
from preflight_computedomain.api.checkpoint import COMPLETED, STARTED
from preflight_computedomain.api.names import cdi_file
from preflight_computedomain.api.types import ResourceClaim
from preflight_computedomain.metrics import PluginMetrics
from preflight_computedomain.node import atomic_file as disk
from preflight_computedomain.node import lock as lock_file
from preflight_computedomain.node.prepare import ClaimPreparer, Times
from preflight_computedomain.node.state_dir import CHECKPOINT, document

NUMBER = 10 * settings().max_examples
pytestmark = pytest.mark.timeout(180 + NUMBER)
KUBELET = 45.0
"""Seconds after which a kubelet gives up a call."""
CLAIMS = range(1, 4)


class Killed(BaseException):
    """The process ends here."""


@dataclass(frozen=True)
class Call:
    """``gives_up``: after so many turns of the loop, or seconds; ``plugin``: of two that overlap,
    which one.
    """

    what: str
    number: int
    gives_up: int | float | None
    plugin: int


@dataclass(frozen=True)
class Step:
    """Calls at once while ``trouble`` lasts, of which ``kill`` is the step on the disk that ends a
    process, and what happens afterwards. ``mends``: CDI files are lost at the beginning, and looked
    for after so many seconds.
    """

    calls: list[Call]
    kill: int | None
    event: str
    trouble: str
    slow: tuple[int, float] = (0, 0.0)
    power: int = 0
    mends: float | None = None


CALL = st.builds(
    Call,
    st.sampled_from(["prepare", "prepare", "unprepare"]),
    st.sampled_from(CLAIMS),
    st.none() | st.integers(0, 40) | st.sampled_from([0.05, 1.0, 13.0, 39.95, 42.5]),
    st.integers(0, 1),
)
KILL = st.none() | st.integers(0, 16)
EVENTS = ["nothing", "nothing", "restart", "reboot", "file lost"]
TROUBLES = ["none", "slow", "slow", "down", "late", "full", "locked", "claim gone", "domain gone"]
STEP = st.builds(
    Step,
    st.lists(CALL, min_size=1, max_size=3),
    KILL,
    st.sampled_from([*EVENTS, "overlap", "overlap", "power fails", "checkpoint broken"]),
    st.sampled_from(TROUBLES),
    st.tuples(st.integers(0, 15), st.sampled_from([0.0, 0.3, 12.0, 42.0])),
    st.integers(0, 2**16),
    st.none() | st.sampled_from([0.0, 0.3, 12.0]),
)
ON_DISK = st.builds(
    Step,
    st.lists(CALL, min_size=1, max_size=3),
    KILL,
    st.sampled_from(EVENTS),
    st.just("none"),
)


@dataclass
class Process:
    """One plugin on the node. A process that has ended writes nothing more."""

    node: Node
    machine: Machine
    dead: bool = False
    page: ClaimPreparer = field(init=False)

    def __post_init__(self) -> None:
        self.node.step = self.step
        self.page = self.node.page(METRICS)

    def step(self, _: str) -> None:
        self.machine.stands()
        if self.dead or self.machine.left == 0:
            self.dead, self.machine.left = True, None
            raise Killed
        if self.machine.left is not None:
            self.machine.left -= 1


METRICS = PluginMetrics(FACTS.node)
CHECKSUM = cache(checkpoint.checksum)
"""The same few files are read again and again."""


@dataclass
class Machine:
    """``left``: steps on the disk until the process that makes the next one ends; ``stands``: the
    disk, before each step.
    """

    left: int | None = None
    stands: Callable[[], None] = lambda: None


class Slow(Cluster):
    """An API server whose answers may be late."""

    late: float = 0.0

    async def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        await asyncio.sleep(self.late)
        return await super().claim(namespace, name)


@dataclass
class InMemory(Node):
    """A node whose files are in memory, but for the lock."""

    disk: Files = field(default_factory=Files)
    locked: Path = Path("unset")

    @property
    def lock(self) -> Path:
        return self.locked


def done(node: Node) -> set[str]:
    return {key for key, state in node.states().items() if state == COMPLETED}


def kept_aside(node: Node) -> list[Path]:
    return [path for path in node.folder.iterdir() if ".corrupt-" in path.name]


def unfinished(node: Node) -> list[str]:
    return [path.name for path in node.folder.iterdir() if path.name.endswith(disk.TEMPORARY)]


def check(node: Node, *, clean: bool = True) -> None:
    """``clean``: since the last start the disk has taken everything; else a claim that has begun
    may have its file.
    """
    prepared, states = done(node), node.states()
    assert len(prepared) <= 1
    begun = set() if clean else {cdi_file(key) for key, one in states.items() if one == STARTED}
    files = {name: data for name, data in node.files().items() if name not in begun}
    assert files == {cdi_file(key): document(key, node.major) for key in prepared}
    assert (kept_aside(node), unfinished(node)) == ([], [])


def empty(node: Node) -> None:
    """Somebody removes the CDI files."""
    for path in list(node.cdi.iterdir()):
        path.unlink()


async def call(page: ClaimPreparer, asked: Call) -> str | None:
    """The answer's error; None where the caller has gone."""
    work = (page.prepare if asked.what == "prepare" else page.unprepare)([ref(asked.number)])
    task = asyncio.create_task(work)
    began = asyncio.get_running_loop().time()
    if isinstance(asked.gives_up, float):
        await asyncio.wait({task}, timeout=asked.gives_up)
    else:
        for _ in range(asked.gives_up or 0):
            await asyncio.sleep(0)
    if asked.gives_up is not None:
        task.cancel()
    try:
        answers = await task
    except asyncio.CancelledError:
        return None
    assert answers.keys() == {uid(asked.number)}
    assert asyncio.get_running_loop().time() - began < KUBELET
    return answers[uid(asked.number)].error


def undone(calls: Sequence[Call], ended: Sequence[object], plugins: int) -> set[str]:
    """Claims that were unprepared after all else that one plugin was asked about them."""
    found = set()
    for number in CLAIMS:
        mine = [(one, end) for one, end in zip(calls, ended, strict=False) if one.number == number]
        kinds = [one.what for one, _ in mine]
        alone = len({one.plugin % plugins for one, _ in mine}) == 1
        last = kinds[-1:] == ["unprepare"] and kinds.count("unprepare") == 1
        if alone and last and mine[-1][1] == "":
            found.add(uid(number))
    return found


async def mended(page: ClaimPreparer, after: float) -> None:
    """As the plugin does it while it runs."""
    await asyncio.sleep(after)
    with suppress(lock_file.LockHeld, OSError):
        await page.mend()


@contextmanager
def trouble(node: Node, step: Step) -> Generator[None]:
    """What is wrong for as long as the calls of ``step`` last, or for a part of it."""
    loop, cluster = asyncio.get_running_loop(), node.cluster
    assert isinstance(cluster, Slow)
    claims, known = dict(cluster.claims), dict(cluster.known)
    lock = os.open(node.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    cluster.down = step.trouble == "down"
    cluster.late = 10.0 if step.trouble == "late" else 0.0
    if isinstance(loop, Clockwork):
        loop.slow = step.slow if step.trouble == "slow" else None
    if isinstance(node, InMemory):
        node.disk.room = step.slow[0] % 8 if step.trouble == "full" else None
        node.disk.in_the_middle = bool(step.power % 2)
    if step.trouble == "locked":
        fcntl.flock(lock, fcntl.LOCK_EX)
        loop.call_later(step.slow[1], fcntl.flock, lock, fcntl.LOCK_UN)
    elif step.trouble == "claim gone":
        loop.call_later(step.slow[1], cluster.claims.clear)
    elif step.trouble == "domain gone":
        loop.call_later(step.slow[1], cluster.known.clear)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)
        cluster.down, cluster.late, cluster.claims, cluster.known = False, 0.0, claims, known
        if isinstance(loop, Clockwork):
            loop.slow = None
        if isinstance(node, InMemory):
            node.disk.room = None


async def play(node: Node, steps: Sequence[Step], machine: Machine) -> None:
    boots = itertools.count(2)
    asyncio.get_running_loop().set_exception_handler(
        lambda *_: None
    )  # whoever is killed is not heard

    async def begun() -> Process:
        made = Process(node, machine)
        await made.page.start()
        return made

    plugins, clean = [await begun()], True
    for step in steps:
        machine.left = step.kill
        with trouble(node, step):
            calls: list[Coroutine[Any, Any, str | None]] = [
                call(plugins[one.plugin % len(plugins)].page, one) for one in step.calls
            ]
            if step.mends is not None:
                empty(node)
                calls.append(mended(plugins[-1].page, step.mends))
            every = await asyncio.gather(*calls, return_exceptions=True)
            for ended in every:
                if isinstance(ended, BaseException) and not isinstance(ended, Killed):
                    raise ended
            for each in plugins:
                await each.page.stop(100)  # what was given up, too, comes to its end
        machine.left = None
        assert not undone(step.calls, every, len(plugins)) & {*node.states()}
        alive = [one for one in plugins if not one.dead]
        prepared = done(node)
        clean = clean and step.trouble != "full"
        if sound := len(alive) == len(plugins) and clean and step.mends is None:
            check(node)
        if step.event in {"reboot", "power fails"}:
            node.facts, alive = replace(FACTS, boot=f"boot-{next(boots)}"), []
        if step.event == "power fails" and isinstance(node, InMemory):
            node.disk.power_fails(partial(random.Random(step.power).choice, (False, True)))
        elif step.event in {"reboot", "file lost"}:
            empty(node)
        elif step.event == "checkpoint broken":
            alive = []
            (node.folder / CHECKPOINT).write_bytes(b"{")
        if step.event == "restart":
            alive = []
        if step.event == "overlap" or len(alive) < len(plugins):
            plugins, clean = [*alive[-1:], await begun()], True
        else:
            await plugins[-1].page.mend()
        if step.event == "checkpoint broken":
            assert done(node) == prepared or not sound
            for path in kept_aside(node):
                path.unlink()
            cast(InMemory, node).disk.sync()  # of this test's own doing nothing comes back
        if step.event in {"reboot", "power fails"}:
            assert node.states() == {}
        check(node, clean=clean)
    node.times = Times()  # with patience, whatever the machine does beside
    answers = await node.page().unprepare([ref(number) for number in CLAIMS])
    assert {one.error for one in answers.values()} == {""}
    assert (node.states(), node.files()) == ({}, {})


def cluster() -> Slow:
    made = Slow()
    for number in CLAIMS:
        made.add(ref(number))
    return made


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """Nobody keeps a hundred thousand lines of log; an error of the plugin's own fails."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)
    counted = [one for family in METRICS.prepare_errors.collect() for one in family.samples]
    assert not [one for one in counted if one.labels.get("error_type") == "internal"]


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lock") / "pu.lock"


@settings(max_examples=NUMBER, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=1, max_size=5))
def test_no_order_of_calls_cancellations_kills_and_reboots_gives_the_channel_twice_or_loses_it(
    lock: Path, steps: list[Step]
) -> None:
    files, machine = Files(), Machine()
    root = cast(Path, Paths.of(files)("/"))
    with pytest.MonkeyPatch.context() as patched, asyncio.Runner(loop_factory=Clockwork) as runner:
        patched.setattr(disk, "os", files)
        patched.setattr(checkpoint, "checksum", CHECKSUM)
        patched.setattr(lock_file, "_POLL", 0.5)  # ten times fewer looks at a lock that is held
        loop = cast(Clockwork, runner.get_loop())
        machine.stands = loop.step
        node = InMemory(root, cluster(), times=Times(), patience=10.0, disk=files, locked=lock)
        runner.run(play(node, steps, machine))


@settings(max_examples=max(NUMBER // 50, 1), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ON_DISK, min_size=1, max_size=5))
def test_nor_does_any_on_a_disk_and_with_threads(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        times = Times(call=0.03, answer=20, first=0.002, longest=0.01)
        asyncio.run(play(Node(Path(folder), cluster(), times=times), steps, Machine()))
