"""The requirement's examples behind a real API server, with the webhook registered: what Grove's
own writes become, to the letter.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cliques import DRIVER, LITERAL
from live import Space, fixture, leading, space_of
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from registered import registered

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("labels", ["grove", "requirement"])
modes = pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
ON = {"grove.io/mnnvl-enabled": "true"}
EXAMPLES: dict[str, dict[str, tuple[str, list[str]]]] = {
    "e1-distributed-training": {
        f"distributed-training-{i}-cd": (
            f"distributed-training-{i}",
            [f"distributed-training-{i}-parameter-server", f"distributed-training-{i}-worker"],
        )
        for i in (0, 1)
    },
    "e2-multi-model-serving": {
        f"multi-model-serving-0-{name}-cd": (
            "multi-model-serving-0",
            [f"multi-model-serving-0-{name}"],
        )
        for name in ("llama-70b", "mixtral")
    },
    "e3-scalable-inference": {
        f"scalable-inference-0-inference-pool-{i}-cd": (
            gang,
            [f"scalable-inference-0-inference-pool-{i}-gpu-worker"],
        )
        for i, gang in enumerate(
            [
                "scalable-inference-0",
                "scalable-inference-0-inference-pool-0",
                "scalable-inference-0-inference-pool-1",
            ]
        )
    },
}

PODCLIQUES = {"e1-distributed-training": 4, "e2-multi-model-serving": 3, "e3-scalable-inference": 3}
"""Of each example."""


@both
@modes
@pytest.mark.parametrize("name", list(EXAMPLES))
async def test_an_example_becomes_what_the_requirement_says(
    name: str, config: Config, labels: str, server: ApiServer, tmp_path: Path
) -> None:
    wanted = EXAMPLES[name]
    key = "resourceClaimTemplateName" if config is DRIVER else "resourceClaimName"
    async with (
        space_of(server, tmp_path, config, labels, webhook=True) as space,
        leading(space.target, config),
        registered(space, config, tmp_path / "tls"),
    ):
        await space.grove.apply(fixture(name))
        await space.turned(PODCLIQUES[name])
        await space.settled(
            space.owners, {cd: [("PodGang", gang)] for cd, (gang, _) in wanted.items()}
        )
        await space.settled(space.announced, {gang for gang, _ in wanted.values()})
        if config is LITERAL:  # handed over by a write of its own, after that of its domain
            await space.settled(lambda: _claimants(space), dict.fromkeys(wanted, "PodGang"))
        claimed: dict[str, list[str]] = {}
        sent = {one["name"]: one for one in fixture(name)["spec"]["template"]["cliques"]}
        for podclique_name, one in (await space.grove.all("podcliques")).items():
            spec = copy.deepcopy(one["spec"]["podSpec"])
            entries = spec.pop("resourceClaims", [])
            for entry in entries:
                assert entry == {"name": "mnnvl", key: entry[key]}
                (only,) = spec["containers"]
                assert only["resources"].pop("claims") == [{"name": "mnnvl"}]
                claimed.setdefault(entry[key].removesuffix("-mnnvl-claim") + "-cd", []).append(
                    podclique_name
                )
            # The lines that are the tables', and no other.
            (template,) = [
                found for end, found in sent.items() if podclique_name.endswith(f"-{end}")
            ]
            assert spec == template["spec"]["podSpec"]
            notes = one["metadata"].get("annotations", {})
            assert {note: notes[note] for note in notes if note != DECISION} == (
                NOTES[name] if entries else {}
            )
            assert (DECISION in notes) is bool(entries)
        assert {cd: sorted(names) for cd, names in claimed.items()} == {
            cd: names for cd, (_, names) in wanted.items()
        }
        gangs = await space.grove.all("podgangs")
        made = [("cd", await space.domains())]
        if config is LITERAL:
            made.append(("mnnvl-claim", await space.all(space.claim_path("resourceclaims"))))
        for suffix, found in made:
            assert set(found) == {f"{cd.removesuffix('cd')}{suffix}" for cd in wanted}
            for one_name, one in found.items():
                stem = one_name.removesuffix(f"-{suffix}")
                gang = gangs[wanted[f"{stem}-cd"][0]]["metadata"]
                assert one["metadata"]["labels"] == {
                    **LABELS[name](stem),
                    "grove.io/mnnvl-managed": "true",
                    "grove.io/podgang": gang["name"],
                    "app.kubernetes.io/managed-by": "preflight-mnnvl",
                    "app.kubernetes.io/instance": "preflight-mnnvl",
                }
                assert one["metadata"]["ownerReferences"] == [
                    {
                        "apiVersion": "scheduler.grove.io/v1alpha1",
                        "kind": "PodGang",
                        "name": gang["name"],
                        "uid": gang["uid"],
                        "controller": True,
                        "blockOwnerDeletion": True,
                    }
                ]
                if suffix == "cd":
                    template = {"resourceClaimTemplate": {"name": f"{stem}-mnnvl-claim"}}
                    channel = {**template, "allocationMode": "Single"}
                    assert one["spec"] == {"numNodes": 0, "channel": channel}
                else:
                    (request,) = one["spec"]["devices"]["requests"]
                    said = f'device.attributes["compute-domain.nvidia.com"].name == "{stem}-cd"'
                    assert request["name"] == "mnnvl"
                    assert request["exactly"]["deviceClassName"] == "compute-domain.nvidia.com"
                    assert request["exactly"]["selectors"] == [{"cel": {"expression": said}}]
        assert await space.grove.turn() == 0  # the template again: nothing is stored


async def _claimants(space: Space) -> dict[str, str]:
    """The kind that owns each claim, by the name of its domain."""
    found = await space.all(space.claim_path("resourceclaims"))
    return {
        f"{name.removesuffix('-mnnvl-claim')}-cd": one["metadata"]["ownerReferences"][0]["kind"]
        for name, one in found.items()
    }


DECISION = "mnnvl.nvsentinel.nvidia.com/domain"
NOTES = {
    name: {**ON, "grove.io/mnnvl-scope": scope}
    for name, scope in (
        ("e1-distributed-training", "replica"),
        ("e2-multi-model-serving", "clique"),
        ("e3-scalable-inference", "scalingGroupReplica"),
    )
}
"""Annotations of the PodCliques that get a claim, wherever they stand in the set."""


def _of(set_: str, stem: str) -> dict[str, str]:
    index = stem.removeprefix(f"{set_}-").partition("-")[0]
    return {"grove.io/pcs-name": set_, "grove.io/pcs-replica-index": index}


LABELS: dict[str, Callable[[str], dict[str, str]]] = {
    "e1-distributed-training": lambda stem: _of("distributed-training", stem),
    "e2-multi-model-serving": lambda stem: {
        **_of("multi-model-serving", stem),
        "grove.io/clique-name": stem.removeprefix("multi-model-serving-0-"),
    },
    "e3-scalable-inference": lambda stem: {
        **_of("scalable-inference", stem),
        "grove.io/pcsg-name": "inference-pool",
        "grove.io/pcsg-replica-index": stem.rpartition("-")[2],
    },
}
"""Those that say which domain it is, by what its names have in common."""


class Stored(msgspec.Struct):
    """As the API server has it, byte for byte."""

    metadata: dict[str, msgspec.Raw]
    spec: msgspec.Raw


@both
@modes
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
