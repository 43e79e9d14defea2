"""What a write came to, by what a real API server says; requests at the same time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kube_world import config_map
from preflight_kube.api import jsonpatch
from preflight_kube.client.client import Client, Fenced, KubeError
from preflight_kube.runtime.writes import (
    Create,
    Delete,
    Exists,
    Lost,
    Missing,
    Patch,
    Refused,
    ReplaceStatus,
    Stored,
    apply,
    gather,
)

pytestmark = pytest.mark.anyio

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_each_write_has_the_answer_that_says_what_became_of_it(client: Client) -> None:
    made = await apply(client, Create(MAPS, config_map("applied", k="1")))
    assert isinstance(made, Stored)
    about = made.object(dict[str, Any])["metadata"]
    path = f"{MAPS}/applied"
    assert await apply(client, Create(MAPS, config_map("applied", k="1"))) == Exists()
    nowhere = "/api/v1/namespaces/none-such/configmaps"
    assert isinstance(await apply(client, Create(nowhere, config_map("x"))), Refused)
    assert isinstance(await apply(client, Patch(path, {"data": {"k": "2"}}, "merge")), Stored)
    now, old = about["resourceVersion"], {"metadata": {"resourceVersion": about["resourceVersion"]}}
    version = jsonpatch.test("/metadata/resourceVersion", now)
    for stale in (
        Patch(path, [version, jsonpatch.add("/data/k", "3")]),
        Patch(path, {**old, "data": {"k": "3"}}, "merge"),
        Delete(path=path, uid=about["uid"], resource_version=now),
    ):
        refused = await apply(client, stale)
        assert isinstance(refused, Refused)
        assert refused.stale
    assert await apply(client, Patch(f"{MAPS}/none-such", {}, "merge")) == Missing()
    assert await apply(client, Delete(path=path, uid="another")) == Missing()
    assert isinstance(await apply(client, Delete(path=path, uid=about["uid"])), Stored)
    assert await apply(client, Delete(path=path, uid=about["uid"])) == Missing()


async def test_a_status_that_somebody_else_has_written_is_not_replaced(client: Client) -> None:
    about = {"apiVersion": "v1", "kind": "Namespace"}
    made = await apply(
        client, Create("/api/v1/namespaces", {**about, "metadata": {"name": "applied-status"}})
    )
    assert isinstance(made, Stored)
    body = made.object(dict[str, Any])
    path = "/api/v1/namespaces/applied-status"
    again = await apply(client, ReplaceStatus(path, body))
    assert isinstance(again, Stored)
    await client.merge_patch(path, {"metadata": {"labels": {"a": "b"}}})
    stale = await apply(client, ReplaceStatus(path, body))
    assert isinstance(stale, Refused)
    assert stale.stale


class _Answering(Client):
    def __init__(self, error: KubeError) -> None:
        self.error, self.sent = error, 0

    async def create(self, path: str, body: object) -> bytes:
        self.sent += 1
        raise self.error


@pytest.mark.parametrize("status", [0, 408, 500, 503, 504])
async def test_what_may_have_been_done_is_lost_and_sent_once(status: int) -> None:
    client = _Answering(KubeError("?", status))
    assert isinstance(await apply(client, Create(MAPS, {})), Lost)
    assert client.sent == 1


@pytest.mark.parametrize("status", [400, 403, 413, 422, 429])
async def test_what_the_server_turns_away_is_refused(status: int) -> None:
    assert isinstance(await apply(_Answering(KubeError("no", status)), Create(MAPS, {})), Refused)


async def test_who_leads_no_longer_has_no_answer() -> None:
    with pytest.raises(Fenced):
        await apply(_Answering(Fenced("ended")), Create(MAPS, {}))


async def test_requests_at_the_same_time_are_all_waited_for_and_answered_in_their_order() -> None:
    ended: list[int] = []

    async def request(i: int, *, fails: bool = False) -> int:
        for _ in range(3 - i):
            await anyio.sleep(0)
        ended.append(i)
        if fails:
            raise KubeError(f"no {i}")
        return i

    assert await gather(request(i) for i in range(3)) == [0, 1, 2]
    assert ended == [2, 1, 0]
    with pytest.raises(KubeError, match="no 2"):
        await gather([request(0), request(1, fails=True), request(2, fails=True)])
    assert sorted(ended[3:]) == [0, 1, 2]
    assert await gather([]) == []
