"""Whatever is in a manifest, `explain -f` ends with a status and sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from preflight_testing.documents import ended, mutants
from preflight_webhook.cli import main

MANIFEST = """
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {preflight.nvidia.com/enabled: "true"}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: team, annotations: {a: b}}
spec:
  completionMode: Indexed
  parallelism: 2
  completions: 2
  template:
    metadata: {labels: {a: b}, annotations: {}}
    spec:
      restartPolicy: Never
      schedulerName: volcano
      nodeSelector: {a: b}
      tolerations: [{key: a, operator: Exists}]
      volumes: [{name: v, hostPath: {path: /dev}}, {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}]
      resourceClaims: [{name: g, resourceClaimTemplateName: t}]
      initContainers: [{name: i, image: x, restartPolicy: Always}]
      containers:
      - {name: main, image: x, env: [{name: NCCL_DEBUG, value: INFO}], envFrom: [{configMapRef: {name: c}}], volumeMounts: [{name: v, mountPath: /dev/x}], securityContext: {privileged: true}, resources: {claims: [{name: g}], limits: {cpu: "1", nvidia.com/gpu: 8, rdma/ib: 1}, requests: {memory: 1Gi}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, namespace: team}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com, count: 8}}]}}}
---
apiVersion: preflight.nvidia.com/v1alpha1
kind: PreflightConfig
metadata: {name: p, namespace: team}
spec: {}
"""


@pytest.mark.parametrize("form", ["text", "json"])
@given(manifest=mutants(MANIFEST))
def test_a_manifest_that_is_almost_right_is_explained_or_refused_in_sentences(
    form: str, manifest: str
) -> None:
    found = ended(main, "explain", "-f", "-", "-o", form, stdin=manifest)
    assert found.status in {0, 2}
    assert found.status == 0 or found.err or found.out
    assert found.harmless
