"""Three laws on generated clusters: what is healthy is never reset, what lacks its pods is never
healthy, and whose pod a pod is follows from its owners in whatever order things are seen.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import (
    AppWrapper,
    AppWrapperSpec,
    AppWrapperStatus,
    Component,
    ComponentStatus,
    Condition,
    Metadata,
    Pod,
    PodSet,
    lenient,
)
from preflight_appwrapper.core.component_status import ComponentVerdict
from preflight_appwrapper.core.health import judge
from preflight_appwrapper.core.phase_context import PhaseContext
from preflight_appwrapper.core.podsets import slack
from preflight_appwrapper.core.snapshot import SeenComponent, WrapperSnapshot
from test_ownership import A_JOB, Cached, a_job, raw

DECISIONS = 40 * settings().max_examples
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OLD = NOW - timedelta(hours=1)


def ray(replicas: int, least: int) -> dict[str, Any]:
    groups = [{"replicas": replicas, "minReplicas": least}]
    spec = {"enableInTreeAutoscaling": True, "workerGroupSpecs": groups}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": spec}


def a_pod(name: str, phase: str, owner: str, of: int, going: bool = False) -> Pod:
    metadata: dict[str, Any] = {"name": name, "uid": name}
    metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    if going:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return lenient(Pod, {"metadata": metadata, "status": {"phase": phase}, "component": of})


def healthy(draw: Random) -> tuple[AppWrapper, WrapperSnapshot]:
    """Parts of any kind: each that goes on has as many pods as it needs, and what has ended has
    left whatever it likes.
    """
    known, views, components, pods = [], [], [], []
    marked = draw.random() < 0.5  # else an earlier version has made the pods
    for i in range(draw.randint(1, 4)):
        expected, owns = draw.randint(0, 6), draw.random() < 0.5
        ended = draw.random() < 0.4
        least = draw.randint(0, expected) if draw.random() < 0.3 else expected
        template = ray(expected, least) if least < expected else {}
        sets = (PodSet(path="template", replicas=expected),) if expected else ()
        created = (Condition(type="ResourcesDeployed", status="True", last_transition_time=OLD),)
        known.append(
            ComponentStatus(
                name=f"c{i}",
                kind="K",
                api_version="v1",
                uid=f"c{i}",
                pod_sets=sets,
                conditions=created,
            )
        )
        drained = draw.randint(0, least) if draw.random() < 0.2 else 0
        says: Any = "finished" if ended else "nothing"
        verdict = ComponentVerdict(says=says, owns_pods=owns, succeeded=drained)
        absent = ended and draw.random() < 0.3
        state = SeenComponent(
            state="absent" if absent else "present",
            ours=not absent,
            uid="" if absent else f"c{i}",
            verdict=verdict,
        )
        views.append(state)
        components.append(Component(template=template))
        owner = f"c{i}" if owns else draw.choice([f"child-{i}", "child"])
        most = expected + draw.choice([0, 0, 4])  # scaled up, or a Job in waves
        there = draw.randint(0, most) if ended else draw.randint(least, most) - drained
        for j in range(max(0, there)):
            phase = "Succeeded" if ended or (not drained and draw.random() < 0.1) else "Running"
            phase = "Pending" if j > expected else phase
            going = ended and draw.random() < 0.3
            pods.append(a_pod(f"p-{i}-{j}", phase, owner, i if marked else -1, going))
    ready = draw.choice(["True", "False"])
    conditions = (
        Condition(type="ResourcesDeployed", status="True", last_transition_time=OLD),
        Condition(type="PodsReady", status=ready, last_transition_time=OLD),
    )
    status = AppWrapperStatus(phase="Running", conditions=conditions, component_status=tuple(known))
    spec = AppWrapperSpec(components=tuple(components))
    draw.shuffle(pods)
    of = AppWrapper(metadata=Metadata(name="w", uid="w"), spec=spec, status=status)
    return of, WrapperSnapshot(components=tuple(views), pods=tuple(pods))


@pytest.mark.timeout(900)
def test_what_is_healthy_is_never_reset_whatever_has_ended_or_shrunk_beside_it() -> None:
    results: dict[str, int] = {}
    for seed in range(DECISIONS):
        of, view = healthy(Random(seed))
        found = judge(PhaseContext.of(of, view, WrapperRules(), NOW))
        assert found.result in {"healthy", "succeeded"}, f"seed {seed}: {found.sentence}"
        results[found.result] = results.get(found.result, 0) + 1
        if found.result == "succeeded":
            assert not any(pod.status.phase == "Running" for pod in view.pods), f"seed {seed}"
    assert min(results.values()) > DECISIONS / 100, results


@pytest.mark.timeout(900)
def test_what_lacks_all_of_its_pods_is_never_healthy_whatever_there_is_beside_it() -> None:
    looks = 0
    for seed in range(DECISIONS):
        of, view = healthy(Random(seed))
        components = zip(
            of.spec.components, of.status.component_status, view.components, strict=True
        )
        for i, (component, known, seen) in enumerate(components):
            wanted = known.expected - slack(component.template) - seen.verdict.succeeded
            marked = all(pod.component >= 0 for pod in view.pods)
            if marked and wanted > 0 and seen.verdict.says != "finished":
                lacks = replace(view, pods=tuple(pod for pod in view.pods if pod.component != i))
                found = judge(PhaseContext.of(of, lacks, WrapperRules(), NOW))
                assert found.result in {"reset", "waiting"}, f"seed {seed}: {found.sentence}"
                looks += 1
    assert looks > DECISIONS / 4


def history(seed: int) -> int:
    """Jobs of two wrappers and their pods, seen in any order, with labels that change."""
    draw = Random(seed)
    made = Cached()
    jobs = {f"j{i}": draw.choice("ab") for i in range(3)}
    owners: dict[str, str] = {}  # of pods: job, or a child that no cache has
    labels: dict[str, str] = {}
    shown, ever = set[str](), set[str]()
    steps = 40
    for _ in range(steps):
        what = draw.random()
        if what < 0.25:
            job = draw.choice(sorted(jobs))
            if job in shown and draw.random() < 0.4:
                made.jobs._remove(f"uid-{job}", None)
                shown.discard(job)
            else:
                made.shows(made.jobs, a_job(job, jobs[job]))
                shown.add(job)
                ever.add(job)
        else:
            pod = f"p{draw.randint(0, 5)}"
            if pod in labels and what > 0.9:
                made.pods._remove(f"uid-{pod}", None)
                del labels[pod], owners[pod]
            else:
                owners.setdefault(pod, draw.choice([*sorted(jobs), "child"]))
                labels[pod] = draw.choice("ab")
                owner = {**A_JOB, "uid": f"uid-{owners[pod]}"}
                made.shows(made.pods, raw(pod, labels[pod], owner))
        wanted = {
            f"uid-{pod}": jobs[owners[pod]] if owners[pod] in ever else label
            for pod, label in labels.items()
        }
        assert made.places() == wanted, f"seed {seed}"
    return steps


@pytest.mark.timeout(900)
def test_a_pod_is_its_owners_in_whatever_order_things_are_seen() -> None:
    steps = 0
    for seed in count():
        steps += history(seed)
        if steps >= DECISIONS:
            break
