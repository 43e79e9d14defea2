"""One replica of each process from start to end, run by :mod:`preflight_kube.runtime.manager`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.reviews import Reviews
from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.manager import Election, Parts, run

from preflight_appwrapper.api.names import COMPONENT
from preflight_appwrapper.api.rules import WrapperRules, seconds
from preflight_appwrapper.config import Config
from preflight_appwrapper.controller.apply import WrapperApplier
from preflight_appwrapper.controller.controller import Controller
from preflight_appwrapper.controller.labeled_lists import LabeledLists
from preflight_appwrapper.controller.node_labeler import Labeler
from preflight_appwrapper.core import decode
from preflight_appwrapper.core.pods import sick_resources
from preflight_appwrapper.core.reconcile import reconcile
from preflight_appwrapper.core.snapshot import LeaderState, Mirrored, observe
from preflight_appwrapper.metrics import Metrics
from preflight_appwrapper.report.explain import Explanation, explain
from preflight_appwrapper.webhook.handler import Reviewer


def controller(config: Config, rules: WrapperRules, args: Namespace) -> int:
    """Be one replica until SIGTERM or SIGINT; the exit status. ``args``: where it listens."""
    return _lead(
        config, args, COMPONENT, lambda client, metrics: Controller(client, rules, metrics)
    )


def labeler(config: Config, rules: WrapperRules, args: Namespace) -> int:
    """Be one replica of the node labeler; as :func:`controller`."""
    health, brake, name = config.node_health, rules.brake, f"{COMPONENT}-labeler"
    return _lead(config, args, name, lambda client, own: Labeler(client, health, own, brake))


def webhook(config: Config, rules: WrapperRules, args: Namespace, certificate: Certificate) -> int:
    """Answer admission reviews, ``args.linger`` seconds after SIGTERM too."""

    def build(client: Client, metrics: Metrics) -> Parts:
        counted = AdmissionMetrics("appwrapper", metrics.registry)
        application = Reviews(Reviewer(client, rules).applications, counted)
        server = HttpServer(
            "admission", application, counted, certificate, host=args.host, port=args.tls_port
        )
        return Parts(servers=[server])

    return _run(config, args, build, linger=args.linger)


def _lead(
    config: Config,
    args: Namespace,
    name: str,
    make: Callable[[Client, Metrics], Controller | Labeler],
) -> int:
    def build(client: Client, metrics: Metrics) -> Parts:
        async def lead(leadership: Leadership) -> None:
            with metrics.runtime.leading(name, metrics.leader):
                await make(client.fenced(leadership.valid), metrics).run()

        return Parts(lead=lead)

    return _run(config, args, build, Election(args.namespace, name, seconds(config.lease_duration)))


def _run(
    config: Config,
    args: Namespace,
    build: Callable[[Client, Metrics], Parts],
    election: Election | None = None,
    *,
    linger: float = 0.0,
) -> int:
    metrics = Metrics()

    async def built(client: Client) -> Parts:
        metrics.follow(client)
        return build(client, metrics)

    return run(
        built,
        connection(),
        component=COMPONENT,
        registry=metrics.registry,
        host=args.host,
        port=args.port,
        election=election,
        linger=linger,
        log_level=config.log_level,
    )


async def explain_once(namespace: str, name: str, rules: WrapperRules) -> Explanation | None:
    """Explain a wrapper of the cluster of KUBECONFIG, or of this pod; as :func:`explained`."""
    async with Client(connection(home=Path.home()), agent=COMPONENT) as client:
        return await explained(client, namespace, name, rules)


async def explained(
    client: Client, namespace: str, name: str, rules: WrapperRules
) -> Explanation | None:
    """Explain a wrapper by the step that a leader would decide on. Raises KubeError."""
    now = datetime.now(UTC)
    applier = WrapperApplier(client, RESTMapper(client), rules, Metrics())
    raw = await applier.read(namespace, name)
    if raw is None:
        return None
    wrapper, state = decode.wrapper(raw), LeaderState(uid=raw.metadata.uid)
    await applier.read_components(wrapper, state)
    path = f"/api/v1/namespaces/{namespace}/pods"
    read = partial(decode.pod, resources=rules.autopilot.taints)
    listed = await LabeledLists(client).of(path, name, read)
    pods = {pod.uid: pod for pod in listed.objects} if listed else {}
    nodes = dict[str, frozenset[str]]()
    for node in {pod.node for pod in pods.values() if rules.autopilot.monitor} - {""}:
        known = await client.get_or_none(f"/api/v1/nodes/{node}", decode.Node)
        if known is not None:
            nodes[node] = sick_resources(known.metadata.labels, rules.autopilot)
    cached = Mirrored(complete=True, pods=pods, nodes=nodes)
    snapshot = observe(wrapper, cached, state, suffix="xxxxx", now=now, clock=client.clock())
    return explain(wrapper, snapshot, reconcile(wrapper, snapshot, rules, now), now)
