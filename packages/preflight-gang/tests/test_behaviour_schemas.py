"""Objects that know sizes, as the schemas of their owners let them through: none of them blinds the
mirror, or holds up another gang.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from leading import leads
from played import Cluster, opt_in, played
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, Invalid, KubeError
from preflight_proto import names
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

CRDS = Path(__file__).parent / "crds"
HUGE = 2**31 - 1


def _job(parallelism: object = 2, template: object = (), **fields: Any) -> dict[str, Any]:
    spec = {"parallelism": parallelism, "template": template or {}}
    return {"name": "workers", "template": {"spec": spec}, **fields}


GOOD: dict[str, dict[str, Any]] = {
    "jobset": {"replicatedJobs": [_job()]},
    "coscheduling": {"minMember": 2},
}
EVIL: dict[str, dict[str, Any]] = {
    "jobset": {
        "none": None,
        "null-jobs": {"replicatedJobs": None},
        "no-jobs": {"replicatedJobs": []},
        "null-replicas": {"replicatedJobs": [_job(replicas=None)]},
        "huge": {"replicatedJobs": [_job(HUGE, replicas=HUGE)]},
        "longer-than-int32": {"replicatedJobs": [_job(replicas=2**40)]},
        "longer-than-int64": {"replicatedJobs": [_job(replicas=2**70)]},
        "negative": {"replicatedJobs": [_job(replicas=-3)]},
        "whole-float": {"replicatedJobs": [_job(replicas=2.0)]},
        "float": {"replicatedJobs": [_job(replicas=2.5)]},
        "many": {"replicatedJobs": [_job(name=f"j{i}") for i in range(300)]},
        "null-policy": {"replicatedJobs": [_job()], "startupPolicy": None},
        "unknown": {"replicatedJobs": [_job(news={"x": [1, None]})], "news": "x"},
        "no-parallelism": {"replicatedJobs": [_job(None)]},
        "pods-of-anything": {"replicatedJobs": [_job(template={"x": [None, 1e300, {"y": 2**63}]})]},
    },
    "coscheduling": {
        "none": None,
        "empty": {},
        "null-least": {"minMember": None},
        "huge": {"minMember": HUGE},
        "longer-than-int32": {"minMember": 2**40},
        "longer-than-int64": {"minMember": 2**70},
        "negative": {"minMember": -1},
        "whole-float": {"minMember": 2.0},
        "int-or-string": {"minMember": 2, "minResources": {"cpu": 5, "memory": "1Gi", "x": 2**62}},
        "unknown": {"minMember": 2, "news": {"x": None}},
    },
}


TOLD = {
    "none": "the size is not known",
    "negative": "the size is not known",
    "many": "cannot be read",
    "huge": "is more than the 100000 that a gang can have",
    "whole-float": "members: no such pod yet",
}
"""What the gang of such an object waits for."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server of its own: to other tests' controllers these kinds are not served."""
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver, whose schemas these are")
    with ApiServer(tmp_path_factory.mktemp("apiserver-schemas"), folder) as server:
        yield server


@pytest.mark.parametrize(("source", "file"), [("jobset", "jobsets"), ("coscheduling", "podgroups")])
async def test_whatever_a_schema_lets_through_neither_blinds_the_mirror_nor_holds_up_another_gang(
    source: str, file: str, server: ApiServer, tmp_path: Path
) -> None:
    crd = yaml.safe_load((CRDS / f"{file}.yaml").read_text())
    server.define(crd)
    group, version = crd["spec"]["group"], crd["spec"]["versions"][0]["name"]
    kind, namespace = crd["spec"]["names"]["kind"], f"t-{source}"
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    target = connection({"KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig"))})
    path = f"/apis/{group}/{version}/namespaces/{namespace}/{file}"

    async def create(client: Client, name: str, spec: Any) -> bool:
        body = {
            "apiVersion": f"{group}/{version}",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        try:
            await client.create(
                path, body if spec is not None else {k: v for k, v in body.items() if k != "spec"}
            )
        except Invalid:
            return False
        except KubeError as error:
            assert error.status == 400, error  # no JSON of its schema at all
            return False
        return True

    async with Client(target, agent="tests") as client:
        await opt_in(client, namespace, names.NAMESPACE_ENABLED)
        listed = [name for name, spec in EVIL[source].items() if await create(client, name, spec)]
        assert len(listed) >= len(EVIL[source]) // 2, listed
        async with played(client, namespace) as cluster, leads(target) as leading:
            mirrors = leading.controller._client.mirrors
            for name in listed:
                await _member(cluster, name, source)
            assert await create(client, "good", GOOD[source])
            fields: dict[str, Any] = {"source": source, "size": None}
            await cluster.pair(gang="good", about="good", **fields)
            await cluster.answered("sealed", "pod-0", "pod-1", nnodes=2)
            for name in listed:  # the same once more, by the watch
                assert await create(client, f"{name}-again", EVIL[source][name])
            assert await create(client, "better", GOOD[source])
            for number in range(2):
                await cluster.admit(f"later-{number}", gang="better", about="better", **fields)
                await cluster.address(f"later-{number}", f"10.0.1.{number + 1}")
            await cluster.answered("sealed", "later-0", "later-1", nnodes=2)
            assert set(mirrors.behind().values()) == {0.0}
            for name in listed:
                await until(
                    lambda name=name: cluster.published(f"of-{name}") is not None,  # type: ignore[misc]
                    f"{name} is answered",
                )
                said = cluster.published(f"of-{name}")
                assert said is not None
                assert TOLD.get(name, "") in " ".join(said.missing), said


async def _member(cluster: Cluster, gang: str, source: str) -> None:
    """Its gang check runs, so it is told something, whatever its object says."""
    await cluster.admit(f"of-{gang}", gang=gang, about=gang, source=source, size=None)
    await cluster.address(f"of-{gang}", "10.0.8.8")
    await cluster.test(f"of-{gang}")
