"""The webhook in front of a real API server: a burst of pods, and gangs created at once. What the
API server itself measured counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ApiServer
from preflight_testing.reviews import NUMBER, realistic_review

from ..registered_webhook import register, write_certificate
from . import served
from .bars import BenchMeasurement, at_most
from .cluster import BenchServer
from .load import audited, binaries, until

CONFIG = """
checks:
  - {name: dcgm-diag, image: d}
  - {name: nccl-loopback, image: l}
  - {name: nccl-allreduce, image: a}
gpuDetection: {deviceClasses: [gpu.nvidia.com]}
networkDetection: {deviceClasses: [rdma.nvidia.com]}
"""
NAMESPACE = "ml"
CALL = "apiserver_admission_webhook_admission_duration_seconds"
"""The API server's own histogram of a whole call of the webhook: connection, TLS, queue, decision,
answer.
"""
OWN = "preflight_webhook_latency_seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pods", type=int, default=1000, help="in the burst (%(default)s)")
    parser.add_argument(
        "--writers",
        type=int,
        default=64,
        help="who create them, each on a connection (%(default)s)",
    )
    parser.add_argument(
        "--gang", type=int, default=128, help="members created at once (%(default)s)"
    )
    served.add_server(parser)


def run(args: argparse.Namespace) -> BenchMeasurement:
    folder = binaries()
    with (
        tempfile.TemporaryDirectory() as name,
        api_server(Path(name), folder) as server,
        webhook(args.server, Path(name) / "webhook", server) as (url, plain, bundle),
    ):
        place = AdmissionCluster(server, plain, Path(name) / "audit.log")
        place.prepare(url, bundle)
        burst = place.burst([pod(f"burst-{i}") for i in range(args.pods)], args.writers)
        members = [pod(f"member-{i}", gang="numbered") for i in range(args.gang)]
        numbered = place.burst(members, args.gang)
        members = [pod(f"claimed-{i}", gang="claimed", template="eight") for i in range(args.gang)]
        first = place.burst(members, args.gang)
        members = [pod(f"again-{i}", gang="again", template="eight") for i in range(args.gang)]
        again = place.burst(members, args.gang)
    figures = {
        "burst": burst,
        "gang": numbered,
        "gang_of_claims": first,
        "gang_of_known_claims": again,
    }
    print(
        f"{'':22}{'pods':>6}{'writers':>9}{'failed':>8}{'seconds':>9}  p99 of the call   p99 of the decision   GETs"
    )
    for what, row in figures.items():
        print(
            f"{what.replace('_', ' '):22}{row['pods']:6}{row['writers']:9}{row['failed']:8}{row['seconds']:9.2f}"
            f"{row['call_p99_ms']:14.2f} ms{row['decision_p99_ms']:19.2f} ms{row['requests']:7}"
        )
    failed = sum(row["failed"] for row in figures.values())
    return BenchMeasurement({"admission": figures}, [at_most("pods that failed", failed, 0)])


@dataclass
class AdmissionCluster:
    """The API server, and where what happens can be read."""

    server: ApiServer
    plain: str
    audit: Path

    def prepare(self, url: str, bundle: str) -> None:
        """A namespace, a template of claims, and the webhook, once it is called."""
        self.server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 8}}]
        requests.append({"name": "nic", "exactly": {"deviceClassName": "rdma.nvidia.com"}})
        template = {
            "metadata": {"name": "eight"},
            "spec": {"spec": {"devices": {"requests": requests}}},
        }
        self.server.call(
            "POST",
            f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates",
            template,
        )
        register(self.server, "bench", url, bundle)
        dry = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        until(
            lambda: "initContainers" in self.server.call("POST", dry, pod("probe"))["spec"],
            "the API server calls the webhook",
            30,
        )

    def burst(self, pods: list[dict[str, Any]], writers: int) -> dict[str, Any]:
        """Create ``pods`` by as many ``writers``, who all begin at the same moment."""
        calls, decisions, asked = self.calls(), self.decisions(), self.asked()
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        bad, seconds = BenchServer.of(self.server).create(path, pods, writers, good=_checked)
        failed = len(bad)
        if failed:
            print(f"{failed} of {len(pods)} were refused or not checked, the last: {bad[-1][:300]}")
        return {
            "pods": len(pods),
            "writers": writers,
            "failed": failed,
            "seconds": round(seconds, 2),
            "call_p99_ms": _p99(calls, self.calls()),
            "decision_p99_ms": _p99(decisions, self.decisions()),
            "requests": self.asked() - asked,
        }

    def calls(self) -> dict[float, float]:
        return histogram(str(self.server.call("GET", "/metrics")), CALL)

    def decisions(self) -> dict[float, float]:
        with urllib.request.urlopen(f"{self.plain}/metrics") as answer:
            return histogram(answer.read().decode(), OWN)

    def asked(self) -> int:
        """Requests of the webhook to the API server, by the API server's audit log."""
        lines = self.audit.read_text().splitlines()
        return sum(json.loads(line).get("userAgent") == "preflight-webhook" for line in lines)


