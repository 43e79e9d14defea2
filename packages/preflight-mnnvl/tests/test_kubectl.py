"""What a user of kubectl reads: the refusal of a set when it is applied, and the Events of its
description.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, ON, clique, pcs
from live import Space, leading, space_of
from preflight_mnnvl.core import reconcile as turn
from preflight_testing.apiserver import ApiServer, assets
from registered import registered

pytestmark = pytest.mark.anyio


class Kubectl:
    """The real one, as the administrator, in one namespace."""

    def __init__(self, space: Space, folder: Path) -> None:
        beside = (assets() or Path()) / "kubectl"
        found = str(beside) if beside.exists() else shutil.which("kubectl")
        if found is None:
            pytest.skip("there is no kubectl beside kube-apiserver, nor on PATH")
        access = space.server.kubeconfig(folder / "kubectl.kubeconfig")
        self._command = [found, f"--kubeconfig={access}", f"--cache-dir={folder}/kubectl"]
        self._command.append(f"--namespace={space.namespace}")
        self._namespace = space.namespace

    async def run(self, *args: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """Its exit status, and all that it says, each run of blanks as one."""
        data = b""
        if body is not None:
            metadata = {**body["metadata"], "namespace": self._namespace}
            metadata.pop("uid", None)
            data = json.dumps({**body, "metadata": metadata}).encode()
        done = await anyio.run_process(
            [*self._command, *args], input=data, check=False, stderr=subprocess.STDOUT
        )
        return done.returncode, " ".join(done.stdout.decode().split())


async def test_apply_of_a_wrong_set_ends_with_our_sentence(
    server: ApiServer, tmp_path: Path
) -> None:
    wrong = pcs("t", [clique("w")], annotations={**ON, "grove.io/mnnvl-scope": "pod"})
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        status, said = await Kubectl(space, tmp_path).run("apply", "-f", "-", body=wrong)
        sentence = (
            f"PodCliqueSet {space.namespace}/t: metadata.annotations[grove.io/mnnvl-scope]: "
            'the scope "pod" is unknown; write one of replica, clique, scalingGroupReplica.'
        )
        assert (status, sentence in said) == (1, True), said
        assert await space.grove.all("podcliquesets") == {}


async def test_the_description_of_a_set_tells_what_became_of_its_domains_and_what_to_do(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's controller does not run; somebody else has what the second set needs."""
    monkeypatch.setattr(turn, "TEMPLATE_PATIENCE", 1.0)
    async with space_of(server, tmp_path, DRIVER) as space, leading(space.target, DRIVER):
        kubectl = Kubectl(space, tmp_path)
        theirs = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": "b-0-cd", "labels": {"app.kubernetes.io/managed-by": "helm"}},
            "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "theirs"}}},
        }
        await space.client.create(space.domain_path(), theirs)
        cliques = [clique("w"), clique("ps")]
        for name in ("t", "b"):
            await space.grove.apply(pcs(name, cliques, annotations=ON))
        await space.grove.turn()
        await space.settled(space.announced, {"t-0"})
        await space.client.delete(space.domain_path("t-0-cd"))

        async def reads(name: str, *sentences: str) -> None:
            said = ""

            async def all_there() -> bool:
                nonlocal said
                _, said = await kubectl.run("describe", "pcs", name)
                return all(one in said for one in sentences)

            try:
                await space.happens(all_there, "all is told", 60)
            except AssertionError:
                raise AssertionError([one for one in sentences if one not in said], said) from None

        by = "preflight-mnnvl"
        await reads(
            "t",
            f"{by} The ComputeDomain t-0-cd was made.",
            f"{by} The ComputeDomain t-0-cd belongs to the PodGang t-0.",
            f"{by} The ComputeDomain t-0-cd was lost and is made again: pods that joined the old domain must be restarted, "
            "those of the PodCliques t-0-ps, t-0-w.",
            f"{by} The ComputeDomain t-0-cd has no ResourceClaimTemplate after 1 s: is the DRA driver's controller running?",
            "Normal MnnvlDomainCreated",
            "Normal MnnvlDomainAdopted",
            "Warning MnnvlDomainRecreated",
            "Warning MnnvlClaimTemplateMissing",
        )
        await reads(
            "b",
            "Warning MnnvlDomainBlocked",
            f"{by} The ComputeDomain b-0-cd is managed by helm; delete or rename it, and the domain is made.",
        )
