"""A stand-in for Kueue's integration of AppWrappers: what it reads and writes, and its webhook, and
nothing of its queues.

It starts with all podSetInfos in one merge patch of the whole of ``spec.components``, as Kueue
does, which writes them from a type of its own; it may use the quota again when QuotaReserved is not
True.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hooks import Hook
from lab import Lab, condition
from preflight_kube.admission.review import AdmissionRequest, Response

QUEUE = "kueue.x-k8s.io/queue-name"
CONFIGURATION = "kueue-mutating-webhook-configuration"
KNOWN = ("template", "podSets", "podSetInfos", "annotations")
"""Fields of a component that its type has; all others are lost."""


@dataclass
class Kueue:
    """``queues``: of each wrapper that its webhook has seen, by name."""

    lab: Lab
    queues: dict[str, str] = field(default_factory=dict)

    @property
    def hook(self) -> Hook:
        return Hook("mutating", CONFIGURATION, "/mutate-kueue-appwrapper", self.review)

    async def review(self, request: AdmissionRequest) -> Response:
        """A new wrapper with a queue is suspended."""
        raw = request.new(dict[str, Any])
        queue = (raw["metadata"].get("labels") or {}).get(QUEUE, "")
        self.queues[raw["metadata"]["name"]] = queue
        if not queue:
            return Response()
        return Response(patch=[{"op": "add", "path": "/spec/suspend", "value": True}])

    async def admit(self, name: str, infos: dict[str, Any]) -> None:
        """Start it, with the same ``infos`` for each of its pod sets."""
        found = await self.lab.wrapper(name)
        assert not self.finished(found), "what has ended is not admitted"
        assert not self.active(found), "its quota is still reserved"
        components = [
            {key: one[key] for key in KNOWN if key in one} for one in found["spec"]["components"]
        ]
        for one, sets in zip(components, self.pod_sets(found), strict=True):
            one["podSetInfos"] = [infos for _ in sets]
        patch = {"spec": {"suspend": False, "components": components}}
        await self.lab.client.merge_patch(self.lab.wrappers(name), patch)

    async def preempt(self, name: str) -> None:
        """Stop it, and wait for its quota."""
        found = await self.lab.wrapper(name)
        components = [
            {key: one[key] for key in KNOWN if key in one and key != "podSetInfos"}
            for one in found["spec"]["components"]
        ]
        patch = {"spec": {"suspend": True, "components": components}}
        await self.lab.client.merge_patch(self.lab.wrappers(name), patch)

        async def free() -> bool:
            return not self.active(await self.lab.wrapper(name))

        await self.lab.until(free, "the quota")

    @staticmethod
    def active(wrapper: dict[str, Any]) -> bool:
        return bool(condition(wrapper, "QuotaReserved").get("status") == "True")

    @staticmethod
    def ready(wrapper: dict[str, Any]) -> bool:
        return bool(condition(wrapper, "PodsReady").get("status") == "True")

    @staticmethod
    def finished(wrapper: dict[str, Any]) -> bool:
        phase = wrapper.get("status", {}).get("phase")
        deployed = condition(wrapper, "ResourcesDeployed").get("status") == "True"
        return phase == "Succeeded" or (phase == "Failed" and not deployed)

    @staticmethod
    def pod_sets(wrapper: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """What its Workload is made of."""
        known = wrapper.get("status", {}).get("componentStatus", [])
        assert len(known) == len(wrapper["spec"]["components"]), "Kueue would infer them itself"
        return [one["podSets"] for one in known]

    def changed_while_admitted(self, name: str) -> list[str]:
        """Versions at which a pod set was another one than at the admission."""
        admitted, wrong = "", []
        for one in sorted(self.lab.history, key=lambda it: it.version):
            if one.what != "wrappers" or one.object["metadata"]["name"] != name:
                continue
            if not self.active(one.object):
                admitted = ""
                continue
            sets = json.dumps(self.pod_sets(one.object), sort_keys=True)
            admitted = admitted or sets
            if sets != admitted:
                wrong.append(f"{one.version}: {sets} instead of {admitted}")
        return wrong
