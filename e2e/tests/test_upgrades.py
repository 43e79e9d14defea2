"""Upgrades from the last release of the charts, back, and to another release: Helm, and a real API
server.

Where the clone has no tag ``charts/v…``, these charts under an earlier version stand for it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.installed_release import earlier, last_tag
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
KEPT = {"CustomResourceDefinition", "Namespace"}
"""Kinds of what stays when a release goes."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path / "server"
    home.mkdir()
    with ApiServer(home, folder, more=["--allow-privileged"]) as made:
        yield made


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


def notes(server: ApiServer, release: Release) -> str:
    """What its newest install or upgrade has said."""
    read = server.call("GET", f"/api/v1/namespaces/{release.namespace}/secrets?labelSelector=owner%3Dhelm,name%3D{release.name}")  # fmt: skip
    newest = max(read["items"], key=lambda one: int(one["metadata"]["labels"]["version"]))
    packed = base64.b64decode(base64.b64decode(newest["data"]["release"]))
    return str(json.loads(gzip.decompress(packed))["info"]["notes"])


def taken_over(server: ApiServer, release: Release) -> list[str]:
    """Names of what the notes of ``release`` say how to take over, after that has been done."""
    commands = re.findall(
        r"^ *kubectl (annotate|label) (\w+) (\S+) --overwrite (.+)$", notes(server, release), re.M
    )
    for verb, kind, name, pairs in commands:
        [place] = [place for each, place in PLACES.items() if each.lower() == kind]
        entries = dict(pair.split("=") for pair in pairs.split())
        changed = server.call("GET", f"{place}/{name}")
        changed["metadata"][{"label": "labels", "annotate": "annotations"}[verb]] |= entries
        server.call("PUT", f"{place}/{name}", changed)
    return sorted({name for _, _, name, _ in commands})


@pytest.mark.kube
def test_the_last_release_is_upgraded_to_this_one_and_back(
    server: ApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    release = Release("preflight", kubeconfig, chart=earlier(tmp_path, last_tag()))
    release.install(ALL, wait=False)
    before = {key: one["metadata"]["uid"] for key, one in stored(server).items()}
    assert versions(server)
    release.chart = UMBRELLA
    release.upgrade(ALL, wait=False)
    after = stored(server)
    assert set(after) == rendered()
    assert versions(server) == {version(part) for part in PARTS.iterdir()}
    for key, one in after.items():  # what people have made of them would be gone
        if key[0] in KEPT and key in before:
            assert one["metadata"]["uid"] == before[key], key
    release.rollback()
    assert not versions(server) & {version(part) for part in PARTS.iterdir()}


@pytest.mark.kube
def test_a_part_moves_from_the_umbrella_to_a_release_of_its_own_and_back_as_the_notes_say(
    server: ApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    umbrella = Release("preflight", kubeconfig)
    umbrella.install(ALL, wait=False)
    before, values = stored(server), REQUIRED[GPU_SCHEDULER]
    ours = {("Namespace", LOCKS), *(key for key in before if key[1].endswith(".gpu.scheduling"))}
    umbrella.upgrade({**ALL, GPU_SCHEDULER.name: {"enabled": False}}, wait=False)
    alone = Release("gpus", kubeconfig, name="ours", chart=GPU_SCHEDULER)
    alone.install(values, wait=False)
    assert taken_over(server, alone) == sorted(name for _, name in ours)
    alone.upgrade(values, wait=False)
    assert "was left as it is" not in notes(server, alone)
    alone.uninstall(wait=False)
    umbrella.upgrade(ALL, wait=False)
    assert taken_over(server, umbrella) == sorted(name for _, name in ours)
    umbrella.upgrade(ALL, wait=False)
    assert "was left as it is" not in notes(server, umbrella)
    after = stored(server)
    assert set(after) == set(before)
    for key in ours:
        assert after[key]["metadata"]["uid"] == before[key]["metadata"]["uid"], key


@pytest.mark.kube
def test_parts_that_are_releases_of_their_own_are_uninstalled_in_any_order(
    server: ApiServer, tmp_path: Path
) -> None:
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    parts = sorted(PARTS.iterdir())
    releases = {
        part: Release("preflight", kubeconfig, name=part.name, chart=part) for part in parts
    }
    for order in (parts, parts[::-1]):
        for part, release in releases.items():
            release.install(REQUIRED.get(part, {}), wait=False)
        for part in order:
            releases[part].uninstall(wait=False)
        left = stored(server)
        assert {kind for kind, _ in left} == KEPT
        assert ("Namespace", LOCKS) in left
