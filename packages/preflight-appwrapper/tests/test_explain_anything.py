"""Whatever is in a manifest, `explain -f` ends with a status and sentences."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_appwrapper.cli import main
from preflight_testing.documents import ended, mutants

MANIFEST = """
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata:
  name: train
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: team-a}
  annotations: {workload.codeflare.dev.appwrapper/retryLimit: "2", workload.codeflare.dev.appwrapper/terminalExitCodes: "3,4"}
spec:
  suspend: true
  managedBy: x
  components:
    - template:
        apiVersion: batch/v1
        kind: Job
        metadata: {name: train}
        spec:
          parallelism: 2
          completions: 2
          template:
            metadata: {labels: {a: b}}
            spec:
              restartPolicy: Never
              containers: [{name: main, image: x, resources: {requests: {cpu: "1", nvidia.com/gpu: 8}}}]
    - declaredPodSets: []
      template: {apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: 80}]}}
    - podSets: [{path: template.spec.template, replicas: 2, annotations: {a: b}}]
      annotations: {x: y}
      podSetInfos: [{labels: {a: b}, nodeSelector: {c: d}, tolerations: [{key: a}]}]
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: d}
        spec: {replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}
    - template:
        apiVersion: kubeflow.org/v1
        kind: PyTorchJob
        metadata: {name: p}
        spec: {pytorchReplicaSpecs: {Master: {replicas: 1, template: {spec: {containers: [{name: pytorch, image: i}]}}}, Worker: {replicas: 3, template: {spec: {containers: [{name: pytorch, image: i}]}}}}}
"""


@settings(max_examples=100)
@given(form=st.sampled_from(["text", "json"]), manifest=mutants(MANIFEST))
def test_a_manifest_that_is_almost_right_is_explained_or_refused_in_sentences(
    form: str, manifest: str
) -> None:
    found = ended(main, "explain", "-f", "-", "-o", form, stdin=manifest)
    assert found.status in {0, 2}
    assert found.status == 0 or found.err or found.out
    assert found.harmless
