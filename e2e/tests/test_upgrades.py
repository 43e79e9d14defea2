"""Upgrades from the last release of the charts, back, and to another release: Helm, and a real API
server.

Where the clone has no tag ``charts/v…`` below the present version, these charts under an earlier
version stand for it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.images import ROOT
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import (
    GPU_SCHEDULER,
    PARTS,
    REQUIRED,
    UMBRELLA,
    Release,
    Values,
    render,
    version,
)

pytestmark = pytest.mark.timeout(300)

ALL: Values = {part.name: {"enabled": True, **REQUIRED.get(part, {})} for part in PARTS.iterdir()}
"""Every part; nothing here would start a replica."""
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
}  # fmt: skip
LOCKS = "gpu-scheduler-leases"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path / "server"
    home.mkdir()
    with ApiServer(home, folder, more=["--allow-privileged"]) as made:
        yield made


def last_tag() -> str | None:
    """The tag of the charts' last release before the present version."""
    listed = subprocess.run(["git", "-C", str(ROOT), "tag", "--list", "charts/v*", "--sort=-v:refname"], capture_output=True, text=True, check=True)  # fmt: skip
    others = [tag for tag in listed.stdout.split() if tag != f"charts/v{version(UMBRELLA)}"]
    return others[0] if others else None


def earlier(folder: Path) -> Path:
    """The umbrella chart of the last release, or these charts as 0.0.1."""
    if tag := last_tag():
        archive = folder / "charts.tar"
        subprocess.run(["git", "-C", str(ROOT), "archive", "-o", str(archive), tag, "charts/preflight"], check=True)  # fmt: skip
        with tarfile.open(archive) as read:
            read.extractall(folder, filter="data")
        return folder / "charts" / "preflight"
    copy = Path(shutil.copytree(UMBRELLA, folder / "preflight"))
    for chart in copy.rglob("Chart.yaml"):
        text = re.sub(
            r'(?m)^( *(?:version|appVersion): "?)[\d.]+', r"\g<1>0.0.1", chart.read_text()
        )
        chart.write_text(text)
    return copy


def stored(server: ApiServer) -> dict[tuple[str, str], dict[str, Any]]:
    """Our objects of the kinds in PLACES, by kind and name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for kind, place in PLACES.items():
        chosen = "?labelSelector=app.kubernetes.io%2Fpart-of%3Dpreflight"
        read = server.call("GET", place.format(namespace="preflight") + chosen)
        found |= {(kind, one["metadata"]["name"]): one for one in read["items"]}
    return found


def rendered() -> set[tuple[str, str]]:
    objects = render(UMBRELLA, ALL)
    return {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"] in PLACES}


def versions(server: ApiServer) -> set[str]:
    return {o["metadata"]["labels"]["app.kubernetes.io/version"] for o in stored(server).values()}


def notes(server: ApiServer, namespace: str) -> str:
    """What the newest install or upgrade of the one release there has said."""
    read = server.call("GET", f"/api/v1/namespaces/{namespace}/secrets?fieldSelector=type%3Dhelm.sh%2Frelease.v1")  # fmt: skip
    newest = max(read["items"], key=lambda one: int(one["metadata"]["labels"]["version"]))
    packed = base64.b64decode(base64.b64decode(newest["data"]["release"]))
    return str(json.loads(gzip.decompress(packed))["info"]["notes"])


@pytest.mark.kube
def test_the_last_release_is_upgraded_to_this_one_and_back(
    server: ApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    release = Release("preflight", kubeconfig, chart=earlier(tmp_path))
    release.install(ALL, wait=False)
    before = {key: one["metadata"]["uid"] for key, one in stored(server).items()}
    assert versions(server)
    release.chart = UMBRELLA
    release.upgrade(ALL, wait=False)
    after = stored(server)
    assert set(after) == rendered()
    assert versions(server) == {version(part) for part in PARTS.iterdir()}
    kept = {"CustomResourceDefinition", "Namespace"}
    for key, one in after.items():  # what people have made of them would be gone
        if key[0] in kept and key in before:
            assert one["metadata"]["uid"] == before[key], key
    release.rollback()
    assert not versions(server) & {version(part) for part in PARTS.iterdir()}


@pytest.mark.kube
def test_what_a_release_has_left_behind_is_named_and_can_be_taken_over(
    server: ApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    umbrella = Release("preflight", kubeconfig, chart=earlier(tmp_path))
    umbrella.install(ALL, wait=False)
    umbrella.uninstall(wait=False)
    left = stored(server)
    assert ("Namespace", LOCKS) in left
    assert {kind for kind, _ in left} == {"CustomResourceDefinition", "Namespace"}
    alone = Release("gpus", kubeconfig, name="ours", chart=GPU_SCHEDULER)
    values = REQUIRED[GPU_SCHEDULER]
    alone.install(values, wait=False)
    said = notes(server, "gpus")
    commands = re.findall(r"^ *kubectl (annotate|label) (\w+) (\S+) --overwrite (.+)$", said, re.M)
    ours = {("Namespace", LOCKS)} | {key for key in left if key[1].endswith(".gpu.scheduling")}
    assert {name for _, _, name, _ in commands} == {name for _, name in ours}
    for verb, kind, name, pairs in commands:
        [place] = [place for one, place in PLACES.items() if one.lower() == kind]
        entries = dict(pair.split("=") for pair in pairs.split())
        one = server.call("GET", f"{place}/{name}")
        one["metadata"][{"label": "labels", "annotate": "annotations"}[verb]] |= entries
        server.call("PUT", f"{place}/{name}", one)
    alone.upgrade(values, wait=False)
    now = stored(server)
    for key in ours:
        assert now[key]["metadata"]["labels"]["app.kubernetes.io/version"] == version(GPU_SCHEDULER)
        assert now[key]["metadata"]["uid"] == left[key]["metadata"]["uid"]
    assert "was left as it is" not in notes(server, "gpus")
