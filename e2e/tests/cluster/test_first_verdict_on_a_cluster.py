"""The README's section "First verdict", line by line, on nodes with fake GPUs: what it says of a
healthy GPU, and of one that is not.

Needs the lab's fake nodes, and no release of the charts. What is substituted stands in
`preflight_e2e.first_verdict`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kubernetes import client
from preflight_e2e.first_verdict import README, Shell, commands, files
from preflight_e2e.lab import Lab

pytestmark = [pytest.mark.timeout(400), pytest.mark.fakes]

FAULTY = {
    "engine": {
        "faults": [
            {
                "gpu": gpu,
                "test": "memory",
                "error_id": 52,
                "severity": 2,
                "category": 10,
                "text": "Memtest: 14 bit errors",
            }
            for gpu in range(8)
        ]
    }
}


@pytest.fixture
def lab(fake_nodes: Lab) -> Iterator[Lab]:
    """The fake nodes that are there; afterwards the README's namespace is gone."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH: the README's commands cannot be run")
    try:
        yield fake_nodes
    finally:
        with suppress(client.ApiException):  # deleted by the README's own command
            fake_nodes.api.delete_namespace("training")


def test_the_readmes_lines_lead_from_an_empty_cluster_to_a_true_verdict(
    lab: Lab, tmp_path: Path
) -> None:
    page = README.read_text()
    shell = Shell(Path(os.environ["KUBECONFIG"]), tmp_path, files(page))
    lines = commands(page)
    start = lines.index("kubectl -n training create -f pod.yaml")
    end = lines.index("kubectl delete namespace training")
    for command in lines[:end]:
        shell.follow(command)
    # The same lines on faulty GPUs: what is read is what was measured.
    lab.api.delete_namespaced_pod("first", "training", grace_period_seconds=0)
    lab.become(FAULTY)
    for command in lines[start:end]:
        shell.follow(command, sick=True)
    for command in lines[end:]:
        shell.follow(command)
