"""The circle, closed by itself on real kubelets: a fault on a GPU is found, its node is left and
avoided, and after the repair a test of the node gives it work again.

Needs the lab's fake GPU nodes, four of them, and no release of the charts. Fake is the hardware,
and what the platform connector writes on the node. The tests print what each step took.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.appwrappers import (
    VALUES,
    WrappedRelease,
    asks,
    prefers,
    verdict,
    wrapped,
)
from preflight_e2e.lab import BASE_VALUES, Lab, until
from preflight_e2e.provider import ValidationProvider
from preflight_testing.matrix.facts import GPUS, uuids

pytestmark = [pytest.mark.timeout(600), pytest.mark.fakes]

LOOPBACK = {"name": "nccl-loopback", "image": "preflight-nccl-loopback:e2e"}
CHECKS = [*BASE_VALUES["checks"], LOOPBACK]
BROKEN = {
    "gpu": 5,
    "test": "memory",
    "error_id": 52,
    "severity": 2,
    "category": 10,
    "text": "Memtest: 14 bit errors",
}
BAD_MEMORY: dict[str, Any] = {"engine": {"faults": [BROKEN]}}
ANOTHER: dict[str, Any] = {"engine": {"faults": [{**BROKEN, "gpu": 2}]}}
SLOW_LINKS: dict[str, Any] = {"nccl": {"ports": [{"gpu": 3, "gbps": 120}]}}
CIRCLES = int(os.environ.get("PREFLIGHT_CIRCLES", "1"))
"""How many are walked in a row, by faults and nodes at random."""


@pytest.fixture(scope="module")
def world(fake_nodes: Lab) -> Iterator[WrappedRelease]:
    if len(fake_nodes.nodes) < 4:
        pytest.skip(f"needs four nodes, there are {len(fake_nodes.nodes)}")
    values = {**VALUES, "preflight-injector": {**VALUES["preflight-injector"], "checks": CHECKS}}
    with wrapped(fake_nodes, values) as made:
        yield made


@pytest.fixture(scope="module")
def provider(world: WrappedRelease) -> Iterator[ValidationProvider]:
    with ValidationProvider(world.lab) as made:
        yield made


class Circle:
    """One node's way from a fault to work again, and what each step took."""

    def __init__(self, world: WrappedRelease, node: str) -> None:
        self.world, self.lab, self.node = world, world.lab, node
        self._last = time.monotonic()

    def step(self, what: str) -> None:
        now = time.monotonic()
        print(f"{self.node}: {what}: {now - self._last:.1f} s")
        self._last = now

    def condition(self, kind: str) -> str:
        found = self.lab.api.read_node(self.node).status.conditions
        return next((str(one.status) for one in found if one.type == kind), "")

    def record(self) -> str:
        """What the node's NodeHealth says of it."""
        try:
            found = self.world.custom.get_cluster_custom_object(
                "preflight.nvsentinel.nvidia.com", "v1alpha1", "nodehealths", self.node
            )
        except client.ApiException as error:
            if error.status == 404:  # nothing has been said of it yet
                return ""
            raise
        return str(found.get("status", {}).get("state", ""))

    def falls_sick(self, job: str, facts: dict[str, Any]) -> None:
        """``job``, which would rather run there, finds the fault."""
        self.lab.configure(self.node, facts)
        self.world.wrap(job, asks(GPUS, affinity=prefers(self.node)))
        until("the label", lambda: self.world.label(self.node) == "EVICT", 180)
        self.step("fault to label")

    def blamed(self, gpu: int) -> bool:
        """Whether the node's connector was told of a fatal fault of this GPU."""
        uuid = uuids(self.node)[gpu]
        return any(
            line["event"]["isFatal"]
            and [one["entityValue"] for one in line["event"]["entitiesImpacted"]] == [uuid]
            for line in self.lab.node_log(self.node)
            if "event" in line
        )

    def leaves(self, job: str, pods: int = 1) -> None:
        """``job`` runs elsewhere, and nobody has counted that against it."""

        def whole() -> list[Any]:
            running = self.world.running(job)
            return running if len(running) == pods else []

        found = until(f"{job} runs", whole, 180)
        assert self.node not in {one.spec.node_name for one in found}
        until("PodsReady", lambda: self.world.condition(job, "PodsReady") == "True")
        status = self.world.status(job)
        assert (status["phase"], status.get("resettingCount", 0)) == ("Running", 0)

    def cordon(self, *, on: bool) -> None:
        self.lab.api.patch_node(self.node, {"spec": {"unschedulable": on or None}})

    def stays_out(self, provider: ValidationProvider, condition: str) -> None:
        """Cordoned and not repaired, the node fails its validation, and nothing is cleared."""
        self.cordon(on=True)
        passed, said = provider.validated(self.node)
        assert not passed, said
        assert self.condition(condition) == "True"
        self.step("a validation before the repair fails, and clears nothing")

    def comes_back(self, provider: ValidationProvider, condition: str) -> None:
        """Repaired and cordoned, the node passes its validation and is given work again."""
        self.cordon(on=True)
        try:
            self.lab.configure(self.node, {})
            self.step("repair")
            passed, said = provider.validated(self.node)
            assert passed, said
            assert f"{self.node} has passed, and nothing stands against it" in said
            self.step("validation, until no condition stands against the node")
            assert self.condition(condition) == "False"
            until("the label is gone", lambda: self.world.label(self.node) == "")
            until("the record says so", lambda: self.record() == "Healthy")
            self.step("no label, and its record is Healthy")
        finally:
            self.cordon(on=False)
        here = {"kubernetes.io/hostname": self.node}
        self.world.wrap("again", asks(GPUS, nodeSelector=here))
        until("its GPUs are handed out again", lambda: self.world.running("again"), 120)
        self.step("a job with all its GPUs runs there")
        self.world.remove("again")


