"""`revalidate NODE`: create the Job that tests a node, follow it, and say what it has cleared."""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import yaml
from preflight_kube.api.workloads.model import map_of, maps, name_of
from preflight_kube.auth.connection import connection
from preflight_kube.cli import commands
from preflight_kube.cli.commands import BadInput, CommandFailed
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_kube.runtime.discovery import RESTMapper
from preflight_proto.devices import GROUP, VERSIONS

from preflight_webhook.config.config import Config
from preflight_webhook.report import live, revalidation
from preflight_webhook.report.release import opt_in
from preflight_webhook.report.revalidation import CannotRevalidate
from preflight_webhook.report.workloads import FoundPod, Object, found_in, objects_in

_LOOK: Final = 1.0
"""Seconds between two looks at what runs."""
_CLEARING: Final = 60
"""Looks that the platform connector gets for the node's conditions."""


class PlannedRun(NamedTuple):
    """``nodes``: the one to be tested, and that beside which a gang's check runs; ``release``: the
    namespace of the injector's; ``replaced``: the UUID of a GPU that was taken out.
    """

    namespace: str
    nodes: list[Object]
    config: Config
    job: Object
    claim: Object | None
    release: str = ""
    replaced: str = ""

    @property
    def claims(self) -> str:
        """The path of the claim template's collection, in its own version."""
        version = self.claim["apiVersion"] if self.claim is not None else ""
        return f"/apis/{version}/namespaces/{self.namespace}/resourceclaimtemplates"

    @property
    def path(self) -> str:
        """Of the Job's collection."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def announced(self) -> Iterator[str]:
        """What is about to happen."""
        node, name = self.nodes[0], name_of(self.nodes[0])
        yield f"{name}: against it: {revalidation.in_words(revalidation.standing(node))}"
        if not node["spec"].get("unschedulable"):
            yield f"{name}: is not cordoned, so other pods may start there meanwhile"
        stored = self.config.processing_strategy != "EXECUTE_REMEDIATION"
        decision = revalidation.decided(self.job, self.claim, self.config)
        left_out = {skip.check: skip.message for skip in decision.skipped}
        if decision.denied:
            yield f"the Job's pods will be denied: {decision.message}"
        for check in self.config.checks:
            if check.gang_wide and len(self.nodes) == 1:
                yield f"{check.name}: left out, as no second node fits, or is asked for"
            elif why := left_out.get(check.name):
                yield f"{check.name}: left out, as {why}"
            elif check.gang_wide:
                yield f"{check.name}: beside {name_of(self.nodes[1])}"
            if stored or check.enforcement == "observe":
                yield f"{check.name}: only observes as it is configured, and clears nothing"
        longest = self.job["spec"]["activeDeadlineSeconds"]
        yield f"Job {self.namespace}/{name_of(self.job)}: at most {longest} s"


def add_revalidate(parser: argparse.ArgumentParser) -> None:
    """Test a node, cordoned or not, by all checks that its pods get; what passes is cleared."""
    parser.set_defaults(run=lambda args: anyio.run(_revalidate, args))
    parser.add_argument("node", metavar="NODE", help="the node, which may be cordoned and tainted")
    parser.add_argument(
        "--gpu", default="", metavar="UUID", help="this GPU alone, where claims hand them out"
    )
    parser.add_argument(
        "--with",
        dest="partner",
        metavar="NODE",
        help="the other node of a gang's check, - for none; default: one that is ready, schedulable, alike, free, and that nothing speaks against",
    )
    parser.add_argument(
        "--replaced",
        default="",
        metavar="UUID",
        help="this GPU was taken out for good: when the node has passed, what stands against it is cleared, too",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        default="default",
        help="an opted-in one, in which the Job is made (%(default)s)",
    )
    parser.add_argument(
        "-f",
        "--like",
        metavar="FILE",
        help="a Pod, Job, …: the checks get its variables, mounts, networks and devices, as in that workload; - is stdin",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be created, and create nothing"
    )


async def _revalidate(args: argparse.Namespace) -> int:
    like = _like(args.like) if args.like else []
    async with Client(connection(home=Path.home()), agent="preflight") as client:
        try:
            run = await _planned(args, client, like)
        except CannotRevalidate as error:
            raise CommandFailed(str(error)) from None
        if args.dry_run:
            manifests = [manifest for manifest in (run.claim, run.job) if manifest is not None]
            print(yaml.safe_dump_all(manifests, sort_keys=False), end="")
            return commands.DONE
        for line in run.announced():
            commands.say(line)
        await _create(client, run)
        if not await _passed(client, run):
            return commands.FAILED
        return await _cleared(client, run)


async def _planned(args: argparse.Namespace, client: Client, like: list[FoundPod]) -> PlannedRun:
    release = await live.release_of(client)
    config = release.config
    if not config.checks:
        raise CommandFailed(
            f"{release.source}: checks is empty, so nothing can be tested; name one."
        )
    around = await client.get(f"/api/v1/namespaces/{args.namespace}", dict)
    asked = opt_in(args.namespace, around["metadata"].get("labels") or {}, release.lists)
    if asked.asked != "yes":
        raise BadInput(f"-n {args.namespace}: no pod is checked there: {asked.why}.")
    node = await _node(client, args.node)
    replaced = revalidation.replaced_gpu(node, args.replaced) if args.replaced else ""
    version, by_node = await _devices(client, config, args.node)
    devices = by_node.get(args.node, {})
    name = f"revalidate-{args.node[:40].replace('.', '-').strip('-')}-{secrets.token_hex(3)}"
    claim = revalidation.claim_template(name, node, devices, config, args.gpu, version=version)
    nodes = [node]
    if args.partner == args.node:
        raise BadInput(f"--with {args.partner}: is the node itself; name another one.")
    if args.partner and args.partner != "-":
        if args.gpu:
            raise BadInput(
                f"--with {args.partner}: has no GPU {args.gpu}; leave one of the two out."
            )
        nodes.append(await _node(client, args.partner))
    elif not args.partner and not args.gpu and any(check.gang_wide for check in config.checks):
        if claim is not None:
            _, by_node = await _devices(client, config)
        everyone = [
            peer
            async for page, _ in client.pages("/api/v1/nodes", dict)
            for peer in page
            if claim is None or _number(by_node.get(name_of(peer), {})) == _number(devices)
        ]
        partner = revalidation.partner_of(node, everyone, config, await _busy(client, config))
        nodes += [partner] if partner is not None else []
    workload = revalidation.with_gpus([each.pod for each in like], config) if like else None
    if workload is not None and claim is not None:
        here = like[0]._replace(pod=workload, namespace=args.namespace)
        known = {**await live.needed(here, client), **here.claims}
        workload = revalidation.without_gpus(workload, known, config)
    job = revalidation.job(name, nodes, config, workload, claim)
    home = release.lists.release if release.lists is not None else ""
    return PlannedRun(args.namespace, nodes, config, job, claim, home, replaced)


async def _busy(client: Client, config: Config) -> set[str]:
    """The nodes whose GPUs pods have; none where whoever asks may not list all pods."""
    params, nodes = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}, set[str]()
    try:
        async for page, _ in client.pages("/api/v1/pods", dict, params=params):
            has = (pod for pod in page if revalidation.holds_gpus(pod, config))
            nodes |= {str(pod["spec"].get("nodeName")) for pod in has}
    except KubeError as error:
        if error.status != 403:
            raise
    return nodes


async def _create(client: Client, run: PlannedRun) -> None:
    name = name_of(run.job)
    if run.claim is not None:
        await client.create(run.claims, run.claim)
    job = json.loads(await client.create(run.path, run.job))
    if run.claim is not None:  # it goes with the Job
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name}
        owner["uid"] = job["metadata"]["uid"]
        await client.merge_patch(f"{run.claims}/{name}", {"metadata": {"ownerReferences": [owner]}})


async def _passed(client: Client, run: PlannedRun) -> bool:
    """Say what happens until the Job's end; whether every check on the node has passed."""
    name, printed = name_of(run.job), set[str]()
    mine = {"labelSelector": f"batch.kubernetes.io/job-name={name}"}
    ended: list[Object] = []
    held: list[str] = []
    while True:
        pods = (await client.get(f"/api/v1/namespaces/{run.namespace}/pods", dict, params=mine))[
            "items"
        ]
        checks = revalidation.runs(pods, run.config)
        lines = [str(check) for check in checks if check.result is not None]
        lines += [*revalidation.waiting(pods), *held]
        for line in lines:
            if line not in printed:
                printed.add(line)
                commands.say(line)
        if ended:  # the pods were read after it
            break
        status = map_of((await client.get(f"{run.path}/{name}", dict)).get("status"))
        true = [each for each in maps(status.get("conditions")) if each["status"] == "True"]
        ended = [each for each in true if each["type"] in {"Complete", "Failed"}]
        if any(each["type"] == "Suspended" for each in true):
            why = "as a queue (Kueue) does; have it admitted, or give -n a namespace that no queue manages"
            held = [f"Job {run.namespace}/{name} is suspended, {why}"]
        await anyio.sleep(0 if ended else _LOOK)
    outcomes = {check.outcome for check in checks if check.node == name_of(run.nodes[0])}
    if ended[0]["type"] == "Complete" and {"passed"} <= outcomes <= {"passed", "skipped"}:
        return True
    why = "" if outcomes else f" ({ended[0].get('message')})"
    commands.say(
        f"{name_of(run.nodes[0])} has not passed{why}, and what stands against it stays; see `kubectl -n {run.namespace} logs job/{name} --all-containers`."
    )
    return False


