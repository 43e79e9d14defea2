"""What `explain --live` reads of a cluster: an object with what stands around it, and the release's
own configuration.
"""

from __future__ import annotations

from typing import Any, Final

from preflight_kube.api.workloads.kubeflow import runtime_of
from preflight_kube.api.workloads.model import Object, WorkloadKind
from preflight_kube.api.workloads.table import KINDS, named
from preflight_kube.cli.commands import BadInput, CommandFailed
from preflight_kube.client.client import Client, Params
from preflight_kube.runtime.discovery import RESTMapper
from preflight_proto import policy
from preflight_proto.devices import GROUP, VERSIONS

from preflight_webhook.config.config import ConfigError, parse
from preflight_webhook.core.detect.devices import DeviceClaim, Ref, read_claim
from preflight_webhook.report.release import InstalledRelease, lists_of
from preflight_webhook.report.workloads import FoundPod, references

_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_OURS: Final[Params] = {"labelSelector": "app.kubernetes.io/name=preflight-injector"}


async def release_of(client: Client) -> InstalledRelease:
    """The injector's release of the cluster. Raises :class:`CommandFailed` where there is none or
    not one, :class:`KubeError`.
    """
    listed = (await client.get_or_none(_WEBHOOKS, dict, params=_OURS) or {}).get("items") or []
    names = ", ".join(str(webhook["metadata"]["name"]) for webhook in listed)
    if not listed:
        raise CommandFailed(
            "the cluster has no MutatingWebhookConfiguration of preflight-injector; install the chart."
        )
    if len(listed) > 1:
        raise CommandFailed(f"the cluster has several releases ({names}); leave one of them.")
    lists = lists_of(listed[0])
    where = f"ConfigMap {names} in namespace {lists.release}"
    config_map = await client.get_or_none(
        f"/api/v1/namespaces/{lists.release}/configmaps/{names}", dict
    )
    text = ((config_map or {}).get("data") or {}).get("config.yaml")
    if not isinstance(text, str):
        raise CommandFailed(
            f"{where}: is not there, or has no config.yaml; install the chart again."
        )
    try:
        return InstalledRelease(parse(text), lists, where)
    except ConfigError as error:
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None


def wanted_of(text: str) -> tuple[WorkloadKind, str]:
    """KIND/NAME as a person writes it. Raises :class:`~preflight_kube.cli.commands.BadInput`."""
    word, _, name = text.partition("/")
    kind = named(word)
    if kind is None or not name:
        raise BadInput(f'--live: "{text}" is not KIND/NAME; kinds are {", ".join(KINDS)}.')
    return kind, name


async def objects_of(
    client: Client, kind: WorkloadKind, name: str, namespace: str, *, policies: bool
) -> list[Object]:
    """The object and its Namespace, with ``policies`` its PreflightConfigs, and a TrainJob's
    runtime.

    Raises :class:`CommandFailed`, :class:`KubeError`.
    """
    path = await RESTMapper(client).newest(kind.group, kind.versions, kind.kind, namespace)
    item = await client.get_or_none(f"{path}/{name}", dict) if path is not None else None
    if item is None:
        raise CommandFailed(
            f"{kind.title} {name}: not in namespace {namespace}; look at its name, or set -n."
        )
    objects: list[Any] = [item]
    around = await client.get_or_none(f"/api/v1/namespaces/{namespace}", dict)
    if around is not None:
        objects.append(around)
    if policies:
        listed = await client.get_or_none(policy.path(namespace), dict) or {}
        objects += [{**policy_, "kind": policy.KIND} for policy_ in listed.get("items", [])]
    if kind.kind == "TrainJob":
        of, runtime = runtime_of(item)
        path = await RESTMapper(client).newest(kind.group, kind.versions, of, namespace)
        around = await client.get_or_none(f"{path}/{runtime}", dict) if path is not None else None
        if around is not None:
            objects.append(around)
    return objects


async def needed(pod: FoundPod, client: Client) -> dict[Ref, DeviceClaim | None]:
    """The claims that a pod names, read from a cluster. Raises
    :class:`~preflight_kube.errors.KubeError`.
    """
    known, kinds = {}, RESTMapper(client)
    for ref in filter(None, references(pod.pod)):
        path = await kinds.newest(GROUP, VERSIONS, ref.kind, pod.namespace)
        claim = await client.get_or_none(f"{path}/{ref.name}", dict) if path is not None else None
        known[ref] = None if claim is None else read_claim(claim)
    return known
