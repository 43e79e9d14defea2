"""What the API server refuses for good is the members' to know: by roster where their pods can be
written to, by Event else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from leading import Leading
from played import Cluster
from preflight_gang.core import waiting
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until
from wire import Sent, refusal

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited for half a second has an Event that says for whom."""
    monkeypatch.setattr(waiting, "PATIENCE", 0.5)


def reasons(cluster: Cluster, name: str, reason: str) -> list[str]:
    """What the Events of one reason on one pod say."""
    every = cluster.events
    return [
        e["message"] for e in every if e["reason"] == reason and e["involvedObject"]["name"] == name
    ]


async def waiting_pair(cluster: Cluster) -> None:
    await cluster.pair()
    for name in ("pod-0", "pod-1"):
        await cluster.test(name)


async def published(cluster: Cluster, name: str, words: str) -> None:
    def so() -> bool:
        roster = cluster.published(name)
        return roster is not None and words in f"{roster.reason} {roster.missing}"

    await until(so, f"{name} is told {words!r}")


async def test_a_record_that_is_refused_is_the_cause_that_members_are_told_by_roster_and_event(
    cluster: Cluster, leading: Leading
) -> None:
    refused = refusal(403, "Forbidden")
    leading.wire.answers = lambda sent: refused if sent.is_record else None
    await waiting_pair(cluster)
    for name in ("pod-0", "pod-1"):
        await published(
            cluster,
            name,
            f"the ConfigMap preflight-job-1.labels cannot be written: create /api/v1/namespaces/{cluster.namespace}",
        )
        await until(
            lambda name=name: reasons(cluster, name, "PreflightWaiting"),  # type: ignore[misc]
            f"the Event on {name}",
        )
        assert "answered 403" in reasons(cluster, name, "PreflightWaiting")[0]
    leading.wire.answers = lambda _: None
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)


def refuses(name: str) -> Callable[[Sent], bytes | None]:
    refused = refusal(403, "Forbidden")
    return lambda sent: refused if sent.is_roster and sent.path.endswith(f"/{name}") else None


async def test_a_member_whose_pod_cannot_be_written_to_has_an_event_and_the_others_are_told_who_it_is(
    cluster: Cluster, leading: Leading
) -> None:
    leading.wire.answers = refuses("pod-1")
    await waiting_pair(cluster)
    await until(lambda: reasons(cluster, "pod-1", "PreflightAnswerRefused"), "its Event")
    said = reasons(cluster, "pod-1", "PreflightAnswerRefused")[0]
    assert said.startswith("gang job-1: its pod cannot be annotated: patch ")
    assert "answered 403" in said
    # It is sealed before it is known, and then over for who has heard so.
    await published(cluster, "pod-0", "pod-1 cannot have its rank: its pod cannot be annotated")
    assert cluster.published("pod-1") is None


async def test_a_member_that_comes_again_meanwhile_is_told_to_wait_for_the_one_that_cannot_be_told(
    cluster: Cluster, leading: Leading
) -> None:
    leading.wire.answers = refuses("pod-1")
    await waiting_pair(cluster)
    await cluster.answered("fail", "pod-0")
    await cluster.test("pod-0", restarts=1)
    await published(cluster, "pod-0", "pod-1: its pod cannot be annotated")
    assert len(records(leading, cluster)) == 1, "no generation is sealed with it"
    leading.wire.answers = lambda _: None
    await cluster.answered("sealed", "pod-0", "pod-1", generation=2, seconds=40)


def records(leading: Leading, cluster: Cluster) -> list[Sent]:
    return [sent for sent in leading.wire.writes(cluster.namespace) if sent.is_record]


async def freeze(cluster: Cluster, **metadata: object) -> None:
    body = {"immutable": True, "metadata": metadata}
    await cluster.client.merge_patch(
        f"/api/v1/namespaces/{cluster.namespace}/configmaps/preflight-job-1.labels", body
    )


async def replaced(cluster: Cluster) -> None:
    await cluster.delete("pod-1")
    await cluster.admit("pod-1")
    await cluster.address("pod-1", "10.0.0.4")


async def test_a_record_that_somebody_made_immutable_is_made_anew(
    cluster: Cluster, leading: Leading
) -> None:
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    await freeze(cluster)
    await replaced(cluster)
    rosters = await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
    assert [roster.rank for roster in rosters] == [0, 1]
    assert not (await cluster.config_map()).get("immutable")


async def test_an_immutable_record_that_cannot_go_either_is_said_to_the_members(
    cluster: Cluster, leading: Leading, api: ApiFixture
) -> None:
    if api.kind != "real":
        pytest.skip("the double lets immutable ConfigMaps be changed")
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    await freeze(cluster, finalizers=["example.com/held"])
    await replaced(cluster)
    await cluster.test("pod-1")
    await published(
        cluster,
        "pod-1",
        "the ConfigMap preflight-job-1.labels is being deleted and something holds it back; remove its finalizers",
    )
    key, controller = (cluster.namespace, "labels:job-1"), leading.controller
    await until(
        lambda: controller._refused.left(key, controller._client.clock()) > 0,
        "it is not tried all the time",
    )
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/preflight-job-1.labels"
    await cluster.client.merge_patch(path, {"metadata": {"finalizers": None}})
    await cluster.answered("sealed", "pod-1", generation=2, seconds=40)


async def test_an_event_that_is_refused_keeps_no_gang_from_being_told(
    cluster: Cluster, leading: Leading
) -> None:
    refused = refusal(403, "Forbidden")
    leading.wire.answers = lambda sent: (
        refused if sent.method == "POST" and sent.path.endswith("/events") else None
    )
    await cluster.admit("pod-0")
    await cluster.address("pod-0", "10.0.0.1")
    await cluster.test("pod-0")
    await until(
        lambda: any(sent.status == 403 for sent in leading.wire.sent), "an Event is refused"
    )
    await cluster.admit("pod-1")
    await cluster.address("pod-1", "10.0.0.2")
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