async def _cleared(client: Client, run: PlannedRun) -> int:
    """Wait until nothing stands against the node any more; the exit status."""
    name = name_of(run.nodes[0])
    if run.replaced:
        await _clear_replaced(client, run, run.replaced)
    for _ in range(_CLEARING):
        if not (left := revalidation.standing(await _node(client, name))):
            break
        await anyio.sleep(_LOOK)
    if not left:
        cordoned = run.nodes[0]["spec"].get("unschedulable")
        more = f"; `kubectl uncordon {name}` gives it work again" if cordoned else ""
        commands.say(f"{name} has passed, and nothing stands against it{more}.")
        return commands.DONE
    commands.say(
        f"{name} has passed, and {revalidation.in_words(left)} stays: the test that raised it did not run, or the GPU is no longer there (--replaced clears what stands against one that was replaced)."
    )
    return commands.FAILED


async def _clear_replaced(client: Client, run: PlannedRun, gpu: str) -> None:
    """Have the platform connector told that the GPU is gone, where something stands against it."""
    node = await _node(client, name_of(run.nodes[0]))
    if (job := revalidation.farewell(run.job, node, gpu, run.config, run.claim)) is None:
        commands.say(f"--replaced {gpu}: nothing stands against it.")
        return
    jobs = f"/apis/batch/v1/namespaces/{run.release}/jobs"
    await client.create(jobs, job)
    commands.say(f"Job {run.release}/{name_of(job)}: {gpu} was replaced")


