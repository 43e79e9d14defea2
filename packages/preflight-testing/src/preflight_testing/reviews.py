"""The reviews that the webhook is measured with, as the API server sends them, and everything
switched on that it can do.
"""

from __future__ import annotations

from typing import Any

NUMBER = "#" * 8
"""Stands in the review for digits that the load generator makes different in every request, or
leaves at zero.
"""
CLASS = "rdma.example.com"
"""The device class that claims of the pods ask for."""
EVERYTHING = f"""
checks:
- {{name: dcgm-diag, image: 'registry.example.com/preflight-dcgm-diag:0.1.0'}}
- {{name: nccl-loopback, image: 'registry.example.com/preflight-nccl-loopback:0.1.0', resources: {{limits: {{memory: 64Gi}}}}}}
- {{name: nccl-allreduce, image: 'registry.example.com/preflight-nccl-allreduce:0.1.0', timeout: 900s}}
checkImagePullSecrets: [registry]
podSelection: {{enabled: true}}
gpuDetection: {{deviceClasses: [gpu.nvidia.com]}}
networkDetection: {{deviceClasses: [{CLASS}]}}
gangDiscovery: {{optIn: [kubeflow, lws, jobset, grove, kueueWorkload, job]}}
ncclTopology: {{instanceTypeMapping: {{p5.48xlarge: p5.xml, p4d.24xlarge: p4d.xml}}}}
platformConnector: {{auth: {{enabled: true}}}}
providerInit: ['tcpx-daemon*']
onPodSecurityConflict: report-off
"""
"""A configuration with every feature in use."""


def realistic_review(claim: str = "fabric", *, bulk: int = 0) -> dict[str, Any]:
    """A gang's member as the API server sends it: environment, volumes, tolerations, managedFields.

    :data:`NUMBER` stands in its name, its gang, and its memory. ``claim``: the
    ResourceClaimTemplate of its network devices. ``bulk``: bytes that its environment is larger by,
    as pods have that carry their configuration in it.
    """
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    groups = ["system:serviceaccounts", "system:authenticated"]
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            **{
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
            },
            **{"name": f"train-{NUMBER}", "namespace": "ml", "operation": "CREATE"},
            "userInfo": {
                "username": "system:serviceaccount:kube-system:job-controller",
                "uid": "a",
                "groups": groups,
            },
            **{"object": _pod(claim, bulk), "oldObject": None, "dryRun": False, "options": {}},
        },
    }


def _pod(claim: str, bulk: int) -> dict[str, Any]:
    env: list[Any] = [{"name": f"NCCL_SETTING_{i}", "value": f"value-{i}"} for i in range(20)]
    env += [
        {
            "name": "MY_POD_IP",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
        }
    ]
    env += [{"name": f"APPLICATION_{i}", "value": "x" * 960} for i in range(bulk // 1000)]
    mounts: list[Any] = [
        {"name": n, "mountPath": f"/mnt/{n}"} for n in ("data", "checkpoints", "scratch", "shm")
    ]
    mounts.append(
        {
            "name": "kube-api-access-x7k2p",
            "readOnly": True,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        }
    )
    defaults = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    amounts = {
        "cpu": "96",
        "memory": f"1932{NUMBER}1",
        "nvidia.com/gpu": "8",
        "nvidia.com/mlnxnics": "8",
    }
    fields: dict[str, Any] = {
        f"f:{name}": {".": {}, "f:name": {}, "f:value": {}}
        for name in ("metadata", "labels", "spec", "containers", "env", "resources", "volumes")
    }
    main: dict[str, Any] = {
        "name": "trainer",
        "image": "training/llm:2026.11",
        "command": ["torchrun"],
        "args": [f"--option-{i}=value" for i in range(20)],
    }
    side: dict[str, Any] = {
        "name": "log-shipper",
        "image": "logs:3",
        "resources": {
            "limits": {"cpu": "1", "memory": "1Gi"},
            "requests": {"cpu": "1", "memory": "1Gi"},
        },
    }
    volumes: list[dict[str, Any]] = [
        {"name": n, "persistentVolumeClaim": {"claimName": f"claim-{n}"}}
        for n in ("data", "checkpoints")
    ]
    volumes += [
        {"name": "scratch", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}},
    ]
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    volumes.append(
        {"name": "kube-api-access-x7k2p", "projected": {"sources": [token], "defaultMode": 420}}
    )
    labels = {f"example.com/label-{i}": f"value-{i}" for i in range(10)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"train-{NUMBER}",
            "generateName": "train-",
            "namespace": "ml",
            "labels": {"app": "train", **labels},
            "annotations": {f"example.com/note-{i}": "x" * 60 for i in range(8)},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "train",
                    "uid": "0b0c5e4e-6d9c-4f41-9df5-6a7f8f2a0d11",
                    "controller": True,
                }
            ],
            "managedFields": [
                {
                    "manager": f"manager-{i}",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                }
                for i in range(4)
            ],
        },
        "spec": {
            "volumes": volumes,
            "containers": [
                {
                    **main,
                    "env": env,
                    "resources": {
                        "limits": amounts,
                        "requests": amounts,
                        "claims": [{"name": "fabric"}],
                    },
                    "volumeMounts": mounts,
                    **defaults,
                },
                {**side, "volumeMounts": mounts, **defaults},
            ],
            "restartPolicy": "Never",
            "tolerations": [
                {"key": f"key-{i}", "operator": "Exists", "effect": "NoSchedule"} for i in range(6)
            ],
            "schedulerName": "default-scheduler",
            "resourceClaims": [{"name": "fabric", "resourceClaimTemplateName": claim}],
            "schedulingGroup": {"podGroupName": f"train-{NUMBER}"},
            "serviceAccountName": "default",
            "securityContext": {},
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        },
        "status": {},
    }
