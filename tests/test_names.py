"""A public class's name says one thing in all members."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.component  # reads every file
ROOT = Path(__file__).parent.parent

# fmt: off
KUBERNETES = frozenset({
    "ComputeDomain", "ComputeDomainStatus", "Condition", "Container", "ContainerStatus",
    "Metadata", "Node", "NodeStatus", "OwnerReference", "Pod", "PodGang",
    "PodSpec", "PodStatus", "ResourceClaim", "ResourceRequirements",
})
# fmt: on
"""Kinds and parts of Kubernetes and its extensions. Each component decodes the fields that it
needs, into a Struct of its own.
"""
CONVENTION = frozenset({"Config", "Controller", "Metrics", "Settings", "Webhook"})
"""What a component has one of."""
EXCEPTIONS = {
    "Conflict": "both are the API server's 409; the GPU scheduler's is a value of a metric's label",
    **dict.fromkeys(
        ("Exists", "Lost", "Missing", "Refused", "Stored"),
        "both are answers to a write; the GPU scheduler's carry what it decodes",
    ),
    **dict.fromkeys(
        ("Gang", "Result", "Status", "Verdict"),
        "of `check_nccl_allreduce.localise`: simulators outside of the repository use it by these names",
    ),
}


Shared = dict[str, list[tuple[str, Path, ast.ClassDef]]]


@pytest.fixture(scope="module")
def shared() -> Shared:
    """Public classes whose name several have: member, file and class; not what is generated."""
    found: Shared = defaultdict(list)
    for path in sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("e2e/src/**/*.py")]):
        file = path.relative_to(ROOT)
        if "_generated" in file.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append((file.parts[1], file, node))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_a_class_shares_its_name_only_where_the_name_means_the_same(shared: Shared) -> None:
    allowed = KUBERNETES | CONVENTION | EXCEPTIONS.keys()
    assert {
        name: [str(file) for _, file, _ in places]
        for name, places in shared.items()
        if name not in allowed
    } == {}


def test_no_member_has_two_classes_of_one_name(shared: Shared) -> None:
    assert {
        name: [str(file) for _, file, _ in places]
        for name, places in shared.items()
        if len({member for member, _, _ in places}) < len(places)
    } == {}


def test_what_has_the_name_of_a_kubernetes_object_decodes_one(shared: Shared) -> None:
    others = {
        f"{file}: {name}"
        for name in KUBERNETES & shared.keys()
        for _, file, node in shared[name]
        if not node.bases or not ast.unparse(node.bases[0]).endswith(("Struct", "Object"))
    }
    assert others == set()


def test_every_exception_is_needed(shared: Shared) -> None:
    assert (KUBERNETES | CONVENTION | EXCEPTIONS.keys()) - shared.keys() == set()
