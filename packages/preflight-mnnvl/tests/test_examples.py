"""The requirement's three examples, from their YAML files, in both modes and with
both label sets.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml
from cliques import DRIVER, LITERAL, Object
from grove_world import Cluster
from preflight_mnnvl.config import Config

FIXTURES = Path(__file__).parent / "fixtures"
both = pytest.mark.parametrize("labels", ["grove", "requirement"])
modes = pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])


def run(name: str, config: Config, labels: str) -> tuple[Cluster, Object]:
    set_ = yaml.safe_load((FIXTURES / f"{name}.yaml").read_text())
    cluster = Cluster(config, labels=labels)
    cluster.apply(copy.deepcopy(set_))
    cluster.grove(set_["metadata"]["name"])
    assert cluster.refused == []
    return cluster, set_


def labeled(set_: str, replica: str = "0", **more: str) -> dict[str, str]:
    """All labels of the objects of a domain."""
    return {
        "grove.io/pcs-name": set_,
        "grove.io/pcs-replica-index": replica,
        "grove.io/podgang": f"{set_}-{replica}",
        "grove.io/mnnvl-managed": "true",
        "app.kubernetes.io/managed-by": "preflight-mnnvl",
        "app.kubernetes.io/instance": "preflight-mnnvl",
        **more,
    }


def claims(cluster: Cluster, config: Config) -> dict[str, str]:
    """What each PodClique's pods are claimed by, one entry each."""
    key = "resourceClaimTemplateName" if config.mode == "driver" else "resourceClaimName"
    found = {}
    for name, one in cluster.store["pclq"].items():
        if entries := one["spec"]["podSpec"].get("resourceClaims"):
            (entry,) = entries
            assert entry == {"name": "mnnvl", key: entry[key]}
            (container,) = one["spec"]["podSpec"]["containers"]
            assert container["resources"]["claims"] == [{"name": "mnnvl"}]
            found[name] = entry[key]
    return found


@both
@modes
def test_e1_all_cliques_of_a_replica_share_its_domain(config: Config, labels: str) -> None:
    cluster, _ = run("e1-distributed-training", config, labels)
    assert cluster.domains() == {
        f"distributed-training-{i}-cd": f"PodGang distributed-training-{i}" for i in (0, 1)
    }
    assert claims(cluster, config) == {
        f"distributed-training-{i}-{name}": f"distributed-training-{i}-mnnvl-claim"
        for i in (0, 1)
        for name in ("worker", "parameter-server")
    }
    assert sorted(cluster.store["claim"]) == [
        f"distributed-training-{i}-mnnvl-claim" for i in (0, 1)
    ]
    cd = cluster.store["cd"]["distributed-training-1-cd"]
    assert cd["metadata"]["labels"] == labeled("distributed-training", "1")
    template = {"name": "distributed-training-1-mnnvl-claim"}
    channel = {"resourceClaimTemplate": template, "allocationMode": "Single"}
    assert cd["spec"] == {"numNodes": 0, "channel": channel}
    gang = cluster.store["pg"]["distributed-training-1"]["metadata"]
    assert cd["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "scheduler.grove.io/v1alpha1",
            "kind": "PodGang",
            "name": "distributed-training-1",
            "uid": gang["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert gang["annotations"] == {"grove.io/mnnvl-resources-adopted": "true"}


@both
@modes
def test_e2_each_clique_has_its_own_domain_and_the_router_is_as_it_was_sent(
    config: Config, labels: str
) -> None:
    cluster, _ = run("e2-multi-model-serving", config, labels)
    owner = "PodGang multi-model-serving-0"
    assert cluster.domains() == {
        "multi-model-serving-0-llama-70b-cd": owner,
        "multi-model-serving-0-mixtral-cd": owner,
    }
    llama = cluster.store["cd"]["multi-model-serving-0-llama-70b-cd"]["metadata"]
    assert llama["labels"] == labeled(
        "multi-model-serving", **{"grove.io/clique-name": "llama-70b"}
    )
    assert claims(cluster, config) == {
        f"multi-model-serving-0-{name}": f"multi-model-serving-0-{name}-mnnvl-claim"
        for name in ("llama-70b", "mixtral")
    }
    router = cluster.store["pclq"]["multi-model-serving-0-router"]
    sent = next(
        one
        for one in cluster.made("multi-model-serving")
        if one["metadata"]["name"].endswith("router")
    )
    assert json.dumps(router["spec"]) == json.dumps(sent["spec"])
    assert "annotations" not in router["metadata"]


@both
@modes
def test_e3_each_replica_of_a_scaling_group_has_its_own_domain(config: Config, labels: str) -> None:
    cluster, _ = run("e3-scalable-inference", config, labels)
    pool = "scalable-inference-0-inference-pool"
    # Grove counts PodGangs from the first replica above minAvailable; the first one is of the base
    # gang.
    assert cluster.domains() == {
        f"{pool}-0-cd": "PodGang scalable-inference-0",
        f"{pool}-1-cd": f"PodGang {pool}-0",
        f"{pool}-2-cd": f"PodGang {pool}-1",
    }
    assert claims(cluster, config) == {
        f"{pool}-{i}-gpu-worker": f"{pool}-{i}-mnnvl-claim" for i in (0, 1, 2)
    }
    of_group = {"grove.io/pcsg-name": "inference-pool", "grove.io/pcsg-replica-index": "2"}
    of_group["grove.io/podgang"] = f"{pool}-1"
    last = cluster.store["cd"][f"{pool}-2-cd"]["metadata"]
    assert last["labels"] == labeled("scalable-inference", **of_group)
    assert len(cluster.store["claim"]) == 3


def test_a_literal_claim_is_adopted_with_its_domain() -> None:
    cluster, _ = run("e1-distributed-training", LITERAL, "requirement")
    for name in ("distributed-training-0", "distributed-training-1"):
        claim = cluster.store["claim"][f"{name}-mnnvl-claim"]["metadata"]
        assert [one["uid"] for one in claim["ownerReferences"]] == [
            cluster.store["pg"][name]["metadata"]["uid"]
        ]
