"""Every interleaving of a few actors in a small world, with a bounded number of faults: nothing is
left to chance.

An actor is what it was started with and the answers that it has had, as its steps are
deterministic; equal worlds with equal actors are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors import Actor, Fate
from preflight_gpu_scheduler.core.protocol import Answer, Lost, Request, Steps
from world import World

Start = Callable[[World], Actor | None]
"""An actor that starts in this world, or None where there is nothing to start with yet."""
Act = Callable[[World], None]
"""What a user or a kubelet does, once, at any time."""


@dataclass(frozen=True)
class _Running:
    """``made``: the steps anew, from what the actor saw when it started; ``pending``: the requests
    under way after all answers of the ``past``.
    """

    made: Callable[[], Steps[Any]]
    past: tuple[tuple[Answer, ...], ...] = ()
    now: tuple[Answer | None, ...] = ()
    pending: tuple[Request, ...] = ()


@dataclass(frozen=True)
class _State:
    world: World
    actors: tuple[_Running | Start | None, ...]
    acts: tuple[Act | None, ...]
    late: tuple[Request, ...]
    faults: int

    @property
    def key(self) -> str:
        actors = [
            (n, (repr(a.past), repr(a.now), id(a.made)) if isinstance(a, _Running) else a is None)
            for n, a in enumerate(self.actors)
        ]
        return repr(
            (self.world.state, actors, [a is None for a in self.acts], self.late, self.faults)
        )


@dataclass
class Explored:
    states: int = 0
    ends: int = 0


def explore(
    world: World,
    starts: Sequence[Callable[[World], Callable[[], Steps[Any]] | None]],
    acts: Sequence[Act] = (),
    *,
    faults: int = 0,
    at_end: Callable[[World], None] = lambda _: None,
    most: int = 400_000,
) -> Explored:
    """Go through all of it; ``at_end`` is asked of every world in which nothing moves any more."""
    seen: set[str] = set()
    made: dict[tuple[int, str], Callable[[], Steps[Any]]] = {}
    stack = [_State(world, tuple(starts), tuple(acts), (), faults)]  # type: ignore[arg-type]
    result = Explored()
    while stack:
        state = stack.pop()
        key = state.key
        if key in seen:
            continue
        seen.add(key)
        result.states += 1
        assert result.states <= most, "the world is not small enough"
        following = list(_following(state, made))
        if not any(isinstance(actor, _Running) for actor in state.actors) and not state.late:
            result.ends += 1
            at_end(state.world.copy())
        stack += following
    return result


def _following(
    state: _State, made: dict[tuple[int, str], Callable[[], Steps[Any]]]
) -> Iterator[_State]:
    for n, act in enumerate(state.acts):
        if act is not None:
            world = state.world.copy()
            act(world)
            world.check()
            yield replace(state, world=world, acts=_with(state.acts, n, None))
    for n, request in enumerate(state.late):
        world = state.world.copy()
        world.perform(request)
        yield replace(state, world=world, late=state.late[:n] + state.late[n + 1 :])
    for n, actor in enumerate(state.actors):
        if isinstance(actor, _Running):
            yield from _moves(state, n, actor)
        elif actor is not None:
            start: Any = actor
            if (steps := start(state.world)) is not None:
                one = made.setdefault((n, state.world.state), steps)
                yield replace(state, actors=_with(state.actors, n, _settled(_Running(one))))


def _moves(state: _State, n: int, actor: _Running) -> Iterator[_State]:
    pending = actor.pending
    now = actor.now or (None,) * len(pending)
    which = now.index(
        None
    )  # of a batch in order: the server may take them in any, and that only swaps equal worlds
    request = pending[which]
    for fate in Fate if state.faults else (Fate.DONE,):
        world, answer, late = state.world, Lost(), state.late
        if fate in {Fate.DONE, Fate.ANSWER_LOST}:
            world = state.world.copy()
            found = world.perform(request)
            answer = found if fate is Fate.DONE else answer  # type: ignore[assignment]
        elif fate is Fate.LATE:
            late = (*late, request)
        heard = (*now[:which], answer, *now[which + 1 :])
        if None in heard:
            following: _Running | None = replace(actor, now=heard)
        else:
            following = _settled(replace(actor, past=(*actor.past, heard), now=()))  # type: ignore[arg-type]
        yield replace(
            state,
            world=world,
            late=late,
            actors=_with(state.actors, n, following),
            faults=state.faults - (fate is not Fate.DONE),
        )
    if state.faults:  # it dies here
        yield replace(state, actors=_with(state.actors, n, None), faults=state.faults - 1)


def _settled(actor: _Running) -> _Running | None:
    """The actor with the requests that it sends next; None where it has come to its end."""
    steps = actor.made()
    try:
        pending = next(steps)
        for answers in actor.past:
            pending = steps.send(answers)
    except StopIteration:
        return None
    return replace(actor, pending=pending) if pending else None


def _with(items: tuple[Any, ...], n: int, item: Any) -> tuple[Any, ...]:
    return (*items[:n], item, *items[n + 1 :])
