"""What a bind asks of the API server."""

from __future__ import annotations

import pytest
from preflight_gpu_scheduler.core.bind import BindJob, bind
from preflight_gpu_scheduler.core.gpu_selection import Chosen
from preflight_gpu_scheduler.core.ledger import Holder
from preflight_gpu_scheduler.core.protocol import (
    BindPod,
    Conflict,
    CreateLease,
    DeleteLease,
    Exists,
    Stored,
)
from shapes import lease, pod


@pytest.mark.parametrize("count", [1, 8])
def test_a_bind_is_one_lease_for_each_gpu_side_by_side_and_the_binding_and_reads_nothing(
    count: int,
) -> None:
    chosen = Chosen(ids=tuple(range(count)))
    job = BindJob(pod=pod(), node="n", own={}, uuids={})
    steps = bind(job, lambda _, __: chosen, lambda _: Holder(None))
    locks = next(steps)
    assert [type(request) for request in locks] == [CreateLease] * count
    (binding,) = steps.send(tuple(Stored(lease("n", gpu)) for gpu in range(count)))
    assert isinstance(binding, BindPod)
    with pytest.raises(StopIteration) as ended:
        steps.send((Stored(),))
    assert ended.value.value.ids == chosen.ids


def test_a_pod_that_somebody_else_bound_there_meanwhile_keeps_no_lease_of_the_attempt() -> None:
    job, made = BindJob(pod=pod(), node="n", own={}, uuids={}), lease("n", 0)
    steps = bind(job, lambda _, __: Chosen(ids=(0,)), lambda _: Holder(None))
    next(steps)
    steps.send((Stored(made),))
    steps.send((Conflict(),))
    assert steps.send((Stored(pod(node_name="n")),)) == (DeleteLease(lease=made),)


def test_a_pod_that_cannot_have_all_of_its_gpus_gives_back_those_that_it_has_locked() -> None:
    """Another one has locked the second meanwhile, and no third is left."""
    choices = {
        frozenset[int](): Chosen(ids=(0, 1)),
        frozenset({1}): Chosen(why="too few free GPUs"),
    }
    job, first = BindJob(pod=pod(), node="n", own={}, uuids={}), lease("n", 0)
    steps = bind(job, lambda busy, _: choices[busy], lambda _: Holder(pod("q")))
    assert len(next(steps)) == 2
    steps.send((Stored(first), Exists()))
    assert steps.send((Stored(lease("n", 1, "uid-q", name="q")),)) == (DeleteLease(lease=first),)
    with pytest.raises(StopIteration) as ended:
        steps.send((Stored(),))
    assert (ended.value.value.error, ended.value.value.sent) == ("too few free GPUs", False)
