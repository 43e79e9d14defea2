"""Whose pod a pod is: its owner's, whatever its label says by now."""

from __future__ import annotations

import ssl
from typing import Any, Literal

import msgspec
import pytest
from doubled import client, double, objects, running
from leading import leads
from player import bare_pod, job, wrapper
from preflight_appwrapper.api.names import LABEL
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import pod_from, wrapper_from
from preflight_appwrapper.controller.cache import WrapperCache
from preflight_appwrapper.core.decode import PartialObject
from preflight_appwrapper.core.leader_state import LeaderState, Listed, VersionedPod
from preflight_appwrapper.core.snapshot import Mirrored, observe
from preflight_appwrapper.core.validation import created
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.reflector import Change
from preflight_testing.waiting import until
from world import START

JOB = ("batch", "v1", "Job")
NOWHERE = Client(Connection("https://127.0.0.1:1", ssl.create_default_context()), agent="tests")


def mirrors(changed: list[Any]) -> WrapperCache:
    return WrapperCache(NOWHERE, RESTMapper(NOWHERE), WrapperRules(), changed.append)


def raw(name: str, label: str, owner: dict[str, Any]) -> PartialObject:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "labels": {LABEL: label},
        "ownerReferences": [{**owner, "controller": True}],
    }
    whole = {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}
    return msgspec.json.decode(msgspec.json.encode(whole), type=PartialObject)


def a_job(name: str, of: str) -> PartialObject:
    owner = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": of}
    return raw(name, of, {**owner, "uid": f"uid-{of}"})


def a_pod(label: str, owner: str = "uid-train") -> PartialObject:
    return raw("p", label, {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": owner})


def seen(one: PartialObject, kind: Literal["modified", "deleted"] = "modified") -> Any:
    return Change(kind, one.metadata.uid, one, None)


def places(made: WrapperCache) -> dict[str, list[str]]:
    return {key[1]: sorted(held) for key, held in made._pods.items()}


@pytest.mark.parametrize("job_first", [True, False])
def test_a_pod_is_of_the_wrapper_whose_component_owns_it(job_first: bool) -> None:
    made = mirrors([])
    job_change = seen(a_job("train", "a"))
    if job_first:
        made._thing_changed(job_change, JOB)
    made._pod_changed(seen(a_pod("b")))
    if not job_first:
        assert places(made) == {"b": ["uid-p"]}
        made._thing_changed(job_change, JOB)
    assert places(made) == {"a": ["uid-p"]}
    made._thing_changed(seen(a_job("train", "a"), "deleted"), JOB)
    made._pod_changed(seen(a_pod("b")))
    assert places(made) == {"a": ["uid-p"]}, "it stays where its owner was"
    made._pod_changed(seen(a_pod("b"), "deleted"))
    assert places(made) == {}
    assert (made._pod_places, made._unowned) == ({}, {})


def test_where_no_component_owns_it_a_changed_label_moves_a_pod_and_wakes_both() -> None:
    changed: list[Any] = []
    made = mirrors(changed)
    made._pod_changed(seen(a_pod("a", owner="uid-child")))
    changed.clear()
    made._pod_changed(seen(a_pod("b", owner="uid-child")))
    assert places(made) == {"b": ["uid-p"]}
    assert {key[1] for key in changed} == {"a", "b"}


def test_a_list_by_label_neither_hides_a_strayed_pod_nor_gives_it_to_another() -> None:
    pod = pod_from({"metadata": {"name": "p", "uid": "uid-p"}, "status": {"phase": "Running"}})
    mine = wrapper_from(wrapper(job()))

    def pods(listed: dict[str, VersionedPod], **more: Any) -> int:
        made = Mirrored(
            complete=True,
            things={},
            departed={},
            nodes={},
            version=lambda _: 0,
            pods_version=0,
            **more,
        )
        memory = LeaderState(uid="wrapper-uid", listed=Listed(9, listed))
        return len(observe(mine, made, memory, suffix="x", now=START, clock=0.0).pods)

    held = {"uid-p": VersionedPod(pod, 7, strayed=True)}
    assert pods({}, pods=held) == 1
    assert pods({}, pods={"uid-p": VersionedPod(pod, 7)}) == 0
    listed = {"uid-p": VersionedPod(pod, 7)}
    assert pods(listed, pods={}) == 1
    assert pods(listed, pods={}, elsewhere=lambda uid: uid == "uid-p") == 0


@pytest.mark.anyio
async def test_a_pod_that_got_another_label_is_neither_counted_nor_deleted_for_the_others_sake() -> (
    None
):
    async with double() as api:
        running(api, "a")
        running(api, "b")
        pods = next(one for one in api.api.served if one.plural == "pods")
        wrappers = next(one for one in api.api.served if one.plural == "appwrappers")
        [ours] = [one for one in objects(api, "pods") if one["metadata"]["name"] == "b"]
        labels = {"metadata": {**ours["metadata"], "labels": {LABEL: "a"}}}
        rules = WrapperRules(forceful_deletion=0)
        async with client(api) as used, leads(None, client=used, rules=rules) as leading:  # type: ignore[arg-type]
            await until(lambda: leading.counted("appwrapper_look_seconds_count") >= 2, "it looks")
            api.store.update(pods, ours, {**ours, **labels})
            [raw_a] = [one for one in objects(api, "appwrappers") if one["metadata"]["name"] == "a"]
            api.store.update(wrappers, raw_a, {**raw_a, "spec": {**raw_a["spec"], "suspend": True}})

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
