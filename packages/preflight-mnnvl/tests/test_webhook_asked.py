"""What a review may cost: requests to the API server, and memory for what was asked."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from cliques import DRIVER, LITERAL, ON, clique, container, pcs, podclique, review_of, support
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_mnnvl.api.names import MOST_NAME
from preflight_mnnvl.api.types import ComputeDomain, Metadata
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.informers import AdmissionInformers
from preflight_mnnvl.core import claims as gpus
from preflight_mnnvl.core.mutate_podclique import MOST_LOOKUPS
from preflight_mnnvl.core.support import Support
from preflight_mnnvl.metrics import Metrics
from preflight_mnnvl.webhook.handler import Webhook
from preflight_testing.apidouble import ApiDouble
from preflight_testing.apidouble.store import Resource

pytestmark = pytest.mark.anyio

KINDS = [
    Resource("v1", "namespaces", "Namespace", namespaced=False),
    Resource("grove.io/v1alpha1", "podcliquesets", "PodCliqueSet"),
    Resource("resource.k8s.io/v1", "resourceclaims", "ResourceClaim"),
    Resource("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Resource("resource.nvidia.com/v1beta1", "computedomains", "ComputeDomain"),
]


class _Asking(AdmissionInformers):
    @property
    def support(self) -> Support:
        return support(self._config)


@asynccontextmanager
async def hook(config: Config) -> AsyncIterator[tuple[Webhook, ApiDouble]]:
    """A webhook that knows what is served and mirrors nothing: all must be asked for."""
    async with ApiDouble(KINDS) as double:
        target = Connection(double.url, ssl.create_default_context())
        async with Client(target, agent="tests") as client:
            metrics = Metrics()
            yield Webhook(client, config, metrics, _Asking(client, config)), double


def asked(found: Any) -> AdmissionRequest:
    return msgspec.json.decode(json.dumps(review_of(found)["request"]), type=AdmissionRequest)


def with_claims(count: int) -> Any:
    names = [f"c{i}" for i in range(count)]
    claims = [{"name": name, "resourceClaimName": name} for name in names]
    pod = {"containers": [container()], "resourceClaims": claims}
    return podclique("t-0-w", "t", annotations=ON, pod=pod)


def message(answer: Response) -> str:
    return str(json.loads(msgspec.json.encode(answer))["message"])


@pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
async def test_a_review_makes_at_most_sixteen_requests(config: Config) -> None:
    async with hook(config) as (webhook, double):
        double.create("podcliquesets", pcs("t", [clique("w")]))
        # What has the names already makes the most of them.
        labels = {"app.kubernetes.io/instance": "preflight-mnnvl", "grove.io/pcs-name": "t"}
        labels |= {"app.kubernetes.io/managed-by": "preflight-mnnvl"}
        labels |= {"grove.io/mnnvl-managed": "true", "grove.io/pcs-replica-index": "0"}
        for plural, name in (("computedomains", "t-0-cd"), ("resourceclaims", "t-0-mnnvl-claim")):
            meta = {"name": name, "namespace": "default", "labels": labels}
            double.create(plural, {"metadata": meta})
        answer = await webhook.mutate(asked(with_claims(MOST_LOOKUPS)))
        assert answer.allowed
        assert 1 + MOST_LOOKUPS == len(double.requests) <= 16
        assert {one.method for one in double.requests} == {"GET"}


async def test_a_podclique_that_asks_for_more_is_refused_in_a_sentence_and_nothing_is_read() -> (
    None
):
    async with hook(DRIVER) as (webhook, double):
        double.create("podcliquesets", pcs("t", [clique("w")]))
        answer = await webhook.mutate(asked(with_claims(MOST_LOOKUPS + 1)))
        assert not answer.allowed
        assert (
            "PodClique default/t-0-w: its pods name 12 resource claims and templates, more than the 11 that are looked up; "
            "name fewer, or remove grove.io/mnnvl-enabled." in message(answer)
        )
        assert [one.method for one in double.requests] == ["GET"]  # the set


def test_a_name_that_is_too_long_for_a_resources_matches_no_glob() -> None:
    assert gpus.LONGEST_NAME < MOST_NAME + 65
    assert not gpus.matches("nvidia.com/gpu" + "x" * 5000, ("nvidia.com/gpu*",))


async def test_only_names_that_may_be_ours_are_found_and_what_goes_is_not() -> None:
    target = Connection("https://api.example", ssl.create_default_context())
    async with Client(target, agent="tests") as client:
        informers = AdmissionInformers(client, DRIVER)
        for kind in informers.reflectors:
            kind.synced.set()
        reflector = informers._taken[0].cache
        assert reflector is not None
        for name in ("t-0-cd", "other", "t-0-mnnvl-claim"):
            for uid in ("1", "2"):
                meta = Metadata(name, "", "default", f"{name}{uid}")
                reflector._put(meta.uid, ComputeDomain(metadata=meta))

        def uid_of(name: str, namespace: str = "default") -> str:
            meta = informers.taken(namespace, name)
            return "" if meta is None else meta.uid

        assert [uid_of(name) for name in ("t-0-cd", "other", "other1", "t-0-mnnvl-claim", "")] == [
            "t-0-cd2", "", "", "", "",
        ]  # fmt: skip
        assert [uid_of("t-0-cd1"), uid_of("t-0-cd", "other")] == ["t-0-cd1", ""]
        reflector._remove("t-0-cd1", None)  # the predecessor
        assert uid_of("t-0-cd") == "t-0-cd2"
        reflector._remove("t-0-cd2", None)
        assert uid_of("t-0-cd") == ""
