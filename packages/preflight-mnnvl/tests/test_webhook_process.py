"""The webhook as a process on a real API server: what its log says of each review, and its plain
port.
"""

from __future__ import annotations

import json
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from cliques import DRIVER, ON, clique, pcs, podclique, review_of
from live import Space, api_server, space_of
from preflight_kube.client.client import KubeError
from preflight_mnnvl.webhook.handler import PODCLIQUES, SETS
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import GROVE
from preflight_testing.waiting import until
from registered import certified, configured
from replica import Replica, hook

pytestmark = pytest.mark.anyio

WRONG = {**ON, "grove.io/mnnvl-scope": "pod"}


class Serving(NamedTuple):
    """``url``: where it answers reviews."""

    replica: Replica
    url: str
    bundle: str
    trusted: ssl.SSLContext

    async def asked(self, kind: str) -> float:
        """How many reviews of a kind it has answered."""
        found = await self.replica.metrics()
        return sum(
            value
            for name, value in found.items()
            if name.startswith("mnnvl_admission_total{") and f'kind="{kind}"' in name
        )

    def reviewed(self) -> dict[str, dict[str, Any]]:
        """What the log says of reviews so far, by their uid."""
        return {line["uid"]: line for line in self.replica.said("reviewed")}


@asynccontextmanager
async def serving(server: ApiServer, folder: Path, *, level: str) -> AsyncIterator[Serving]:
    bundle, trusted = certified(folder / "tls")
    access = server.kubeconfig(folder / "admin.kubeconfig")
    config = f"logLevel: {level}\n"
    async with hook(access, folder / "webhook", folder / "tls", config) as one:
        await until(lambda: one.said("serving"), "it serves")
        (line,) = one.said("serving")
        yield Serving(one, f"https://127.0.0.1:{line['port']}", bundle, trusted)


@pytest.fixture
async def space(server: ApiServer, tmp_path: Path) -> AsyncIterator[Space]:
    async with space_of(server, tmp_path, DRIVER, webhook=True) as found:
        yield found


def review(space: Space, found: dict[str, Any], old: dict[str, Any] | None = None) -> Any:
    return review_of(found, old, space.namespace, uid=str(uuid.uuid4()), dryRun=True)


async def test_each_review_is_a_line_of_the_log_under_its_uid(space: Space, tmp_path: Path) -> None:
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    off, none = podclique("u-0-w", "u"), podclique("t-0-x", "t", pod={"containers": []})
    wrong = podclique("t-0-w", "t", annotations=WRONG)
    asked = {
        ("PodClique", "injected", "info"): (PODCLIQUES, review(space, podclique("t-0-w", "t"))),
        ("PodClique", "denied", "info"): (PODCLIQUES, review(space, wrong)),
        ("PodClique", "no-gpu", "debug"): (PODCLIQUES, review(space, none)),
        ("PodClique", "not-enabled", "debug"): (PODCLIQUES, review(space, off, off)),
        ("PodCliqueSet", "denied", "info"): (
            SETS,
            review(space, pcs("v", [clique("w")], annotations=WRONG)),
        ),
        ("PodCliqueSet", "unchanged", "debug"): (SETS, review(space, pcs("v", [clique("w")]))),
    }
    async with (
        serving(space.server, tmp_path, level="debug") as one,
        httpx.AsyncClient(verify=one.trusted, trust_env=False, timeout=30) as sender,
    ):
        said = {}
        for path, body in asked.values():
            answer = (await sender.post(one.url + path, content=json.dumps(body))).json()
            said[body["request"]["uid"]] = answer["response"]
        await until(lambda: said.keys() <= one.reviewed().keys(), "all are in the log")
        for (kind, result, level), (_, body) in asked.items():
            request = body["request"]
            line = one.reviewed()[request["uid"]]
            assert (line["kind"], line["result"], line["level"]) == (kind, result, level)
            assert line["object"] == f"{space.namespace}/{request['name']}"
            assert (line["operation"], line["dry_run"]) == (request["operation"], True)
            assert (line["component"], line["seconds"] >= 0) == ("preflight-mnnvl", True)
            answer = said[request["uid"]]
            assert answer["uid"] == request["uid"]
            assert answer["allowed"] is ("why" not in line)
            if "why" in line:
                assert line["why"] == answer["status"]["message"]


async def test_the_uid_in_the_log_is_that_of_the_api_server_and_what_changes_nothing_is_not_there(
    space: Space, tmp_path: Path
) -> None:
    async with (
        serving(space.server, tmp_path, level="info") as one,
        configured(space, one.url, one.bundle, one.asked),
    ):
        await space.grove.apply(pcs("t", [clique("w"), clique("r", gpus=None)], annotations=ON))
        await space.turned(2)
        with pytest.raises(KubeError, match='the scope "pod" is unknown'):
            await space.grove.apply(pcs("u", [clique("w")], annotations=WRONG))
        await until(lambda: len(one.reviewed()) >= 2, "both are in the log")
        assert sorted(
            (line["kind"], line["object"].rpartition("/")[2], line["result"])
            for line in one.reviewed().values()
        ) == [("PodClique", "t-0-w", "injected"), ("PodCliqueSet", "u", "denied")]
        assert all(str(uuid.UUID(uid)) == uid for uid in one.reviewed())
        found = await one.replica.metrics()
        assert found['mnnvl_admission_total{kind="PodClique",result="no-gpu"}'] >= 1
        assert found["mnnvl_admission_latency_seconds_count"] >= 4
        assert (found["mnnvl_supported"], found["mnnvl_fabric_nodes"]) == (1, 0)
        assert found["mnnvl_admission_certificate_expiry_seconds"] > 0


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Without ComputeDomains."""
    with api_server(tmp_path_factory.mktemp("bare"), kinds=GROVE) as server:
        yield server


async def test_without_computedomains_the_webhook_is_ready_and_says_what_is_missing(
    bare: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(bare, tmp_path, DRIVER, webhook=True) as space,
        serving(bare, tmp_path, level="info") as one,
        configured(space, one.url, one.bundle, one.asked),
    ):
        with pytest.raises(KubeError, match="this cluster serves no computedomains"):
            await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.grove.apply(pcs("u", [clique("w")]))
        await space.turned(1)
        assert (await one.replica.metrics())["mnnvl_supported"] == 0
        assert (await one.replica.get("/readyz")).status_code == 200
        assert (await one.replica.get("/healthz")).status_code == 200
