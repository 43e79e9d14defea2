"""Events about objects of any kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from preflight_kube.client.client import Client, Conflict
from preflight_kube.runtime.events import Regarding, event, timestamp
from preflight_testing.plugin import ApiFixture

NOW = timestamp(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
CLAIM = Regarding("resource.k8s.io/v1", "ResourceClaim", "claim", "uid-1", "team")


def said(regarding: Regarding = CLAIM, about: str = "x", **more: Any) -> dict[str, Any]:
    given = {"good": True, "reason": "Bound", "message": "it is bound", "now": NOW, **more}
    return event("my-controller", regarding, about=about, **given)


def test_its_name_follows_from_the_object_and_what_it_is_about() -> None:
    name = said()["metadata"]["name"]
    assert name.startswith("claim.")
    assert said(message="other words", good=False)["metadata"]["name"] == name
    assert said(about="y")["metadata"]["name"] != name
    assert said(CLAIM._replace(uid="uid-2"))["metadata"]["name"] != name
    assert len(said(CLAIM._replace(name="n" * 253))["metadata"]["name"]) <= 253


def test_its_name_is_one_wherever_the_objects_name_is_cut() -> None:
    regarding = Regarding("v1", "Pod", f"{'a' * 199}-b", "u", "ns")
    made = event("c", regarding, about="", good=True, reason="R", message="m", now="")
    assert made["metadata"]["name"].startswith(f"{'a' * 199}.")


def test_an_object_of_the_cluster_has_its_events_in_the_default_namespace() -> None:
    about_node = said(Regarding("v1", "Node", "node-a", "uid-2"))
    assert about_node["metadata"]["namespace"] == "default"
    assert about_node["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "node-a",
        "uid": "uid-2",
    }


def test_a_message_is_bounded_and_printable() -> None:
    message = said(message="a\x1b[31m\n" + "b" * 5000)["message"]
    assert message.startswith("a [31m b")
    assert len(message) == 1024


@pytest.mark.anyio
async def test_an_api_server_takes_it_once(client: Client, api: ApiFixture) -> None:
    body = said(CLAIM._replace(namespace=api.namespace), host="node-a")
    await client.create(api.path("events"), body)
    with pytest.raises(Conflict) as caught:
        await client.create(api.path("events"), body)
    assert caught.value.reason == "AlreadyExists"