def _checked(answer: bytes) -> bool:
    return b'"preflight-nccl-loopback"' in answer and b'"preflight-dcgm-diag"' in answer


def pod(name: str, *, gang: str = "", template: str = "") -> dict[str, Any]:
    """A training pod as users write it; ``gang``: by the labels of a gang; ``template``: with
    claims instead of numbers.
    """
    review = json.dumps(realistic_review()["request"]["object"]).replace(NUMBER, "0" * len(NUMBER))
    pod: dict[str, Any] = json.loads(review)
    spec = pod["spec"]
    for field_of_cluster in ("managedFields", "namespace", "ownerReferences", "generateName"):
        pod["metadata"].pop(field_of_cluster, None)
    spec.pop("schedulingGroup")
    pod["metadata"]["name"] = name
    if gang:
        pod["metadata"]["labels"] |= {
            "app.kubernetes.io/gang-id": gang,
            "app.kubernetes.io/gang-size": "128",
        }
    spec.pop("resourceClaims", None)
    spec["containers"][0]["resources"].pop("claims", None)
    if template:
        spec["resourceClaims"] = [{"name": "devices", "resourceClaimTemplateName": template}]
        main = spec["containers"][0]["resources"]
        for side in ("limits", "requests"):
            main[side] = {
                key: value for key, value in main[side].items() if not key.startswith("nvidia.com/")
            }
        main["claims"] = [{"name": "devices"}]
    return pod


def histogram(text: str, name: str) -> dict[float, float]:
    """Cumulated counts by upper bound, over all labels; of Prometheus' text format."""
    buckets: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket"):
            bound = float(line.partition('le="')[2].partition('"')[0])
            buckets[bound] = buckets.get(bound, 0.0) + float(line.rpartition(" ")[2])
    return buckets


def _p99(before: dict[float, float], after: dict[float, float]) -> float:
    """In milliseconds, of what came in between."""
    return round(
        quantile(0.99, {bound: count - before.get(bound, 0.0) for bound, count in after.items()})
        * 1e3,
        2,
    )


def quantile(share: float, cumulated: dict[float, float]) -> float:
    """Linear within a bucket, as Prometheus' histogram_quantile has it; the highest finite bound
    for what lies above it.
    """
    bounds = sorted(cumulated)
    if not bounds or cumulated[bounds[-1]] == 0:
        return float("nan")
    wanted, lower, below = share * cumulated[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if cumulated[bound] >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (wanted - below) / (cumulated[bound] - below)
        lower, below = bound, cumulated[bound]
    return lower


@contextmanager
def api_server(home: Path, folder: Path) -> Iterator[ApiServer]:
    rules = [
        {"level": "None", "verbs": ["create"]},
        {"level": "Metadata", "userGroups": ["system:masters"]},
    ]
    more, _ = audited(home, rules)
    (home / "apiserver").mkdir()
    with ApiServer(home / "apiserver", folder, more=more) as server:
        yield server


@contextmanager
def webhook(program: str, folder: Path, server: ApiServer) -> Iterator[tuple[str, str, str]]:
    """The real server: (address of admission, address of its metrics, CA bundle)."""
    folder.mkdir()
    bundle = write_certificate(folder)
    environ = {"KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))}
    with served.webhook(program, folder, None, CONFIG, environ) as ours:
        yield f"https://{ours.address}{ours.path}", f"http://127.0.0.1:{ours.plain}", bundle
