"""A service as a process of its own: ``managed.py NAMESPACE LEASE [FOLDER]``, by KUBECONFIG.

It mirrors the ConfigMaps of the namespace and, while it leads, counts in the ConfigMap ``marks``
how often it has led. With FOLDER it serves an admission webhook with the certificate in there:
``/mutate`` labels, ``/validate`` refuses what is called "refused". A ConfigMap called "raise" has
the leader raise.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
from kube_world import Item
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Reviews
from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.api.jsonpatch import add
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.manager import Election, Parts, run
from preflight_kube.runtime.reflector import Reflector
from prometheus_client import CollectorRegistry


async def mutate(request: AdmissionRequest) -> Response:
    labels = request.new(dict)["metadata"].get("labels", {})
    return Response(
        patch=[add("/metadata/labels", {**labels, "seen": "yes"})], warnings=["labeled"]
    )


async def validate(request: AdmissionRequest) -> Response:
    if request.name == "refused":
        return Response.denied("no object may be called that", code=422)
    return Response()


def main(namespace: str, lease: str, folder: str = "", linger: str = "0") -> int:
    registry = CollectorRegistry()

    async def build(client: Client) -> Parts:
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        maps = Reflector(client, path, Item)
        metrics = AdmissionMetrics("tests", registry)
        servers = []
        if folder:
            reviews = Reviews({"/mutate": mutate, "/validate": validate}, metrics)
            certificate = Certificate(Path(folder), "the test")
            servers = [
                HttpServer("admission", reviews, metrics, certificate, host="127.0.0.1", port=0)
            ]

        async def lead(leadership: Leadership) -> None:
            marks: dict[str, Any] = await client.get(f"{path}/marks", dict)
            led = int(marks.get("data", {}).get("led", "0")) + 1
            await client.fenced(leadership.valid).merge_patch(
                f"{path}/marks", {"data": {"led": str(led)}}
            )
            while True:
                names = {one.metadata.name for one in maps.store.values()}
                if "raise" in names:
                    raise LookupError("the test wants it")
                await anyio.sleep(0.02)

        return Parts(reflectors=[maps], servers=servers, lead=lead)

    election = Election(namespace, lease, 1.5) if lease else None
    return run(
        build,
        connection(),
        component="managed",
        registry=registry,
        host="127.0.0.1",
        port=0,
        election=election,
        linger=float(linger),
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
