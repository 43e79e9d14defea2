"""Whether a cluster serves a kind, and where."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from preflight_kube.api.kinds import RESTMapping
from preflight_kube.client.client import Client, Params
from preflight_kube.errors import NotFound
from preflight_kube.runtime.discovery import RESTMapper, served
from preflight_testing.plugin import ABSENT, ApiFixture

pytestmark = pytest.mark.anyio


async def test_a_kind_is_found_by_group_and_plural_name_and_none_where_it_is_not_served(
    client: Client, api: ApiFixture
) -> None:
    leases = "/apis/coordination.k8s.io/v1/leases"
    assert await served(client, "coordination.k8s.io", "leases") == leases
    assert await served(client, ABSENT.split("/")[0], "things") is None
    assert await served(client, "coordination.k8s.io", "things") is None


class _Serving(Client):
    """Answers what is asked of each group and version from ``kinds``."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, list[str]()
        self.kinds: dict[str, list[dict[str, object]]] = {}

    def clock(self) -> float:  # type: ignore[override] # a clock is only ever called
        return self.now

    async def get(self, path: str, type_: type[Any], *, params: Params | None = None) -> Any:
        self.asked.append(path)
        if path not in self.kinds:
            raise NotFound(path, 404)
        return msgspec.convert({"resources": self.kinds[path]}, type_)


async def test_a_kind_is_asked_for_once_and_one_that_is_not_served_again_after_five_seconds() -> (
    None
):
    client = _Serving()
    mapper, job, pod = RESTMapper(client), ("batch", "v1", "Job"), ("", "v1", "Pod")
    client.kinds["/api/v1"] = [
        {"name": "pods/status", "kind": "Pod", "namespaced": True},
        {"name": "pods", "kind": "Pod", "namespaced": True},
    ]
    assert await mapper.collection(pod, "ns") == "/api/v1/namespaces/ns/pods"
    assert await mapper.collection(pod) == "/api/v1/pods"
    assert await mapper.find(job) is None
    assert await mapper.find(job) is None
    assert client.asked == ["/api/v1", "/apis/batch/v1"]
    client.kinds["/apis/batch/v1"] = [{"name": "jobs", "kind": "Job", "namespaced": True}]
    client.now += 5
    assert await mapper.all([job, pod, ("", "", "")]) == {
        job: RESTMapping("jobs", True),
        pod: RESTMapping("pods", True),
    }
    assert client.asked == ["/api/v1", "/apis/batch/v1", "/apis/batch/v1"]


async def test_of_several_versions_the_first_one_is_taken_that_is_served() -> None:
    client = _Serving()
    things = [{"name": "things", "kind": "Thing", "namespaced": True}]
    mapper, versions = RESTMapper(client), ("v1", "v1beta2", "v1beta1")
    assert await mapper.newest("its.group", versions, "Thing", "ns") is None
    client.kinds |= dict.fromkeys(("/apis/its.group/v1beta1", "/apis/its.group/v1beta2"), things)
    client.now += 5
    path = await mapper.newest("its.group", versions, "Thing", "ns")
    assert path == "/apis/its.group/v1beta2/namespaces/ns/things"


@pytest.mark.parametrize("group", ["..", "a/b", "A", "x" * 254, "a?b"])
async def test_what_is_no_group_is_served_nowhere_and_asked_of_nobody(group: str) -> None:
    client = _Serving()
    assert await RESTMapper(client).find((group, "v1", "Job")) is None
    assert await RESTMapper(client).find(("batch", f"v1/{group}", "Job")) is None
    assert not client.asked
