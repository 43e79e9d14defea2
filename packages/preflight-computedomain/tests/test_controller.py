"""The controller against a real API server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from driven import Body, User, leads, template_of, until
from preflight_computedomain.api.names import (
    CLAIMS,
    DOMAINS,
    FINALIZER,
    GRANTED,
    LABEL,
    TARGET_LABEL,
    TEMPLATES,
)
from preflight_computedomain.controller.controller import Controller
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, Invalid
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def controller(target: Connection, user: User) -> AsyncIterator[Controller]:
    async with leads(target) as made:
        yield made


async def test_a_computedomain_becomes_ready_with_one_template(
    user: User, controller: Controller
) -> None:
    made = await user.create()
    found = await user.ready()
    assert found["metadata"]["finalizers"] == [FINALIZER]
    template = await user.template()
    assert template is not None
    uid = made["metadata"]["uid"]
    assert template["metadata"]["labels"] == {LABEL: uid, TARGET_LABEL: "Workload"}
    assert template["metadata"]["finalizers"] == [FINALIZER]
    config = template["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    assert (config["domainID"], config["allocationMode"]) == (uid, "Single")


async def test_a_template_may_have_any_name_that_kubernetes_takes(
    user: User, controller: Controller
) -> None:
    """Of a part between dots the API server limits the length in no names of templates."""
    await user.create(wants="a" * 253)
    await user.ready()
    assert await user.template("a" * 253) is not None


async def test_two_active_computedomains_of_one_clique_are_told_on_both(
    user: User, controller: Controller
) -> None:
    clique = f"{uuid.uuid4()}.7"
    for name in ("train-a", "train-b"):
        await user.active(name, clique)

    def of_both(events: list[Body]) -> bool:
        about = {one["involvedObject"]["name"]: one["message"] for one in events}
        return f"{user.namespace}/train-b is active in the NVLink clique {clique}" in about.get(
            "train-a", ""
        ) and f"{user.namespace}/train-a is" in about.get("train-b", "")

    await until(lambda: user.events("SharedIMEXDomain"), of_both)
    shared = controller._sharing.shared()  # of other tests' namespaces, too
    assert len(shared[clique]) == 2
    counted = controller._metrics.registry.get_sample_value("compute_domain_shared_cliques")
    assert counted == len(shared)


async def test_a_computedomain_that_is_made_anew_before_its_pods_have_ended_shares_with_no_other_namespace(
    user: User, controller: Controller
) -> None:
    clique = f"{uuid.uuid4()}.7"
    await user.active("train-a", clique, "claim-old")
    await user.ready()
    await user.delete(DOMAINS, "train-a")
    await user.gone(DOMAINS, "train-a")
    await user.active("train-a", clique, "claim-new")
    event = await user.event("SharedIMEXDomain")
    assert event["message"].startswith(
        f"A deleted ComputeDomain whose pods have not ended is active in the NVLink clique {clique} as well"
    )


async def test_where_cliques_are_exclusive_the_first_of_two_domains_has_it_and_then_the_other(
    target: Connection, user: User
) -> None:
    clique, domains = f"{uuid.uuid4()}.7", ("train-a", "train-b")

    async def has() -> list[str]:
        found = [await user.domain(name) or {} for name in domains]
        about = [one.get("metadata", {}).get("annotations", {}) for one in found]
        return [annotations.get(GRANTED, "") for annotations in about]

    async with leads(target, exclusive=True):
        for name in domains:
            await user.active(name, clique)
            await until(has, lambda granted: granted == [clique, ""])
        assert len(await user.events("SharedIMEXDomain")) <= 2  # both are active, and told so
        await user.delete(CLAIMS, "claim-train-a")
        await until(has, lambda granted: granted == ["", clique])


async def test_creating_and_deleting_take_three_and_four_requests(
    user: User, controller: Controller
) -> None:
    counts = controller._client.requests.count

    def sent() -> int:
        return sum(counts[verb] for verb in ("get", "list", "create", "update", "patch", "delete"))

    await user.create("warm-up")
    await user.ready("warm-up")
    before, many = sent(), [f"many-{number}" for number in range(10)]
    for name in many:
        await user.create(name)
    for name in many:
        await user.ready(name)
    created = sent() - before
    for name in many:
        await user.delete(DOMAINS, name)
    for name in many:
        await user.gone(DOMAINS, name)
    deleted = sent() - before - created
    # Some renewals of the lease fall in between.
    assert 30 <= created <= 34, dict(counts)
    assert 40 <= deleted <= 44, dict(counts)


async def test_a_name_that_is_taken_is_left_alone_named_and_used_once_it_is_free(
    user: User, controller: Controller
) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    foreign = {"metadata": {"name": "train-a-channel"}, "spec": spec}
    before = await user.make_template(foreign)
    await user.create()
    said = await user.event("ResourceClaimTemplateConflict")
    assert "train-a-channel" in said["message"]
    assert said["involvedObject"]["name"] == "train-a"
    assert await user.status() == "NotReady"
    after = await user.template()
    assert after is not None
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await user.delete(TEMPLATES, "train-a-channel")
    await user.ready()


async def test_a_quota_that_refuses_the_template_is_told_and_the_template_is_made_once_there_is_room(
    user: User, controller: Controller
) -> None:
    counted = "count/resourceclaimtemplates.resource.k8s.io"
    at = f"/api/v1/namespaces/{user.namespace}/resourcequotas"
    quota: dict[str, Any] = {"metadata": {"name": "none"}, "spec": {"hard": {counted: "0"}}}
    await user.client.create(at, quota)
    # As the controller of quotas writes it, which is not here.
    status = {"hard": {counted: "0"}, "used": {counted: "0"}}
    await user.client.merge_patch(f"{at}/none/status", {"status": status})
    await user.create()
    message = (await user.event("ComputeDomainRefused"))["message"]
    assert "exceeded quota: none" in message
    assert "it is tried again each minute" in message
    await user.client.delete(f"{at}/none")
    await user.ready()


async def test_labels_and_finalizer_that_were_removed_by_hand_are_put_back(
    user: User, controller: Controller
) -> None:
    await user.create()
    await user.ready()
    nothing = {"metadata": {"labels": {LABEL: None, TARGET_LABEL: None}, "finalizers": None}}
    await user.patch(TEMPLATES, "train-a-channel", nothing)

    def mended(found: Body) -> bool:
        about = found["metadata"]
        return bool(about.get("finalizers")) and LABEL in about.get("labels", {})

    await until(user.template, mended)


@pytest.mark.parametrize(
    "kind",
    [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ],
)
async def test_every_kind_of_patch_of_a_label_on_our_template_works(
    user: User, controller: Controller, kind: str
) -> None:
    await user.create()
    await user.ready()
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "train-a-channel", "labels": {"team": "blue"}},
    }
    manager = "?fieldManager=somebody" if "apply" in kind else ""
    path = user.at(TEMPLATES, "train-a-channel") + manager
    await user.client._write("patch", "PATCH", path, body, kind=kind)
    found = await user.template()
    assert found is not None
    assert found["metadata"]["labels"]["team"] == "blue"
    await user.delete(DOMAINS, "train-a")
    await user.gone(DOMAINS, "train-a")


async def test_a_template_of_ours_with_its_parameters_in_another_order_is_taken_over_and_deleted(
    target: Connection, user: User
) -> None:
    body = template_of((await user.create())["metadata"]["uid"])
    opaque = body["spec"]["spec"]["devices"]["config"][0]["opaque"]
    opaque["parameters"] = dict(reversed(opaque["parameters"].items()))
    del body["metadata"]["finalizers"]
    await user.make_template(body)
    async with leads(target):
        await user.ready()
        found = await user.template()
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]
        await user.delete(DOMAINS, "train-a")
        await user.gone(DOMAINS, "train-a")
        assert await user.template() is None


async def test_a_stale_template_is_swept_and_one_of_a_computedomain_that_lives_is_not(
    target: Connection, user: User
) -> None:
    await user.make_template(template_of("gone-long-ago", "old"))
    async with leads(target, sweep_seconds=0.2):
        await user.gone(TEMPLATES, "old")
        await user.create()
        await user.ready()
        await user.patch(DOMAINS, "train-a", {"metadata": {"finalizers": None}})
        await user.ready()
        assert await user.template() is not None


async def test_the_spec_cannot_be_changed(user: User) -> None:
    await user.create()
    with pytest.raises(Invalid, match=r"A computeDomain\.spec is immutable"):
        await user.patch(DOMAINS, "train-a", {"spec": {"numNodes": 4}})


async def test_todays_manifest_is_taken_and_its_mode_is_single(user: User) -> None:
    made = await user.create()
    assert made["spec"]["channel"]["allocationMode"] == "Single"
    assert made["spec"]["numNodes"] == 0


async def test_what_an_api_server_forgets_or_restarts_is_caught_up_with(
    user: User, controller: Controller, real_api_server: ApiServer
) -> None:
    await user.create()
    await user.ready()
    real_api_server.forget()  # a restart, and the versions of the watches are too old
    await user.create("train-b")
    await user.ready("train-b")
    await user.delete(DOMAINS, "train-a")
    await user.gone(DOMAINS, "train-a")


class Dies(Client):
    """Its process ends at the write number ``at``: before it is sent, or after it was carried out
    and before anybody knows.
    """

    at, told, count = 0, False, 0

    async def _write(
        self, verb: str, method: str, path: str, body: object | None, **more: Any
    ) -> bytes:
        if "/leases/" in path or path.endswith("/leases"):
            return await super()._write(verb, method, path, body, **more)
        self.count += 1
        if self.count == self.at and not self.told:
            raise Died
        answer = await super()._write(verb, method, path, body, **more)
        if self.count == self.at:
            raise Died
        return answer


class Died(BaseException):
    pass


@pytest.mark.parametrize("told", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_leader_that_dies_at_any_write_of_a_creation_leaves_what_the_next_one_finishes(
    target: Connection, user: User, at: int, told: bool
) -> None:
    await _dies(target, user, at, told, user.create)
    async with leads(target):
        await user.ready()
        found = await user.template()
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]


@pytest.mark.parametrize("told", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_leader_that_dies_at_any_write_of_a_deletion_leaves_what_the_next_one_finishes(
    target: Connection, user: User, at: int, told: bool
) -> None:
    async with leads(target):
        await user.create()
        await user.ready()
    await _dies(target, user, at, told, lambda: user.delete(DOMAINS, "train-a"))
    async with leads(target):
        await user.gone(DOMAINS, "train-a")
        assert await user.template() is None


async def _dies(
    target: Connection, user: User, at: int, told: bool, change: Callable[[], Awaitable[object]]
) -> None:
    """Have a controller that dies at its write number ``at`` see ``change``, in the user's
    namespace alone.
    """
    Dies.at, Dies.told = at, told
    try:
        async with leads(target, client=Dies, only=user.namespace):
            await change()
            await anyio.sleep_forever()
    except* Died:
        pass
