"""Nodes of plain data: what their pairs and their whole would measure, for the functions that
decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from check_nccl_loopback.judge import Progress, Step, StepResult, decide
from check_nccl_loopback.measurement import Measurement
from preflight_proto.check import Gpu, Verdict
from preflight_proto.check.nccl import classify

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"


def gpus(count: int, model: str = H100) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, f"GPU-{i}", model, f"0000:{i:02x}:00.0") for i in range(count))


@dataclass(frozen=True)
class Node:
    """Healthy at ``rings`` and ``nvls`` GB/s unless told otherwise; ``ports`` and ``links`` are
    least speeds of GPUs and of pairs.
    """

    rings: float = 370.0
    nvls: float = 466.0
    ports: dict[int, float] = field(default_factory=dict)
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    wrong: frozenset[int] = frozenset()
    dying: frozenset[int] = frozenset()
    topology_factor: float = 1.0
    costs: dict[str, float] = field(default_factory=dict)
    hanging: frozenset[tuple[int, int]] = frozenset()
    crowd: dict[int, float] = field(default_factory=dict)
    noise: Callable[[], float] = lambda: 1.0

    def run(self, step: Step, topology_file: str = "") -> Measurement:
        """What `all_reduce_perf` would show."""
        if any(set(pair) <= set(step.gpus) for pair in self.hanging):
            return Measurement(step.size, timed_out=True, last_words="NCCL version 2.28.7+cuda13.0")
        if self.dying & set(step.gpus):
            line = "node: Test NCCL failure common.cu:1204 'internal error - please report this issue to the NCCL developers / '"
            return Measurement(step.size, error=classify(line), status=3)
        in_switch = len(step.gpus) > 2 and self.nvls and step.set_.get("NCCL_NVLS_ENABLE") != "0"
        parts = [
            self.nvls if in_switch else self.rings,
            *(self.ports[g] for g in step.gpus if g in self.ports),
        ]
        ring = {frozenset((step.gpus[i], step.gpus[i - 1])) for i in range(len(step.gpus))}
        parts += [speed for pair, speed in self.links.items() if frozenset(pair) in ring]
        if len(step.gpus) > 2:
            parts += [self.crowd[g] for g in step.gpus if g in self.crowd]
        cost = min((self.costs[name] for name in step.variables if name in self.costs), default=1.0)
        factor = (
            cost * self.topology_factor
            if topology_file and "NCCL_TOPO_FILE" not in step.unset
            else cost
        )
        return Measurement(
            step.size, min(parts) * factor * self.noise(), float(len(self.wrong & set(step.gpus)))
        )


def conclude(node: Node, case: Progress, most: int = 60) -> tuple[Verdict, Progress]:
    """Take the steps that are asked for until there is a verdict."""
    for _ in range(most):
        step = decide(case)
        if isinstance(step, Verdict):
            return step, case
        case = replace(
            case, results=(*case.results, StepResult(step, node.run(step, case.topology_file)))
        )
    raise AssertionError(f"no verdict after {most} steps")
