"""Whatever is in a manifest, `explain -f` ends with a status and sentences."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from preflight_gpu_scheduler.cli import main
from preflight_testing.documents import ended, mutants

MANIFEST = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata: {name: two, namespace: team, uid: u1}
spec:
  devices: {count: 2, policy: contiguous}
  topology: {mode: Required, minBandwidthGBps: 25}
  selector: {matchLabels: {a: b}}
---
apiVersion: v1
kind: Pod
metadata:
  name: trainer
  namespace: team
  annotations: {gpu.scheduling/claim: two}
spec:
  tolerations: [{key: x, operator: Exists}]
  containers:
    - {name: main, image: x, resources: {limits: {cpu: "1"}}}
---
apiVersion: v1
kind: Node
metadata: {name: a, labels: {a: b}, uid: n1}
spec: {taints: [{key: x, effect: NoSchedule}]}
status: {conditions: [{type: Ready, status: "True"}], allocatable: {cpu: "8"}}
---
apiVersion: gpu.scheduling/v1
kind: GpuNodeStatus
metadata: {name: a}
spec: {nodeName: a}
status:
  observedTime: "2026-11-23T01:20:00Z"
  devices:
  - {id: 0, uuid: GPU-0, health: Healthy, island: "i0", bandwidthGBps: 25}
  - {id: 1, uuid: GPU-1, health: Healthy, island: "i0"}
"""


@pytest.mark.parametrize("form", ["text", "json"])
@example(MANIFEST.replace("name: trainer", r'name: "trainer\u202e"'))
@example(MANIFEST.replace("claim: two", r'claim: "two\u202e"'))
@settings(max_examples=100)
@given(manifest=mutants(MANIFEST))
def test_a_manifest_that_is_almost_right_is_explained_or_refused_in_sentences(
    form: str, manifest: str
) -> None:
    found = ended(main, "explain", "-f", "-", "-o", form, stdin=manifest)
    assert found.status in {0, 2}
    assert found.status == 0 or found.err or found.out
    assert found.harmless
