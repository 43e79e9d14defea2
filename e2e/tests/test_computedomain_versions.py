"""The charts that need a newer Kubernetes, on clusters of several versions: Helm asks an API server
that says which one it is, and nothing is written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, Config, HelmError
from preflight_e2e.json_server import JsonHandler
from preflight_e2e.umbrella import MNNVL, channels, on
from preflight_testing.helm import (
    COMPUTEDOMAIN,
    GPU_SCHEDULER,
    REQUIRED,
    UMBRELLA,
    Object,
    Values,
    render,
)

VALUES: dict[Path, Values] = {COMPUTEDOMAIN: REQUIRED[COMPUTEDOMAIN], UMBRELLA: channels()}


def lists(objects: list[Object]) -> dict[str, Any]:
    """What an API server says of the kinds of ``objects``, by path."""
    found: dict[str, Any] = {"/api": {"kind": "APIVersions", "versions": ["v1"]}}
    groups: dict[str, set[str]] = {}
    for one in objects:
        group, _, version = one["apiVersion"].rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        if group:
            groups.setdefault(group, set()).add(version)
        kind = one["kind"]
        plural = kind.lower().removesuffix("y") + (
            "ies" if kind.endswith("y") else "es" if kind.endswith("s") else "s"
        )
        scoped = kind in {
            "Deployment",
            "DaemonSet",
            "Role",
            "RoleBinding",
            "ServiceAccount",
            "Lease",
        }
        namespaced = scoped or kind in {"NetworkPolicy", "PodDisruptionBudget", "Service"}
        resource = {
            "name": plural,
            "kind": kind,
            "namespaced": namespaced,
            "verbs": ["get", "create"],
        }
        place = found.setdefault(
            path, {"kind": "APIResourceList", "groupVersion": one["apiVersion"], "resources": []}
        )
        if resource not in place["resources"]:
            place["resources"].append(resource)
    found["/apis"] = {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": group,
                "versions": [
                    {"groupVersion": f"{group}/{v}", "version": v} for v in sorted(versions)
                ],
                "preferredVersion": {
                    "groupVersion": f"{group}/{min(versions)}",
                    "version": min(versions),
                },
            }
            for group, versions in groups.items()
        ],
    }
    return found


@contextmanager
def cluster(minor: int, folder: Path) -> Iterator[Path]:
    """A kubeconfig for an API server of version 1.``minor`` that has no object."""
    known = lists(render(UMBRELLA, VALUES[UMBRELLA]))
    known["/version"] = {"major": "1", "minor": str(minor), "gitVersion": f"v1.{minor}.1"}

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/openapi/v2":  # no schema of anything, as protobuf has it
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
                gone = {**status, "reason": "NotFound", "code": 404}
                self.answer(known.get(path, gone), 200 if path in known else 404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    named = {"name": "x"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{**named, "user": {"token": "t"}}],
        "contexts": [{**named, "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tried(chart: Path, minor: int, folder: Path, values: Values | None = None) -> str:
    """What `helm install --dry-run=server` makes. Raises HelmError."""
    with cluster(minor, folder) as kubeconfig, Chart.load(chart) as loaded:
        made: Any = Config(kubeconfig_path=kubeconfig, namespace="preflight").install(
            loaded, "preflight", values or VALUES[chart], namespace="preflight", dry_run="server"
        )
    return str(made["manifest"] if isinstance(made, dict) else made)


@pytest.mark.parametrize("minor", [34, 36])
@pytest.mark.parametrize("chart", VALUES, ids=lambda chart: chart.name)
def test_it_is_installed_from_1_34_on(chart: Path, minor: int, tmp_path: Path) -> None:
    made = tried(chart, minor, tmp_path)
    assert "compute-domain-default-channel.nvidia.com" in made
    assert "resource.k8s.io/v1beta" not in made


@pytest.mark.parametrize("chart", VALUES, ids=lambda chart: chart.name)
def test_below_1_34_it_is_refused_with_the_version(chart: Path, tmp_path: Path) -> None:
    with pytest.raises(HelmError, match=r"1\.34(?s:.*)v1\.33\.1"):
        tried(chart, 33, tmp_path)


@pytest.mark.parametrize("part", [GPU_SCHEDULER, MNNVL], ids=lambda p: p.name)
def test_the_umbrella_refuses_a_part_for_which_the_cluster_is_too_old(
    part: Path, tmp_path: Path
) -> None:
    values = on(part)
    why = rf"{part.name} needs Kubernetes >=1\.34\.0, .* v1\.33\.1; .* {part.name}\.enabled=false"
    with pytest.raises(HelmError, match=why):
        tried(UMBRELLA, 33, tmp_path, values)
