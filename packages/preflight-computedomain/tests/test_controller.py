"""The controller against a real API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from driven import User, leads, until
from preflight_computedomain.api.crd import crd
from preflight_computedomain.api.names import (
    CLAIMS,
    DOMAINS,
    FINALIZER,
    GRANTED,
    LABEL,
    SLICES,
    TARGET_LABEL,
    TEMPLATES,
)
from preflight_computedomain.controller.controller import Controller
from preflight_computedomain.core import slices
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, Invalid, KubeError
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def target(real_api_server: ApiServer, tmp_path: Any) -> Connection:
    real_api_server.define(crd())
    return connection({"KUBECONFIG": str(real_api_server.kubeconfig(tmp_path / "kubeconfig"))})


@pytest.fixture
async def user(target: Connection) -> AsyncIterator[User]:
    async with Client(target, agent="user") as client:
        made = User(client)
        await made.begin()
        yield made


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
        domain, node = await user.create(name), f"node-{uuid.uuid4().hex[:8]}"
        devices = slices.channel(clique, "570.158.1")
        await user.client.create(SLICES, slices.body(node, "a-uid", devices))
        await user.claim(f"claim-{name}", domain["metadata"]["uid"], node)

    async def told() -> bool:
        events = await user.events("SharedIMEXDomain")
        about = {one["involvedObject"]["name"]: one["message"] for one in events}
        return f"{user.namespace}/train-b is active in the NVLink clique {clique}" in about.get(
            "train-a", ""
        ) and f"{user.namespace}/train-a is" in about.get("train-b", "")

    await until(told)
    shared = controller._sharing.shared()  # of other tests' namespaces, too
    assert len(shared[clique]) == 2
    counted = controller._metrics.registry.get_sample_value("compute_domain_shared_cliques")
    assert counted == len(shared)


async def test_a_computedomain_that_is_made_anew_before_its_pods_have_ended_shares_with_no_other_namespace(
    user: User, controller: Controller
) -> None:
    clique = f"{uuid.uuid4()}.7"
    for claim in ("claim-old", "claim-new"):
        domain, node = await user.create(), f"node-{uuid.uuid4().hex[:8]}"
        devices = slices.channel(clique, "570.158.1")
        await user.client.create(SLICES, slices.body(node, "a-uid", devices))
        await user.claim(claim, domain["metadata"]["uid"], node)
        if claim == "claim-old":
            await user.ready()
            await user.delete(DOMAINS, "train-a")
            await user.gone(DOMAINS, "train-a")

    async def told() -> bool:
        return bool(await user.events("SharedIMEXDomain"))

    await until(told)
    [event] = await user.events("SharedIMEXDomain")
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

    async def first() -> bool:
        return await has() == [clique, ""]

    async def second() -> bool:
        return await has() == ["", clique]

    async with leads(target, exclusive=True):
        for name in domains:
            domain, node = await user.create(name), f"node-{uuid.uuid4().hex[:8]}"
            devices = slices.channel(clique, "570.158.1")
            await user.client.create(SLICES, slices.body(node, "a-uid", devices))
            await user.claim(f"claim-{name}", domain["metadata"]["uid"], node)
            await until(first)
        assert len(await user.events("SharedIMEXDomain")) <= 2  # both are active, and told so
        await user.delete(CLAIMS, "claim-train-a")
        await until(second)


async def test_num_nodes_has_no_meaning(user: User, controller: Controller) -> None:
    await user.create(nodes=8)
    assert (await user.ready())["spec"]["numNodes"] == 8


async def test_creating_and_deleting_take_three_and_four_requests(
    user: User, controller: Controller
) -> None:
    counts = controller._client.requests.count

    def sent() -> int:
        return sum(counts[verb] for verb in ("get", "list", "create", "update", "patch", "delete"))

    await user.create("warm-up")
    await user.ready("warm-up")
    lease = sum(counts[verb] for verb in ("watch",))
    before = sent()
    for number in range(10):
        await user.create(f"many-{number}")
    for number in range(10):
        await user.ready(f"many-{number}")
    created = sent() - before
    for number in range(10):
        await user.delete(DOMAINS, f"many-{number}")
    for number in range(10):
        await user.gone(DOMAINS, f"many-{number}")
    deleted = sent() - before - created
    assert lease
    # Some renewals of the lease fall in between.
    assert 30 <= created <= 34, dict(counts)
    assert 40 <= deleted <= 44, dict(counts)


async def test_a_deleted_computedomain_takes_its_template_along(
    user: User, controller: Controller
) -> None:
    await user.create()
    await user.ready()
    await user.delete(DOMAINS, "train-a")
    await user.gone(DOMAINS, "train-a")
    assert await user.template() is None


async def test_a_template_that_is_deleted_by_hand_comes_back(
    user: User, controller: Controller
) -> None:
    await user.create()
    await user.ready()
    for _ in range(20):
        before = await user.template()
        assert before is not None
        await user.delete(TEMPLATES, "train-a-channel")
        uid = before["metadata"]["uid"]

        async def another(uid: str = uid) -> bool:
            found = await user.template()
            return found is not None and found["metadata"]["uid"] != uid

        await until(another)
        await user.ready()


async def test_a_name_that_is_taken_is_left_alone_named_and_used_once_it_is_free(
    user: User, controller: Controller
) -> None:
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "train-a-channel"},
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
                }
            }
        },
    }
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


async def test_a_name_that_no_template_can_have_is_told_and_the_computedomain_can_go(
    user: User, controller: Controller
) -> None:
    await user.create(wants="../configmaps")
    said = await user.event("InvalidResourceClaimTemplateName")
    assert "'../configmaps'" in said["message"]
    assert await user.status() == "NotReady"
    await user.delete(DOMAINS, "train-a")
    await user.gone(DOMAINS, "train-a")


async def test_of_two_computedomains_with_one_templates_name_the_second_can_go_and_the_template_stays(
    user: User, controller: Controller
) -> None:
    await user.create("first", wants="train-a-channel")
    await user.ready("first")
    await user.create()
    await user.event("ResourceClaimTemplateConflict")
    await user.delete(DOMAINS, "train-a")
    await user.gone(DOMAINS, "train-a")
    assert await user.template() is not None


async def test_labels_and_finalizer_that_were_removed_by_hand_are_put_back(
    user: User, controller: Controller
) -> None:
    await user.create()
    await user.ready()
    nothing = {"metadata": {"labels": {LABEL: None, TARGET_LABEL: None}, "finalizers": None}}
    await user.patch(TEMPLATES, "train-a-channel", nothing)

    async def mended() -> bool:
        found = await user.template()
        return bool(
            found
            and found["metadata"].get("finalizers")
            and LABEL in found["metadata"].get("labels", {})
        )

    await until(mended)


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
    made = await user.create()
    body = _ours(made["metadata"]["uid"])
    parameters = body["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    body["spec"]["spec"]["devices"]["config"][0]["opaque"]["parameters"] = dict(
        reversed(parameters.items())
    )
    body["metadata"].pop("finalizers")
    await user.client.create(
        user.at(TEMPLATES), json.loads(json.dumps(body, separators=(",", ":")))
    )
    async with leads(target):
        await user.ready()
        found = await user.template()
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]
        await user.delete(DOMAINS, "train-a")
        await user.gone(DOMAINS, "train-a")
        assert await user.template() is None


async def test_mode_all_is_ready_and_told(user: User, controller: Controller) -> None:
    await user.create(mode="All")
    await user.ready()
    said = await user.event("UnsupportedAllocationMode")
    assert "set Single" in said["message"]


async def test_a_stale_template_is_swept_and_one_of_a_computedomain_that_lives_is_not(
    target: Connection, user: User
) -> None:
    await user.make_template(
        {
            **_ours("gone-long-ago"),
            "metadata": {**_ours("gone-long-ago")["metadata"], "name": "old"},
        }
    )
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


@pytest.mark.parametrize("spec", [{}, {"channel": {}}, {"channel": {"resourceClaimTemplate": {}}}])
async def test_a_spec_without_the_templates_name_is_refused(
    user: User, spec: dict[str, Any]
) -> None:
    body = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "x"},
        "spec": spec,
    }
    with pytest.raises(KubeError):
        await user.client.create(user.at(DOMAINS), body)


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


def _ours(uid: str) -> dict[str, Any]:
    parameters = {
        "allocationMode": "Single",
        "apiVersion": "resource.nvidia.com/v1beta1",
        "domainID": uid,
        "kind": "ComputeDomainChannelConfig",
    }
    request = {
        "name": "channel",
        "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
    }
    opaque = {"driver": "compute-domain.nvidia.com", "parameters": parameters}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": "train-a-channel",
            "finalizers": [FINALIZER],
            "labels": {LABEL: uid, TARGET_LABEL: "Workload"},
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [request],
                    "config": [{"requests": ["channel"], "opaque": opaque}],
                }
            }
        },
    }


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
