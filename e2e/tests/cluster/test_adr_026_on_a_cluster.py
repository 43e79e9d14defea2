"""ADR-026's example values, verbatim, installed: what an API server then makes of pods. What each
value leads to: the webhook's own tests.

Only the webhook's image and the names of the release are another's, so that it can run here beside
others.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException
from preflight_e2e.installed_release import Installed, until

pytestmark = pytest.mark.timeout(240)

VALUES = yaml.safe_load((Path(__file__).parents[1] / "data" / "adr-026-values.yaml").read_text())[
    "preflight-injector"
]
GPUS = {"nvidia.com/gpu": "8"}
NICS = {"nvidia.com/mlnxnics": "4"}


@pytest.fixture
def adr(fresh: Installed) -> Installed:
    """The release, and the namespace that the values list."""
    fresh.release.install({"preflight-injector": {**VALUES, **fresh.values}})
    until(fresh.published, "the CA bundle")
    [training] = VALUES["namespaces"]

    def made() -> bool:
        with suppress(ApiException):  # one of that name is still going
            fresh.api.create_namespace({"metadata": {"name": training}})
            return True
        return False

    until(made, f"the namespace {training}")
    fresh.namespaces.append(training)
    until(lambda: bool(injected(fresh, GPUS)), "injection")
    return fresh


def injected(release: Installed, limits: dict[str, str], **container: Any) -> dict[str, Any]:
    """The init containers of a pod of the listed namespace, by name; nothing is stored."""
    main = {"name": "train", "image": "train", "resources": {"limits": limits}, **container}
    body = {"metadata": {"generateName": "gpu-"}, "spec": {"containers": [main]}}
    pod = release.api.create_namespaced_pod(VALUES["namespaces"][0], body, dry_run="All")
    return {one.name: one for one in pod.spec.init_containers or []}


def test_adr_026_s_values_install_and_do_what_they_say(adr: Installed) -> None:
    made = injected(
        adr,
        GPUS | NICS,
        env=[{"name": "NCCL_IB_HCA", "value": "mlx5"}, {"name": "HOME", "value": "/x"}],
    )
    assert {name: one.image for name, one in made.items()} == {
        f"preflight-{check['name']}": check["image"] for check in VALUES["checks"]
    }
    for one in made.values():
        assert one.resources.limits == GPUS | NICS
        assert one.security_context.run_as_non_root
    env = {name: {entry.name: entry.value for entry in one.env} for name, one in made.items()}
    assert env["preflight-dcgm-diag"]["DCGM_HOSTENGINE_ADDR"] == VALUES["dcgm"]["hostengineAddr"]
    assert env["preflight-dcgm-diag"]["DCGM_DIAG_LEVEL"] == "1"
    assert env["preflight-nccl-loopback"]["NCCL_LOOPBACK_THRESHOLD_GBPS"] == "10"
    assert env["preflight-nccl-loopback"]["NCCL_IB_HCA"] == "mlx5"
    assert (
        "p5.48xlarge=aws-p5.48xlarge.xml"
        in env["preflight-nccl-loopback"]["PREFLIGHT_TOPOLOGY_MAP"]
    )
    assert "NCCL_IB_HCA" not in env["preflight-bandwidth-check"]
    assert {name for name, variables in env.items() if "HOME" in variables} == set()
    assert {variables["CHECK_TIMEOUT"] for variables in env.values()} == {"300s"}
    # Without network devices a check of the fabric is left out, and these values have none: what
    # tests one node needs no network. Without GPUs all are left out.
    assert [*injected(adr, GPUS)] == [
        "preflight-dcgm-diag",
        "preflight-nccl-loopback",
        "preflight-bandwidth-check",
    ]
    assert injected(adr, NICS) == {}
    assert adr.created(adr.namespace()) == []
