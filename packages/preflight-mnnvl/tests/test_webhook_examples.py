"""The requirement's examples behind a real API server, with the webhook registered: what Grove's
own writes become, to the letter.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import msgspec
import pytest
from cliques import DRIVER, LITERAL
from grove_world import Cluster
from live import Json, fixture, leading, space_of
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from registered import registered

pytestmark = pytest.mark.anyio

worlds = pytest.mark.parametrize(
    ("config", "labels"),
    [
        pytest.param(DRIVER, "grove", id="driver-grove"),
        pytest.param(LITERAL, "requirement", id="literal-requirement"),
    ],
)
"""The other two are in test_examples.py."""
NAMES = ("e1-distributed-training", "e2-multi-model-serving", "e3-scalable-inference")


@worlds
@pytest.mark.parametrize("name", NAMES)
async def test_an_example_becomes_what_the_requirement_says(
    name: str, config: Config, labels: str, server: ApiServer, tmp_path: Path
) -> None:
    """What it becomes in memory, where test_examples.py says what that is."""
    wanted = Cluster(config, labels=labels)
    wanted.apply(fixture(name))
    wanted.grove(fixture(name)["metadata"]["name"])
    kinds = ["pclq", "cd"] if config is DRIVER else ["pclq", "cd", "claim"]
    async with (
        space_of(server, tmp_path, config, labels, webhook=True) as space,
        leading(space.target, config),
        registered(space, config, tmp_path / "tls"),
    ):

        async def stored() -> list[dict[str, Json]]:
            found = [await space.grove.all("podcliques"), await space.domains()]
            found.append(await space.all(space.claim_path("resourceclaims")))
            return [_compared(objects) for objects in found[: len(kinds)]]

        await space.grove.apply(fixture(name))
        await space.turned(len(wanted.store["pclq"]))
        await space.settled(stored, [_compared(wanted.store[kind]) for kind in kinds])
        await space.settled(space.announced, set(wanted.store["pg"]))
        assert await space.grove.turn() == 0  # the template again: nothing is stored


def _compared(objects: dict[str, Json]) -> dict[str, Json]:
    """All but what an API server adds."""
    found = {}
    for name, one in objects.items():
        meta, spec = one["metadata"], copy.deepcopy(one["spec"])
        for request in spec.get("devices", {}).get("requests", ()):
            for key in ("allocationMode", "count"):
                request["exactly"].pop(key, None)
        owners = [{**it, "uid": ""} for it in meta["ownerReferences"] if it["kind"] == "PodGang"]
        kept = {"labels": meta["labels"], "annotations": meta.get("annotations"), "owners": owners}
        found[name] = {**kept, "spec": spec}
    return found


class Stored(msgspec.Struct):
    """As the API server has it, byte for byte."""

    metadata: dict[str, msgspec.Raw]
    spec: msgspec.Raw


@worlds
async def test_a_clique_that_does_not_ask_is_stored_byte_for_byte_as_it_was_sent(
    config: Config, labels: str, server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, config, labels, webhook=True) as space,
        registered(space, config, tmp_path / "tls"),
    ):
        set_ = await space.grove.apply(fixture("e2-multi-model-serving"))
        (one,) = [made for made in space.grove.made(set_, {}) if made.name.endswith("-router")]
        sent = space.grove.body(set_, one)
        await space.turned(3)
        for _ in range(2):  # as it was created, and after an update
            stored = await space.client.get(space.grove.path("podcliques", one.name), Stored)
            assert bytes(stored.spec) == _bytes(sent["spec"])
            assert bytes(stored.metadata["labels"]) == _bytes(sent["metadata"]["labels"])
            assert "annotations" not in stored.metadata
            await space.grove.turn()


def _bytes(found: object) -> bytes:
    """As the API server writes it."""
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()
