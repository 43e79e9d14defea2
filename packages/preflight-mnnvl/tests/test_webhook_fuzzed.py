"""Reviews that nobody would send, over HTTPS into the real server: each is answered, and none ends
in an error that says nothing.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from cliques import (
    BY_GROUP,
    DRIVER,
    LITERAL,
    ON,
    clique,
    container,
    group,
    pcs,
    podclique,
    review_of,
)
from hypothesis import settings
from live import space_of
from preflight_mnnvl.config import Config
from preflight_mnnvl.webhook.handler import PODCLIQUES, SETS
from preflight_testing.apiserver import ApiServer
from registered import registered

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

WRITERS = 16
ODD: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "",
        "true",
        "Replica",
        "x" * 5000,
        "\u0000",
        "\ud800",
        "../..",
        "mnnvl",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"name": "mnnvl"},
        [{"name": "mnnvl"}],
        {"nvidia.com/gpu": {"a": []}},
    ),
]


def whole() -> list[dict[str, Any]]:
    """Objects of which a place or two become anything."""
    claim = {"name": "own", "resourceClaimTemplateName": "theirs"}
    busy = {
        "containers": [container()],
        "initContainers": [container("init")],
        "resourceClaims": [claim],
    }
    by_group = podclique(
        "t-0-g-1-w",
        "t",
        annotations=BY_GROUP,
        group="t-0-g",
        index="1",
    )
    set_ = pcs("t", [clique("w"), clique("x")], [group("g", ["w"], ON)], annotations=ON)
    return [
        podclique("t-0-w", "t", annotations=ON),
        podclique("t-0-x", "t", annotations=ON, pod=busy),
        by_group,
        set_,
    ]


def places(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = (
        found.items()
        if isinstance(found, dict)
        else enumerate(found)
        if isinstance(found, list)
        else ()
    )
    for key, value in inner:
        yield from places(value, (*at, key))


def bent(found: Any, chance: random.Random) -> Any:
    done = copy.deepcopy(found)
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        *parents, last = chance.choice(list(places(done))) or ("",)
        at = done
        for key in parents:
            at = at[key]
        if last == "":
            return chance.choice(ODD)
        if chance.random() < 0.3:
            del at[last]
        else:
            at[last] = chance.choice(ODD)
    return done


def review(number: int, chance: random.Random, namespace: str) -> tuple[str, bytes]:
    found = chance.choice(whole())
    plural = "podcliquesets" if found["kind"] == "PodCliqueSet" else "podcliques"
    path = chance.choice(
        [SETS if plural == "podcliquesets" else PODCLIQUES] * 9 + [PODCLIQUES, SETS]
    )
    asked = review_of(
        found,
        namespace=namespace,
        uid=str(number),
        operation=chance.choice(["CREATE", "CREATE", "UPDATE", "DELETE", "CONNECT"]),
        name="t",
        object=bent(found, chance),
        oldObject=chance.choice([None, bent(found, chance)]),
        dryRun=chance.choice([True, False]),
    )
    if chance.random() < 0.05:
        asked["request"] = bent(asked["request"], chance)
    raw = json.dumps(asked).encode()
    if chance.random() < 0.03:
        raw = raw[: chance.randrange(len(raw))]
    return path, raw


@pytest.mark.timeout(900)  # thousands of reviews, where every process may be slow
@pytest.mark.parametrize(
    ("config", "number"),
    [(DRIVER, 40 * settings().max_examples), (LITERAL, 8 * settings().max_examples)],
    ids=["driver", "literal"],
)
async def test_fuzzed_reviews_are_answered_and_no_error_says_nothing(
    config: Config, number: int, server: ApiServer, tmp_path: Path
) -> None:
    """In mode `literal` fewer, as many of them make objects."""
    chance = random.Random(20261122)
    statuses: dict[int, int] = {}
    told: list[str] = []
    async with (
        space_of(server, tmp_path, config, webhook=True) as space,
        registered(space, config, tmp_path / "tls") as hook,
    ):
        await space.grove.apply(
            pcs("t", [clique("w"), clique("x")], [group("g", ["w"], ON)], annotations=ON)
        )
        waiting = [review(i, chance, space.namespace) for i in range(number)]

        async def send() -> None:
            async with httpx.AsyncClient(
                verify=hook.trusted, trust_env=False, timeout=30
            ) as sender:
                while waiting:
                    path, raw = waiting.pop()
                    answer = await sender.post(hook.url + path, content=raw)
                    statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                    told.extend(judge(answer))

        async with anyio.create_task_group() as senders:
            for _ in range(WRITERS):
                senders.start_soon(send)
    assert sum(statuses.values()) == number
    assert statuses.keys() <= {200, 400, 500}, statuses
    assert told == [], told
    assert statuses[200] > number * 0.9


def judge(answer: httpx.Response) -> Iterator[str]:
    """What is wrong with it. Status 500: something could not be looked up, and it says what."""
    if answer.status_code in {400, 500}:
        reasons = {400: "Review", 500: "tried again"}
        if reasons[answer.status_code] not in answer.text:
            yield f"{answer.status_code} {answer.text}"
        return
    said = answer.json()["response"]
    if not isinstance(said["allowed"], bool) or (
        not said["allowed"] and len(said["status"]["message"]) < 20
    ):
        yield str(said)
