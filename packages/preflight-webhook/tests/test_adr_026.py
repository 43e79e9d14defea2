"""ADR-026's example values, verbatim: Helm renders them, the webhook loads what Helm rendered, and
every one is looked for in what it decides.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import jsonpatch
import pytest
import yaml
from preflight_testing.helm import UMBRELLA, only, render
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision

VALUES = yaml.safe_load((UMBRELLA.parents[1] / "e2e/tests/data/adr-026-values.yaml").read_text())
ALLREDUCE = {
    "name": "nccl-allreduce",
    "image": "registry.example/nvsentinel/preflight-nccl-allreduce:v1",
}
"""The entry that the ADR shows commented out."""
GPUS = {"nvidia.com/gpu": "8"}
NICS = {"nvidia.com/mlnxnics": "4"}


def rendered(values: Mapping[str, Any]) -> Config:
    return parse(only(render(UMBRELLA, dict(values)), "ConfigMap")["data"]["config.yaml"])


@pytest.fixture(scope="module")
def config() -> Config:
    return rendered(VALUES)


@pytest.fixture(scope="module")
def with_allreduce() -> Config:
    values = copy.deepcopy(VALUES)
    values["preflight-injector"]["checks"].append(ALLREDUCE)
    values["preflight-injector"]["gangController"] = "external"
    return rendered(values)


def admitted(
    config: Config, limits: Mapping[str, str], env: list[dict[str, str]] | None = None, **spec: Any
) -> tuple[Decision, dict[str, Any]]:
    """(what is decided about a pod, its init containers by name)."""
    container = {
        "name": "train",
        "image": "train",
        "env": env or [],
        "resources": {"limits": dict(limits)},
    }
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}
    decision = decide(json.dumps(pod).encode(), "training", config)
    made = jsonpatch.apply_patch(copy.deepcopy(pod), decision.patch)
    return decision, {c["name"]: c for c in made["spec"].get("initContainers", ())}


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_the_checks_are_injected_in_order_with_their_images(config: Config) -> None:
    decision, made = admitted(config, GPUS | NICS)
    assert decision.checks == ["dcgm-diag", "nccl-loopback", "bandwidth-check"]
    assert {name: one["image"] for name, one in made.items()} == {
        "preflight-dcgm-diag": "registry.example/nvsentinel/preflight-dcgm-diag:v1",
        "preflight-nccl-loopback": "registry.example/nvsentinel/preflight-nccl-loopback:v1",
        "preflight-bandwidth-check": "registry.example/bandwidth-check:v1",
    }


def test_dcgm_is_told_its_hostengine_and_level(config: Config) -> None:
    told = variables(admitted(config, GPUS)[1]["preflight-dcgm-diag"])
    assert told["DCGM_HOSTENGINE_ADDR"] == "dcgm-hostengine.nvsentinel.svc:5555"
    assert told["DCGM_DIAG_LEVEL"] == "1"


def test_thresholds_and_timeouts_reach_their_checks(with_allreduce: Config) -> None:
    group: dict[str, Any] = {"workloadRef": {"name": "llm", "podGroup": "workers"}}
    made = admitted(with_allreduce, GPUS | NICS, **group)[1]
    assert variables(made["preflight-nccl-loopback"])["NCCL_LOOPBACK_THRESHOLD_GBPS"] == "10"
    assert variables(made["preflight-nccl-allreduce"])["NCCL_ALLREDUCE_THRESHOLD_GBPS"] == "5"
    assert variables(made["preflight-nccl-allreduce"])["GANG_TIMEOUT"] == "600s"
    assert {variables(one)["CHECK_TIMEOUT"] for one in made.values()} == {"300s"}


def test_gangs_are_found_by_workload_ref_alone(with_allreduce: Config) -> None:
    decision, made = admitted(
        with_allreduce, GPUS | NICS, workloadRef={"name": "llm", "podGroup": "workers"}
    )
    assert decision.stamp is not None
    assert (decision.stamp.id, decision.stamp.source) == ("llm/workers", "workloadRef")
    assert "preflight-nccl-allreduce" in made
    alone, made = admitted(with_allreduce, GPUS | NICS)
    assert [(one.check, one.reason) for one in alone.skipped] == [("nccl-allreduce", "no-gang")]
    assert "preflight-nccl-allreduce" not in made


def test_only_the_listed_resource_makes_a_gpu_pod(config: Config) -> None:
    assert admitted(config, {"amd.com/gpu": "8"})[0].result == "no-gpu"
    assert admitted(config, NICS)[0].result == "no-gpu"


def test_without_network_devices_the_checks_that_need_none_run(config: Config) -> None:
    """The ADR leaves every NCCL check out. One inside the node needs no network, so it stays
    (docs/design).
    """
    decision, made = admitted(config, GPUS)
    assert made.keys() == {
        "preflight-dcgm-diag",
        "preflight-nccl-loopback",
        "preflight-bandwidth-check",
    }
    assert decision.skipped == []


def test_without_network_devices_the_fabric_between_nodes_is_not_tested(
    with_allreduce: Config,
) -> None:
    decision, _ = admitted(
        with_allreduce, GPUS, workloadRef={"name": "train", "podGroup": "workers"}
    )
    assert [(one.check, one.reason) for one in decision.skipped] == [
        ("nccl-allreduce", "no-network")
    ]


def test_checks_get_all_gpus_and_network_devices_of_the_pod(config: Config) -> None:
    for one in admitted(config, GPUS | NICS)[1].values():
        assert one["resources"]["limits"] == GPUS | NICS


def test_variables_by_pattern_reach_the_nccl_checks_alone(config: Config) -> None:
    given = ["NCCL_IB_HCA", "UCX_TLS", "OMPI_MCA_btl", "HOME"]
    made = admitted(config, GPUS | NICS, [{"name": name, "value": "x"} for name in given])[1]
    assert [name for name in given if name in variables(made["preflight-nccl-loopback"])] == given[
        :3
    ]
    for other in ("preflight-dcgm-diag", "preflight-bandwidth-check"):
        assert not {*given} & variables(made[other]).keys()


def test_the_topology_mapping_reaches_the_nccl_check_with_the_instance_type(config: Config) -> None:
    told = variables(admitted(config, GPUS | NICS)[1]["preflight-nccl-loopback"])
    mapping = VALUES["preflight-injector"]["ncclTopology"]["instanceTypeMapping"]
    assert dict(pair.split("=") for pair in told["PREFLIGHT_TOPOLOGY_MAP"].split(",")) == mapping
    assert told["NODE_INSTANCE_TYPE_PATH"] == "/etc/preflight-node/instance-type"
    assert "PREFLIGHT_TOPOLOGY_FALLBACK" not in told  # enabled


def test_the_gang_controller_reads_the_same_label_for_it() -> None:
    checks = [check["name"] for check in VALUES["preflight-injector"]["checks"]]
    made = render(UMBRELLA, {**VALUES, "preflight-gang": {"enabled": True, "checks": checks}})
    [told] = [
        o for o in made if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "preflight-gang"
    ]
    wanted = VALUES["preflight-injector"]["ncclTopology"]["instanceTypeLabel"]
    assert yaml.safe_load(told["data"]["config.yaml"])["instanceTypeLabel"] == wanted


def selected(namespace: str, **labels: str) -> bool:
    """Whether the API server would ask the webhook about a pod there."""
    has = {"kubernetes.io/metadata.name": namespace, **labels}
    for entry in only(render(UMBRELLA, VALUES), "MutatingWebhookConfiguration")["webhooks"]:
        terms = entry["namespaceSelector"]["matchExpressions"]
        if all(
            (has.get(term["key"]) in term["values"]) == (term["operator"] == "In") for term in terms
        ):
            return True
    return False


def test_the_listed_namespace_is_checked_and_the_excluded_never() -> None:
    assert selected("training")
    assert not selected("web")
    for excluded in VALUES["preflight-injector"]["excludeNamespaces"]:
        assert not selected(excluded, **{"nvsentinel.nvidia.com/preflight": "enabled"})


def test_while_no_replica_answers_no_pod_starts_there() -> None:
    entries = only(render(UMBRELLA, VALUES), "MutatingWebhookConfiguration")["webhooks"]
    assert {entry["failurePolicy"] for entry in entries} == {"Fail"}


def test_every_value_of_the_adr_is_looked_at_here() -> None:
    """A key that the file gains must gain a test, too."""
    assert {*VALUES["preflight-injector"]} == {
        *(
            "enabled",
            "checks",
            "dcgm",
            "nccl",
            "checkTimeout",
            "gangTimeout",
            "gangDiscovery",
            "gpuDetection",
        ),
        *(
            "networkDetection",
            "ncclEnvPatterns",
            "ncclTopology",
            "namespaces",
            "excludeNamespaces",
            "webhook",
        ),
    }
