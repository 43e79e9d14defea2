"""Admission as the API server does it: the webhook is asked over TLS about every pod of an opted-in
namespace.

The webhook is asked once (no reinvocation) and must answer, as under ``failurePolicy: Fail``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from preflight_testing.apidouble.http import Api, ApiAnswer, ApiRequest
from preflight_testing.apidouble.patches import json_patch
from preflight_testing.apidouble.store import ApiRefused, Object

TIMEOUT = 10.0
"""Seconds that the API server waits for an answer: the chart's ``webhook.timeoutSeconds``."""
OPT_IN = ("nvsentinel.nvidia.com/preflight", "enabled")


@dataclass(frozen=True)
class SimulatedAdmission:
    """``url`` and ``ca``: where the webhook is and whom it must be signed by; ``unimplemented``:
    what of a pod has no double.
    """

    api: Api
    url: str
    ca: Path
    unimplemented: Callable[[Object], list[str]]

    async def __call__(self, request: ApiRequest) -> ApiAnswer | ApiRequest:
        target = self.api.target(request.path) if request.method == "POST" else None
        if target is None or target.resource.plural != "pods" or target.name:
            return request
        try:
            pod = await self._mutated(target.namespace, request.json())
        except ApiRefused as refused:
            return ApiAnswer(refused.code, refused.status)
        if missing := self.unimplemented(pod):
            message = f"the simulated cluster does not implement {', '.join(missing)} of a pod"
            return ApiAnswer(501, ApiRefused(501, "NotImplemented", message).status)
        return replace(request, data=msgspec.json.encode(pod))

    async def _mutated(self, namespace: str, pod: Object) -> Object:
        where = next(r for r in self.api.served if r.plural == "namespaces")
        labels = self.api.store.get(where, "", namespace)["metadata"].get("labels", {})
        if labels.get(OPT_IN[0]) != OPT_IN[1]:
            return pod
        pod = pod | {"metadata": pod["metadata"] | {"namespace": namespace}}
        asked = {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": namespace,
            "object": pod,
        }
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        try:
            response = (await asyncio.to_thread(self._ask, review))["response"]
        except (OSError, ValueError, KeyError) as error:
            raise ApiRefused(
                500, "InternalError", f"failed calling webhook {self.url}: {error}"
            ) from error
        if not response["allowed"]:
            status = response.get("status", {})
            message = f"admission webhook denied the request: {status.get('message', '')}"
            raise ApiRefused(status.get("code", 403), status.get("reason", "Forbidden"), message)
        mutated: Object = json_patch(
            pod, json.loads(base64.b64decode(response.get("patch", "") or b"W10="))
        )
        return mutated

    def _ask(self, review: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            self.url, data=json.dumps(review).encode(), headers=headers
        )
        context = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as answer:
            return json.load(answer)
