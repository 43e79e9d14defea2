"""What the leader writes into a claim, and when."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import RawClaim
from preflight_gpu_scheduler.api.types import Metadata
from shapes import node, pod

KEY = ("team", "two")


class Leader(Mirrors):
    """``written``: the phase of each status that was written."""

    def __init__(self) -> None:
        super().__init__()
        self.leader, self._patches = self.leads()
        self.show("node", node("a"))

    @property
    def written(self) -> list[str]:
        return [patch["status"]["phase"] for patch in self._patches]

    @property
    def said(self) -> dict[str, Any]:
        status: dict[str, Any] = self._patches[-1]["status"]
        return status

    def gpus(self, *health: str) -> None:
        self.status("a", *({"id": n, "health": each} for n, each in enumerate(health)))

    def phase(self) -> str:
        """The last that is written when the leader looks at the claim."""
        anyio.run(self.leader._reconcile_claim, KEY)
        return self.written[-1]

    def asked_again(self) -> bool:
        before = self.leader._claims.adds
        self.leader._reconcile_failed()
        return self.leader._claims.adds > before


@pytest.fixture
def seen() -> Leader:
    found = Leader()
    found.claim("two", 2)
    return found


def test_a_sick_gpu_is_no_reason_to_say_that_no_node_could_ever_do(seen: Leader) -> None:
    seen.gpus("Healthy", "Unhealthy")
    assert seen.phase() == "Pending"
    seen.gpus("Unknown", "Unknown")
    assert seen.phase() == "Pending"


def test_a_claim_that_no_node_could_ever_meet_waits_again_when_a_node_could(seen: Leader) -> None:
    seen.gpus("Healthy")
    assert seen.phase() == "Failed"
    assert seen.asked_again()
    seen.gpus("Healthy", "Healthy")
    assert seen.phase() == "Pending"


def test_a_claim_that_is_made_again_between_two_looks_gets_its_status(seen: Leader) -> None:
    seen.gpus("Healthy", "Healthy")
    assert (seen.phase(), seen.phase(), seen.written) == ("Pending", "Pending", ["Pending"])
    again = Metadata(name="two", namespace="team", uid="another")
    seen.show("claim", RawClaim(metadata=again, spec={"devices": {"count": 2}}))
    assert (seen.phase(), seen.written) == ("Pending", ["Pending", "Pending"])


def test_what_a_claim_said_of_gpus_goes_with_the_pod_that_had_them(seen: Leader) -> None:
    seen.gpus("Healthy", "Healthy")
    about = {names.CLAIM_ANNOTATION: "two", names.ALLOCATED_ANNOTATION: "a:0,1"}
    runs = pod("p", annotations=about, node_name="a")
    seen.show("pod", runs)
    assert (seen.phase(), seen.said["allocated"]) == ("Bound", "a:0,1")
    seen.show("pod", runs, deleted=True)
    assert seen.phase() == "Pending"
    gone = dict.fromkeys(
        ("nodeName", "gpuIds", "allocated")
    )  # a merge patch takes out what is null
    assert gone.items() <= seen.said.items()