@pytest.mark.parametrize(
    ("check", "facts", "gpu", "condition"),
    [
        ("dcgm-diag", BAD_MEMORY, 5, "DcgmDiagnosticMemory"),
        ("nccl-loopback", SLOW_LINKS, 3, "NCCLLoopbackTestBandwidth"),
    ],
    ids=["dcgm", "loopback"],
)
def test_a_faulty_gpu_is_found_left_avoided_repaired_validated_and_handed_out_again(
    world: WrappedRelease,
    provider: ValidationProvider,
    check: str,
    facts: dict[str, Any],
    gpu: int,
    condition: str,
) -> None:
    circle = Circle(world, world.lab.nodes[1])
    bad = circle.node
    world.lab.configure(bad, facts)
    circle.step("fault")
    world.wrap("train", asks(GPUS, affinity=prefers(bad)))
    until("a verdict on the node", verdict(world, "train", bad, check), 120)
    circle.step("verdict")
    until("a HealthEvent about the GPU", lambda: circle.blamed(gpu))
    until("the node's condition", lambda: circle.condition(condition) == "True")
    circle.step("HealthEvent and condition")
    until("the label", lambda: world.label(bad) == "EVICT")
    circle.step("label")
    circle.leaves("train")
    circle.step("the job runs elsewhere")
    world.wrap("next", asks(GPUS, affinity=prefers(bad)))
    circle.leaves("next")
    circle.step("the next job, which would rather run there, does not")
    assert {one for one in world.lab.nodes if world.label(one)} == {bad}
    if check == "dcgm-diag":
        circle.stays_out(provider, condition)
    circle.comes_back(provider, condition)
    for job in ("train", "next"):
        world.remove(job)


def test_what_stands_against_a_card_that_was_replaced_is_cleared_when_the_new_one_has_passed(
    world: WrappedRelease, provider: ValidationProvider
) -> None:
    circle = Circle(world, world.lab.nodes[2])
    old, new = uuids(circle.node)[5], "GPU-0ca4d000-0000-0000-0000-000000000005"
    world.lab.configure(circle.node, BAD_MEMORY)
    world.wrap("finds", asks(GPUS, affinity=prefers(circle.node)))
    until("the label", lambda: world.label(circle.node) == "EVICT", 180)
    circle.step("fault to label")
    world.remove("finds")
    world.lab.configure(circle.node, {"facts": [{"gpu": 5, "uuid": new}]})
    provider.may_replace()
    circle.step("another card is in its place")
    passed, said = provider.validated(circle.node, "--replaced", old)
    assert passed, said
    assert f"{old} was replaced" in said
    circle.step("validation of the new card, and the old one is cleared")
    until("the label is gone", lambda: world.label(circle.node) == "")
    world.lab.configure(circle.node, {})


