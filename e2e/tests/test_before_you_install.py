"""What the manual says to look at before an installation: each line runs, and shows what the page
calls good where that is so.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.apiserver import ASSETS, ApiServer, assets

PAGE = (Path(__file__).parents[2] / "docs" / "before-you-install.md").read_text()
LINES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
APPS = "/apis/apps/v1/namespaces/gpu-operator/daemonsets"
pytestmark = pytest.mark.timeout(180)


def container(name: str) -> dict[str, Any]:
    return {"name": name, "image": "registry.example.com/any:1"}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a shell on a cluster that has what the page asks for."""
    folder = assets()
    if folder is None or not (folder / "kubectl").exists():
        pytest.skip(f"{ASSETS} is not set, or has no kubectl: no real API server to ask")
    home = tmp_path_factory.mktemp("cluster")
    with ApiServer(home, folder) as server:
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
        level = {"pod-security.kubernetes.io/enforce": "baseline"}
        server.call(
            "POST", "/api/v1/namespaces", {"metadata": {"name": "training", "labels": level}}
        )
        server.call(
            "POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
        )
        labels = {"app": "nvidia-dcgm"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container("dcgm")]}}
        for name in ("nvidia-dcgm", "platform-connectors"):
            body = {
                "metadata": {"name": name},
                "spec": {"selector": {"matchLabels": labels}, "template": template},
            }
            server.call("POST", APPS, body)
        service = {
            "internalTrafficPolicy": "Local",
            "selector": labels,
            "ports": [{"name": "dcgm", "port": 5555}],
        }
        server.call(
            "POST",
            "/api/v1/namespaces/gpu-operator/services",
            {"metadata": {"name": "nvidia-dcgm"}, "spec": service},
        )
        runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        server.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
        room = {"nvidia.com/gpu": "8", "rdma/hca": "8"}
        node = {"metadata": {"name": "gpu-1"}, "status": {"allocatable": room, "capacity": room}}
        server.call("POST", "/api/v1/nodes", node)
        config = server.kubeconfig(home / "kubeconfig")
        yield {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "KUBECONFIG": str(config),
            "HOME": str(home),
        }


def run(line: str, kubectl: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        shlex.split(line), env=kubectl, capture_output=True, text=True, check=False, timeout=60
    )


def test_every_line_runs_in_the_order_of_the_page(kubectl: dict[str, str]) -> None:
    assert len(LINES) >= 12
    for line in LINES:
        assert line.startswith("kubectl ")
        done = run(line.replace("--timeout=2m", "--timeout=1s"), kubectl)
        if line.startswith("kubectl wait"):  # no kubelet runs it here
            assert "timed out waiting for the condition on pods/gpu-look" in done.stderr
        elif line.startswith("kubectl logs"):
            assert "gpu-look" in done.stderr + done.stdout or done.returncode == 0
        else:
            assert done.returncode == 0, (line, done.stderr)


def test_no_log_is_asked_for_before_its_pod_has_ended() -> None:
    assert any(
        line.startswith("kubectl wait ") for line in LINES[: LINES.index("kubectl logs gpu-look")]
    )


@pytest.mark.parametrize(
    ("word", "good"),
    [
        ("kubectl version", "Server Version: v1."),
        ("validating", "validatingadmissionpolicies"),
        ("GPUS:", "gpu-1   8"),
        ("runtimeclasses", "nvidia"),
        ("daemonset nvidia-dcgm", "nvidia-dcgm"),
        ("internalTrafficPolicy", "Local:5555\n"),
        ("platform-connectors", "platform-connectors"),
        (".status.allocatable}", '"rdma/hca":"8"'),
        ("ENFORCED", "training          baseline"),
    ],
)
def test_where_all_is_well_a_line_shows_what_the_page_calls_good(
    kubectl: dict[str, str], word: str, good: str
) -> None:
    section = "admissionregistration" if word == "validating" else word
    (line,) = [line for line in LINES if section in line]
    assert good in run(line, kubectl).stdout
