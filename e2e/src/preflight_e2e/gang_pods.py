"""Gangs without a scheduler and without kubelets: their pods, addresses and answers, for tests of a
real controller on a cluster.
"""

from __future__ import annotations

import json
from typing import Any

from .bench.cluster import addressed, member
from .impersonation import GANG, OURS, ROSTER
from .installed_release import Installed, until


class Story:
    """Pods as the webhook leaves them, of which no scheduler and no kubelet knows."""

    def __init__(self, installed: Installed) -> None:
        self.api, self.namespace, self.addresses = installed.api, installed.namespace(), 0
        until(
            lambda: bool(self.api.list_namespaced_service_account(self.namespace).items),
            "the default account",
        )

    def pod(
        self, name: str, gang: str, *, source: str = "labels", about: str | None = None
    ) -> None:
        body = member(self.namespace, gang, 2, name, source)
        del body["spec"]["nodeName"]
        body["spec"]["schedulerName"] = "nobody"
        stamp = json.loads(body["metadata"]["annotations"][GANG])
        if about is not None:
            stamp |= {"object": about, "size": None}
        body["metadata"]["annotations"][GANG] = json.dumps(stamp)
        shown = {
            "path": "topology",
            "fieldRef": {"fieldPath": f"metadata.annotations['{OURS}node-topology']"},
        }
        body["spec"]["volumes"].append(
            {"name": "preflight-node", "downwardAPI": {"items": [shown]}}
        )
        self.api.create_namespaced_pod(self.namespace, body)

    def address(self, name: str, **more: Any) -> None:
        self.addresses += 1
        status = addressed(self.addresses)
        status["status"]["initContainerStatuses"][0] |= more
        self.api.patch_namespaced_pod_status(name, self.namespace, status)

    def ask(self, name: str) -> None:
        """Its gang's check runs and waits for an answer; the one before has passed."""
        self.addresses += 1
        status = addressed(self.addresses)
        first, own = status["status"]["initContainerStatuses"]
        own["state"] = first["state"]
        first["state"] = {
            "terminated": {
                "exitCode": 0,
                "reason": "Completed",
                "containerID": f"containerd://{name}",
            }
        }
        self.api.patch_namespaced_pod_status(name, self.namespace, status)

    def roster(self, name: str) -> dict[str, Any]:
        text = self.api.read_namespaced_pod(name, self.namespace).metadata.annotations[ROSTER]
        return dict(json.loads(text or "{}"))

    def sealed(self, generation: int, *names: str) -> None:
        def so() -> bool:
            every = [self.roster(name) for name in names]
            return all(
                (roster.get("answer"), roster.get("generation")) == ("sealed", generation)
                for roster in every
            )

        until(so, f"generation {generation} of {names}")
