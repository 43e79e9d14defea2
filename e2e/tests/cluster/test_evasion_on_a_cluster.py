"""Ways round a check (docs/ways-round-a-check.md) through the real API server: each pod is checked,
denied, or counted with a reason.

No GPU is needed: what a pod asks for is all that is judged, and no scheduler looks at those that
are kept. Needs KUBECONFIG, Kubernetes 1.34 and the images of the webhook and the gang controller.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.impersonation import error_of
from preflight_e2e.installed_release import Installed, until
from preflight_testing.helm import Object

pytestmark = pytest.mark.timeout(400)

CHECK = "preflight-dcgm-diag"
GPU, OTHER, NAMED = (
    "gpu.evasion.example.com",
    "other.evasion.example.com",
    "named.evasion.example.com",
)
"""Device classes: of GPUs, of anything else, and of GPUs with an extended resource that the
injector does not know.
"""
UNKNOWN = "evasion.example.com/unknown"


@pytest.fixture
def classes() -> Iterator[None]:
    api: Any = client.ResourceV1Api()
    for name, spec in ((GPU, {}), (OTHER, {}), (NAMED, {"extendedResourceName": UNKNOWN})):
        with suppress(client.ApiException):  # left by a run that was killed
            api.delete_device_class(name)
        api.create_device_class({"metadata": {"name": name}, "spec": spec})
    yield
    for name in (GPU, OTHER, NAMED):
        api.delete_device_class(name)


def installed(made: Installed) -> str:
    """Injector and gang controller that know the device classes;
    the name of an opted-in namespace.
    """
    repository, _, tag = os.environ.get("PREFLIGHT_GANG_IMAGE", "preflight-gang:dev").rpartition(
        ":"
    )
    audit = {"auditInterval": "10s", "gpuDeviceClasses": [GPU, NAMED]}
    gang = made.gang_values(
        replicas=1, image={"repository": repository, "tag": tag}, crd={"keep": False}, **audit
    )
    detection = {"resourceNames": ["nvidia.com/gpu"], "deviceClasses": [GPU]}
    values = made.with_values(replicas=1, gpuDetection=detection, providerInit=["driver-*"])
    made.release.install({**values, **gang})
    until(made.published, "the CA bundle")
    return made.opted_in()


def pod(
    name: str, limits: Object | None = None, claims: list[Object] | None = None, **spec: Any
) -> Object:
    resources: Object = {
        "limits": limits or {},
        "claims": [{"name": one["name"]} for one in claims or []],
    }
    container = {"name": "train", "image": "x", "resources": resources}
    body = {
        "schedulerName": "nobody",
        "containers": [container],
        "resourceClaims": claims or [],
        **spec,
    }
    return {"metadata": {"name": name}, "spec": body}


def request(kind: str) -> Object:
    return {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": kind}}]}}


class Claims:
    """Claims and templates of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._api: Any = client.ResourceV1Api()

    def template(self, name: str, spec: Object) -> Object:
        body = {"metadata": {"name": name}, "spec": {"spec": spec}}
        self._api.create_namespaced_resource_claim_template(self._namespace, body)
        return {"name": name, "resourceClaimTemplateName": name}

    def claim(self, name: str, kind: str) -> Object:
        self._api.create_namespaced_resource_claim(
            self._namespace, {"metadata": {"name": name}, "spec": request(kind)}
        )
        return {"name": name, "resourceClaimName": name}

    def swap(self, name: str, kind: str) -> None:
        """Delete a claim and make it anew of another class."""
        self._api.delete_namespaced_resource_claim(name, self._namespace)
        until(lambda: error_of(lambda: self.claim(name, kind)) == "", f"claim {name} is made anew")


def _by_name(name: str) -> Object:
    return {"name": name, "resourceClaimName": name}


def judged(made: Installed, namespace: str, body: Object) -> str:
    """`checked`, `not checked`, or why it is denied, of a dry run."""
    try:
        found = made.api.create_namespaced_pod(namespace, body, dry_run="All")
    except client.ApiException as error:
        return str(json.loads(error.body or "{}").get("message"))
    names = [one.name for one in found.spec.init_containers or []]
    return "checked" if CHECK in names else "not checked"


