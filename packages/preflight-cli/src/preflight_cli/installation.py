"""What of an installation is wrong, from what was read of its cluster, and what to type. Pure.

A rule is a generator of problems over an :class:`Installation`; :data:`RULES` lists them all, and
each says nothing where it has nothing to read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import groupby
from shlex import quote
from typing import Final

from preflight_proto import names, policy, time_limits
from preflight_proto.durations import parse_duration
from preflight_proto.result import from_termination

from preflight_cli.admission import policies, webhooks
from preflight_cli.cluster import (
    NOBODY,
    Installation,
    Object,
    Problem,
    about,
    checks_of,
    component_of,
    differs,
    is_global,
    key_of,
    labels_of,
    part_of,
    release_of,
    secrets_of,
    shown,
    tag_minor,
    template_of,
)
from preflight_cli.nodes import nodes

LATE: Final = timedelta(days=1)
"""Of a CronJob that runs several times a day."""
WAITING: Final = timedelta(minutes=15)
"""For which a check may be at work, unless it allows itself more."""
HELD: Final = timedelta(minutes=10)
"""For which an object may take to go."""
SHARE: Final = 0.1
"""Of runs that could not judge, from ten on: more is a cause of its own."""
_LEAST_RUNS: Final = 10
_WAITS: Final = {
    "ErrImagePull": "cannot be pulled",
    "ImagePullBackOff": "cannot be pulled",
    "InvalidImageName": "has a name that no registry can have",
    "ErrImageNeverPull": "is not on the node, and may not be pulled",
}
_COMPARED: Final = frozenset(
    {
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "MutatingWebhookConfiguration",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    }
)
"""Kinds in which the API server changes nothing that a release says."""


def problems(cluster: Installation) -> list[Problem]:
    """Everything that is wrong, in the order of the rules: what others follow from stands first."""
    return list(dict.fromkeys(problem for rule in RULES for problem in rule(cluster)))


# --- what is installed


def _installed(cluster: Installation) -> Iterator[Problem]:
    if cluster.knows("Deployment") and not cluster.parts:
        yield Problem(
            "the cluster",
            "has no part of Preflight",
            "helm install preflight CHART --namespace preflight --create-namespace",
        )


def _releases(cluster: Installation) -> Iterator[Problem]:
    for (namespace, name), release in cluster.releases.items():
        where = f"release {namespace}/{name}"
        if release.status == "uninstalled":  # its history was kept, and what outlives it
            continue
        if release.status != "deployed":
            yield Problem(where, f"is {release.status}", _ended_by(cluster, namespace, name))
            continue
        again = cluster.upgrade_of((namespace, name))
        for wanted in release.manifest:
            kind = str(wanted.get("kind"))
            # A Job may have been taken away by its own time to live.
            if not cluster.knows(kind) or "ttlSecondsAfterFinished" in (wanted.get("spec") or {}):
                continue
            object_ = str(wanted["metadata"]["name"])
            there = wanted["metadata"].get("namespace") or ("" if is_global(kind) else namespace)
            actual = cluster.named(kind, there, object_)
            if actual is None:
                yield Problem(shown(kind, there, object_), f"of {where} is not there", again)
            elif kind in _COMPARED and (path := differs(wanted, actual)):
                what = f"is not as {where} made it: {path}"
                yield Problem(shown(kind, there, object_), what, again)


def _ended_by(cluster: Installation, namespace: str, name: str) -> str:
    """The command for an install, upgrade or uninstall that has not ended well. Helm upgrades
    nothing that counts as under way, and goes back to the revision before, however that ended.
    """
    release = cluster.releases[namespace, name]
    if release.status == "failed":
        return cluster.upgrade_of((namespace, name))
    if release.status == "uninstalling" or release.revision < 2:
        return f"helm -n {namespace} uninstall {name}  # unless Helm is still at work"
    good = [n for n, ended in release.before.items() if ended in {"deployed", "superseded"}]
    to = f" {max(good)}" if good else ""
    return f"helm -n {namespace} rollback {name}{to}  # unless Helm is still at work"


def _versions(cluster: Installation) -> Iterator[Problem]:
    for part, group in groupby(
        sorted(cluster.of("Deployment", "DaemonSet"), key=part_of), key=part_of
    ):
        items = list(group)
        versions = set(map(_version_of, items))
        if len(versions) > 1:
            yield Problem(
                part,
                f"has workloads of versions {' and '.join(sorted(versions))}",
                "helm list --all-namespaces  # then upgrade its release",
            )
        if len(places := sorted({key_of(item)[0] for item in items})) > 1:
            yield Problem(
                part,
                f"is installed in the namespaces {' and '.join(places)}: both act on the same objects",
                "helm list --all-namespaces  # then uninstall one of them",
            )
    for item in cluster.of("Deployment"):
        for container in template_of(item).get("containers", []):
            minor, here = tag_minor(container["image"]), cluster.minor
            # It may be a minor version older than the API server, and never newer.
            fits = not (minor and here) or here - 1 <= minor <= here
            if container["name"] == "kube-scheduler" and not fits:
                yield Problem(
                    about(item),
                    f"runs kube-scheduler 1.{minor} in a cluster of 1.{here}",
                    cluster.setting_of(part_of(item), f"kubeScheduler.image=…:v1.{here}"),
                )


def _definitions(cluster: Installation) -> Iterator[Problem]:
    releases = {key for key, release in cluster.releases.items() if release.status != "uninstalled"}
    for item in cluster.of("CustomResourceDefinition"):
        name, part = key_of(item)[1], part_of(item)
        where = f"CustomResourceDefinition {name}"
        conditions = {c["type"]: c for c in (item.get("status") or {}).get("conditions", [])}
        for wanted in ("NamesAccepted", "Established"):
            condition = conditions.get(wanted, {"status": "Unknown"})
            if condition["status"] != "True":
                why = condition.get("message") or "the API server does not say why"
                yield Problem(where, f"is not {wanted}: {why}", f"kubectl describe crd {name}")
                break
        if part not in cluster.parts:
            continue
        owner, by = release_of(item), cluster.release_of(part)
        again = cluster.upgrade_of(by)
        if owner != by:  # a chart leaves alone what is another release's
            again = f"kubectl annotate crd {name} --overwrite meta.helm.sh/release-namespace={by[0]} meta.helm.sh/release-name={by[1]} && {again}"
        if releases and owner != NOBODY and owner not in releases:
            yield Problem(where, f"was kept of release {'/'.join(owner)}, which is gone", again)
            continue
        kept = cluster.releases[owner].manifest if owner in cluster.releases else ()
        if kept and not any(
            (of.get("kind"), key_of(of)) == (item["kind"], key_of(item)) for of in kept
        ):
            continue  # by hand, as its chart was told: the labels are of an earlier one
        version, mine = map(_version_of, (cluster.parts[part], item))
        if version and mine and version != mine:
            yield Problem(
                where,
                f"is of version {mine}, {part} is of {version}; fields that it does not know are dropped",
                again,
            )


def _version_of(item: Object) -> str:
    return labels_of(item).get("app.kubernetes.io/version", "")


# --- what runs


def _workloads(cluster: Installation) -> Iterator[Problem]:
    for item in cluster.of("Deployment", "DaemonSet"):
        status, (namespace, name) = item.get("status") or {}, key_of(item)
        daemon = item["kind"] == "DaemonSet"
        wanted = status.get("desiredNumberScheduled") if daemon else item["spec"].get("replicas", 1)
        ready = status.get("numberReady" if daemon else "readyReplicas", 0)
        failed = [c for c in status.get("conditions", []) if c["type"] == "ReplicaFailure"]
        why, pod = _cause(cluster, item) if not failed else (failed[0].get("message", ""), "")
        new = status.get("updatedNumberScheduled" if daemon else "updatedReplicas", wanted)
        behind = " while it is being updated" if why and (new or 0) < (wanted or 0) else ""
        if ready >= (wanted or 0) and not failed and not behind:
            if daemon and wanted == 0 and cluster.of("Node"):
                yield Problem(
                    about(item),
                    f"selects none of {len(cluster.of('Node'))} nodes",
                    f"kubectl -n {namespace} get daemonset {name} -o jsonpath='{{.spec.template.spec.nodeSelector}}'",
                )
            continue
        looked = f"pod {pod}" if pod else f"{item['kind'].lower()} {name}"
        what = f"has {ready} of {wanted} pods ready{behind}{': ' + why if why else ''}"
        yield Problem(about(item), what, f"kubectl -n {namespace} describe {looked}")


def _secrets(cluster: Installation) -> Iterator[Problem]:
    if not cluster.knows("Secret"):
        return
    mounted = {
        (key_of(item)[0], secret): about(item)
        for item in cluster.of("Deployment", "DaemonSet")
        for secret in secrets_of(item)
    }
    for (namespace, name), user in mounted.items():
        if cluster.named("Secret", namespace, name) is None:
            yield Problem(
                f"Secret {namespace}/{name}",
                f"is not there: no new pod of {user} starts",
                cluster.renewal_of(namespace, f"kubectl -n {namespace} get secrets"),
            )


def _cause(cluster: Installation, item: Object) -> tuple[str, str]:
    """(why a workload's pod is not ready, that pod's name): of the first that says it."""
    selector = (item["spec"].get("selector") or {}).get("matchLabels") or {}
    for pod in cluster.of("Pod"):
        mine = key_of(pod)[0] == key_of(item)[0] and selector.items() <= labels_of(pod).items()
        if mine and (why := _trouble(pod)):
            return why, key_of(pod)[1]
    return "", ""


def _trouble(pod: Object) -> str:
    status = pod.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    if conditions.get("Ready", {}).get("status") == "True":
        return ""
    if (placed := conditions.get("PodScheduled", {})).get("status") == "False":
        return f"it cannot be scheduled ({placed.get('message', placed.get('reason', ''))})"
    every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for container in every:
        waits = (container.get("state") or {}).get("waiting") or {}
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if (reason := waits.get("reason", "")) in _WAITS:
            return f'the image "{container.get("image", "")}" {_WAITS[reason]}'
        if ended:
            last = (ended.get("message") or "").strip().splitlines()
            why = last[-1] if last else ended.get("reason", "")
            return (
                f"{container['name']} ended with {ended.get('exitCode')}{': ' + why if why else ''}"
            )
        if reason not in {"", "PodInitializing", "ContainerCreating"}:
            return f"{container['name']} waits: {waits.get('message') or reason}"
    if (ready := conditions.get("Ready", {})).get("status") == "False" and every:
        return f"it runs and is not ready ({ready.get('message', '')})"
    return ""


def _jobs(cluster: Installation) -> Iterator[Problem]:
    for item in cluster.of("Job"):
        failed = {"type": "Failed", "status": "True"}.items()
        for condition in (item.get("status") or {}).get("conditions", []):
            if failed <= condition.items():
                namespace, name = key_of(item)
                what = f"failed: {condition.get('message') or condition.get('reason')}"
                yield Problem(about(item), what, f"kubectl -n {namespace} logs job/{name}")
    for item in cluster.of("CronJob"):
        namespace, name = key_of(item)
        if item["spec"].get("suspend"):
            run = (
                f'kubectl -n {namespace} patch cronjob {name} -p \'{{"spec":{{"suspend":false}}}}\''
            )
            yield Problem(about(item), "is suspended: certificates are not renewed", run)
        status = item.get("status") or {}
        began = status.get("lastSuccessfulTime") or item["metadata"].get("creationTimestamp")
        daily = str(item["spec"].get("schedule", "")).split()[2:] == ["*", "*", "*"]
        scheduled = cluster.since(status.get("lastScheduleTime"))
        missed = timedelta(hours=1) < scheduled < cluster.since(began)
        if cluster.since(began) > LATE and (daily or missed):
            run = f"kubectl -n {namespace} create job --from=cronjob/{name} {name[:40]}-now"
            days = cluster.since(began).days
            yield Problem(about(item), f"has not succeeded for {days} days", run)


def _leases(cluster: Installation) -> Iterator[Problem]:
    unwanted = {component_of(i) for i in cluster.of("Deployment") if i["spec"].get("replicas") == 0}
    for item in cluster.of("Lease"):
        if labels_of(item).get("app.kubernetes.io/part-of") != "preflight":
            continue
        namespace, part, component = at = component_of(item)
        if at in unwanted:
            continue
        spec = item.get("spec") or {}
        age = cluster.since(spec.get("renewTime"))
        logs = f"kubectl -n {namespace} logs -l app.kubernetes.io/name={part},app.kubernetes.io/component={component} --tail=20"
        if not spec.get("holderIdentity"):
            yield Problem(about(item), "is held by nobody: no replica leads", logs)
        elif age > 4 * timedelta(seconds=spec.get("leaseDurationSeconds") or 15):
            seconds = int(age.total_seconds())
            yield Problem(about(item), f"was last renewed {seconds} s ago: no replica leads", logs)


# --- who is checked


def _namespaces(cluster: Installation) -> Iterator[Problem]:
    asked = {labels_of(item).get(names.NAMESPACE_LABEL) for item in cluster.of("OptedIn")}
    injects = "preflight-injector" in cluster.parts and cluster.knows("OptedIn")
    listed, excluded = (set(_named(cluster, operator)) for operator in ("In", "NotIn"))
    if injects and not listed and not asked - {None, names.NAMESPACE_DISABLED}:
        yield Problem(
            "preflight-injector",
            "checks no pod: no namespace is opted in",
            f"kubectl label namespace NAMESPACE {names.NAMESPACE_LABEL}={names.NAMESPACE_ENABLED}",
        )
    for item in cluster.of("OptedIn"):
        name, value = key_of(item)[1], labels_of(item).get(names.NAMESPACE_LABEL)
        if value is None:
            continue
        known, why = (names.NAMESPACE_ENABLED, names.NAMESPACE_DISABLED), ""
        do = f"kubectl label namespace {name} {names.NAMESPACE_LABEL}-"
        if value not in known and name not in listed:
            why = f'has {names.NAMESPACE_LABEL}="{value}", which is neither "{known[0]}" nor "{known[1]}"'
            do = f"kubectl label --overwrite namespace {name} {names.NAMESPACE_LABEL}={known[0]}"
        elif value == known[0] and name in excluded:
            why = "is opted in, and preflight-injector excludes it"
        elif value == known[0] and cluster.parts and "preflight-injector" not in cluster.parts:
            why = "is opted in, and preflight-injector is not installed"
        if why:
            yield Problem(f"Namespace {name}", f"{why}: its pods are not checked", do)
    for item in cluster.of(policy.KIND):
        for condition in (item.get("status") or {}).get("conditions", []):
            if condition["type"] == policy.ACCEPTED and condition["status"] == "False":
                namespace, name = key_of(item)
                what = f"is not in force: {condition.get('message', '')}"
                yield Problem(
                    about(item), what, f"kubectl -n {namespace} edit {policy.PLURAL} {name}"
                )


def _named(cluster: Installation, operator: str) -> Iterator[str]:
    """The namespaces that the injector's chart opts in by name (In), or excludes (NotIn)."""
    for item in cluster.of("MutatingWebhookConfiguration"):
        for webhook in item.get("webhooks", []) if part_of(item) == "preflight-injector" else ():
            for term in (webhook.get("namespaceSelector") or {}).get("matchExpressions") or ():
                if (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", operator):
                    yield from term["values"]


def _alike(cluster: Installation) -> Iterator[Problem]:
    by_part = {part: of for part, of in cluster.config.items() if isinstance(of, dict)}
    sick = cluster.sick_conditions()
    common = Counter(sick.values()).most_common(1)
    for part in (part for part, listed in sick.items() if listed != common[0][0]):
        others = ", ".join(other for other in sick if other != part)
        yield Problem(
            part,
            f"has other node conditions that make a node sick than {others}",
            f"{_values_of(cluster, part)}  # set global.preflight.sickNodeConditions for all",
        )
    injector, gang = by_part.get("preflight-injector"), by_part.get("preflight-gang")
    if injector is None:
        return
    checks = checks_of(injector)
    wide = [name for name, c in checks.items() if c.get("gang") or name == names.NCCL_ALLREDUCE]
    if wide and cluster.parts and "preflight-gang" not in cluster.parts:
        release = cluster.release_of("preflight-injector")
        path = cluster.values_path("preflight-injector")
        on = f"{path.replace('-injector.', '-gang.')}enabled=true"
        alone = f"helm -n {release[0]} install preflight-gang CHART"
        yield Problem(
            "preflight-injector",
            f"injects {', '.join(wide)}, and preflight-gang, which forms the gangs, is not installed: they wait in vain",
            f"{cluster.upgrade_of(release)} --set {on}" if path else alone,
        )
    if gang is None:
        return
    run = _values_of(cluster, "preflight-gang")
    if unknown := checks.keys() - set(gang.get("checks") or ()):
        yield Problem(
            "preflight-gang",
            f"does not know the checks {', '.join(sorted(unknown))} that preflight-injector injects: their results are counted as of no check",
            f"{run}  # set global.preflight.checks for both",
        )
    detected = injector.get("gpuDetection") or {}
    for theirs, ours, what in (
        ("resourceNames", "gpuResourceNames", "resources"),
        ("deviceClasses", "gpuDeviceClasses", "device classes"),
    ):
        missing = set(detected.get(theirs) or ()) - set(gang.get(ours) or ())
        if missing:
            yield Problem(
                "preflight-gang",
                f"does not count pods of the {what} {', '.join(sorted(missing))} that preflight-injector checks",
                f"{run}  # set its {ours}, too",
            )


def _values_of(cluster: Installation, part: str) -> str:
    namespace, release = cluster.release_of(part)
    return f"helm -n {namespace} get values --all {release}"


def _checks(cluster: Installation) -> Iterator[Problem]:
    pulls: dict[tuple[str, str], list[str]] = {}
    runs: Counter[str] = Counter()
    unsure: Counter[tuple[str, str]] = Counter()
    for pod in cluster.of("CheckedPod"):
        for container in (pod.get("status") or {}).get("initContainerStatuses", []):
            if not container["name"].startswith(names.CONTAINER_PREFIX):
                continue
            state = container.get("state") or {}
            reason = (state.get("waiting") or {}).get("reason", "")
            if reason in _WAITS:
                key = (str(container.get("image")), _WAITS[reason])
                pulls.setdefault(key, []).append("/".join(key_of(pod)))
            ran = cluster.since((state.get("running") or {}).get("startedAt"))
            if ran > _longest(pod, container):
                minutes = int(ran.total_seconds() / 60)
                yield Problem(
                    f"Pod {'/'.join(key_of(pod))}",
                    f"has {container['name']} at work for {minutes} minutes",
                    f"kubectl -n {key_of(pod)[0]} logs {key_of(pod)[1]} -c {container['name']} --tail=20",
                )
            if (result := _result(container)) is not None:
                runs[result[0]] += 1
                unsure[result] += result[1] != ""
    for (image, why), pods in sorted(pulls.items()):
        where = f'{len(pods)} pods, {pods[0]} among them: the image "{image}"'
        namespace, name = pods[0].split("/")
        yield Problem(where, why, f"kubectl -n {namespace} describe pod {name}")
    for (check, code), number in sorted(unsure.items()):
        if runs[check] >= _LEAST_RUNS and number > SHARE * runs[check]:
            yield Problem(
                f"check {check}",
                f"could not judge {number} of {runs[check]} pods: {code}",
                f"kubectl get events --all-namespaces | grep -e {quote(code)}",
            )


def _longest(pod: Object, status: Object) -> timedelta:
    """For how long a check may be at work: what it allows itself, where that is longer."""
    every = (pod.get("spec") or {}).get("initContainers", [])
    env = {
        variable["name"]: variable.get("value", "")
        for container in every
        if container["name"] == status["name"]
        for variable in container.get("env", [])
    }
    runs, waits = _seconds(env, names.ENV_CHECK_TIMEOUT), _seconds(env, names.ENV_GANG_TIMEOUT)
    if status["name"] == names.container_name(names.DCGM_DIAG):
        level = env.get(names.ENV_DCGM_LEVEL, "2")
        limits = {str(known): seconds for known, seconds in time_limits.DCGM_DIAG.items()}
        runs = runs or limits.get(level, time_limits.CHECK)
        waits = runs  # an engine runs one diagnostic at a time
    return max(WAITING, timedelta(seconds=(runs or time_limits.CHECK) + waits))


def _seconds(env: dict[str, str], name: str) -> float:
    with suppress(ValueError):
        return parse_duration(env.get(name, ""))
    return 0.0


def _result(container: Object) -> tuple[str, str] | None:
    """(the check, the code of a run that could not judge or empty) of a container's last run."""
    for state in (container.get("state") or {}, container.get("lastState") or {}):
        if ended := state.get("terminated"):
            check = container["name"].removeprefix(names.CONTAINER_PREFIX)
            verdict = from_termination(check, ended.get("message") or "", ended.get("exitCode", 0))
            unsure = verdict.outcome in {"inconclusive", "misconfigured"}
            return verdict.check, verdict.code if unsure else ""
    return None


def _held(cluster: Installation) -> Iterator[Problem]:
    for item in cluster.of("OwnKind"):
        metadata = item["metadata"]
        if cluster.since(metadata.get("deletionTimestamp")) > HELD:
            namespace, name = key_of(item)
            by = ", ".join(metadata.get("finalizers") or ["nothing"])
            minutes = int(cluster.since(metadata["deletionTimestamp"]).total_seconds() / 60)
            what = f"is being deleted for {minutes} minutes, and held by {by}"
            place = f"-n {namespace} " if namespace else ""
            yield Problem(
                about(item), what, f"kubectl {place}describe {item['kind'].lower()} {name}"
            )


RULES: Final[tuple[Callable[[Installation], Iterable[Problem]], ...]] = (
    _installed,
    _releases,
    _versions,
    _definitions,
    _workloads,
    _secrets,
    _jobs,
    _leases,
    webhooks,
    policies,
    _namespaces,
    _alike,
    _checks,
    nodes,
    _held,
)
