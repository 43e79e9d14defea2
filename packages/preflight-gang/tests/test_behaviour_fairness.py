"""Thousands of gangs of one namespace that go nowhere, and one complete gang of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gangs import injected, stamp
from leading import leads
from played import Json, played
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_testing.apidouble import RESOURCES, ApiDouble, write_kubeconfig
from preflight_testing.waiting import until
from wire import Sent, refusal

pytestmark = pytest.mark.anyio

CROWD = 1000


def forged(number: int, *, of: int = 1) -> Json:
    """A pod of a gang ``of`` so many, as anybody can create it; it is not scheduled."""
    it = stamp(f"gang-{number // of}", size=of, namespace="crowd")
    return injected(f"pod-{number}", it, "crowd") | {"status": {"phase": "Pending"}}


@pytest.fixture
def double() -> Iterator[ApiDouble]:
    with ApiDouble() as double:
        for name in ("crowd", "victim"):
            double.within(
                lambda name=name: double.create("namespaces", {"metadata": {"name": name}})  # type: ignore[misc]
            )
        yield double


def crowded(double: ApiDouble, gangs: int, *, of: int = 1, addressed: bool = False) -> None:
    """So many gangs of another namespace."""
    pods = next(one for one in RESOURCES if one.plural == "pods")

    def create(number: int) -> None:
        made = double.create("pods", forged(number, of=of))
        if addressed:
            status = {"phase": "Pending", "podIP": f"10.1.{number // 250}.{number % 250}"}
            double.store.update(pods, made, {**made, "status": status}, status=True)

    for number in range(gangs * of):
        double.within(lambda number=number: create(number))  # type: ignore[misc]


def of_the_crowd(sent: Sent) -> bool:
    return sent.method != "GET" and "/namespaces/crowd/" in sent.path


def of_the_victim(sent: Sent) -> bool:
    """Whether it is written into a pod of the complete gang."""
    return sent.method == "PATCH" and "/namespaces/victim/pods/" in sent.path


async def crowd_is_served_before(
    double: ApiDouble, folder: Path, answers: Callable[[Sent], bytes | None]
) -> int:
    """Writes for the crowd that were sent while the victim's complete gang waited for its ranks."""
    target = connection({"KUBECONFIG": str(write_kubeconfig(folder / "kubeconfig", double.url))})
    async with Client(target, agent="tests") as client, played(client, "victim") as victim:
        for name in ("pod-0", "pod-1"):
            await victim.admit(name)
        async with leads(target) as leading:
            leading.wire.answers = answers
            await until(
                lambda: sum(map(of_the_crowd, leading.wire.sent)) > 50,
                "the crowd is being answered",
                60,
            )
            await victim.address("pod-0", "10.0.0.1")
            await victim.address("pod-1", "10.0.0.2")
            before = len(leading.wire.sent)
            await victim.answered("sealed", "pod-0", "pod-1", seconds=60)
            sent = leading.wire.sent[before:]
            last = max(i for i, write in enumerate(sent) if of_the_victim(write))
            return sum(map(of_the_crowd, sent[:last]))


async def test_a_complete_gang_is_told_at_once_beside_a_thousand_whose_records_are_refused(
    double: ApiDouble, tmp_path: Path
) -> None:
    crowded(double, CROWD, of=2, addressed=True)
    refused = refusal(403, "Forbidden")
    served = await crowd_is_served_before(
        double, tmp_path, lambda sent: refused if of_the_crowd(sent) and sent.is_record else None
    )
    assert served < CROWD / 10
