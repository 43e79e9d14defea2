"""What `show` says of GPUs, and of one pod: its claim, its leases, what it waits for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.report.explain import Files, explain
from preflight_gpu_scheduler.report.show import pod_text, table
from shapes import claim, lease, node, pod

CLAIMED = {names.CLAIM_ANNOTATION: "one"}


@pytest.fixture
def seen() -> Mirrors:
    found = Mirrors(count_resource="")
    found.show("node", node("a"))
    found.status("a", {"id": 0, "uuid": "GPU-0"})
    found.claim("one", 1)
    found.claim("member", 1, gang="g")
    return found


def rows(seen: Mirrors, name: str = "p") -> dict[str, str]:
    text = pod_text(seen.state, ("team", name))
    return {line[:10].strip(): line[10:] for line in text.splitlines()}


def test_a_bound_pod_has_its_gpus_and_waits_for_nothing(seen: Mirrors) -> None:
    said = {**CLAIMED, names.ALLOCATED_ANNOTATION: "a:0"}
    seen.show("pod", pod(annotations=said, node_name="a"))
    seen.show("lease", lease("a", 0))
    assert rows(seen) == {
        "pod": "team/p (bound to a)",
        "claim": "one: 1 GPUs, contiguous",
        "lease": "gpu-a-0: held",
        "has": "a:0",
    }


@pytest.mark.parametrize(
    ("claim", "gated", "why"),
    [
        ("none", True, "for GpuClaim none"),
        ("member", True, "for its gang g to be reserved whole"),
        ("one", True, "for the controller to open its gate"),
        ("one", False, "for the scheduler; `kubectl describe pod` says what it found"),
    ],
)
def test_a_pod_says_what_it_waits_for(seen: Mirrors, claim: str, gated: bool, why: str) -> None:
    seen.show("pod", pod(annotations={names.CLAIM_ANNOTATION: claim}, gated=gated))
    assert rows(seen)["waits"] == why
    assert rows(seen)["pod"] == f"team/p ({'gated' if gated else 'not bound'})"


def test_a_pod_that_is_not_there_has_no_text(seen: Mirrors) -> None:
    assert rows(seen, "other") == {}


def test_a_gpu_that_nobody_gets_is_not_shown_as_free_though_it_has_no_lease(
    seen: Mirrors,
) -> None:
    used: list[dict[str, Any]] = [{"processes": 1}, {"processes": 0}, {"inUseBy": ["uid-gone"]}, {}]
    seen.status("a", *({"id": n, "island": "i", **more} for n, more in enumerate(used)))
    said = {**CLAIMED, names.ALLOCATED_ANNOTATION: "a:3"}
    seen.show("pod", pod(annotations=said, node_name="a"))
    text = table(seen.state, datetime.now(UTC))
    assert text.startswith(
        "a  [i: 0:used by a process of no claim 1:- 2:used by pod uid-gone 3:a pod's, whose Lease is lost]"
    )


def test_a_gpu_of_a_pod_that_has_ended_is_shown_as_free_though_its_status_still_names_the_pod(
    seen: Mirrors,
) -> None:
    seen.status("a", {"id": 0, "inUseBy": ["uid-p"]})
    seen.show("pod", pod(phase="Succeeded", node_name="a"))
    assert seen.free("a") == {0}
    assert table(seen.state, datetime.now(UTC)) == "a  [no island: 0:-]"


def test_a_node_is_explained_as_the_extender_sees_it(seen: Mirrors) -> None:
    seen.status("a", {"id": 0}, {"id": 1}, {"id": 2})
    said = {**CLAIMED, names.ALLOCATED_ANNOTATION: "a:0"}
    seen.show("pod", pod(annotations=said, node_name="a"))
    about = {"annotations": {names.CLAIM_ANNOTATION: "two"}}
    asked = Files(
        pod={"metadata": about, "spec": {"containers": [{}]}}, claims={"two": claim()}
    ).beside(seen.state)
    assert [one.why for one in explain(asked, seen.config).nodes] == [messages.UNLOCKED]
    seen.show("lease", lease("a", 0))
    asked = asked.beside(seen.state)
    assert [one.ids for one in explain(asked, seen.config).nodes] == [(1, 2)]