def unchecked(made: Installed, namespace: str) -> dict[str, float]:
    """By reason, how many pods of the namespace the audit has counted."""
    found = re.findall(
        r'^preflight_unchecked_pods\{namespace="(.*)",reason="(.*)"\} (\S+)$',
        made.metrics(),
        re.MULTILINE,
    )
    return {reason: float(count) for where, reason, count in found if where == namespace}


def test_each_way_round_a_check_ends_checked_or_denied_and_only_slices_alone_are_left(
    fresh: Installed, classes: None
) -> None:
    namespace = installed(fresh)
    claims = Claims(namespace)
    template = claims.template("made-of", request(GPU))
    free = claims.claim("free", GPU)
    kinds = [{"name": kind.partition(".")[0], "deviceClassName": kind} for kind in (GPU, OTHER)]
    either = claims.template(
        "either", {"devices": {"requests": [{"name": "any", "firstAvailable": kinds}]}}
    )
    whole = {"nvidia.com/gpu": "8"}
    sidecar = {
        "name": "driver-of-mine",
        "image": "x",
        "restartPolicy": "Always",
        "resources": {"limits": whole},
    }
    own = {"name": "preflight-download", "image": "x"}
    pods = {
        "whole GPUs beside a slice": pod("p", {**whole, "nvidia.com/mig-1g.10gb": "1"}),
        "whole GPUs beside a shared one": pod("p", {**whole, "nvidia.com/gpu.shared": "1"}),
        "a template's claim beside one by name": pod("p", claims=[template, free]),
        "a claim by name": pod("p", claims=[free]),
        "alternatives of which one is a GPU": pod("p", claims=[either]),
        "an implicit extended resource": pod(
            "p", {f"deviceclass.resource.kubernetes.io/{GPU}": "8"}
        ),
        "slices alone": pod("p", {"nvidia.com/mig-1g.10gb": "1"}),
        "a claim that is not there": pod("p", claims=[_by_name("none")]),
        "a sidecar with GPUs under a provider's name": pod("p", initContainers=[sidecar]),
        "a container under our names": pod("p", whole, initContainers=[own]),
    }
    ends = {how: judged(fresh, namespace, body) for how, body in pods.items()}
    denied = {
        "a claim that is not there": "create the claim first",
        "a sidecar with GPUs under a provider's name": '"driver-of-mine" gets GPUs and starts before',
        "a container under our names": 'the name "preflight-download" is reserved',
    }
    for how, why in denied.items():
        assert why in ends.pop(how), how
    assert ends.pop("slices alone") == "not checked"
    assert set(ends.values()) == {"checked"}, ends


def test_a_pod_that_asks_for_gpus_in_a_way_that_the_injector_does_not_know_is_counted(
    fresh: Installed, classes: None
) -> None:
    namespace = installed(fresh)
    body = pod("unknown", {UNKNOWN: "1"})
    assert judged(fresh, namespace, body) == "not checked"
    fresh.api.create_namespaced_pod(namespace, body)
    until(lambda: unchecked(fresh, namespace) == {"not-started": 1}, "the pod is counted")


@pytest.mark.parametrize(
    "gates", [[{"name": "example.com/later"}], []], ids=["under a scheduling gate", "at once"]
)
def test_a_claim_that_is_swapped_after_admission_is_counted(
    fresh: Installed, classes: None, gates: list[Object]
) -> None:
    namespace = installed(fresh)
    claims = Claims(namespace)
    create = fresh.api.create_namespaced_pod
    for name, kind in (("harmless", OTHER), ("tested", GPU), ("kept", GPU)):
        claims.claim(name, kind)
        create(namespace, pod(f"with-{name}", claims=[_by_name(name)], schedulingGates=gates))
        if name != "kept":
            claims.swap(name, GPU)  # within a second of the pod's admission
    found = {one.metadata.name: one for one in fresh.api.list_namespaced_pod(namespace).items}
    checked = {name: bool(one.spec.init_containers) for name, one in found.items()}
    assert checked == {"with-harmless": False, "with-tested": True, "with-kept": True}
    until(
        lambda: unchecked(fresh, namespace) == {"claim-differs": 2},
        "both are counted, and the third is not",
    )
