"""Webhook and controller beside Grove's own operator on a real API server, and the stand-in held
against it. Nothing runs pods here; the driver is a stand-in.

PREFLIGHT_REAL_GROVE names what `nox -s real-grove` compiled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import BY_GROUP, DRIVER, ON, clique, group, pcs
from grove import template
from live import Space, api_server, leading, space_of
from preflight_testing import grove as standin
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import compute_domains
from realgrove import OUT, kinds, operator
from registered import Registered, registered

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not OUT.exists(), reason="PREFLIGHT_REAL_GROVE does not name a compiled Grove"
    ),
    pytest.mark.timeout(400),
]
Json = dict[str, Any]
PLURALS = ("podcliques", "podcliquescalinggroups", "podgangs")
DOMAINS = {
    **{f"t-0-pool-{i}-cd": [("PodGang", f"t-0-pool-{i - 1}" if i else "t-0")] for i in range(3)},
    "t-0-cd": [("PodGang", "t-0")],
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    home = tmp_path_factory.mktemp("real")
    with (
        api_server(home, kinds=[*kinds(), compute_domains()]) as server,
        operator(server, home / "grove"),
    ):
        yield server


@pytest.fixture
async def space(real: ApiServer, tmp_path: Path) -> AsyncIterator[Space]:
    async with space_of(real, tmp_path, DRIVER, webhook=True, played=False) as found:
        yield found


@asynccontextmanager
async def beside(space: Space, folder: Path) -> AsyncIterator[Registered]:
    """With webhook, controller, and the driver's."""
    async with (
        leading(space.target, DRIVER),
        registered(space, DRIVER, folder / "tls") as hook,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(space.driver.run)
        yield hook
        tasks.cancel_scope.cancel()


def a_set(annotations: dict[str, str] | None = None, image: str = "x") -> Json:
    """Two pods of one clique, and three replicas of a scaling group with one pod each."""
    worker, member = clique("worker"), clique("member", replicas=1)
    for one in (worker, member):
        one["spec"]["podSpec"]["containers"][0]["image"] = image
    groups = [group("pool", ["member"], BY_GROUP if annotations == ON else None, replicas=3)]
    return pcs("t", [worker, member], groups, annotations)


def foreign(name: str) -> Json:
    """Somebody's claim template."""
    return {**template(name, ""), "metadata": {"name": name}}


async def pods(space: Space) -> dict[str, Json]:
    return await space.all(f"/api/v1/namespaces/{space.namespace}/pods")


async def claims(space: Space) -> dict[str, list[tuple[str, str]]]:
    """By PodClique, image and claim template of each of its living pods."""
    found: dict[str, list[tuple[str, str]]] = {}
    for one in (await pods(space)).values():
        (container,) = one["spec"]["containers"]
        entries = one["spec"].get("resourceClaims", [{}])
        said = container["image"], entries[0].get("resourceClaimTemplateName", "")
        found.setdefault(one["metadata"]["labels"]["grove.io/podclique"], []).append(said)
    return found


def wanted(image: str, groups: int = 3) -> dict[str, list[tuple[str, str]]]:
    return {
        "t-0-worker": [(image, "t-0-mnnvl-claim")] * 2,
        **{f"t-0-pool-{i}-member": [(image, f"t-0-pool-{i}-mnnvl-claim")] for i in range(groups)},
    }


async def versions(space: Space, *plurals: str) -> dict[str, str]:
    return {
        name: one["metadata"]["resourceVersion"]
        for plural in plurals
        for name, one in (await space.grove.all(plural)).items()
    }


async def there(space: Space) -> int:
    return sum([len(await space.grove.all(plural)) for plural in PLURALS]) + len(await pods(space))


async def initialized(space: Space) -> set[str]:
    """The PodGangs that Grove has filled with their pods."""
    return {
        name
        for name, one in (await space.grove.all("podgangs")).items()
        for condition in (one.get("status") or {}).get("conditions", ())
        if (condition["type"], condition["status"]) == ("Initialized", "True")
    }


GANGS = {"t-0", "t-0-pool-0", "t-0-pool-1"}


async def test_what_it_makes_of_a_set_is_what_the_stand_in_makes(space: Space) -> None:
    await space.grove.apply(a_set({"a.example/x": "y"}))
    await space.settled(lambda: initialized(space), GANGS)
    (set_,) = (await space.grove.all("podcliquesets")).values()
    groups = await space.grove.all("podcliquescalinggroups")
    made = standin.made(set_, groups)
    played = {
        "podcliques": [
            standin.podclique(set_, one, space.namespace, "grove", groups) for one in made
        ],
        "podcliquescalinggroups": standin.scaling_groups(set_),
        "podgangs": [
            standin.gang(name, set_, [one for one in made if one.gang == name]) for name in GANGS
        ],
    }
    for plural, bodies in played.items():
        real = await space.grove.all(plural)
        assert {body["metadata"]["name"]: _said(body) for body in bodies} == {
            name: _said(one) for name, one in real.items()
        }
    cliques = (await space.grove.all("podcliques")).values()
    by_standin = [pod["metadata"] for one in cliques for pod in standin.pods(one)]
    assert sorted(map(_pod, by_standin), key=str) == sorted(
        (_pod(one["metadata"]) for one in (await pods(space)).values()), key=str
    )


def _said(body: Json) -> Json:
    """All that is compared: of the template's hash that there is one, and of pods in a PodGang
    nothing.
    """
    meta = body["metadata"]
    spec = {key: body["spec"].get(key) for key in ("cliqueNames", "replicas", "minAvailable")}
    if gangs := body["spec"].get("podgroups"):
        spec["podgroups"] = [{**one, "podReferences": []} for one in gangs]
    return {
        "labels": _labels(meta),
        "annotations": meta.get("annotations") or {},
        "finalizers": meta.get("finalizers", []),
        "ownerReferences": meta["ownerReferences"],
        "spec": spec,
    }


def _labels(meta: Json) -> Json:
    return {key: "…" if key == standin.HASH else value for key, value in meta["labels"].items()}


def _pod(meta: Json) -> Json:
    return {"labels": _labels(meta), "ownerReferences": meta["ownerReferences"]}


async def test_every_pod_has_the_claim_of_its_domain_and_what_it_writes_again_changes_nothing(
    space: Space, tmp_path: Path
) -> None:
    async with beside(space, tmp_path) as hook:
        await space.grove.apply(a_set(ON))
        await space.settled(lambda: claims(space), wanted("x"))
        await space.settled(space.owners, DOMAINS)
        await space.settled(space.announced, GANGS)
        await space.settled(lambda: initialized(space), GANGS)
        warned = {one["reason"] for one in await space.events() if one["type"] == "Warning"}
        assert warned <= {"FailedResourceClaimCreation"}  # a pod before its domain's template
        before = await versions(space, "podcliquescalinggroups", "podgangs")
        specs = {n: one["spec"] for n, one in (await space.grove.all("podcliques")).items()}
        path, asked = space.grove.path("podcliquesets", "t"), hook.counted("PodClique", "injected")

        async def written_again() -> bool:
            now = hook.counted("PodClique", "injected")
            told = {"metadata": {"annotations": {"grove.io/reconcile-trigger": str(now)}}}
            await space.client.merge_patch(path, told)
            return now >= asked + 3

        await space.happens(written_again, "Grove has written its template again")
        assert await versions(space, "podcliquescalinggroups", "podgangs") == before
        after = {n: one["spec"] for n, one in (await space.grove.all("podcliques")).items()}
        assert after == specs


async def test_what_is_refused_is_said_of_who_makes_it_and_comes_when_nothing_is_in_the_way(
    space: Space, tmp_path: Path
) -> None:
    async with beside(space, tmp_path):
        taken = {"t-0-mnnvl-claim": ("PodCliqueSet", "t")}
        taken["t-0-pool-0-mnnvl-claim"] = ("PodCliqueScalingGroup", "t-0-pool")
        for name in taken:
            await space.client.create(space.claim_path(), foreign(name))
        await space.grove.apply(a_set(ON))

        async def refused() -> set[tuple[str, str]]:
            return {
                (one["involvedObject"]["kind"], one["involvedObject"]["name"])
                for one in await space.events()
                if "delete or rename it" in one["message"]
            }

        told: set[tuple[str, str]] = set()
        for name, maker in taken.items():  # groups come after the set's own PodCliques
            await space.settled(refused, told := told | {maker})
            await space.client.delete(space.claim_path(name=name))
        await space.settled(lambda: claims(space), wanted("x"))


async def test_another_template_keeps_domains_and_claims(space: Space, tmp_path: Path) -> None:
    async with beside(space, tmp_path):
        await space.grove.apply(a_set(ON))
        await space.settled(space.owners, DOMAINS)
        await space.settled(lambda: initialized(space), GANGS)
        before = {n: one["metadata"]["uid"] for n, one in (await space.domains()).items()}
        old = {
            n: one["metadata"]["uid"] for n, one in (await space.grove.all("podcliques")).items()
        }
        await space.grove.apply(a_set(ON, image="y"))
        await space.settled(lambda: claims(space), wanted("y"))
        new = {
            n: one["metadata"]["uid"] for n, one in (await space.grove.all("podcliques")).items()
        }
        assert {name for name in old if old[name] == new[name]} == {"t-0-worker"}
        assert {n: one["metadata"]["uid"] for n, one in (await space.domains()).items()} == before
        assert not await space.events("MnnvlDomainRecreated")


async def test_what_is_scaled_has_exactly_its_domains_and_a_set_that_goes_leaves_nothing(
    space: Space, tmp_path: Path
) -> None:
    async with beside(space, tmp_path):
        await space.grove.apply(a_set(ON))
        await space.settled(space.owners, DOMAINS)
        await space.grove.scale("t", 2)
        more = {
            n.replace("t-0", "t-1"): [(k, g.replace("t-0", "t-1"))]
            for n, [(k, g)] in DOMAINS.items()
        }
        await space.settled(space.owners, DOMAINS | more)
        await space.grove.scale("t", 1)
        await space.settled(space.owners, DOMAINS)
        await space.grove.scale_group("t-0-pool", 1)
        await space.settled(lambda: claims(space), wanted("x", groups=1))
        few = {name: DOMAINS[name] for name in ("t-0-cd", "t-0-pool-0-cd")}
        await space.settled(space.owners, few)
        assert not await space.events("MnnvlDomainRecreated")
        await space.client.delete(space.grove.path("podcliquesets", "t"))
        await space.settled(lambda: there(space), 0)
        await space.settled(space.owners, {})
        assert await space.all(space.claim_path()) == {}
