"""A ConfigMap for each Greeting: a service on the kit, explained by docs/service-of-your-own.md."""

import argparse
from functools import partial

import msgspec
from preflight_kube.api.crd import crd
from preflight_kube.api.kinds import ObjectMeta, controller_reference
from preflight_kube.cli import commands
from preflight_kube.client.client import Client
from preflight_kube.runtime.cache import Cache
from preflight_kube.runtime.controller import RuntimeMetrics, leads
from preflight_kube.runtime.indexes import namespaced_name, owner_uids
from preflight_kube.runtime.manager import Election, Parts, run
from preflight_kube.runtime.workqueue import Queue
from preflight_kube.runtime.writes import Create, Exists, Lost, Patch, Refused

NAME, KIND, VERSION = "greeting", "Greeting", "example.com/v1"
MANAGED_BY = "app.kubernetes.io/managed-by"


class GreetingSpec(msgspec.Struct, frozen=True):
    text: str


class Greeting(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: GreetingSpec


class ConfigMap(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


def reconcile(greeting: Greeting, stored: ConfigMap | None) -> Create | Patch | None:
    """What has to be written for a Greeting whose ConfigMap is ``stored``, if anything. Pure."""
    about, data = greeting.metadata, {"text": greeting.spec.text}
    path = f"/api/v1/namespaces/{about.namespace}/configmaps"
    if stored is None:
        owners = [controller_reference(VERSION, KIND, about)]
        metadata = {"name": about.name, "labels": {MANAGED_BY: NAME}, "ownerReferences": owners}
        return Create(path, {"metadata": metadata, "data": data})
    if stored.data == data:
        return None
    change = {**dict.fromkeys(stored.data), **data}  # what somebody has added goes
    patch = {"metadata": stored.metadata.precondition, "data": change}
    return Patch(f"{path}/{stored.metadata.name}", patch, "merge")


async def build(metrics: RuntimeMetrics, client: Client) -> Parts:
    """What a replica is made of: two caches, a queue that they fill, and who takes from it."""
    queue = Queue(NAME, clock=client.clock)
    changed = queue.adding()  # the key of what has changed: a ConfigMap is called as its Greeting
    path, index = f"/apis/{VERSION}/greetings", {"name": namespaced_name}
    greetings = Cache[Greeting](client, path, Greeting, on_change=changed, indexes=index)
    path, index = "/api/v1/configmaps", {"owner": owner_uids}
    ours = {"labelSelector": f"{MANAGED_BY}={NAME}"}
    maps = Cache[ConfigMap](client, path, ConfigMap, on_change=changed, indexes=index, params=ours)

    async def work(leader: Client, greeting: Greeting) -> float | None:
        write = reconcile(greeting, maps.newest("owner", greeting.metadata.uid))
        answer = await maps.apply(leader, write) if write else None
        if isinstance(answer, Refused | Lost):
            raise answer.error  # it is reconciled again, ever later
        return 60.0 if isinstance(answer, Exists) else None  # the name is somebody else's

    lead = leads(KIND, greetings, queue, work, client=client, metrics=metrics)
    return Parts(reflectors=[greetings, maps], lead=lead)


def _controller(args: argparse.Namespace) -> int:
    metrics = RuntimeMetrics()
    return run(
        partial(build, metrics),
        component=NAME,
        registry=metrics.registry,
        host=args.host,
        port=args.port,
        election=Election(args.namespace, NAME),
    )


def _parser() -> argparse.ArgumentParser:
    made, added = commands.parser(NAME, "A ConfigMap for each Greeting.")
    commands.add_controller(added, _controller)
    commands.add_crd(added, partial(crd, "example.com", KIND, "v1", spec=GreetingSpec))
    return made


if __name__ == "__main__":
    commands.main(_parser)
