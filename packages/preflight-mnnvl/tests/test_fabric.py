"""One answer about the pods of a domain: do they share one working fabric?"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from preflight_mnnvl.api.types import ComputeDomain, Metadata, PodGang
from preflight_mnnvl.core.domain import announcement
from preflight_mnnvl.core.fabric import (
    DRIVER,
    OfferedSlice,
    PodClaim,
    ResourceClaim,
    cliques_of,
    of_gang,
    one_fabric,
    pod_claim,
)
from preflight_mnnvl.report.show import Pod, fabric


def claim(node: str, uid: str = "d") -> PodClaim:
    opaque = {"driver": DRIVER, "parameters": {"domainID": uid}}
    results = [{"driver": DRIVER, "pool": node, "device": "channel-0"}] if node else []
    body = {
        "spec": {"devices": {"config": [{"opaque": opaque}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    return pod_claim(msgspec.convert(body, ResourceClaim))


def domain(**status: Any) -> ComputeDomain:
    return msgspec.convert(
        {"metadata": {"name": "t-0-cd", "uid": "d"}, "status": status}, ComputeDomain
    )


FABRIC = "grove.io/mnnvl-one-fabric"


def sliced(node: str, clique: str) -> OfferedSlice:
    device = {"name": "channel-0", "attributes": {"cliqueID": {"string": clique}}}
    return msgspec.convert({"spec": {"nodeName": node, "devices": [device]}}, OfferedSlice)


CLIQUES = cliques_of([sliced("n1", "x.1"), sliced("n2", "x.1"), sliced("n3", "x.2")])


@pytest.mark.parametrize(
    ("pods", "claims", "said"),
    [
        (
            2,
            {"a": claim("n1"), "b": claim("n2")},
            "yes: 2 pods, 2 nodes of the NVLink clique x.1; its status names no daemons, and those that hosts run are not asked",
        ),
        (
            2,
            {"a": claim("n1"), "b": claim("n2", "other")},
            "no: b with the claim of another domain",
        ),
        (
            2,
            {"a": claim("n1"), "b": claim("n3")},
            "no: nodes of 2 NVLink cliques (x.1, x.2)",
        ),
        (
            2,
            {"a": claim("n1"), "b": claim("")},
            "not known yet: 1 of 2 pods wait for their claim",
        ),
        (1, {}, "not known yet: 1 of 1 pods wait for their claim"),
        (0, {}, "not known yet: 0 of 0 pods wait for their claim"),
        (
            1,
            {"a": claim("elsewhere")},
            "not known: the NVLink clique of 1 of 1 nodes is not known; its status names no daemons, and those that hosts run are not asked",
        ),
    ],
    ids=["yes", "foreign", "cliques", "pending", "no claim", "no pods", "unknown"],
)
def test_what_is_said_of_all_pods_of_a_domain(
    pods: int, claims: dict[str, PodClaim], said: str
) -> None:
    assert one_fabric(domain(), pods, claims, CLIQUES) == said


def test_daemons_that_the_driver_runs_are_those_of_the_domains_status() -> None:
    nodes = [{"name": "n1", "status": "Ready"}, {"name": "n2", "status": "NotReady"}]
    claims = {"a": claim("n1"), "b": claim("n2")}
    answer = one_fabric(domain(nodes=nodes), 2, claims, CLIQUES)
    assert answer.endswith("clique x.1; its daemons are ready on 1 of 2 nodes")
    nodes = [{"name": "n2", "status": "Ready"}, {"name": "n9", "status": "Ready"}]
    answer = one_fabric(domain(nodes=nodes), 2, claims, CLIQUES)
    assert answer.endswith("; its daemons are ready on 1 of 2 nodes")  # where the pods are


def pod(name: str, *, claims: bool = True, **result: Any) -> Pod:
    """A pod in which `nccl-allreduce` has ended, with the fields ``result`` where there are any."""
    spec = {"resourceClaims": [{"name": "mnnvl"}]} if claims else {}
    body: dict[str, Any] = {"metadata": {"name": name}, "spec": spec}
    if result:
        whole = {"v": 1, "check": "nccl-allreduce", "outcome": "passed", "code": "OK"} | result
        text = json.dumps({**whole, "gated": True, "duration": 1.0})
        ended = {"name": "preflight-nccl-allreduce", "state": {"terminated": {"message": text}}}
        body["status"] = {"initContainerStatuses": [ended]}
    return msgspec.convert(body, Pod)


def announcing(answer: str) -> PodGang:
    return PodGang(metadata=Metadata(name="t-0", annotations={FABRIC: answer}))


def test_what_the_all_reduce_measured_is_part_of_the_answer() -> None:
    by = {"transport": "IB, multi-node NVLink"}
    pods = [pod(name, measured=812.5, details=by) for name in "ab"]
    assert fabric(announcing("yes: 2 pods"), pods) == (
        "yes: 2 pods; nccl-allreduce: passed at 812.5 GB/s by IB, multi-node NVLink"
    )
    assert pod("a", measured=812.5).measured == "passed at 812.5 GB/s"
    assert pod("a").measured == ""
    assert fabric(announcing("yes: 2 pods"), [pod("a")]) == "yes: 2 pods"


@pytest.mark.parametrize(
    ("gang", "answer"),
    [
        (None, "no: b without the claim"),
        (announcing("no: x"), "no: b without the claim; x"),
        (announcing("yes: 1 pods"), "no: b without the claim"),
    ],
)
def test_pods_without_the_claim_are_not_in_one_fabric(gang: PodGang | None, answer: str) -> None:
    assert fabric(gang, [pod("a"), pod("b", claims=False)]) == answer
    assert fabric(None, [pod("a")]) == "not known yet"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, ""),
        ({"a-cd": "yes: 2 pods"}, "yes: 2 pods"),
        ({"a-cd": "yes: 2 pods", "b-cd": "yes: 1 pods"}, "yes: a-cd: 2 pods; b-cd: 1 pods"),
        ({"a-cd": "yes: 2 pods", "b-cd": "no: x"}, "no: b-cd: x"),
        ({"a-cd": "not known: y", "b-cd": "not known yet: x"}, "not known yet: b-cd: x"),
        (
            {f"{i}-cd": "no: x" for i in range(9)},
            "no: 0-cd: x; 1-cd: x; 2-cd: x; 3-cd: x; 4-cd: x; 4 domains more",
        ),
    ],
)
def test_a_podgangs_answer_is_the_worst_of_its_domains(answers: dict[str, str], said: str) -> None:
    assert of_gang(answers) == said


GANG = Metadata(name="t-0", uid="g", annotations={"grove.io/mnnvl-resources-adopted": "true"})


@pytest.mark.parametrize(
    ("before", "now", "written"),
    [
        (None, "not known yet: 1 of 2 pods wait for their claim", {}),
        (None, "yes: 2 pods", {FABRIC: "yes: 2 pods"}),
        ("yes: 2 pods", "yes: 2 pods", {}),
        ("yes: 2 pods", "not known yet: x", {FABRIC: "not known yet: x"}),
        ("yes: 2 pods", "no: x", {FABRIC: "no: x"}),
        ("yes: 2 pods", "", {FABRIC: None}),
    ],
)
def test_a_podgang_says_whether_its_pods_share_one_fabric_and_is_written_only_when_that_changes(
    before: str | None, now: str, written: dict[str, str | None]
) -> None:
    gang = GANG
    if before is not None:
        gang = Metadata(
            name="t-0", uid="g", annotations={**(GANG.annotations or {}), FABRIC: before}
        )
    patch = announcement(gang, fabric=now)
    assert (patch or {"metadata": {"annotations": {}}})["metadata"]["annotations"] == written
