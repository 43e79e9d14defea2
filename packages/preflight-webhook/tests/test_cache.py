"""What is kept is bounded by bytes, whatever is put in."""

from __future__ import annotations

import gc
import json
import pkgutil
import tracemalloc
from importlib import import_module
from typing import Any, Final
from unittest.mock import Mock

import preflight_kube.admission
import preflight_webhook
import pytest
from preflight_kube.api.workloads.labels import COSCHEDULING_GROUP, TRAINING
from preflight_proto.devices import DeviceRequest
from preflight_proto.names import CHECKS_ANNOTATION
from preflight_webhook.config.config import parse
from preflight_webhook.core import admit
from preflight_webhook.core.admit import decide
from preflight_webhook.core.cache import SizedCache
from preflight_webhook.core.detect.devices import DeviceClaim, Ref

PROFILE: Final = "container.apparmor.security.beta.kubernetes.io/preflight-dcgm-diag"


def test_what_was_put_in_is_found_and_the_oldest_goes_when_there_is_no_room() -> None:
    kept: SizedCache[int, str] = SizedCache(100)
    for number in range(6):
        assert kept.put(number, str(number), 20) == str(number)
    assert [kept.get(number) for number in range(6)] == [None, "1", "2", "3", "4", "5"]


def test_what_would_take_the_place_of_all_others_is_not_kept() -> None:
    kept: SizedCache[str, str] = SizedCache(100)
    kept.put("small", "a", 25)
    assert kept.put("large", "b", 26) == "b"
    assert (kept.get("small"), kept.get("large")) == ("a", None)


def test_pods_that_differ_in_memory_and_gang_are_planned_once_and_each_gets_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = parse(
        "checks: [{name: nccl-loopback, image: 'nccl:1'}, {name: nccl-allreduce, image: a}]"
    )
    plan = Mock(wraps=admit._plan)
    monkeypatch.setattr(admit, "_plan", plan)
    for memory, gang in (("1Gi", "a"), ("2Gi", "a"), ("2Gi", "b")):
        limits = {"nvidia.com/gpu": "1", "nvidia.com/mlnxnics": "1", "memory": memory}
        spec = {
            "containers": [{"name": "c", "resources": {"limits": limits}}],
            "schedulingGroup": {"podGroupName": gang},
        }
        decision = decide(json.dumps({"spec": spec}).encode(), "ml", config)
        values = {operation["path"]: operation["value"] for operation in decision.patch}
        given = [each["resources"]["limits"]["memory"] for each in values["/spec/initContainers"]]
        assert given == [f"{int(memory[0]) * 1024**3}"] * 2
        assert f"preflight-{gang}" in json.dumps(values["/spec/volumes"])
        assert decision.stamp is not None
        assert decision.stamp.id == gang
    assert plan.call_count == 1


