"""Reads what `doctor install` looks at, once, with the rights of who asks; it writes nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
from preflight_kube.auth.connection import connection
from preflight_kube.cli import commands
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_proto import names, policy

from preflight_cli.cluster import (
    NOBODY,
    Installation,
    Object,
    installed_in,
    key_of,
    release_of,
    secrets_of,
)
from preflight_cli.installation import problems

_OURS: Final = "app.kubernetes.io/part-of=preflight"
_CORE, _APPS, _BATCH = "/api/v1", "/apis/apps/v1", "/apis/batch/v1"
_RBAC, _ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
_LEASES = "/apis/coordination.k8s.io/v1"
_PATHS: Final = {
    "Namespace": f"{_CORE}/namespaces",
    "ConfigMap": f"{_CORE}/configmaps",
    "Service": f"{_CORE}/services",
    "ServiceAccount": f"{_CORE}/serviceaccounts",
    "Pod": f"{_CORE}/pods",
    "Deployment": f"{_APPS}/deployments",
    "DaemonSet": f"{_APPS}/daemonsets",
    "Job": f"{_BATCH}/jobs",
    "CronJob": f"{_BATCH}/cronjobs",
    "Lease": f"{_LEASES}/leases",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/networkpolicies",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/endpointslices",
    "Role": f"{_RBAC}/roles",
    "RoleBinding": f"{_RBAC}/rolebindings",
    "ClusterRole": f"{_RBAC}/clusterroles",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
    "MutatingWebhookConfiguration": f"{_ADMISSION}/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"{_ADMISSION}/validatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": f"{_ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{_ADMISSION}/validatingadmissionpolicybindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
"""By kind, where the objects of a release are, which all have the label of :data:`_OURS`."""
_OTHERS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "OptedIn": (f"{_CORE}/namespaces", {"labelSelector": names.NAMESPACE_LABEL}),
    "CheckedPod": (f"{_CORE}/pods", {"labelSelector": f"{names.CHECKED_LABEL}={names.CHECKED}"}),
    "Node": (f"{_CORE}/nodes", {}),
    "NodeLease": (f"{_LEASES}/namespaces/kube-node-lease/leases", {}),
    policy.KIND: (policy.path(), {}),
}
_SUPPLIERS: Final = ("platform-connectors", "nvidia-dcgm")


async def read_cluster(client: Client) -> tuple[Installation, list[str]]:
    """All of it, and a sentence for each kind that could not be read. Raises KubeError where the
    cluster is not reached.
    """
    read: dict[str, list[Object]] = {}
    unread: list[str] = []
    forbidden: set[str] = set()
    partly: set[str] = set()
    unreached: list[KubeError] = []

    async def every(kind: str, path: str, params: Mapping[str, str]) -> None:
        items: list[Object] = []
        try:
            async for page, _ in client.pages(path, dict, params=dict(params) or None):
                items += page
        except NotFound:
            return  # its definition is not installed, as its part is not
        except KubeError as error:
            partly.add(kind)
            if error.status in {0, 401}:
                unreached.append(error)
            elif error.status == 403:
                forbidden.add(path.removeprefix("/apis/").removeprefix("/api/"))
            else:
                unread.append(str(error).rstrip("."))
            return
        # In a list, items have no kind of their own.
        read.setdefault(kind, []).extend({"kind": kind, **item} for item in items)

    async with anyio.create_task_group() as group:
        for kind, path in _PATHS.items():
            group.start_soon(every, kind, path, {"labelSelector": _OURS})
        for kind, (path, params) in _OTHERS.items():
            group.start_soon(every, kind, path, params)
        for name in _SUPPLIERS:
            by_name = {"fieldSelector": f"metadata.name={name}"}
            group.start_soon(every, "Supplier", f"{_APPS}/daemonsets", by_name)
    if unreached:
        raise unreached[0]
    releases = _of_releases(read)
    mounted = {
        (key_of(item)[0], name)
        for item in (*read.get("Deployment", ()), *read.get("DaemonSet", ()))
        for name in secrets_of(item)
    }
    async with anyio.create_task_group() as group:
        for namespace, name in sorted(mounted):
            secrets = f"{_CORE}/namespaces/{namespace}/secrets"
            group.start_soon(every, "Secret", secrets, {"fieldSelector": f"metadata.name={name}"})
        for namespace, release in sorted(releases):
            secrets = f"{_CORE}/namespaces/{namespace}/secrets"
            group.start_soon(
                every, "Secret", secrets, {"labelSelector": f"owner=helm,name={release}"}
            )
        for item in read.get("CustomResourceDefinition", ()):
            spec = item["spec"]
            served = next(v["name"] for v in spec["versions"] if v["served"])
            path = f"/apis/{spec['group']}/{served}/{spec['names']['plural']}"
            group.start_soon(every, "OwnKind", path, {})
        for item in read.get("Supplier", ()):
            chosen = (item["spec"]["selector"].get("matchLabels") or {}).items()
            pods = f"{_CORE}/namespaces/{key_of(item)[0]}/pods"
            by_label = {"labelSelector": ",".join(f"{key}={value}" for key, value in chosen)}
            group.start_soon(every, "SupplierPod", pods, by_label)
    version = await _version(client, unread)
    if forbidden:
        listed = ", ".join(sorted(forbidden))
        unread.append(
            f"{listed}: whoever asks may not list them; a role with get and list would do"
        )
    now = _now(read.get("NodeLease", []), datetime.now(UTC))
    return Installation(read, now, version, partly), sorted(unread)


def _of_releases(read: dict[str, list[Object]]) -> set[tuple[str, str]]:
    """The releases that Preflight is installed by. What is labelled as its own elsewhere is taken
    out of ``read``: whoever has a namespace labels what he likes there.
    """
    places, ours = installed_in(read), list[Object]()
    for kind in _PATHS.keys() & read.keys():
        known = [of for of in read[kind] if not places or key_of(of)[0] in {"", *places}]
        ours += known if kind != "Namespace" else []  # which its administrator may annotate
        # Some of these are elsewhere; all are looked for by a release's name and namespace alone.
        read[kind] = read[kind] if kind in {"NetworkPolicy", "Role", "RoleBinding"} else known
    return {*map(release_of, ours)} - {NOBODY}


async def _version(client: Client, unread: list[str]) -> Object:
    try:
        return await client.get("/version", dict)
    except KubeError as error:
        if error.status in {0, 401}:
            raise
        unread.append(str(error).rstrip("."))
        return {}


def _now(leases: list[Object], here: datetime) -> datetime:
    """The cluster's time. Kubelets renew their leases each ten seconds, so the median of them is
    about now; where there is none, or it is within a minute of this machine's clock: ``here``.
    """
    moments = sorted(
        datetime.fromisoformat(at.replace("Z", "+00:00"))
        for lease in leases
        if (at := (lease.get("spec") or {}).get("renewTime"))
    )
    theirs = moments[len(moments) // 2] if moments else here
    return here if abs(theirs - here).total_seconds() < 60 else theirs


def add_install(parser: argparse.ArgumentParser) -> None:
    """What is wrong with the installation: releases, workloads, admission, certificates, policies,
    definitions, namespaces, checks, nodes."""
    parser.set_defaults(run=_install)
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="%(default)s"
    )


def _install(args: argparse.Namespace) -> int:
    async def read() -> tuple[Installation, list[str]]:
        async with Client(connection(home=Path.home()), agent="preflight") as client:
            return await read_cluster(client)

    cluster, unread = asyncio.run(read())
    findings = problems(cluster)
    if args.output == "json":
        listed: list[Any] = [problem._asdict() for problem in findings]
        print(json.dumps({"problems": listed, "unread": unread}, indent=2))
        return commands.FAILED if findings else commands.DONE
    for problem in findings:
        commands.say(f"{problem.where} {problem.what}.\n    {problem.do}")
    for sentence in unread:
        print(f"Not read: {sentence}.", file=sys.stderr)
    parts = ", ".join(cluster.parts) or "nothing that could be read"
    commands.say(
        f"{parts}: {len(findings) or 'no'} problem{'' if len(findings) == 1 else 's'} found."
    )
    return commands.FAILED if findings or not cluster.parts else commands.DONE
