"""Values that an operator may write: those that work make valid objects, and those that cannot work
are refused with a sentence.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from helm_python import Chart, show
from preflight_e2e import kubernetes_schemas
from preflight_e2e.umbrella import (
    ADR,
    SOURCE,
    channels,
    configs,
    gang,
    injector,
    mnnvl,
    of,
    scheduler,
    shared,
    templates,
    wrapper,
)
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import (
    GANG,
    GPU_SCHEDULER,
    INJECTOR,
    REQUIRED,
    UMBRELLA,
    ChartError,
    Object,
    Values,
    only,
    render,
)

KUBERNETES = ("1.30", "1.34", "1.35", "1.36")
"""Held against the OpenAPI that each has published: every field, its type, and none beyond. For
1.34, 1.35 and the newest a real API server says more, below; for 1.30 the CEL of the policies is
looked at besides."""
CHARTS = (INJECTOR, GANG, GPU_SCHEDULER)
PARTS = pytest.mark.parametrize("part", CHARTS, ids=lambda chart: chart.name)
ALL = pytest.mark.parametrize("chart", [UMBRELLA, *CHARTS], ids=lambda chart: chart.name)

DCGM = {"name": "dcgm-diag", "image": "registry.example/dcgm:1"}
LOOPBACK = {"name": "nccl-loopback", "image": "registry.example/loopback:1"}
ALLREDUCE = {"name": "nccl-allreduce", "image": "registry.example/allreduce:1"}
OURS = {"name": "ours", "image": "registry.example/ours:1"}
FABRIC = {**OURS, "gang": True}


def with_override(**container: Any) -> Values:
    return injector(checks=[{**OURS, "container": container}])


# --- what works

GOOD: dict[str, Values] = {
    "nothing": {},
    "injector": injector(),
    "gang": gang(),
    "both": {**injector(), **gang()},
    "adr-026": ADR,
    "adr-026 and a controller": {**ADR, **gang(checks=["dcgm-diag", "nccl-loopback", "bandwidth-check"])},
    "checks once": shared(checks=[DCGM, LOOPBACK, ALLREDUCE]),
    "checks once with one of ours": shared(checks=[DCGM, FABRIC]),
    "a part's own checks": {**shared(checks=[DCGM]), **injector(checks=[DCGM, ALLREDUCE]), **gang(checks=["dcgm-diag", "nccl-allreduce"])},
    "no checks": injector(checks=[]),
    "GPUs that a scheduler chooses": injector(
        gpuDetection={"resourceNames": ["nvidia.com/gpu", "gpu.scheduling/gpu"]}, deviceVariables={"enabled": True}
    ),
    "a controller of another release": injector(checks=[ALLREDUCE], gangController="external"),
    "a gang-wide check that is off": injector(checks=[{**ALLREDUCE, "enabled": False}]),
    "every key of a check": injector(
        checks=[
            {
                **OURS,
                "imagePullPolicy": "Always",
                "required": False,
                "enforcement": "observe",
                "onInconclusive": "allow",
                "timeout": "1m30s",
                "placement": "last",
                "supports": ["mig", "shared"],
                "env": [{"name": "X", "value": "y"}],
                "envPatterns": ["OURS_*"],
                "mountPatterns": ["/data"],
                "resources": {"limits": {"cpu": 4, "memory": "16Gi"}},
                "securityContext": {"runAsUser": 1000680000, "runAsGroup": None},
                "container": {"volumeMounts": [{"name": "preflight-tmp", "mountPath": "/w"}]},
            }
        ]
    ),
    "thresholds": injector(nccl={"loopbackThresholdGBps": 10.5, "allreduceThresholdGBps": 5}),
    "timeouts": injector(checkTimeout="2h", gangTimeout="1.5h"),
    "an engine by name": injector(dcgm={"hostengineAddr": "dcgm-hostengine.nvsentinel.svc:5555", "diagLevel": 4}),
    "engines in their order": injector(dcgm={"hostengineAddr": ["$(NODE_IP):5555", "nvidia-dcgm.gpu-operator.svc:5555"]}),
    "folders of the node": injector(
        checks=[
            {
                **OURS,
                "extraVolumes": [{"name": "efa", "hostPath": {"path": "/opt/amazon"}}],
                "extraVolumeMounts": [{"name": "efa", "mountPath": "/opt/amazon"}],
            }
        ]
    ),
    "no platform connector": injector(platformConnector={"enabled": False}),
    "an engine by IPv6 address": injector(dcgm={"hostengineAddr": "[fd00::1]:5555"}),
    "gangs by label": injector(gangDiscovery={"method": "labels", "labels": {"gangIdLabel": "a/b"}, "optIn": ["job"]}),
    "a source of gangs": shared(gangSources=[SOURCE]),
    "an instance type": {**shared(instanceTypeLabel="example.com/sku"), **injector(ncclTopology={"instanceTypeMapping": {"a": "b.xml"}})},
    "an instance type that two parts name": {
        **injector(ncclTopology={"instanceTypeLabel": "a/b", "instanceTypeMapping": {"a": "b.xml"}}), **gang(instanceTypeLabel="a/b")
    },
    "device classes": {**injector(gpuDetection={"deviceClasses": ["gpu.nvidia.com"]}), **gang(gpuDeviceClasses=["gpu.nvidia.com"])},
    "no PreflightConfigs": injector(preflightConfigs={"enabled": False}),
    "a token": injector(platformConnector={"auth": {"enabled": True, "expirationSeconds": 600}}),
    "namespaces": {**injector(namespaces=["a"], excludeNamespaces=[]), **gang(namespaces=["a"], excludeNamespaces=[])},
    "failurePolicy Ignore": injector(webhook={"failurePolicy": "Ignore", "timeoutSeconds": 30}),
    "clients' certificates": injector(webhook={"clientCAConfigMap": "theirs", "annotations": {"a": "b"}}),
    "certificates of somebody else": injector(certificates={"selfManaged": False, "secretName": "theirs"}),
    "a pod of the certs job": injector(certificates={"podAnnotations": {"sidecar.istio.io/inject": "false"}, "podLabels": {"a": "b"}}),
    "who is exempt": {
        **injector(protection={"exemptUsers": ["a"], "exemptGroups": ["b"], "namespaceSelector": {"matchLabels": {"a": "b"}}}),
        **gang(protection={"exemptUsers": ["a"], "exemptGroups": ["b"], "namespaceSelector": {"matchLabels": {"a": "b"}}}),
    },
    "no network policies": {**injector(networkPolicy={"enabled": False}), **gang(networkPolicy={"enabled": False})},
    "who reads metrics": {**injector(networkPolicy={"metricsFrom": []}), **gang(networkPolicy={"metricsFrom": [{"podSelector": {}}]})},
    "the engine's port": injector(networkPolicy={"hostengine": {"namespace": "n", "podLabels": {"a": "b"}, "from": [{"podSelector": {}}]}}),
    "other names": {
        **injector(fullnameOverride="a", protection={"controller": "system:serviceaccount:preflight:b"}),
        **gang(fullnameOverride="b"),
    },
    "a digest": {**injector(image={"digest": "sha256:" + "0" * 64}), **gang(image={"digest": "sha256:" + "0" * 64})},
    "pull secrets": {**injector(imagePullSecrets=[{"name": "a"}], checkImagePullSecrets=["b"]), **gang(imagePullSecrets=[{"name": "a"}])},
    "one replica": {**injector(replicas=1), **gang(replicas=1)},
    "no replica of the controller": gang(replicas=0),
    "OpenShift's own ids": {
        part: {"enabled": True, "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
        for part in ("preflight-injector", "preflight-gang")
    },
    "no security context, class and resources": {
        part: {"enabled": True, "podSecurityContext": None, "securityContext": None, "priorityClassName": "", "resources": None}
        for part in ("preflight-injector", "preflight-gang")
    },
    "where they run": {
        part: {
            "enabled": True,
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podAnnotations": {"a": "b"},
            "podLabels": {"c": "d"},
            "logLevel": "debug",
        }
        for part in ("preflight-injector", "preflight-gang")
    },
    "no audit": gang(auditInterval=0, writes=1, leaseDuration="1m"),
    "no definition": gang(crd={"install": False}),
    "a definition that goes": gang(crd={"keep": False}),
    "GPU scheduler": scheduler(),
    "GPU scheduler and the others": {**injector(), **gang(), **scheduler()},
    "GPUs that nobody counts": scheduler(countResource=""),
    "GPUs that are counted by another name": scheduler(countResource="example.com/gpu"),
    "GPU scheduler, one replica": scheduler(replicas=1),
    "GPU scheduler, no replica": scheduler(replicas=0),
    "GPU scheduler, certificates of somebody else": scheduler(
        certificates={"selfManaged": False, "secretName": "theirs"}, webhook={"annotations": {"cert-manager.io/inject-ca-from": "a/b"}}
    ),
    "GPU scheduler, a Secret of another name": scheduler(certificates={"secretName": "mine"}),
    "GPU scheduler, other names": scheduler(fullnameOverride="a", schedulerName="b", lockNamespace="locks"),
    "GPU scheduler, a digest": scheduler(image={"digest": "sha256:" + "0" * 64}, imagePullSecrets=[{"name": "a"}]),
    "GPU scheduler, OpenShift's own ids": scheduler(podSecurityContext={"runAsUser": None, "runAsGroup": None, "fsGroup": None}),
    "GPU scheduler, no security context, class and resources": scheduler(
        podSecurityContext=None, securityContext=None, priorityClassName="", resources=None
    ),
    "GPU scheduler, where it runs": scheduler(
        nodeSelector={"a": "b"},
        tolerations=[{"operator": "Exists"}],
        affinity={"nodeAffinity": {}},
        agent={"nodeSelector": {"c": "d"}, "runtimeClassName": "nvidia"},
        logLevel="debug",
    ),
    "GPU scheduler, times": scheduler(staleAfter="1m30s", heartbeat="1500ms", gangBind="59s", gangMaxWait="0s", bindBudget="1.5s", sweep="1h"),
    "GPU scheduler, what it refuses": scheduler(
        missingClaim="deny", missingNodeStatus="assume16", devicePlugin="ignore", guardOthers=True, gpuClasses=[], nodeConditions=[]
    ),
    "GPU scheduler, who is exempt and who reads metrics": scheduler(protection={"exemptUsers": ["a"]}, networkPolicy={"metricsFrom": []}),
    "GPU scheduler, no network policies and no definitions": scheduler(networkPolicy={"enabled": False}, crd={"install": False}),
    "GPU scheduler, definitions that go": scheduler(crd={"keep": False}),
    "AppWrapper": wrapper(),
    "AppWrapper, a labeler": wrapper(labeler={"enabled": True}, nodeHealth={"conditions": ["Gpu*"]}),
    "AppWrapper, times": wrapper(faultTolerance={"retryLimit": 0, "successTTL": "1h", "warmupGracePeriod": "1m30s"}),
    "AppWrapper, no node is watched": wrapper(autopilot={"monitorNodes": False}, wrappedKinds=[]),
    "AppWrapper, certificates of somebody else": wrapper(certificates={"selfManaged": False, "secretName": "theirs"}),
    "AppWrapper, who answers": wrapper(webhook={"failurePolicy": "Ignore", "timeoutSeconds": 30, "excludeNamespaces": ["a"]}, replicas=1),
    "AppWrapper, neither policies of the network nor a definition": wrapper(networkPolicy={"enabled": False}, crd={"install": False}),
    "ComputeDomains": channels(),
    "ComputeDomains, where the driver is": channels(nvidiaDriverRoot="/run/nvidia/driver", cdiRoot="/etc/cdi", altProcDevices="/proc/devices"),
    "ComputeDomains, unprivileged, by a runtime class": channels(kubeletPlugin={"privileged": False, "runtimeClassName": "nvidia"}),
    "ComputeDomains, other folders of the kubelet": channels(
        kubeletPlugin={"kubeletPluginsDirectoryPath": "/data/plugins", "kubeletRegistrarDirectoryPath": "/data/registry"}
    ),
    "ComputeDomains, a digest": channels(image={"digest": "sha256:" + "0" * 64}, fullnameOverride="a"),
    "ComputeDomains, neither policies of the network nor a definition": channels(networkPolicy={"enabled": False}, crd={"enabled": False}),
    "mnnvl": mnnvl(),
    "mnnvl, where there is a fabric": mnnvl(mode="literal", placement="fabric", requireFabricNodes=True, onUnsupported="ignore"),
    "mnnvl, certificates of somebody else": mnnvl(certificates={"selfManaged": False, "secretName": "theirs"}),
    "mnnvl, who answers": mnnvl(webhook={"failurePolicy": "Ignore", "namespaceSelector": {"matchLabels": {"a": "b"}}}, replicas=1),
    "mnnvl, owners that are held to their rights": mnnvl(rbac={"ownerReferencesPermissionEnforcement": True}, writes=1),
    "all together": {**shared(checks=[DCGM, ALLREDUCE]), **scheduler(), **wrapper(), **channels(), **mnnvl(mode="literal")},
    "all together, from a registry of one's own": {
        **injector(), **gang(), **scheduler(), **wrapper(), **channels(), **mnnvl(mode="literal"),
        "global": {"imageRegistry": "registry.example:5000/mirror"},
    },
}  # fmt: skip


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_every_object_of_values_that_work_is_valid_in_every_kubernetes(values: Values) -> None:
    for made in render(UMBRELLA, values):
        valid(json.dumps(made, sort_keys=True))


@cache
def valid(made: str) -> None:
    """Raises jsonschema.ValidationError. Most objects are the same under many values, and
    looked at once.
    """
    item = json.loads(made)
    for version in KUBERNETES:
        if (item["apiVersion"], version) != ("resource.k8s.io/v1", "1.30"):  # its chart needs 1.34
            kubernetes_schemas.validate(item, version)


CEL_OF_1_30 = {
    *(
        "all",
        "dyn",
        "exists",
        "filter",
        "has",
        "hasValue",
        "map",
        "size",
        "orValue",
        "startsWith",
        "endsWith",
        "matches",
        "contains",
    ),
    *(
        "join",
        "lowerAscii",
        "replace",
        "split",
        "substring",
        "sum",
        "trim",
        "quantity",
        "compareTo",
        "sets.contains",
    ),
}
"""Functions and macros that CEL has in Kubernetes 1.30, as far as they are needed; `baseOpts` of
k8s.io/apiserver's pkg/cel/environment says since when each is there. A macro with two variables
came with 1.32."""


def cel(made: Any) -> Iterator[str]:
    """Every expression of an admission policy."""
    if isinstance(made, dict):
        for key, value in made.items():
            if key.lower().endswith("expression") and isinstance(value, str):
                yield value
            else:
                yield from cel(value)
    elif isinstance(made, list):
        for one in made:
            yield from cel(one)


def test_policies_ask_for_nothing_that_cel_has_not_in_1_30() -> None:
    made = [one for values in GOOD.values() for one in render(UMBRELLA, values)]
    written = {
        one
        for policy in made
        if policy["kind"] == "ValidatingAdmissionPolicy"
        for one in cel(policy["spec"])
    }
    assert len(written) > 20
    bare = [
        re.sub(r"\"(\\.|[^\"])*\"|'(\\.|[^'])*'", "''", one) for one in written
    ]  # what stands in texts calls nothing
    called = {name for one in bare for name in re.findall(r"(sets\.\w+|\w+)\(", one)}
    assert called <= CEL_OF_1_30
    assert [
        one for one in bare if re.search(r"\.(all|exists|existsOne|exists_one)\(\w+,\s*\w+,", one)
    ] == []


def test_an_object_that_is_not_valid_would_be_found() -> None:
    with pytest.raises(jsonschema.ValidationError):
        valid(
            json.dumps(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dtaa": {}}
            )
        )


def config(chart: str, values: Values) -> Any:
    return configs(values)[chart]


def test_checks_are_written_once_for_the_injector_and_the_gang_controller() -> None:
    values = shared(checks=[DCGM, FABRIC])
    assert config("preflight-injector", values)["checks"] == [DCGM, FABRIC]
    assert config("preflight-gang", values)["checks"] == ["dcgm-diag", "ours"]


def test_a_part_s_own_checks_are_used_instead_of_the_shared_ones() -> None:
    values = {
        **shared(checks=[DCGM]),
        **injector(checks=[LOOPBACK]),
        **gang(checks=["nccl-loopback", "more"]),
    }
    assert config("preflight-injector", values)["checks"] == [LOOPBACK]
    assert config("preflight-gang", values)["checks"] == ["nccl-loopback", "more"]


def test_a_user_id_of_a_check_reaches_the_webhook_as_the_number_that_it_is() -> None:
    values = GOOD["every key of a check"]
    check = values["preflight-injector"]["checks"][0]
    text = only(render(UMBRELLA, values), "ConfigMap")["data"]["config.yaml"]
    assert yaml.safe_load(text)["checks"] == [check]
    assert "runAsUser: 1000680000\n" in text


# --- what cannot work

TWICE = [DCGM, {**LOOPBACK, "name": "dcgm-diag"}]
UNMOUNTABLE = {"volumeMounts": [{"name": "libraries", "mountPath": "/lib"}]}
BAD: list[tuple[str, Values, str]] = [
    ("an unknown part", {"preflight-injectr": {"enabled": True}}, "'preflight-injectr' not allowed"),
    ("a part that is not a map", {"preflight-gang": True}, "type mismatch on preflight-gang"),
    ("a part that is neither on nor off", {"preflight-gang": {"enabled": "on"}}, "/enabled.*want boolean"),
    ("an unknown value", injector(checkTimeuot="1m"), "'checkTimeuot' not allowed"),
    ("an unknown shared value", shared(check=[DCGM]), "'check' not allowed"),
    ("an unknown key of a check", injector(checks=[{**DCGM, "imag": "x"}]), "'imag' not allowed"),
    ("a check without an image", injector(checks=[{"name": "ours"}]), "missing property 'image'"),
    ("a shared check without an image", shared(checks=[{"name": "dcgm-diag"}]), "missing property 'image'"),
    ("nothing in the place of a check", injector(checks=[None]), "/checks/0.*want object"),
    ("two checks of one name", injector(checks=TWICE), r'checks\[1\]\.name is "dcgm-diag", as is that of checks\[0\]; give each'),
    ("two shared checks of one name", shared(checks=TWICE), r'checks\[1\]\.name is "dcgm-diag", as is that'),
    ("a name counted twice", gang(checks=["a", "a"]), "checks: a is named 2 times; name each check once"),
    ("a gang-wide check without its controller", injector(checks=[DCGM, ALLREDUCE]),
     r"pods get nccl-allreduce, .* preflight-gang is off: .* set preflight-gang\.enabled=true"),
    ("a gang-wide check of one's own without its controller", injector(checks=[FABRIC]), r"pods get ours, .* set preflight-gang\.enabled=true"),
    ("a shared gang-wide check without its controller", {**injector(), "global": {"preflight": {"checks": [ALLREDUCE]}}},
     r"pods get nccl-allreduce, .* set preflight-gang\.enabled=true"),
    ("a check that nobody counts", {**injector(checks=[DCGM, OURS]), **gang()},
     r"pods get ours, and preflight-gang counts only dcgm-diag, .* as global\.preflight\.checks, or add the name to preflight-gang\.checks"),
    ("a shared check that the controller's own list lacks", {**shared(checks=[DCGM, OURS]), **gang(checks=["dcgm-diag"])}, "pods get ours, and"),
    ("a controller of an unknown kind", injector(gangController="yes"), "/gangController"),
    ("a time that is none", injector(gangTimeout="ten"), "/gangTimeout.*'ten' does not match"),
    ("a time without a unit", injector(checkTimeout="300"), "/checkTimeout.*'300' does not match"),
    ("no time at all", injector(gangTimeout="0s"), 'gangTimeout is "0s", which is not a duration above zero; set e.g. 300s'),
    ("weeks", injector(checkTimeout="169h"), 'checkTimeout is "169h", which is longer than 168 hours; set less'),
    ("a check's time that is none", injector(checks=[{**DCGM, "timeout": "5 min"}]), "/checks/0/timeout.*'5 min' does not match"),
    ("a check's time that is not a time", injector(checks=[{**DCGM, "timeout": "0m"}]), r'checks\[0\]\.timeout is "0m", which is not a duration'),
    ("an engine without a port", injector(dcgm={"hostengineAddr": "dcgm.nvsentinel.svc"}), "/dcgm/hostengineAddr"),
    ("an engine with a word for a port", injector(dcgm={"hostengineAddr": "dcgm.nvsentinel.svc:dcgm"}), "/dcgm/hostengineAddr"),
    ("a second engine without a port", injector(dcgm={"hostengineAddr": ["$(NODE_IP):5555", "dcgm"]}), "/dcgm/hostengineAddr/1"),
    ("an engine by IPv6 address without brackets", injector(dcgm={"hostengineAddr": "fd00::1:5555"}), r'"fd00::1:5555", which is not host:port; set'),
    ("an engine by a short name", injector(dcgm={"hostengineAddr": "dcgm:5555"}), r'has "dcgm:5555", to which a Service in .* set \$\(NODE_IP\):5555'),
    ("a volume that nobody has", with_override(**UNMOUNTABLE), "/volumeMounts/0/name.*'libraries' does not match"),
    ("a mount of no extra volume", injector(checks=[{**DCGM, "extraVolumeMounts": [{"name": "efa", "mountPath": "/e"}]}]),
     r'extraVolumeMounts\[0\] names the volume "efa"'),
    ("an unknown failure policy", injector(webhook={"failurePolicy": "Maybe"}), "/webhook/failurePolicy"),
    ("an answer in half a minute and more", injector(webhook={"timeoutSeconds": 31}), "/webhook/timeoutSeconds"),
    ("no replica", injector(replicas=0), "/replicas"),
    ("a level that is a word", injector(dcgm={"diagLevel": "two"}), "/dcgm/diagLevel"),
    ("no engine at all", injector(dcgm={"hostengineAddr": []}), "/dcgm/hostengineAddr"),
    ("a connector that is neither on nor off", injector(platformConnector={"enabled": "no"}), "/platformConnector/enabled"),
    ("claims of no name", injector(mirrorClaims=[""]), "/mirrorClaims/0"),
    ("certificates of no day", injector(certificates={"lifetimeDays": 0}), "/certificates/lifetimeDays"),
    ("a volume that is not of the node", injector(checks=[{**DCGM, "extraVolumes": [{"name": "x", "configMap": {"name": "y"}}]}]), "/checks/0/extraVolumes/0"),
    ("namespaces that are no list", injector(namespaces="training"), "/namespaces"),
    ("a namespace in capitals", injector(namespaces=["Training"]), "/namespaces/0"),
    ("a Secret of nobody", injector(certificates={"selfManaged": False}), "/certificates/secretName"),
    ("a schedule of four fields", injector(certificates={"schedule": "0 0 1 *"}), "certificates.schedule is .* write five fields"),
    ("every pod of a namespace as the engine", injector(networkPolicy={"hostengine": {"namespace": "n"}}),
     "hostengine.podLabels is empty.* give the labels of the hostengine's pods"),
    ("a digest that is none", injector(image={"digest": "latest"}), "/image/digest"),
    ("labels that differ", {**injector(ncclTopology={"instanceTypeLabel": "a/b", "instanceTypeMapping": {"x": "y"}}), **gang()},
     r"set it once, as global\.preflight\.instanceTypeLabel"),
    ("an account that the injector does not know", {**injector(), **gang(fullnameOverride="b")}, r"set preflight-injector\.protection\.controller to system:serviceaccount:preflight:b"),
    ("an account of a name that the injector does not know", {**injector(), **gang(nameOverride="b")}, r"set preflight-injector\.protection\.controller to system:serviceaccount:preflight:b"),
    ("a lease of no time", gang(leaseDuration="5ms"), 'leaseDuration is "5ms", which is less than a second; set e.g. 15s'),
    ("an audit without a pause", gang(auditInterval="1s"), 'auditInterval is "1s", which is less than ten seconds'),
    ("an audit at a word", gang(auditInterval="often"), "/auditInterval"),
    ("no image of kube-scheduler", {GPU_SCHEDULER.name: {"enabled": True}}, r"kubeScheduler\.image is empty; name the kube-scheduler"),
    ("a Secret of nobody for the GPU scheduler", scheduler(certificates={"selfManaged": False}), "/certificates/secretName"),
    ("less than no replica", scheduler(replicas=-1), "/replicas"),
    ("a count by no resource", scheduler(countResource="gpu"), "/countResource"),
    ("a namespace of locks in capitals", scheduler(lockNamespace="Locks"), "/lockNamespace"),
    ("a status that is stale at once", scheduler(staleAfter="45s"), "staleAfter is less than two heartbeats, .* set three times heartbeat"),
    ("a status that is never stale", scheduler(staleAfter="25h"), r'staleAfter is "25h", which is not between 1 s and 86400 s; set e\.g\. 90s'),
    ("no time to bind", scheduler(bindBudget="10ms"), 'bindBudget is "10ms", which is not between 1 s and 600 s'),
    ("a gang that gathers for longer than it has its GPUs", scheduler(gangBind="1m"), "gangBind is not below reservationSeconds, .* lower it"),
    ("a wrapper's time that is none", wrapper(faultTolerance={"successTTL": "a week"}), "/faultTolerance/successTTL"),
    ("a brake's time that is none", wrapper(evacuationBrake={"window": "10"}), "/evacuationBrake/window"),
    ("a brake of more than all", wrapper(evacuationBrake={"percent": 101}), "/evacuationBrake/percent"),
    ("certificates of a day", wrapper(certificates={"lifetimeDays": 1}), "certificates.lifetimeDays is 1: .* set at least 2"),
    ("a kind of no group", wrapper(wrappedKinds=[{"resources": ["jobs"]}]), "/wrappedKinds/0.*missing property 'group'"),
    ("conditions that are sick to some parts alone", {**wrapper(labeler={"enabled": True}, nodeHealth={"conditions": ["Gpu*"]}), **gang()},
     r"a node would be sick to some of them alone, so set them once, as global\.preflight\.sickNodeConditions"),
    ("a gate that there is not", channels(featureGates={"HostManagedIMEX": True, "Other": True}), "invalid propertyName 'Other'"),
    ("an unknown mode of allocation", channels(admission={"allocationMode": "Maybe"}), "/admission/allocationMode"),
    ("a folder that is no path", channels(cdiRoot="cdi"), "/cdiRoot"),
    ("a gate that is neither open nor closed", channels(featureGates={"HostManagedIMEX": "yes"}), "/featureGates/HostManagedIMEX"),
    ("an unknown mode of IMEX", channels(resources={"computeDomains": {"imex": {"mode": "other"}}}), "/imex/mode"),
    ("an isolation that nobody has", channels(resources={"computeDomains": {"imex": {"isolation": "channel"}}}), "/imex/isolation"),
    ("an unknown value of ComputeDomains", channels(colour="red"), "'colour' not allowed"),
    ("a name that is a number", mnnvl(nameOverride="123"), "/nameOverride"),
    ("a name that no Service can have", gang(fullnameOverride="Gangs.of"), "/fullnameOverride"),
    ("an unknown mode of mnnvl", mnnvl(mode="host"), "/mode"),
    ("an unknown placement", mnnvl(placement="rack"), "/placement"),
    ("a lease of a moment", mnnvl(leaseSeconds=0), "/leaseSeconds"),
    ("a source without a kind", gang(sources=[{k: v for k, v in SOURCE.items() if k != "kind"}]), "missing property 'kind'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "sentence"), [(v, s) for _, v, s in BAD], ids=[name for name, _, _ in BAD]
)
def test_values_that_cannot_work_are_refused_with_a_sentence(values: Values, sentence: str) -> None:
    with pytest.raises(ChartError, match=sentence):
        render(UMBRELLA, values)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ChartError) as refused:
        render(
            INJECTOR,
            {
                "checks": [*TWICE, ALLREDUCE],
                "gangTimeout": "0s",
                "dcgm": {"hostengineAddr": "dcgm:5555"},
            },
        )
    for part in (
        r"checks\[1\]\.name",
        "gangTimeout",
        "dcgm.hostengineAddr",
        "checks has nccl-allreduce",
    ):
        assert re.search(part, str(refused.value))


def test_the_injector_alone_refuses_a_gang_wide_check_unless_another_release_has_the_controller() -> (
    None
):
    with pytest.raises(
        ChartError,
        match=r"checks has nccl-allreduce, .* set gangController=external here, or leave the check out",
    ):
        render(INJECTOR, {"checks": [ALLREDUCE]})
    assert render(INJECTOR, {"checks": [ALLREDUCE], "gangController": "external"})


def test_the_injector_in_an_umbrella_of_somebody_else_refuses_a_gang_wide_check_too(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "charts").mkdir(parents=True)
    (theirs / "charts" / INJECTOR.name).symlink_to(INJECTOR)
    (theirs / "Chart.yaml").write_text(
        "apiVersion: v2\nname: theirs\nversion: 1.0.0\ndependencies: [{name: preflight-injector, version: '*'}]\n"
    )
    with pytest.raises(ChartError, match="set gangController=external here"):
        render(theirs, {"preflight-injector": {"checks": [ALLREDUCE]}})


# --- null


def places(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key of the maps in ``values``."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield (*path, key)
            yield from places(value, (*path, key))


def in_schema(schema: Any, whole: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every list and every map that the values' schema knows, through maps but not into
    lists.
    """
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if path and {"array", "object"} & {
        *([schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", []))
    }:
        yield path
    for key, one in schema.get("properties", {}).items():
        yield from in_schema(one, whole, (*path, key))


def with_required(part: Path, values: Values) -> Values:
    """``values`` and, where they do not say it, what the chart is not installed without."""
    made = dict(values)
    for key, value in REQUIRED.get(part, {}).items():
        made[key] = {**value, **(values.get(key) or {})}
    return made


def nulls(part: Path) -> list[tuple[str, ...]]:
    """What may be left out: all but what a chart is not installed without."""
    required = {*places(REQUIRED.get(part, {}))}
    schema = json.loads((part / "values.schema.json").read_text())
    written = yaml.safe_load((part / "values.yaml").read_text())
    paths = {*places(written), *in_schema(schema, schema)} - {("enabled",)} - required
    return sorted(
        path for path in paths if len(path) < 3 or not path[0].lower().endswith("securitycontext")
    )


SHARES = 8


def share_of_nulls(part: Path, share: int) -> Values:
    """Every eighth of what may be null, but what is within another of them."""
    values: Values = {}
    for path in nulls(part)[share::SHARES]:
        within = values
        for key in path[:-1]:
            within = within.setdefault(key, {})
            if within is None:
                break
        else:
            within.setdefault(path[-1], None)
    return values


@pytest.mark.parametrize("share", range(SHARES))
@PARTS
def test_any_value_may_be_null(part: Path, share: int) -> None:
    for made in render(part, with_required(part, share_of_nulls(part, share))):
        valid(json.dumps(made, sort_keys=True))
        if made["kind"] == "ConfigMap":
            configured = yaml.safe_load(made["data"]["config.yaml"])
            assert [
                place for place in places(configured) if value_at(configured, place) is None
            ] == []


@PARTS
def test_lists_and_maps_of_a_part_may_be_null_under_the_umbrella(part: Path) -> None:
    schema = json.loads((part / "values.schema.json").read_text())
    values = {path[0]: None for path in in_schema(schema, schema) if len(path) == 1}
    for made in render(UMBRELLA, {part.name: {**with_required(part, values), "enabled": True}}):
        valid(json.dumps(made, sort_keys=True))


def value_at(values: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


@PARTS
def test_all_lists_and_maps_may_be_null_together(part: Path) -> None:
    schema = json.loads((part / "values.schema.json").read_text())
    values = {path[0]: None for path in in_schema(schema, schema) if len(path) == 1}
    for made in render(part, with_required(part, values)):
        valid(json.dumps(made, sort_keys=True))


def test_keys_of_a_check_may_be_null_and_reach_the_webhook_only_where_null_means_something() -> (
    None
):
    keys = [
        "env",
        "envPatterns",
        "mountPatterns",
        "resources",
        "supports",
        "container",
        "securityContext",
    ]
    check = {**OURS, **dict.fromkeys(keys)}
    assert config("preflight-injector", injector(checks=[check]))["checks"] == [OURS]
    kept = {**OURS, "container": {"tty": None}, "securityContext": {"runAsUser": None}}
    assert config("preflight-injector", injector(checks=[kept]))["checks"] == [kept]


def test_no_audit_of_claims_asks_for_no_right_and_the_default_of_the_classes_has_it() -> None:
    def reads_claims(**values: Any) -> bool:
        roles = of("ClusterRole", render(UMBRELLA, gang(**values)))
        return any(
            "resourceclaims" in rule["resources"] for role in roles for rule in role["rules"]
        )

    assert reads_claims()
    assert reads_claims(gpuDeviceClasses=None)  # the controller's own default holds
    assert not reads_claims(gpuDeviceClasses=[])


# --- what an operator reads


def undescribed(schema: Any, path: str = "") -> Iterator[str]:
    """Keys without a description, in the properties of a schema and of all that is in it."""
    if isinstance(schema, list):
        for one in schema:
            yield from undescribed(one, path)
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in {"properties", "$defs"}:
                for name, one in value.items():
                    if key == "properties" and not one.get("description"):
                        yield f"{path}.{name}"
                    yield from undescribed(one, f"{path}.{name}")
            elif key not in {"default", "if", "then"}:
                yield from undescribed(value, path)


@ALL
def test_every_key_of_a_schema_has_a_description(chart: Path) -> None:
    assert [*undescribed(json.loads((chart / "values.schema.json").read_text()))] == []


def test_the_umbrella_s_schema_knows_exactly_its_parts() -> None:
    schema = json.loads((UMBRELLA / "values.schema.json").read_text())
    chart = yaml.safe_load((UMBRELLA / "Chart.yaml").read_text())
    assert {*schema["properties"]} == {"global", *(part["name"] for part in chart["dependencies"])}
    assert schema["additionalProperties"] is False


def test_a_mistake_in_a_part_is_told_once() -> None:
    with pytest.raises(ChartError) as refused:
        render(UMBRELLA, injector(replicas=0))
    assert str(refused.value).count("/replicas") == 1


@ALL
def test_every_value_is_commented(chart: Path) -> None:
    """A block may have one comment; the first key of each has one above it or beside it."""
    lines = [*(chart / "values.yaml").read_text().splitlines()]
    for number, line in enumerate(lines):
        if re.match(r"[A-Za-z]", line) and "#" not in line:
            above = lines[number - 1]
            assert above.startswith("#") or (above and not lines[number].endswith("-")), line


@ALL
def test_helm_shows_a_readme_of_the_chart_that_names_it(chart: Path) -> None:
    shown = show(str(chart), output_format="readme")
    assert f"# {chart.name}" in str(shown)


@ALL
def test_the_manifest_holds_no_comment_and_no_empty_priority_class(chart: Path) -> None:
    values = (
        {
            **injector(priorityClassName=""),
            **gang(priorityClassName=""),
            **scheduler(priorityClassName=""),
        }
        if chart == UMBRELLA
        else with_required(chart, {"priorityClassName": ""})
    )
    with Chart.load(chart) as loaded:
        files = loaded.render(values, name="preflight", namespace="preflight", revision=1)
    text = "\n".join(text for name, text in files.items() if name.endswith(".yaml"))
    assert [line for line in text.splitlines() if line.lstrip().startswith("#")] == []
    assert "priorityClassName" not in text


def job(**values: Any) -> Object:
    template: Object = only(render(UMBRELLA, injector(**values)), "Job")["spec"]["template"]
    return template


def test_the_pods_of_the_certs_job_may_be_annotated_and_labeled() -> None:
    mesh = {"sidecar.istio.io/inject": "false"}
    assert job(podAnnotations=mesh)["metadata"]["annotations"] == mesh
    assert job(podAnnotations={**mesh, "a": "b"}, certificates={"podAnnotations": {"a": "c"}})[
        "metadata"
    ]["annotations"] == {**mesh, "a": "c"}
    assert job(certificates={"podLabels": {"a": "c"}})["metadata"]["labels"]["a"] == "c"
    assert "annotations" not in job()["metadata"]


def test_null_leaves_the_security_context_out() -> None:
    objects = render(UMBRELLA, GOOD["no security context, class and resources"])
    for template in templates(objects).values():
        assert "securityContext" not in template["spec"]
        assert not any("securityContext" in one for one in template["spec"]["containers"])


# --- what real API servers say


EMULATED = "--emulated-version=1.34"
"""As 1.34 of the newest binary: its APIs and features, and for new expressions the CEL of the
version before it, as that has for a rollback.
"""
SERVERS = {
    "newest": (ASSETS, ()),
    "1.35": ("PREFLIGHT_KUBEBUILDER_ASSETS_135", ()),
    "as 1.34": (ASSETS, (EMULATED,)),
}


@pytest.fixture(scope="module", params=list(SERVERS.values()), ids=list(SERVERS))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiServer]:
    """Those whose binaries are here; etcd is that of the first. 1.30 is older than a binary of
    today emulates.
    """
    variable, more = request.param
    folder, other = assets(), os.environ.get(variable)
    if folder is None or not other:
        pytest.skip(f"{ASSETS if folder is None else variable} is not set: no real kube-apiserver")
    binary = Path(other) / "kube-apiserver"
    with ApiServer(
        tmp_path_factory.mktemp("server"),
        folder,
        kube_apiserver=binary,
        more=("--allow-privileged", *more),  # as kubeadm starts it; a kubelet plugin is privileged
    ) as made:
        assert not more or made.call("GET", "/version")["emulationMinor"] == "34"
        for name in ("preflight", "n", "gpu-scheduler-leases", "locks"):
            made.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        yield made


@pytest.mark.timeout(600)
def test_a_real_api_server_takes_every_object_of_values_that_work(server: ApiServer) -> None:
    objects = {
        json.dumps(made, sort_keys=True): made
        for values in GOOD.values()
        for made in render(UMBRELLA, values)
    }
    refused = []
    for made in objects.values():
        group, kind = made["apiVersion"], made["kind"].lower()
        plural = re.sub("y$", "ie", kind) + "s"
        plural = plural.replace("classs", "classes")
        namespace = made["metadata"].get("namespace")
        path = f"{'/api' if group == 'v1' else '/apis'}/{group}{f'/namespaces/{namespace}' if namespace else ''}/{plural}"
        try:
            server.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", made)
        except urllib.error.HTTPError as error:
            there = kind == "namespace" and error.code == 409  # what is not valid is refused before
            if not there:
                refused.append(
                    f"{made['kind']} {made['metadata']['name']}: {json.loads(error.read())['message']}"
                )
    assert refused == []
