"""One answer about the pods of a domain: do they share one working fabric?"""

from __future__ import annotations

import msgspec
import pytest
from preflight_mnnvl.api.types import ComputeDomain, Metadata
from preflight_mnnvl.core.domain import announcement
from preflight_mnnvl.core.fabric import (
    DRIVER,
    PodClaim,
    ResourceClaim,
    of_gang,
    one_fabric,
    pod_claim,
)


def claim(node: str, uid: str = "d") -> PodClaim:
    opaque = {"driver": DRIVER, "parameters": {"domainID": uid}}
    results = [{"driver": DRIVER, "pool": node, "device": "channel-0"}] if node else []
    body = {
        "spec": {"devices": {"config": [{"opaque": opaque}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    return pod_claim(msgspec.convert(body, ResourceClaim))


DOMAIN = ComputeDomain(metadata=Metadata(name="t-0-cd", uid="d"))
CLIQUES = {"n1": "x.1", "n2": "x.1", "n3": "x.2"}


@pytest.mark.parametrize(
    ("pods", "claims", "said"),
    [
        (
            2,
            {"a": claim("n1"), "b": claim("n2")},
            "yes: 2 pods, 2 nodes of the NVLink clique x.1",
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
            "not known: the NVLink clique of 1 of 1 nodes is not known",
        ),
    ],
    ids=["yes", "foreign", "cliques", "pending", "no claim", "no pods", "unknown"],
)
def test_what_is_said_of_all_pods_of_a_domain(
    pods: int, claims: dict[str, PodClaim], said: str
) -> None:
    assert one_fabric(DOMAIN, pods, claims, CLIQUES) == said


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
FABRIC = "grove.io/mnnvl-one-fabric"


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
