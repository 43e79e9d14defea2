"""What a real API server lets people make and change of gangs' records: both charts, and the gang
controller's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from preflight_e2e.admission_policies import (
    CONTROLLER,
    GANG_CHART,
    OFF,
    SYSTEM,
    TRAINING,
    WEB,
    PolicyServer,
)
from preflight_e2e.impersonation import OURS, RECORD
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import UMBRELLA, Object, render

pytest_plugins = ["preflight_e2e.admission_policy_fixtures"]
pytestmark = pytest.mark.timeout(180)
POLICY = "ValidatingAdmissionPolicy"


# --- records of gangs


def record(name: str = "preflight-job", **more: Any) -> Object:
    return {
        "metadata": {"name": name, "labels": RECORD, "annotations": {OURS + "gang-id": "job"}},
        "data": {"peers": ""},
        **more,
    }


@pytest.mark.parametrize("namespace", [TRAINING, WEB, OFF, SYSTEM])
@pytest.mark.parametrize("name", ["preflight-job", "x"])
def test_a_tenant_forges_no_record(records: PolicyServer, namespace: str, name: str) -> None:
    said = records.configmap(namespace, record(name), dry_run=True)
    assert f"ConfigMap {namespace}/{name} is, by its label" in said


def test_a_configmap_without_the_label_is_nobodys_business(records: PolicyServer) -> None:
    assert records.configmap(WEB, {"metadata": {"name": "preflight-notes"}}, dry_run=True) == ""


@pytest.fixture
def kept(records: PolicyServer) -> Iterator[str]:
    """The path of what the controller has written about a gang, where preflight is switched off by
    now.
    """
    assert records.configmap(OFF, record(), user=CONTROLLER) == ""
    path = f"/api/v1/namespaces/{OFF}/configmaps/preflight-job"
    yield path
    records.ask("DELETE", path, user="")


@pytest.mark.parametrize(
    "patch",
    [
        {"data": {"peers": "evil:10.0.0.9"}},
        {"metadata": {"labels": None}},
        {"metadata": {"annotations": {OURS + "gang-id": "other"}}},
        {"metadata": {"annotations": {OURS + "gang-source": "other"}}},
        {"binaryData": {"x": "eA=="}},
        {"immutable": True},
    ],
    ids=["data", "labels", "gang id", "gang source", "binary", "immutable"],
)
def test_a_tenant_changes_no_record(records: PolicyServer, kept: str, patch: Object) -> None:
    assert "only the gang controller writes those" in records.patch(kept, patch)


def test_a_tenant_makes_no_record_of_a_configmap_of_his(records: PolicyServer) -> None:
    path = f"/api/v1/namespaces/{WEB}/configmaps/notes"
    records.configmap(WEB, {"metadata": {"name": "notes"}})
    assert records.patch(path, {"data": {"a": "b"}}) == ""
    assert "the record of a gang" in records.patch(path, {"metadata": {"labels": RECORD}})


def test_a_record_can_be_annotated_and_goes_with_its_gang(records: PolicyServer, kept: str) -> None:
    assert records.patch(kept, {"metadata": {"annotations": {"seen": "yes"}}}) == ""
    assert (
        records.patch(
            kept, {"metadata": {"ownerReferences": []}}, user="system:kube-controller-manager"
        )
        == ""
    )
    assert records.ask("DELETE", kept) == ""


def test_the_controller_keeps_a_record(records: PolicyServer, kept: str) -> None:
    assert records.patch(kept, {"data": {"peers": "a:10.0.0.1"}}, user=CONTROLLER) == ""


def test_the_controllers_chart_alone_refuses_nothing_of_pods_to_anybody_else(
    api_server: Callable[[str], ApiServer],
) -> None:
    kinds = [
        o["metadata"]["name"]
        for o in render(UMBRELLA, {GANG_CHART: {"enabled": True}})
        if o["kind"] == POLICY
    ]
    written = ("configmaps", "events", "leases", "nodehealths", "pods", "preflightconfigs")
    assert sorted(kinds) == [
        *(f"{GANG_CHART}-controller-{kind}" for kind in written),
        f"{GANG_CHART}-records",
    ]
