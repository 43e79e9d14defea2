"""What a real API server lets through with our webhooks beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hooks import serving
from lab import Lab
from player import PREFIX, bare_pod, job, service
from preflight_appwrapper.api.rules import WrapperRules
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError

pytestmark = pytest.mark.anyio


def wrapper(
    *templates: dict[str, Any], name: str = "w", labels: Any = None, **annotations: str
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "annotations": {PREFIX + key: it for key, it in annotations.items()},
    }
    if labels is not None:
        metadata["labels"] = labels
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": metadata,
        "spec": {"components": [{"template": one} for one in templates]},
    }


async def refused(lab: Lab, body: dict[str, Any], client: Client | None = None) -> str:
    with pytest.raises(KubeError) as error:
        await (client or lab.client).create(lab.wrappers(), body)
    return str(error.value)


async def test_a_wrapper_gets_its_author_and_the_default_queue(lab: Lab, tmp_path: Path) -> None:
    async with serving(lab, tmp_path / "tls", WrapperRules(default_queue="team-a")):
        forged = {"workload.codeflare.dev/user": "somebody-else"}
        await lab.client.create(lab.wrappers(), wrapper(job(), labels=forged))
        labels = (await lab.wrapper())["metadata"]["labels"]
        assert labels["workload.codeflare.dev/user"] == "admin"
        assert labels["kueue.x-k8s.io/queue-name"] == "team-a"


async def test_every_problem_of_a_wrapper_is_said_at_once(lab: Lab, tmp_path: Path) -> None:
    foreign = job("foreign")
    foreign["metadata"]["namespace"] = "kube-system"
    unserved = {"apiVersion": "example.com/v1", "kind": "Robot", "metadata": {"name": "r"}}
    cluster_wide = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    async with serving(lab, tmp_path / "tls"):
        said = await refused(
            lab,
            wrapper(foreign, unserved, cluster_wide, job("twice"), job("twice"), wrapper(job())),
        )
    for what in (
        "spec.components[0].template.metadata.namespace: is kube-system",
        "spec.components[1].template: the API server does not serve example.com/v1 Robot",
        "spec.components[2].template: v1 Namespace belongs to the whole cluster",
        "spec.components[4].template: is Job twice, as spec.components[3] is",
        "spec.components[5].template: is an AppWrapper itself",
    ):
        assert what in said


async def test_a_user_cannot_create_through_a_wrapper_what_they_cannot_create(
    lab: Lab, tmp_path: Path
) -> None:
    await lab.client.create(lab.path("", "serviceaccounts"), {"metadata": {"name": "author"}})
    rules = [
        {
            "apiGroups": ["workload.codeflare.dev"],
            "resources": ["appwrappers"],
            "verbs": ["create", "update"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
    ]
    group = "rbac.authorization.k8s.io"
    await lab.client.create(
        lab.path(f"{group}/v1", "roles"), {"metadata": {"name": "author"}, "rules": rules}
    )
    binding = {
        "metadata": {"name": "author"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "author"},
        # by its group, which only a review with the user's groups can know
        "subjects": [
            {"apiGroup": group, "kind": "Group", "name": f"system:serviceaccounts:{lab.namespace}"}
        ],
    }
    await lab.client.create(lab.path(f"{group}/v1", "rolebindings"), binding)
    token = lab.server.token_of(lab.namespace, "author")
    target = connection({"KUBECONFIG": str(lab.server.kubeconfig(tmp_path / "author", token))})
    made = {"selector": {"matchLabels": {"a": "b"}}, "template": job()["spec"]["template"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": made,
    }
    async with serving(lab, tmp_path / "tls"), Client(target, agent="tests") as author:
        said = await refused(lab, wrapper(job(), bare_pod(), service(), deployment), author)
        account = f"system:serviceaccount:{lab.namespace}:author"
        assert (
            f"spec.components[0].template: {account} may not create jobs.batch in {lab.namespace}"
            in said
        )
        assert (
            f"spec.components[2].template: {account} may not create services in {lab.namespace}"
            in said
        )
        assert (
            f"spec.components[3].template: {account} may not create deployments.apps in {lab.namespace}"
            in said
        )
        assert "spec.components[1]" not in said
        await author.create(lab.wrappers(), wrapper(bare_pod()))
        labels = (await lab.wrapper())["metadata"]["labels"]
        assert labels["workload.codeflare.dev/user"] == account.replace(":", "_")


async def test_only_what_kueue_and_users_may_change_can_be_changed(
    lab: Lab, tmp_path: Path
) -> None:
    async with serving(lab, tmp_path / "tls"):
        await lab.client.create(lab.wrappers(), wrapper(job()))
        path = lab.wrappers("w")
        await lab.client.merge_patch(
            path, {"spec": {"suspend": True}, "metadata": {"labels": {"free": "x"}}}
        )
        infos = [{"nodeSelector": {"pool": "a"}}]
        admitted = [{"template": job(), "podSetInfos": infos}]
        await lab.client.merge_patch(path, {"spec": {"suspend": False, "components": admitted}})
        await lab.client.merge_patch(path, {"spec": {"components": [{"template": job()}]}})
        [component] = (await lab.wrapper())["spec"]["components"]
        assert component["podSetInfos"] == infos  # of a manifest that is applied again
        with pytest.raises(KubeError) as error:
            await lab.client.merge_patch(path, {"spec": {"managedBy": "other"}})
        assert "spec.managedBy: cannot be changed" in str(error.value)
        with pytest.raises(KubeError) as error:
            await lab.client.merge_patch(
                path, {"spec": {"components": [{"template": job("other")}]}}
            )
        assert "spec.components[0].template: cannot be changed" in str(error.value)
        with pytest.raises(KubeError) as error:
            await lab.client.merge_patch(
                path, {"metadata": {"labels": {"workload.codeflare.dev/user": "x"}}}
            )
        assert "says who created it" in str(error.value)


async def test_a_wrapper_without_pods_and_one_with_too_long_a_name_are_denied(
    lab: Lab, tmp_path: Path
) -> None:
    async with serving(lab, tmp_path / "tls"):
        said = await refused(lab, wrapper(service(), name="n" * 64))
    assert "metadata.name: has 64 characters" in said
    assert "spec.components: makes no pods" in said