def test_a_gang_of_a_wrapper_leaves_a_node_that_one_member_has_found_faulty_and_runs_elsewhere(
    world: WrappedRelease, provider: ValidationProvider
) -> None:
    circle = Circle(world, world.lab.nodes[3])
    world.lab.configure(circle.node, BAD_MEMORY)
    world.wrap("gang", asks(GPUS, affinity=prefers(circle.node)), 2, gang=True)
    until("a verdict on the node", verdict(world, "gang", circle.node), 120)
    circle.step("verdict")
    until("the label", lambda: world.label(circle.node) == "EVICT")
    circle.step("label")
    circle.leaves("gang", 2)
    circle.step("both members run elsewhere")
    world.remove("gang")
    circle.comes_back(provider, "DcgmDiagnosticMemory")


def test_a_node_that_was_repaired_and_not_validated_takes_no_job(
    world: WrappedRelease, provider: ValidationProvider
) -> None:
    circle = Circle(world, world.lab.nodes[0])
    circle.falls_sick("first", BAD_MEMORY)
    circle.leaves("first")
    world.lab.configure(circle.node, {})
    circle.step("repair")
    world.wrap("next", asks(GPUS, affinity=prefers(circle.node)))
    circle.leaves("next")
    assert (world.label(circle.node), circle.record()) == ("EVICT", "Sick")
    circle.step("the next job, which would rather run there, does not")
    circle.comes_back(provider, "DcgmDiagnosticMemory")
    for job in ("first", "next"):
        world.remove(job)


def test_a_fault_that_the_validation_itself_finds_stands_beside_the_first_until_both_are_mended(
    world: WrappedRelease, provider: ValidationProvider
) -> None:
    circle = Circle(world, world.lab.nodes[1])
    circle.falls_sick("finds", BAD_MEMORY)
    world.remove("finds")
    world.lab.configure(circle.node, ANOTHER)
    circle.stays_out(provider, "DcgmDiagnosticMemory")
    assert circle.blamed(ANOTHER["engine"]["faults"][0]["gpu"])
    circle.comes_back(provider, "DcgmDiagnosticMemory")


def test_two_nodes_that_fall_sick_at_once_by_different_faults_are_left_and_the_others_are_not(
    world: WrappedRelease, provider: ValidationProvider
) -> None:
    memory, links = (Circle(world, node) for node in world.lab.nodes[2:4])
    for circle, facts in ((memory, BAD_MEMORY), (links, SLOW_LINKS)):
        world.lab.configure(circle.node, facts)
    for circle, job in ((memory, "one"), (links, "other")):
        world.wrap(job, asks(GPUS, affinity=prefers(circle.node)))
    both = {memory.node, links.node}
    until("both labels", lambda: {n for n in world.lab.nodes if world.label(n)} == both, 180)
    memory.step("faults to labels")
    for job in ("one", "other"):
        memory.leaves(job)
        assert not both & {pod.spec.node_name for pod in world.running(job)}
    memory.step("both jobs run on the two nodes that are well")
    assert {n for n in world.lab.nodes if world.label(n)} == both
    for job in ("one", "other"):
        world.remove(job)
    memory.comes_back(provider, "DcgmDiagnosticMemory")
    links.comes_back(provider, "NCCLLoopbackTestBandwidth")


@pytest.mark.timeout(600 * max(CIRCLES, 1))
def test_circles_in_a_row_by_random_faults_of_random_nodes_leave_nothing_behind(
    world: WrappedRelease, provider: ValidationProvider
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(CIRCLES):
        circle = Circle(world, draw.choice(world.lab.nodes))
        gpu, job = draw.randrange(GPUS), f"job-{number}"
        memory: dict[str, Any] = {"engine": {"faults": [{**BROKEN, "gpu": gpu}]}}
        links: dict[str, Any] = {"nccl": {"ports": [{"gpu": gpu, "gbps": 120}]}}
        facts, condition = draw.choice(
            [(memory, "DcgmDiagnosticMemory"), (links, "NCCLLoopbackTestBandwidth")]
        )
        print(f"circle {number}: GPU {gpu} of {circle.node}, {condition}")
        circle.falls_sick(job, facts)
        assert circle.blamed(gpu)
        circle.leaves(job)
        circle.comes_back(provider, condition)
        world.remove(job)
        assert not any(world.label(node) for node in world.lab.nodes)
        assert not world.lab.api.list_namespaced_pod(world.namespace).items
        standing = {
            (node.metadata.name, one.type)
            for node in world.lab.api.list_node().items
            for one in node.status.conditions
            if one.status == "True" and one.type != "Ready"
        }
        assert not standing
