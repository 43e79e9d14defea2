"""What a gang has found of a node comes to the next gang there, whoever leads by then, and ends
with a repair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from leading import Leading, leads
from played import Cluster, container, opt_in
from preflight_gang.config import Config, parse
from preflight_gang.controller import history_store as memory
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_proto import names
from preflight_proto.history import Past, Sighting, digest, said
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

LONG = Config(history="876000h")
SEEN = Sighting(
    kind="H100/8/8x400/4Gi", nodes=2, bad=(digest("node-z"), digest("node-b")), sick=True
)


def result(details: Mapping[str, str]) -> str:
    line = {
        "v": 1,
        "check": "nccl-allreduce",
        "outcome": "failed",
        "code": "LOW_BANDWIDTH",
        "gated": True,
    }
    return json.dumps(
        {**line, "duration": 9.5, "reason": "slow.", "measured": 90.0, "details": details}
    )


async def a_gang_that_found_it_bad(
    cluster: Cluster, leading: Leading, seen: Sighting = SEEN
) -> None:
    await cluster.admit("first-0", gang="first")
    runs = f"first-{cluster.namespace}"
    ended = container("nccl-allreduce", "ended", code=1, message=result(said(seen)), runs=runs)
    await cluster.report("first-0", container("dcgm-diag", "ended", runs=runs), ended)
    await until(
        lambda: leading.counted("preflight_check_total", check="nccl-allreduce", result="failed"),
        "it is counted",
    )


SHOWN = {
    "name": names.GANG_VOLUME,
    "downwardAPI": {
        "items": [
            {
                "path": "topology",
                "fieldRef": {"fieldPath": f"metadata.annotations['{names.TOPOLOGY_ANNOTATION}']"},
            }
        ]
    },
}
"""As the webhook makes the gang's volume: nodes are mirrored for pods that have it."""


async def next_gang(cluster: Cluster, name: str = "second") -> Past | None:
    """What a member on node-a is told of its node, in another gang."""
    for i in range(2):
        await cluster.admit(f"{name}-{i}", gang=name, spec={"volumes": [SHOWN]})
        await cluster.address(f"{name}-{i}", f"10.0.1.{i + 1}")
    published = await cluster.answered("sealed", f"{name}-0", f"{name}-1")
    return published[0].past


async def annotate(client: Client, value: str) -> None:
    body = {"metadata": {"annotations": {names.REPAIRED_ANNOTATION: value}}}
    await client.merge_patch("/api/v1/nodes/node-a", body)


async def test_the_next_gang_on_a_node_is_told_of_its_bad_spell(
    cluster: Cluster, target: Connection
) -> None:
    async with leads(target, config=LONG) as leading:
        await a_gang_that_found_it_bad(cluster, leading)
        past = await next_gang(cluster)
        assert past is not None
        [spell] = past.spells
        assert (spell.own, spell.source, spell.partners) == (True, 0, ()), (
            "no node of another gang is named"
        )
        assert leading.counted("preflight_node_bad_spells", node="node-a") == 1


async def test_a_roster_is_written_once_whatever_is_found_meanwhile(
    cluster: Cluster, target: Connection
) -> None:
    async with leads(target, config=LONG) as leading:
        assert await next_gang(cluster) is None
        await a_gang_that_found_it_bad(cluster, leading)
        await cluster.test("second-0")
        await until(
            lambda: leading.counted("preflight_node_bad_spells", node="node-a") == 1,
            "it is remembered",
        )
        uid = cluster.pods["second-0"]["metadata"]["uid"]
        assert len([one for one in cluster.rosters[uid] if one.answer == "sealed"]) == 1


async def test_who_leads_next_knows_what_was_kept(
    cluster: Cluster, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PAUSE", 0.2)
    async with leads(target, config=LONG, home=cluster.namespace) as first:
        await a_gang_that_found_it_bad(cluster, first)
        await until(
            lambda: any(name.startswith("preflight-history-") for name in cluster.config_maps),
            "it is kept",
        )
    await cluster.delete("first-0")
    async with leads(target, epoch=2, config=LONG, home=cluster.namespace):
        past = await next_gang(cluster)
    assert past is not None
    assert len(past.spells) == 1


async def test_deleting_the_records_forgets_all(
    cluster: Cluster, target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "PAUSE", 0.2)
    async with leads(target, config=LONG, home=cluster.namespace) as leading:
        await a_gang_that_found_it_bad(cluster, leading)
        await until(
            lambda: any(name.startswith("preflight-history-") for name in cluster.config_maps),
            "it is kept",
        )
        for name in [one for one in cluster.config_maps if one.startswith("preflight-history-")]:
            await cluster.client.delete(f"/api/v1/namespaces/{cluster.namespace}/configmaps/{name}")
        await until(
            lambda: not leading.counted("preflight_node_bad_spells", node="node-a"),
            "it is forgotten",
        )
        assert await next_gang(cluster) is None


async def test_a_node_that_is_said_to_be_repaired_begins_anew(
    cluster: Cluster, client: Client, target: Connection
) -> None:
    async with leads(target, config=LONG) as leading:
        await a_gang_that_found_it_bad(cluster, leading)
        await until(
            lambda: leading.counted("preflight_node_bad_spells", node="node-a") == 1,
            "it is remembered",
        )
        await annotate(client, f"by hand, {cluster.namespace}")
        await until(
            lambda: not leading.counted("preflight_node_bad_spells", node="node-a"),
            "it is forgotten",
        )
        assert await next_gang(cluster) is None


@pytest.mark.parametrize("history", ["0", "1h"])
async def test_switched_off_or_too_old_nothing_is_told(
    cluster: Cluster, target: Connection, history: str
) -> None:
    async with leads(
        target, config=parse(f"history: {history}"), home=cluster.namespace
    ) as leading:
        await a_gang_that_found_it_bad(cluster, leading)
        assert await next_gang(cluster) is None


async def test_what_a_namespace_says_that_is_not_opted_in_is_not_remembered(
    cluster: Cluster, client: Client, target: Connection
) -> None:
    await opt_in(client, cluster.namespace, None)
    async with leads(target, config=LONG) as leading:
        await cluster.admit("first-0", gang="first")
        ended = container(
            "nccl-allreduce", "ended", code=1, message=result(said(SEEN)), runs=cluster.namespace
        )
        await cluster.report(
            "first-0", container("dcgm-diag", "ended", runs=cluster.namespace), ended
        )
        assert await next_gang(cluster) is None
        assert not leading.counted("preflight_node_bad_spells", node="node-a")


@pytest.mark.parametrize(
    "details",
    [
        {"kind": "x" * 5000, "bad": ",".join([digest("b")] * 500)},
        {
            "kind": "k",
            "pair": "nan",
            "own": "1e99",
            "edges": "-1",
            "nodes": "x",
            "bad": "no digest",
        },
    ],
)
async def test_whatever_a_result_says_the_record_is_bounded(
    cluster: Cluster, target: Connection, details: dict[str, Any]
) -> None:
    async with leads(target, config=LONG) as leading:
        await cluster.admit("first-0", gang="first")
        ended = container(
            "nccl-allreduce",
            "ended",
            code=1,
            message=result(details)[:4096],
            runs=str(details)[:9] + cluster.namespace,
        )
        await cluster.report("first-0", container("dcgm-diag", "ended"), ended)
        await until(
            lambda: leading.counted(
                "preflight_check_total", check="nccl-allreduce", result="failed"
            ),
            "counted",
        )
        past = await next_gang(cluster)
        assert past is None or len(past.spells) <= 1
