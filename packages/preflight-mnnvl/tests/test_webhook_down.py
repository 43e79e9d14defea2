"""What an API server still writes while no replica of the webhook answers, by the chart's own
configurations.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, ON, Object, clique, group, pcs, podclique
from live import Space, space_of
from preflight_kube.client.client import KubeError
from preflight_testing.apiserver import ApiServer, free_port
from preflight_testing.helm import UMBRELLA, render

pytestmark = pytest.mark.anyio

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
REFUSED = "failed calling webhook"


class Outage(Space):
    """A namespace in which the configurations can be put in force, and nobody answers them."""

    async def begin(self) -> None:
        for body in render(UMBRELLA, {"preflight-mnnvl": {"enabled": True}}):
            if not body["kind"].endswith("WebhookConfiguration"):
                continue
            for hook in body["webhooks"]:
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{free_port()}"}
                chosen = {"kubernetes.io/metadata.name": self.namespace}
                hook["namespaceSelector"] = {"matchLabels": chosen}
            body["metadata"] = {"name": f"{body['kind'].lower()}-{self.namespace}"}
            await self.client.create(f"{ADMISSION}/{body['kind'].lower()}s", body)
        # An API server takes a moment to follow a configuration.
        for plural, probe in (
            ("podcliques", podclique("probe", "p")),
            ("podcliquesets", pcs("probe", [clique("w")], annotations=ON)),
        ):
            probe["metadata"] |= {"namespace": self.namespace}
            with anyio.fail_after(600):
                while (await self.dry_run(plural, probe))["kind"] != "Status":
                    await anyio.sleep(0.05)

    async def end(self) -> None:
        for kind in ("mutating", "validating"):
            name = f"{kind}webhookconfiguration"
            await self.client.delete(f"{ADMISSION}/{name}s/{name}-{self.namespace}")

    async def written(self, plural: str, body: Object) -> str:
        """What the API server says against creating it; empty where it does."""
        body = copy.deepcopy(body)
        body["metadata"]["namespace"] = self.namespace
        try:
            await self.client.create(self.grove.path(plural), body)
        except KubeError as error:
            return str(error)
        return ""

    async def patched(self, plural: str, name: str, **meta: Any) -> str:
        path = self.grove.path(plural, name)
        try:
            await self.client.merge_patch(path, {"metadata": meta})
        except KubeError as error:
            return str(error)
        return ""


@pytest.fixture
async def space(server: ApiServer, tmp_path: Path) -> AsyncIterator[Outage]:
    async with space_of(server, tmp_path, DRIVER) as found:
        made = Outage(found.server, found.client, found.target, found.namespace, found.grove)
        try:
            yield made
        finally:
            await made.end()


async def test_only_what_may_concern_the_fabric_waits_for_a_webhook_that_does_not_answer(
    space: Outage,
) -> None:
    held = {"finalizers": ["grove.io/theirs"]}
    for name, on in (("plain", {}), ("marked", ON)):
        one = podclique(f"{name}-0-w", name, annotations=on)
        one["metadata"] |= held
        assert await space.written("podcliques", one) == ""
        set_ = pcs(name, [clique("w")], annotations=on)
        set_["metadata"] |= held
        assert await space.written("podcliquesets", set_) == ""
    await space.begin()
    label = {"labels": {"a": "b"}}
    for plural, of in (("podcliques", "-0-w"), ("podcliquesets", "")):
        assert await space.patched(plural, f"plain{of}", **label) == ""
        assert REFUSED in await space.patched(plural, f"marked{of}", **label)
        assert REFUSED in await space.patched(plural, f"marked{of}", annotations=None)
        assert REFUSED in await space.patched(plural, f"plain{of}", annotations=ON)
        for name in ("plain", "marked"):
            await space.client.delete(space.grove.path(plural, f"{name}{of}"))
            assert await space.patched(plural, f"{name}{of}", finalizers=None) == ""
    assert REFUSED in await space.written("podcliques", podclique("new-0-w", "new"))
    assert await space.written("podcliquesets", pcs("new", [clique("w")])) == ""
    for number, set_ in enumerate(
        (
            pcs("by-set", [clique("w")], annotations=ON),
            pcs("by-clique", [clique("w"), clique("v", annotations=ON)]),
            pcs("by-group", [clique("w")], [group("g", ["w"], ON)]),
        )
    ):
        assert REFUSED in await space.written("podcliquesets", set_), number
