"""Which pods should carry checks and do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from preflight_gang.unchecked import Namespace, Unchecked, opted_in, why_unchecked
from preflight_proto import names

GPU = ("nvidia.com/gpu",)
ASKS = [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]


def reason(phase: str = "Running", *, containers: list[dict[str, Any]] = ASKS, **metadata: Any) -> str | None:
    pod = {"metadata": {"name": "it", **metadata}, "spec": {"containers": containers}, "status": {"phase": phase}}
    return why_unchecked(msgspec.convert(pod, Unchecked), GPU)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (reason("Running"), "running"),
        (reason("Pending"), "not-started"),
        (reason(annotations={"kubernetes.io/config.mirror": "x"}), "static-pod"),
        (reason(annotations={names.CHECKS_ANNOTATION: " "}), "asked-for-none"),
        (reason(annotations={names.CHECKS_ANNOTATION: "dcgm-diag"}), "running"),
        (reason("Succeeded"), None),
        (reason("Failed"), None),
        (reason(deletionTimestamp="2026-11-21T08:00:00Z"), None),
        (reason(containers=[{}]), None),
        (reason(containers=[{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]), None),
        (reason(containers=[{"resources": {"limits": {"amd.com/gpu": "1"}}}]), None),
        (reason(containers=[{}, {"resources": {"requests": {"nvidia.com/gpu": "1"}}}]), "running"),
    ],
)
def test_a_gpu_pod_without_checks_has_a_reason_and_no_other_pod_has(found: str | None, why: str | None) -> None:
    assert found == why


def test_a_pod_whose_init_container_alone_asks_for_gpus_is_a_gpu_pod() -> None:
    pod = {"metadata": {"name": "it"}, "spec": {"containers": [{}], "initContainers": ASKS}}
    assert why_unchecked(msgspec.convert(pod, Unchecked), GPU) == "not-started"


@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("training", "enabled", True),
        ("training", None, False),
        ("listed", None, True),
        ("listed", "disabled", False),
        ("training", "yes", False),
        ("kube-system", "enabled", False),
    ],
)
def test_a_namespace_is_opted_in_by_label_or_by_name_unless_excluded(
    name: str, label: str | None, expected: bool
) -> None:
    labels = {names.NAMESPACE_LABEL: label} if label else {}
    namespace = msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace)
    assert opted_in(namespace, ["listed"], ["kube-system"]) is expected
