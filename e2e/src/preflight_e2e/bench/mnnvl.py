"""Multi-node NVLink on a real API server: reviews of PodCliques on one core, a burst of PodCliques,
adoption by PodGangs, and memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import GROVE, compute_domains

from ..registered_webhook import write_certificate
from . import served
from .admission import histogram, quantile
from .bars import Bar, BenchMeasurement, at_least, at_most, below
from .cluster import BenchServer
from .load import BenchError, binaries, drive, server_of_nothing, until

Json = dict[str, Any]

NAMESPACE = "ml"
PATH = "/mutate-podclique"
CONNECTIONS = 16
STEADY = 3000.0
"""Reviews a second that are sent while the time of one is measured."""
WEBHOOK_CORE, LOAD_CORE = 0, 1
WRITERS = 32
CLIQUES = ("a", "b", "c", "d")
"""Of each replica: PodCliques that share one domain."""
DECISION = "mnnvl_admission_latency_seconds"
ADOPTION = "mnnvl_adoption_seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0, help="of reviews (%(default)s)")
    parser.add_argument(
        "--domains",
        type=int,
        default=250,
        help="in the burst, of four PodCliques each (%(default)s)",
    )
    parser.add_argument(
        "--gangs", type=int, default=100, help="PodGangs made at once (%(default)s)"
    )
    parser.add_argument(
        "--mirrored",
        type=int,
        default=10_000,
        help="PodCliques whose memory is measured (%(default)s)",
    )
    served.add_server(parser)
    parser.set_defaults(server="preflight-mnnvl")


def run(args: argparse.Namespace) -> BenchMeasurement:
    folder = binaries()
    with tempfile.TemporaryDirectory() as name, _server(Path(name), folder) as server:
        environ = {"KUBECONFIG": str(server.kubeconfig(Path(name) / "kubeconfig"))}
        bundle = write_certificate(Path(name))
        hook = [args.server, "webhook", "--certificate", name, "--admission-port", "0"]
        control = [args.server, "controller", "--namespace", "default"]
        log = Path(name) / "webhook.log"
        with served.service(hook, log, environ, WEBHOOK_CORE, PATH) as webhook:
            place = MnnvlCluster(server, webhook)
            place.prepare(bundle, args.domains)
            with served.paused(server.pids):  # a review of a known set asks for nothing
                reviews = place.reviews(Path(name) / "review.json", args.seconds)
            with served.service(control, Path(name) / "controller.log", environ) as controller:
                place.led(controller)
                burst = place.burst(args.domains, controller)
                adoption = place.adopt(args.gangs, controller)
                memory = place.fill(args.mirrored, controller)
    figures = {
        "mnnvl": {
            **reviews,
            "burst": burst,
            "adoption_p99_s": adoption,
            "rss_mb_10000_podcliques": memory,
        }
    }
    domains = burst["cd_creates"]
    return BenchMeasurement(
        figures,
        [
            at_least("reviews of 20 KB a second, on one core,", reviews["reviews_per_s"], STEADY),
            at_most(
                f"times an idle server's p99, at a steady {STEADY:,.0f}/s,",
                round(reviews["p99_ms"] / reviews["idle_server_p99_ms"], 1),
                6,
            ),
            below("p99 of a decision in ms", reviews["decision_p99_ms"], 1),
            at_most("PodCliques that were refused", burst["refused"], 0),
            Bar(f"{burst['domains']} domains made", domains, domains == burst["domains"]),
            below("seconds from the last PodClique to the last domain", burst["seconds"], 5),
            below(f"p99 of the adoption of {args.gangs} PodGangs in s", adoption, 1),
            below(f"MB with {args.mirrored:,} PodCliques", memory, 100),
        ],
    )


class MnnvlCluster:
    """The API server, with the webhook in front of it."""

    def __init__(self, server: ApiServer, webhook: served.ReviewServer) -> None:
        self.server, self.webhook = server, webhook
        self._set: Json = {}

    def path(self, plural: str) -> str:
        group = {
            "podgangs": "scheduler.grove.io/v1alpha1",
            "computedomains": "resource.nvidia.com/v1beta1",
        }
        return f"/apis/{group.get(plural, 'grove.io/v1alpha1')}/namespaces/{NAMESPACE}/{plural}"

    def prepare(self, bundle: str, replicas: int) -> None:
        """A namespace, a set, and the webhook, once it is called."""
        self.server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        cliques = [
            {"name": name, "spec": {"roleName": name, "podSpec": pod(1)}} for name in CLIQUES
        ]
        set_ = {
            "apiVersion": "grove.io/v1alpha1",
            "kind": "PodCliqueSet",
            "metadata": {"name": "t", "annotations": {"grove.io/mnnvl-enabled": "true"}},
            "spec": {"replicas": replicas, "template": {"cliques": cliques}},
        }
        self._set = self.server.call("POST", self.path("podcliquesets"), set_)
        rule = {"apiGroups": ["grove.io"], "apiVersions": ["v1alpha1"], "resources": ["podcliques"]}
        entry = {
            "name": "bench.mnnvl.nvsentinel.nvidia.com",
            "clientConfig": {"url": f"https://{self.webhook.address}{PATH}", "caBundle": bundle},
            "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
            **{
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 10,
            },
        }
        kind = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
        }
        path = f"/apis/{kind['apiVersion']}/mutatingwebhookconfigurations"
        self.server.call("POST", path, {**kind, "metadata": {"name": "bench"}, "webhooks": [entry]})
        dry = f"{self.path('podcliques')}?dryRun=All"
        probe = clique(self._set, 0, "a", 1)
        until(
            lambda: "resourceClaims" in self.server.call("POST", dry, probe)["spec"]["podSpec"],
            "the webhook",
        )

    def reviews(self, body: Path, seconds: float) -> Json:
        """Creations of PodCliques of 20 KB whose set is known."""
        podclique = clique(self._set, 0, "a", 20_000)
        kind = {"group": "grove.io", "version": "v1alpha1", "kind": "PodClique"}
        resource = {"group": "grove.io", "version": "v1alpha1", "resource": "podcliques"}
        request: Json = {
            "uid": "0" * 36,
            "kind": kind,
            "resource": resource,
            "operation": "CREATE",
            "name": "t-0-a",
        }
        request |= {"namespace": NAMESPACE, "userInfo": {"username": "grove"}, "object": podclique}
        request |= {"oldObject": None, "dryRun": False}
        review = {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": request,
        }
        body.write_text(json.dumps(review))
        before = self.webhook.metrics()
        # As many as it answers, where most of a review's time is that of those before it; then as
        # many as it has to.
        most, steady = (
            self._driven(self.webhook.address, body, seconds, rate) for rate in (0.0, STEADY)
        )
        with server_of_nothing(WEBHOOK_CORE) as address:
            floor = self._driven(address, body, seconds, STEADY)
        decisions = _between(
            histogram(before, DECISION), histogram(self.webhook.metrics(), DECISION)
        )
        return {
            "reviews_per_s": round(most["per_s"]),
            "p99_ms": round(steady["p99_ms"], 2),
            "idle_server_p99_ms": round(floor["p99_ms"], 2),
            "decision_p99_ms": round(quantile(0.99, decisions) * 1e3, 3),
        }

    def _driven(self, address: str, body: Path, seconds: float, rate: float) -> Json:
        driven = drive(
            address,
            body,
            connections=CONNECTIONS,
            seconds=seconds,
            path=PATH,
            rate=rate,
            cpu=LOAD_CORE,
        )
        if driven["failed"]:
            raise BenchError(
                f"{driven['failed']} reviews failed, one was answered {str(driven['answer'])[:200]}"
            )
        return driven

    def led(self, controller: served.ReviewServer) -> None:
        until(lambda: controller.metric("mnnvl_leader") == 1, "the controller leads")

    def burst(self, domains: int, controller: served.ReviewServer) -> Json:
        """The PodCliques of all replicas of the set; ``seconds``: from the last of them to the last
        domain.
        """
        podcliques = [clique(self._set, i, name, 1) for i in range(domains) for name in CLIQUES]
        refused = self._create("podcliques", podcliques)
        ended = time.monotonic()
        until(lambda: self._count("computedomains") >= domains, "all domains are there")
        seconds = time.monotonic() - ended
        until(lambda: _written(controller, "created") >= domains, "the controller has counted them")
        return {
            "podcliques": len(podcliques),
            "domains": self._count("computedomains"),
            "refused": refused,
            "cd_creates": int(_written(controller, "created")),
            "seconds": round(seconds, 2),
        }

    def adopt(self, gangs: int, controller: served.ReviewServer) -> float:
        """PodGangs at once; seconds from when each was seen to when its domain belonged to it, the
        99th of 100.
        """
        before = histogram(controller.metrics(), ADOPTION)
        kind = {
            "apiVersion": "scheduler.grove.io/v1alpha1",
            "kind": "PodGang",
            "spec": {"podgroups": []},
        }
        self._create("podgangs", [{**kind, "metadata": {"name": f"t-{i}"}} for i in range(gangs)])
        until(lambda: _written(controller, "adopted") >= gangs, "all are adopted")
        return round(quantile(0.99, _between(before, histogram(controller.metrics(), ADOPTION))), 3)

    def fill(self, wanted: int, controller: served.ReviewServer) -> float:
        """The larger memory of both services with so many PodCliques of 20 KB, in MiB."""
        more = [
            clique(self._set, i, "a", 20_000)
            for i in range(10_000, 10_000 + wanted - self._count("podcliques"))
        ]
        self._create("podcliques", more)
        until(
            lambda: controller.metric('mnnvl_domains{state="wanted"}') >= len(more),
            "all are mirrored",
        )
        return max(controller.resident_mb(), self.webhook.resident_mb())

    def _count(self, plural: str) -> int:
        page: Json = self.server.call("GET", f"{self.path(plural)}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def _create(self, plural: str, bodies: list[Json]) -> int:
        """Create all by :data:`WRITERS`; how many were refused."""
        refused, _ = BenchServer.of(self.server).create(
            self.path(plural), bodies, WRITERS, good=lambda _: True
        )
        return len(refused)


def pod(size: int) -> Json:
    """A pod's template of about ``size`` bytes."""
    variables = [{"name": f"VARIABLE_{i}", "value": "x" * 60} for i in range(size // 100)]
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    return {"containers": [{"name": "main", "image": "x", "env": variables, "resources": limits}]}


def clique(set_: Json, replica: int, name: str, size: int) -> Json:
    """A PodClique as Grove makes it, of about ``size`` bytes."""
    pcs = set_["metadata"]["name"]
    labels = {
        "app.kubernetes.io/managed-by": "grove-operator",
        "app.kubernetes.io/part-of": pcs,
        "grove.io/podcliqueset-replica-index": str(replica),
        "grove.io/podgang": f"{pcs}-{replica}",
    }
    return {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodClique",
        "metadata": {"name": f"{pcs}-{replica}-{name}", "namespace": NAMESPACE, "labels": labels},
        "spec": {"roleName": name, "replicas": 2, "podSpec": pod(size)},
    }


@contextmanager
def _server(home: Path, folder: Path) -> Iterator[ApiServer]:
    (home / "apiserver").mkdir()
    with ApiServer(home / "apiserver", folder) as server:
        for crd in [*GROVE, compute_domains()]:
            server.define(crd)
        yield server


def _written(controller: served.ReviewServer, result: str) -> float:
    wanted = f'mnnvl_writes_total{{kind="ComputeDomain",result="{result}"}}'
    return controller.metric(wanted)


def _between(before: dict[float, float], after: dict[float, float]) -> dict[float, float]:
    return {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
