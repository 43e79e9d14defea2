"""The real image of nccl-loopback, nccl-tests and NCCL in it, on nodes without a GPU: its tool
starts, and its check accuses no hardware.

Needs KUBECONFIG, and PREFLIGHT_REAL_LOOPBACK_IMAGE: the image's reference, on the nodes already.
Where it could not be built, PREFLIGHT_REAL_LOOPBACK_MISSING says why.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from preflight_e2e.images import REAL_IMAGE, REAL_IMAGE_MISSING
from preflight_e2e.installed_release import Installed, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def image() -> str:
    if not (reference := os.environ.get(REAL_IMAGE)):
        pytest.skip(
            os.environ.get(REAL_IMAGE_MISSING)
            or f"{REAL_IMAGE} is not set: the real image is not on the nodes"
        )
    return reference


def ended(made: Installed, image: str, **container: Any) -> tuple[Any, str]:
    """(how the image's container ended, its log)."""
    namespace = made.namespace()
    until(
        lambda: bool(made.api.list_namespaced_service_account(namespace).items),
        "the default account",
    )
    one = {"name": "loopback", "image": image, "imagePullPolicy": "Never", **container}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [one]}
    made.api.create_namespaced_pod(namespace, {"metadata": {"name": "one"}, "spec": spec})

    def state() -> Any:
        statuses = made.api.read_namespaced_pod("one", namespace).status.container_statuses or []
        return next((status.state.terminated for status in statuses), None)

    until(lambda: state() is not None, f"the end of a container of {image}")
    log = made.api.read_namespaced_pod_log("one", namespace, _preload_content=False).data.decode()
    return state(), log


def test_the_real_tool_starts_and_says_that_there_is_no_driver(
    fresh: Installed, image: str
) -> None:
    end, log = ended(fresh, image, command=["all_reduce_perf", "-b", "8", "-e", "8", "-g", "1"])
    assert "nccl-tests version" in log, log  # its libraries were found
    assert "CUDA driver version is insufficient" in log or "no CUDA-capable device" in log, log
    assert end.exit_code != 0


def test_the_real_check_says_that_there_is_no_gpu_and_accuses_none(
    fresh: Installed, image: str
) -> None:
    variables = {
        "NODE_NAME": "one",
        "PLATFORM_CONNECTOR_SOCKET": "unix:///nonexistent/nvsentinel.sock",
        "NCCL_LOOPBACK_SIZE": "1G",
        "CHECK_TIMEOUT": "60s",
    }
    end, log = ended(
        fresh, image, env=[{"name": name, "value": value} for name, value in variables.items()]
    )
    result = json.loads(end.message or "{}")
    assert (result["outcome"], result["code"]) == ("inconclusive", "NO_GPU"), log
    assert end.exit_code != 0
