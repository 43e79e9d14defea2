"""The definition of PreflightConfig, and that a real API server refuses by it exactly what the
controller refuses.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from preflight_gang.api.crd import crd, node_health_crd
from preflight_gang.core.overrides import problems
from preflight_kube.api import node_health
from preflight_proto.policy import GROUP, KIND, PLURAL, VERSION, path
from preflight_testing.apiserver import ASSETS, ApiServer, assets

METHODS: list[Any] = [None, "auto", "kai", "labels", "volcano", "slurm"]
LABELS: list[Any] = [
    None,
    {},
    {"gangIdLabel": "example.com/job"},
    {"gangIdLabel": "same", "gangSizeLabel": "same"},
    {"gangSizeLabel": f"{GROUP}/size"},
    {"gangIdLabel": "not a label"},
]
SCHEDULERS: list[Any] = [None, [], ["mine"], [""]]
OTHERS: list[dict[str, Any]] = [
    {},
    {"gangDiscovery": {}},
    {"enforcement": "observe"},
    {"enforcement": "sometimes"},
    {"gangDiscovery": {"optIn": ["job", "job"]}},
    {"gangDiscovery": {"optIn": ["mpi"]}},
    {"gangDiscovery": {"optIn": ["job"] * 17}},
    {"gangDiscovery": {"parallelStatefulSets": "yes"}},
    {"gangDiscovery": {"labels": {"gangIdLabel": "a" * 64}}},
    {"gangDiscovery": {"labels": {"gangIdLabel": "a/" + "b" * 63}}},
    {"gangDiscovery": "auto"},
]


def specs() -> Iterator[dict[str, Any]]:
    yield from OTHERS
    for method, labels, schedulers in itertools.product(METHODS, LABELS, SCHEDULERS):
        chosen = {"method": method, "labels": labels, "ownerSchedulers": schedulers}
        yield {"gangDiscovery": {key: value for key, value in chosen.items() if value is not None}}


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


def test_the_api_server_and_the_controller_refuse_the_same(server: ApiServer) -> None:
    tried = list(specs())
    differ = [
        (spec, said, found)
        for spec in tried
        if bool(said := refused(server, spec)) != bool(found := problems(spec))
    ]
    assert differ == []
    assert any(problems(spec) for spec in tried)
    assert not all(problems(spec) for spec in tried)


def test_the_api_server_says_why_in_the_controllers_words(server: ApiServer) -> None:
    said = refused(server, {"gangDiscovery": {"method": "kai", "labels": {"gangIdLabel": "job"}}})
    assert (
        "labels is read only where method is auto or labels; set method so, or leave labels out"
        in said
    )


def test_the_definition_has_all_that_its_kind_needs() -> None:
    spec = crd()["spec"]
    assert (spec["scope"], spec["names"]["plural"], spec["names"]["kind"]) == (
        "Namespaced",
        PLURAL,
        KIND,
    )
    [version] = spec["versions"]
    assert version["subresources"] == {"status": {}}
    assert [column["name"] for column in version["additionalPrinterColumns"]][:2] == [
        "Accepted",
        "Reason",
    ]


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