async def _node(client: Client, name: str) -> Object:
    try:
        return await client.get(f"/api/v1/nodes/{name}", dict)
    except NotFound:
        raise BadInput(f"{name}: the cluster has no such node; see `kubectl get nodes`.") from None


async def _devices(
    client: Client, config: Config, node: str = ""
) -> tuple[str, dict[str, dict[str, list[str]]]]:
    """The version of the API of claims that the cluster serves, and by node (of all, or of the one)
    UUIDs by driver of the GPUs that claims hand out; neither where no claims are known.
    """
    by_node: dict[str, dict[str, list[str]]] = {}
    path = None
    if config.gpu_detection.device_classes:
        path = await RESTMapper(client).newest(GROUP, VERSIONS, "ResourceSlice")
    if path is None:
        return "", by_node
    of = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    async for page, _ in client.pages(path, dict, params=of):
        for resource_slice in page:
            spec = resource_slice["spec"]
            devices = by_node.setdefault(str(spec.get("nodeName")), {})
            for device in spec.get("devices") or ():
                attributes = (device.get("basic") or device).get("attributes") or {}  # v1beta1
                # vfio is a GPU once more, mig a part of one: both are of other classes.
                whole = (attributes.get("type") or {}).get("string") in {None, "gpu"}
                if whole and (uuid := (attributes.get("uuid") or {}).get("string")):
                    devices.setdefault(spec["driver"], []).append(uuid)
    return path.split("/")[3], by_node


def _number(devices: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, devices.values()))


def _like(file: str) -> list[FoundPod]:
    pods, problems = found_in(objects_in(file), commands.named(file))
    if problems:
        raise BadInput(problems)
    return pods
