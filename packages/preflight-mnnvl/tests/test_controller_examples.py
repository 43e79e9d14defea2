"""The requirement's examples on a real API server with the real garbage collector: what the
controller makes of admitted PodCliques, and whose it becomes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cliques import DRIVER, LITERAL
from live import fixture, leading, space_of
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("labels", ["grove", "requirement"])
modes = pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
EXAMPLES = {
    "e1-distributed-training": {
        f"distributed-training-{i}-cd": f"distributed-training-{i}" for i in (0, 1)
    },
    "e2-multi-model-serving": {
        "multi-model-serving-0-llama-70b-cd": "multi-model-serving-0",
        "multi-model-serving-0-mixtral-cd": "multi-model-serving-0",
    },
    "e3-scalable-inference": {
        "scalable-inference-0-inference-pool-0-cd": "scalable-inference-0",
        "scalable-inference-0-inference-pool-1-cd": "scalable-inference-0-inference-pool-0",
        "scalable-inference-0-inference-pool-2-cd": "scalable-inference-0-inference-pool-1",
    },
}


@both
@modes
@pytest.mark.parametrize("name", list(EXAMPLES))
async def test_an_examples_domains_are_made_and_belong_to_their_podgangs(
    name: str, config: Config, labels: str, server: ApiServer, tmp_path: Path
) -> None:
    wanted = {domain: [("PodGang", gang)] for domain, gang in EXAMPLES[name].items()}
    async with space_of(server, tmp_path, config, labels) as space, leading(space.target, config):
        await space.grove.apply(fixture(name))
        await space.grove.turn(gangs="none")
        owned = {domain: [("PodCliqueSet", fixture(name)["metadata"]["name"])] for domain in wanted}
        await space.settled(space.owners, owned)
        await space.grove.turn()
        await space.settled(space.owners, wanted)
        if config is LITERAL:

            async def claims() -> dict[str, str]:
                found = await space.all(space.claim_path("resourceclaims"))
                return {
                    made: one["metadata"]["ownerReferences"][0]["kind"]
                    for made, one in found.items()
                }

            # A claim is handed over by a write of its own, after that of its domain.
            names = {domain.removesuffix("-cd") + "-mnnvl-claim" for domain in wanted}
            await space.settled(claims, dict.fromkeys(names, "PodGang"))
        await space.settled(space.announced, set(EXAMPLES[name].values()))
        assert space.grove.refused == []
