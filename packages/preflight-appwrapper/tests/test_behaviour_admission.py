"""What a real API server lets through with our webhooks beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hooks import serving
from lab import Lab
from lab import appwrapper as wrapper
from player import bare_pod, job, service
from preflight_kube.client.client import Client, KubeError

pytestmark = pytest.mark.anyio


async def refused(lab: Lab, body: dict[str, Any], client: Client | None = None) -> str:
    with pytest.raises(KubeError) as error:
        await (client or lab.client).create(lab.wrappers(), body)
    return str(error.value)


async def test_a_user_cannot_create_through_a_wrapper_what_they_cannot_create(
    lab: Lab, tmp_path: Path
) -> None:
    writes = {"resources": ["appwrappers"], "verbs": ["create", "update"]}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    rights = [{"apiGroups": ["workload.codeflare.dev"], **writes}, pods]
    made = {"selector": {"matchLabels": {"a": "b"}}, "template": job()["spec"]["template"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": made,
    }
    async with serving(lab, tmp_path / "tls"), await lab.account(tmp_path, rights) as author:
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
