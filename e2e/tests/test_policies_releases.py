"""One cluster has one injector and one gang controller, by Helm on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from preflight_e2e.admission_policies import GANG_CHART, INJECTOR
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import ChartError, Release

pytest_plugins = ["preflight_e2e.admission_policy_fixtures"]
pytestmark = pytest.mark.timeout(180)
POLICY = "ValidatingAdmissionPolicy"


# --- one of each in a cluster


@pytest.fixture
def first(
    api_server: Callable[[str], ApiServer], tmp_path: Path
) -> Iterator[Callable[..., Release]]:
    """Releases on one cluster, by name and namespace; all are gone in the end."""
    made = []
    kubeconfig = api_server("1.36").kubeconfig(tmp_path / "kubeconfig")

    def release(name: str, namespace: str) -> Release:
        made.append(Release(namespace, kubeconfig, name))
        return made[-1]

    yield release
    for one in made:
        one.uninstall(wait=False)


@pytest.mark.parametrize("chart", [INJECTOR, GANG_CHART])
def test_a_second_release_is_refused_with_a_sentence(
    first: Callable[..., Release], chart: str
) -> None:
    own = {"crd": {"install": False}} if chart == GANG_CHART else {}
    first("one", "here").install({chart: {"enabled": True, **own}}, wait=False)
    second = first("two", "there")
    values = {"enabled": True, "fullnameOverride": "another", **own}
    with pytest.raises(
        ChartError,
        match=f"release one in namespace here has installed {chart} in this cluster already",
    ):
        second.install({chart: values}, wait=False)
    with pytest.raises(ChartError, match="uninstall it first"):
        first("one", "there").install({chart: values}, wait=False)
    second.install({chart: {**values, "allowSecondRelease": True}}, wait=False)


@pytest.mark.parametrize("chart", [INJECTOR, GANG_CHART])
def test_a_release_is_upgraded_to_another_name_of_its_objects(
    first: Callable[..., Release], chart: str
) -> None:
    release = first("one", "here")
    release.install({chart: {"enabled": True}}, wait=False)
    release.upgrade({chart: {"enabled": True}}, wait=False)
    release.upgrade({chart: {"enabled": True, "fullnameOverride": "another"}}, wait=False)


def test_a_controller_whose_answers_the_injector_would_refuse_is_not_installed(
    first: Callable[..., Release],
) -> None:
    first("one", "here").install({INJECTOR: {"enabled": True}}, wait=False)
    with pytest.raises(
        ChartError,
        match=r"set preflight-injector's protection\.controller to system:serviceaccount:there:preflight-gang first",
    ):
        first("two", "there").install({GANG_CHART: {"enabled": True}}, wait=False)


def test_an_injector_that_would_refuse_the_controllers_answers_is_not_installed(
    first: Callable[..., Release],
) -> None:
    first("one", "here").install({GANG_CHART: {"enabled": True}}, wait=False)
    injector = first("two", "there")
    account = "system:serviceaccount:here:preflight-gang"
    with pytest.raises(
        ChartError, match=f"set preflight-injector's protection.controller to {account}"
    ):
        injector.install({INJECTOR: {"enabled": True}}, wait=False)
    injector.install(
        {INJECTOR: {"enabled": True, "protection": {"controller": account}}}, wait=False
    )
