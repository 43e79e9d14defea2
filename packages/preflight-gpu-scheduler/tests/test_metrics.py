"""What the controller counts."""

from __future__ import annotations

from preflight_gpu_scheduler.metrics import GpuControllerMetrics
from prometheus_client import CollectorRegistry


def test_of_a_node_that_has_gone_no_gpus_are_told_and_every_phase_of_claims_is() -> None:
    registry = CollectorRegistry()
    meters = GpuControllerMetrics(registry)
    meters.counted({"Bound": 2}, {"a": {"free": 3, "leased": 1}, "b": {"free": 8}})
    meters.counted({"Pending": 1}, {"a": {"free": 4, "leased": 0}})

    def of(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"gpu_scheduler_{name}", labels)

    assert of("devices", node="a", state="free") == 4
    assert of("devices", node="b", state="free") is None
    assert [of("claims", phase=one) for one in ("Pending", "Reserved", "Bound", "Failed")] == [
        1,
        0,
        0,
        0,
    ]
