"""Whose pod a pod is: its owner's, whatever its label says by now."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import msgspec
import pytest
from doubled import change, client, double, objects, running
from leading import leads
from player import bare_pod, wrapper
from preflight_appwrapper.api.names import LABEL
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import wrapper_from
from preflight_appwrapper.controller.cache import WrapperCache
from preflight_appwrapper.controller.controller import Controller
from preflight_appwrapper.core.decode import PartialObject
from preflight_appwrapper.core.validation import created
from preflight_appwrapper.metrics import Metrics
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.discovery import RESTMapper
from preflight_testing.waiting import until

JOB = ("batch", "v1", "Job")
NOWHERE = Client(Connection("https://127.0.0.1:1", ssl.create_default_context()), agent="tests")
VERSIONS = count(1)
AN_APPWRAPPER = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper"}
A_JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "x"}


class Cached:
    """The cache of a leader that has the wrappers ``a`` and ``b``, as watches bring the rest."""

    def __init__(self, client: Client = NOWHERE) -> None:
        self.changed: list[Any] = []
        self.cache = WrapperCache(client, RESTMapper(client), WrapperRules(), self.changed.append)
        self.jobs = self.cache.open(JOB, "/apis/batch/v1/jobs")
        self.pods = self.cache._pods
        for name in "ab":
            self.cache.wrappers.wrote(raw(name, "", {}))

    def shows(self, cache: Any, one: PartialObject) -> None:
        cache._put(one.metadata.uid, one)

    def places(self) -> dict[str, str]:
        """The wrapper of each pod that one has."""
        found = {name: self.cache.pods_of(("ns", name), f"uid-{name}") for name in "ab"}
        pairs = [(uid, name) for name, pods in found.items() for uid in pods]
        assert len(dict(pairs)) == len(pairs), "a pod of two wrappers"
        for uid, name in pairs:
            assert self.cache._of(self.pods.store[uid]) == ("ns", name)
        return dict(pairs)


def raw(name: str, label: str, owner: dict[str, Any]) -> PartialObject:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": str(next(VERSIONS)),
        "labels": {LABEL: label},
        "ownerReferences": [{**owner, "controller": True}] if owner else [],
    }
    whole = {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}
    return msgspec.json.decode(msgspec.json.encode(whole), type=PartialObject)


def a_job(name: str, of: str) -> PartialObject:
    return raw(name, of, {**AN_APPWRAPPER, "name": of, "uid": f"uid-{of}"})


def a_pod(label: str, owner: str = "uid-train") -> PartialObject:
    return raw("p", label, {**A_JOB, "uid": owner})


@pytest.mark.parametrize("job_first", [True, False])
def test_a_pod_is_of_the_wrapper_whose_component_owns_it(job_first: bool) -> None:
    made = Cached()
    if job_first:
        made.shows(made.jobs, a_job("train", "a"))
    made.shows(made.pods, a_pod("b"))
    if not job_first:
        assert made.places() == {"uid-p": "b"}
        made.changed.clear()
        made.shows(made.jobs, a_job("train", "a"))
        assert {key[1] for key in made.changed} == {"a", "b"}
    assert made.places() == {"uid-p": "a"}
    made.jobs.deleted("uid-train")
    made.shows(made.pods, a_pod("b"))
    assert made.places() == {"uid-p": "a"}, "it stays where its owner was"
    made.pods.deleted("uid-p")
    assert made.places() == {}


def test_where_no_component_owns_it_a_changed_label_moves_a_pod_and_wakes_both() -> None:
    made = Cached()
    made.shows(made.pods, a_pod("a", owner="uid-child"))
    made.changed.clear()
    made.shows(made.pods, a_pod("b", owner="uid-child"))
    assert made.places() == {"uid-p": "b"}
    assert {key[1] for key in made.changed} == {"a", "b"}


def test_what_is_remembered_of_a_wrapper_goes_with_it() -> None:
    made = Cached()
    made.shows(made.jobs, a_job("train", "a"))
    made.jobs.deleted("uid-train")
    assert set(made.cache._departed) == {"uid-train"}
    made.cache.wrappers.deleted("uid-a")
    assert made.cache._departed == {}


class Listing(Client):
    """Answers each list of pods with what there is by then."""

    def __init__(self) -> None:
        super().__init__(
            Connection("https://127.0.0.1:1", ssl.create_default_context()), agent="tests"
        )
        self.found: list[PartialObject] = []
        self.at = 0

    async def pages(self, *_: Any, **__: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        yield self.found, str(self.at)


@pytest.mark.anyio
async def test_a_list_by_label_neither_hides_a_strayed_pod_nor_gives_it_to_another() -> None:
    client = Listing()
    made = Cached(client)
    made.shows(made.jobs, a_job("train", "a"))
    made.shows(made.pods, a_pod("b"))
    client.at = 10**6
    assert not await made.cache.read_pods(("ns", "a"))
    assert made.places() == {"uid-p": "a"}, "its label is another, so that no list has it"
    client.found = [a_pod("b")]
    assert not await made.cache.read_pods(("ns", "b"))
    assert made.places() == {"uid-p": "a"}


@pytest.mark.anyio
async def test_a_list_of_many_pods_is_taken_in_without_looking_through_them_for_each() -> None:
    class Counted(dict[str, Any]):
        looks = 0

        def items(self) -> Any:
            self.looks += 1
            return super().items()

    client = Listing()
    made = Cached(client)
    written, made.pods._version = Counted(), "1"
    made.pods._written = written
    client.found = [raw(f"p{i}", "a", {}) for i in range(50)]
    client.at = 10**6
    assert await made.cache.read_pods(("ns", "a"))
    assert len(written) == 50
    assert written.looks <= 2


@pytest.mark.anyio
async def test_what_a_list_has_and_what_it_lacks_is_known_before_the_watch_brings_it() -> None:
    client = Listing()
    made = Cached(client)
    client.found = [a_pod("a", owner="uid-child")]
    version = client.at = int(client.found[0].metadata.resource_version)
    assert await made.cache.read_pods(("ns", "a"))
    assert made.places() == {"uid-p": "a"}
    client.found, client.at = [], version - 1
    assert not await made.cache.read_pods(("ns", "a"))
    assert made.places() == {"uid-p": "a"}, "it came after that list"
    client.at = version
    assert not await made.cache.read_pods(("ns", "a"))
    assert made.places() == {}


@pytest.mark.anyio
async def test_a_pod_that_got_another_label_is_neither_counted_nor_deleted_for_the_others_sake() -> (
    None
):
    async with double() as api:
        running(api, "a")
        running(api, "b")
        rules = WrapperRules(forceful_deletion=0)
        async with client(api) as used, leads(client=used, rules=rules) as leading:
            await until(lambda: leading.counted("appwrapper_look_seconds_count") >= 2, "it looks")
            change(api, "pods", "b", {"metadata": {"labels": {LABEL: "a"}}})
            change(api, "appwrappers", "a", {"spec": {"suspend": True}})

            def phase(name: str) -> str:
                return next(
                    str(one["status"]["phase"])
                    for one in objects(api, "appwrappers")
                    if one["metadata"]["name"] == name
                )

            await until(lambda: phase("a") == "Suspended", "a gives its quota back")
            assert phase("b") == "Running"
            assert [one["metadata"]["name"] for one in objects(api, "pods")] == ["b"]


def test_a_train_job_is_denied_alone_and_beside_others() -> None:
    train = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "t"},
        "spec": {"runtimeRef": {"name": "torch"}},
    }
    for templates in ([train], [train, bare_pod()], [bare_pod(), train]):
        judged = created(wrapper_from(wrapper(*templates)), WrapperRules(), namespace="ns")
        assert any("is a TrainJob" in one for one in judged.problems)


@pytest.mark.anyio
async def test_of_earlier_lives_of_a_wrapper_nothing_is_kept() -> None:
    """Else who has one reset for ever fills the memory of all."""
    path = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/w"
    async with double() as api, client(api) as ours, anyio.create_task_group() as group:
        controller = Controller(ours, WrapperRules(), Metrics())
        group.start_soon(controller.run)
        spec = {"suspend": False, "components": [{"template": bare_pod()}]}
        about = {"name": "w", "namespace": "default"}
        api.create("appwrappers", {"metadata": about, "spec": spec})
        for life in range(3):
            await until(lambda: objects(api, "pods"), f"its pod in life {life}")
            assert len(controller._cache._departed) <= 1
            await ours.merge_patch(path, {"spec": {"suspend": True}})
            await until(
                lambda: objects(api, "appwrappers")[0]["status"]["phase"] == "Suspended", "the end"
            )
            await ours.merge_patch(path, {"spec": {"suspend": False}})
        group.cancel_scope.cancel()