CONFIG: Final = parse("""
checks:
- {name: dcgm-diag, image: d}
- {name: nccl-loopback, image: l, supports: [mig], placement: last}
- {name: nccl-allreduce, image: a}
dcgm: {hostengineAddr: ['engine.gpu.svc:5555', '$(NODE_IP):5555']}
gpuDetection: {deviceClasses: [gpu.example.com], resourceNames: [nvidia.com/gpu, gpu.scheduling/gpu]}
deviceVariables: {enabled: true}
onPodSecurityConflict: report-off
podSelection: {enabled: true}
providerInit: ['tcpx*']
checkImagePullSecrets: [registry]
""")
AMOUNTS: Final = {
    side: {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "8", "nvidia.com/mlnxnics": "8"}
    for side in ("limits", "requests")
}
CONTAINER: Final = {
    "name": "c",
    "resources": AMOUNTS,
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
}
POD: Final[dict[str, Any]] = {
    "metadata": {"labels": {COSCHEDULING_GROUP: "g"}, "annotations": {"note": "x"}},
    "spec": {
        "containers": [CONTAINER, {"name": "side"}],
        "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1"}}}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": "gpus"}],
    },
}
CLAIM: Final = DeviceClaim((DeviceRequest(("gpu.example.com",), 1, admin=False),), "u")
METADATA: Final = [
    ("labels", {COSCHEDULING_GROUP: "other"}),
    ("labels", {"app": "no gang"}),
    ("labels", {COSCHEDULING_GROUP: "g", TRAINING + "job-role": "launcher"}),
    ("labels", None),
    ("annotations", None),
    ("annotations", {CHECKS_ANNOTATION: "dcgm-diag"}),
    ("annotations", {PROFILE: "localhost/x"}),
]
SPEC: Final = [
    ("containers", [CONTAINER]),
    ("containers", [{"resources": AMOUNTS}, {}]),
    *[
        ("containers", [{**CONTAINER, key: value}, {"name": "side"}])
        for key, value in (
            ("resources", {**AMOUNTS, "requests": {**AMOUNTS["requests"], "cpu": "7"}}),
            ("resources", {"limits": {**AMOUNTS["limits"], "memory": "9Gi"}}),
            ("resources", {"limits": {**AMOUNTS["limits"], "nvidia.com/gpu": "4"}}),
            ("resources", {"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
            ("env", [{"name": "NCCL_DEBUG", "value": "WARN"}]),
            ("envFrom", [{"configMapRef": {"name": "c"}}]),
            ("volumeMounts", []),
            ("securityContext", {"privileged": True}),
        )
    ],
    ("initContainers", None),
    ("initContainers", [{"name": "tcpx", "resources": {"limits": {"cpu": "1"}}}]),
    ("initContainers", [{"name": "tcpx", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]),
    ("initContainers", [{"restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]),
    ("volumes", None),
    ("volumes", [{"name": "shm", "emptyDir": {}}]),
    ("resourceClaims", [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]),
    ("resourceClaims", [{"name": "gpus", "resourceClaimName": "absent"}]),
    ("resourceClaims", None),
    ("resources", {"limits": {"cpu": "4"}}),
    ("imagePullSecrets", [{"name": "registry"}]),
    ("os", {"name": "windows"}),
    ("hostAliases", [{"ip": "1.1.1.1", "hostnames": ["engine.gpu.svc"]}]),
    ("securityContext", {"appArmorProfile": {"type": "Localhost"}}),
    ("schedulingGroup", {"podGroupName": "other"}),
]


@pytest.mark.parametrize(
    ("part", "key", "value", "claim", "confined"),
    [
        *[("metadata", *each, CLAIM, False) for each in METADATA],
        *[("spec", *each, CLAIM, False) for each in SPEC],
        *[
            ("spec", "subdomain", None, claim, False)
            for claim in (None, CLAIM._replace(uid="v"), CLAIM._replace(used_by="other"))
        ],
        ("spec", "subdomain", None, CLAIM, True),
    ],
)
def test_no_pod_gets_what_was_worked_out_for_one_that_differs_in_anything(
    part: str,
    key: str,
    value: object,
    claim: DeviceClaim | None,
    confined: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = {Ref("resourceclaims", "gpus"): claim, Ref("resourceclaimtemplates", "gpus"): claim}
    first = decide(json.dumps(POD).encode(), "ml", CONFIG, dict.fromkeys(claims, CLAIM))
    assert first.result == "injected"
    raw = json.dumps({**POD, part: {**POD[part], key: value}}).encode()
    behind = decide(raw, "ml", CONFIG, claims, confined=confined)
    for cache in ("_decisions", "_plans"):
        monkeypatch.setattr(admit, cache, SizedCache(1 << 20))
    assert behind == decide(raw, "ml", CONFIG, claims, confined=confined)
    assert behind != first


@pytest.mark.component  # what is allocated is traced, which is slow
@pytest.mark.parametrize(
    "claims", [0, 120], ids=["in a thousand containers", "in the claims of twelve"]
)
@pytest.mark.parametrize(
    "gpu", [False, True], ids=["without checks", "whose settings are inherited"]
)
def test_decisions_about_pods_of_many_small_parts_are_weighed_as_what_they_take(
    *, gpu: bool, claims: int
) -> None:
    """Three bytes of text become several objects."""
    config = parse("checks: [{name: nccl-loopback, image: 'nccl:1'}]")
    resources = {"claims": [{"name": f"{number}x"} for number in range(claims)]}
    containers = [{"resources": resources}] * 12 if claims else [{}] * 1023
    tracemalloc.start()
    for number in range(40):
        first: dict[str, Any] = {"env": [{"name": "NCCL_ALGO", "value": f"x{number}"}]}
        if gpu:
            first["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        pod = {"spec": {"containers": [first, *containers]}}
        assert decide(json.dumps(pod).encode(), "ml", config).denied is False
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4 << 20


def test_nothing_that_remembers_does_so_without_a_limit() -> None:
    remembering = {}
    for package in (preflight_webhook, preflight_kube.admission):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            for name, value in vars(import_module(found.name)).items():
                if hasattr(value, "cache_parameters"):
                    remembering[f"{found.name}.{name}"] = value.cache_parameters()["maxsize"]
    assert len(remembering) > 10
    assert [name for name, most in remembering.items() if most is None or most > 1024] == []
