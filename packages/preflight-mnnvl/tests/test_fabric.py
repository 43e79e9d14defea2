"""One answer about the pods of a domain: do they share one working fabric?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from preflight_mnnvl.api.types import ComputeDomain
from preflight_mnnvl.report.show import DRIVER, ChannelClaim, Pod, cliques_of, one_fabric


def pod(name: str, *, claims: bool = True, made: bool = True) -> Pod:
    body: dict[str, Any] = {"metadata": {"name": name}, "spec": {"nodeName": "n"}}
    if claims:
        entry = {"name": "mnnvl", "resourceClaimTemplateName": "t-0-mnnvl-claim"}
        body["spec"]["resourceClaims"] = [entry]
    if made:
        body["status"] = {
            "resourceClaimStatuses": [{"name": "mnnvl", "resourceClaimName": f"{name}-claim"}]
        }
    return msgspec.convert(body, Pod)


def claim(node: str, uid: str = "d") -> ChannelClaim:
    opaque = {"driver": DRIVER, "parameters": {"domainID": uid}}
    results = [{"driver": DRIVER, "pool": node, "device": "channel-0"}] if node else []
    return ChannelClaim.read(
        {
            "spec": {"devices": {"config": [{"opaque": opaque}]}},
            "status": {"allocation": {"devices": {"results": results}}},
        }
    )


def domain(**status: Any) -> ComputeDomain:
    return msgspec.convert(
        {"metadata": {"name": "t-0-cd", "uid": "d"}, "status": status}, ComputeDomain
    )


def sliced(node: str, clique: str) -> dict[str, Any]:
    device = {"name": "channel-0", "attributes": {"cliqueID": {"string": clique}}}
    return {"spec": {"nodeName": node, "devices": [device]}}


CLIQUES = cliques_of([sliced("n1", "x.1"), sliced("n2", "x.1"), sliced("n3", "x.2")])
TWO = [pod("a"), pod("b")]


@pytest.mark.parametrize(
    ("pods", "claims", "said"),
    [
        (
            TWO,
            {"a-claim": claim("n1"), "b-claim": claim("n2")},
            "yes: 2 pods, 2 nodes of the NVLink clique x.1; its daemons are the hosts' and are not asked",
        ),
        (
            [*TWO, pod("c", claims=False)],
            {"a-claim": claim("n1"), "b-claim": claim("n2")},
            "no: c without the claim",
        ),
        (
            TWO,
            {"a-claim": claim("n1"), "b-claim": claim("n2", "other")},
            "no: b with the claim of another domain",
        ),
        (
            TWO,
            {"a-claim": claim("n1"), "b-claim": claim("n3")},
            "no: nodes of 2 NVLink cliques (x.1, x.2)",
        ),
        (
            TWO,
            {"a-claim": claim("n1"), "b-claim": claim("")},
            "not known yet: 1 of 2 pods wait for their claim",
        ),
        ([pod("a", made=False)], {}, "not known yet: 1 of 1 pods wait for their claim"),
        ([], {}, "not known yet: 0 of 0 pods wait for their claim"),
        (
            [pod("a")],
            {"a-claim": claim("elsewhere")},
            "not known: the NVLink clique of 1 of 1 nodes is not known; its daemons are the hosts' and are not asked",
        ),
    ],
    ids=["yes", "without", "foreign", "cliques", "pending", "no claim", "no pods", "unknown"],
)
def test_what_is_said_of_all_pods_of_a_domain(
    pods: list[Pod], claims: dict[str, ChannelClaim], said: str
) -> None:
    assert one_fabric(domain(), pods, claims, CLIQUES) == said


def test_daemons_that_the_driver_runs_are_told_by_the_domains_status() -> None:
    nodes = [{"name": "n1", "status": "Ready"}, {"name": "n2", "status": "NotReady"}]
    claims = {"a-claim": claim("n1"), "b-claim": claim("n2")}
    said = one_fabric(domain(nodes=nodes), TWO, claims, CLIQUES)
    assert said.endswith("clique x.1; its daemons are ready on 1 of 2 nodes")
