"""The definition of PreflightConfig, and what a real API server refuses by it."""

from __future__ import annotations

import json
import urllib.error
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from preflight_gang.api.crd import crd, node_health_crd
from preflight_kube.api import node_health
from preflight_proto.policy import GROUP, KIND, VERSION, path
from preflight_testing.apiserver import ASSETS, ApiServer, assets

LABELS = f"{GROUP}/gang"
REFUSED: list[tuple[Any, str]] = [
    ({}, "nothing is set"),
    ({"enforcement": "maybe"}, "spec.enforcement"),
    ({"gangDiscovery": "auto"}, "spec.gangDiscovery"),
    ({"gangDiscovery": {"method": "slurm"}}, "spec.gangDiscovery.method"),
    ({"gangDiscovery": {"optIn": ["mpi"]}}, "spec.gangDiscovery.optIn[0]"),
    ({"gangDiscovery": {"optIn": ["job"] * 17}}, "spec.gangDiscovery.optIn"),
    ({"gangDiscovery": {"parallelStatefulSets": "yes"}}, "parallelStatefulSets"),
    ({"gangDiscovery": {"ownerSchedulers": [""]}}, "ownerSchedulers[0]"),
    ({"gangDiscovery": {"labels": {"gangIdLabel": "a b"}}}, "gangIdLabel"),
    ({"gangDiscovery": {"labels": {"gangIdLabel": "a" * 64}}}, "gangIdLabel"),
    ({"gangDiscovery": {"labels": {"gangSizeLabel": "c d"}}}, "gangSizeLabel"),
    (
        {"gangDiscovery": {"method": "kai", "labels": {"gangIdLabel": "a"}}},
        "labels is read only where method is auto or labels; set method so, or leave labels out",
    ),
    (
        {"gangDiscovery": {"method": "volcano", "ownerSchedulers": ["mine"]}},
        "ownerSchedulers is read only where method is auto or kai",
    ),
    (
        {"gangDiscovery": {"labels": {"gangIdLabel": "same", "gangSizeLabel": "same"}}},
        "gangIdLabel and gangSizeLabel are the same label",
    ),
    ({"gangDiscovery": {"labels": {"gangIdLabel": LABELS}}}, f"gangIdLabel is below {GROUP}/"),
    ({"gangDiscovery": {"labels": {"gangSizeLabel": LABELS}}}, f"gangSizeLabel is below {GROUP}/"),
]
TAKEN: list[Any] = [
    {"enforcement": "enforce"},
    {"gangDiscovery": {}},
    {"gangDiscovery": {"method": "labels", "labels": {"gangIdLabel": "example.com/job"}}},
    {"gangDiscovery": {"labels": {"gangSizeLabel": "size"}}},
    {"gangDiscovery": {"method": "kai", "ownerSchedulers": ["mine"]}},
    {"gangDiscovery": {"optIn": []}},
    {"gangDiscovery": {"labels": {"gangIdLabel": "a/" + "b" * 63}}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("crd"), folder) as made:
        made.define(crd())
        yield made


def refused(server: ApiServer, spec: object) -> str:
    """What the API server has against it; empty where it would take it."""
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": f"x-{uuid.uuid4().hex[:8]}"},
        "spec": spec,
    }
    try:
        server.call("POST", f"{path('default')}?dryRun=All", body)
    except urllib.error.HTTPError as error:
        with error:
            assert error.code == 422, error
            return str(json.loads(error.read())["message"])
    return ""


@pytest.mark.parametrize(("spec", "why"), REFUSED)
def test_the_api_server_refuses_what_makes_no_sense_and_says_why(
    server: ApiServer, spec: Any, why: str
) -> None:
    assert why in refused(server, spec)


@pytest.mark.parametrize("spec", TAKEN)
def test_the_api_server_takes_what_makes_sense(server: ApiServer, spec: Any) -> None:
    assert refused(server, spec) == ""


def status(gpus: int, checks: int, text: int) -> dict[str, Any]:
    """Of a NodeHealth, with so many entries and texts of that length."""
    time, name = "2026-11-26T12:00:00Z", "n" * text
    end = {"time": time, "code": name, "pod": name, "gpu": name, "blames": True}
    check = {"passed": end, "failed": end, "measured": 1.5, "measuredAt": time, "of": name}
    gpu = {"state": "Sick", "since": time, "foundBy": name, "code": name, "byWordOf": "PodResult"}
    return {
        "state": "Sick",
        "gpus": [{**gpu, "uuid": f"{i}"} for i in range(gpus)],
        "checks": [{**check, "name": f"{i}", "recent": [1e6] * 9} for i in range(checks)],
    }


def test_a_status_beyond_its_bounds_is_refused_and_the_largest_one_is_kept(
    server: ApiServer,
) -> None:
    server.define(node_health_crd())
    version = f"{GROUP}/{VERSION}"
    about = {"apiVersion": version, "kind": "NodeHealth", "metadata": {"name": "node"}}
    made = server.call("POST", node_health.path(), {**about, "spec": {"nodeUID": "u"}})

    def kept(status: dict[str, Any]) -> bool:
        try:
            made.update(
                server.call("PUT", f"{node_health.path('node')}/status", {**made, "status": status})
            )
        except urllib.error.HTTPError as error:
            with error:
                assert error.code == 422, error
            return False
        return True

    largest = status(node_health.MOST_GPUS, node_health.MOST_CHECKS, 64)
    assert kept(largest)
    assert made["status"] == largest
    assert len(json.dumps(made)) < 64 * 1024
    for beyond in (
        status(node_health.MOST_GPUS + 1, 1, 1),
        status(1, node_health.MOST_CHECKS + 1, 1),
        status(1, 1, 400),
        {"state": "Splendid"},
        {"state": "Sick", "since": "yesterday"},
    ):
        assert not kept(beyond), beyond
