"""A cluster made ready for scenarios: fake GPU nodes on every node, the chart installed, namespaces
on demand.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config, stream, utils, watch
from preflight_testing.helm import Release
from preflight_testing.matrix.facts import GPUS, node_json

FAKES = "preflight-fakes"
NODE_ACCOUNT = "fake-node"
"""The fake nodes' ServiceAccount."""
OPTED_IN = {"nvsentinel.nvidia.com/preflight": "enabled"}
MANIFEST = Path(__file__).resolve().parents[2] / "fakes" / "node" / "daemonset.yaml"
BASE_VALUES: dict[str, Any] = {
    "enabled": True,
    "image": {"repository": "preflight-webhook", "tag": "dev"},
    # Half the time of an upgrade; what two replicas promise is tested beside the rows.
    "replicas": 1,
    "checks": [
        {
            "name": "dcgm-diag",
            "image": "preflight-dcgm-diag:e2e",
            "env": [{"name": "DCGM_QUEUE_TIMEOUT", "value": "4s"}],
        }
    ],
    # The node's own address: the engine that answers there is this node's.
    "dcgm": {"hostengineAddr": "$(NODE_IP):5555", "diagLevel": 2},
    # The fake nodes have no network devices.
    "skipNcclWithoutNetwork": False,
    # Rows end checks as a kubelet does, but through the API server, where nobody may enter a check.
    "protection": {"exemptUsers": [f"system:serviceaccount:{FAKES}:{NODE_ACCOUNT}"]},
}
GANG_VALUES: dict[str, Any] = {
    "enabled": True,
    "image": {"repository": "preflight-gang", "tag": "dev"},
    "leaseDuration": "5s",
}


def injector_values(changes: dict[str, Any]) -> dict[str, Any]:
    """The values of preflight-injector that a row's ``changes`` make."""
    return {**BASE_VALUES, **changes}


class LabError(Exception):
    """The cluster could not be made ready. One sentence."""


def until(what: str, probe: Callable[[], Any], seconds: float = 90) -> Any:
    """The first true answer of ``probe``. Raises :class:`LabError` naming ``what`` when there is
    none in time.
    """
    end = time.monotonic() + seconds
    while True:
        if answer := probe():
            return answer
        if time.monotonic() > end:
            raise LabError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


class Lab:
    """What scenarios need of a cluster. Every object that it makes is removed by :meth:`close`."""

    def __init__(self, kubeconfig: Path, say: Callable[[str], None]) -> None:
        config.load_kube_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self.api: Any = client.CoreV1Api()
        self.say = say
        self.release = Release("preflight", kubeconfig)
        self._values: dict[str, Any] | None = None
        self._told: set[str] = set()
        self.nodes: list[str] = []

    # --- nodes

    def fake_nodes(self) -> None:
        """Start the fakes on every schedulable node and wait for their GPUs."""
        if self._exists(
            FAKES
        ):  # kept, or left by a run that was killed: of an image that may be older than ours
            self.api.delete_namespace(FAKES)
            until(f"namespace {FAKES} is gone", lambda: not self._exists(FAKES), 120)
        documents = list(yaml.safe_load_all(MANIFEST.read_text()))
        for document in documents:
            try:
                utils.create_from_dict(client.ApiClient(), document)  # type: ignore[no-untyped-call]
            except utils.FailToCreateError as error:
                if any(e.status != 409 for e in error.api_exceptions):
                    raise
        workers = [
            n
            for n in self.api.list_node().items
            if not any(t.effect == "NoSchedule" for t in n.spec.taints or [])
        ]
        self.nodes = sorted(n.metadata.name for n in workers)
        self.become({})
        until(
            f"every node advertises {GPUS} GPUs",
            lambda: all(self._gpus(node) == GPUS for node in self.nodes),
        )

    def configure(self, node: str, changes: dict[str, Any], *, wait: bool = True) -> None:
        """Make ``node`` what ``changes`` say of it; returns when its fakes have taken it over."""
        wanted = uuid.uuid4().hex
        body = {
            "metadata": {"name": f"node-{node}", "annotations": {"fake-node/wanted": wanted}},
            "data": {"node.json": json.dumps(node_json(node, changes))},
        }
        try:
            self.api.patch_namespaced_config_map(
                f"node-{node}",
                FAKES,
                {**body, "metadata": {"annotations": {"fake-node/wanted": wanted}}},
            )
        except client.ApiException as error:
            if error.status != 404:
                raise
            self.api.create_namespaced_config_map(FAKES, body)
        if wait:
            self.configured(node)

    def become(self, changes: dict[str, Any]) -> None:
        """Make every node what ``changes`` say."""
        for node in self.nodes:
            self.configure(node, changes, wait=False)
        for node in self.nodes:
            self.configured(node)

    def configured(self, node: str) -> None:
        def applied() -> bool:
            notes = self.api.read_namespaced_config_map(f"node-{node}", FAKES).metadata.annotations
            return bool(notes.get("fake-node/applied") == notes["fake-node/wanted"])

        until(f"the fake node on {node} takes over its facts (see its log in {FAKES})", applied)

    def node_log(self, node: str) -> list[dict[str, Any]]:
        """What the fakes of ``node`` have said so far, as JSON objects."""
        pods = self.api.list_namespaced_pod(FAKES, field_selector=f"spec.nodeName={node}").items
        text = self.api.read_namespaced_pod_log(
            pods[0].metadata.name, FAKES, _preload_content=False
        ).data.decode()
        lines = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
        return lines

    def _gpus(self, node: str) -> int:
        return int((self.api.read_node(node).status.allocatable or {}).get("nvidia.com/gpu", "0"))

    # --- the chart

    def values(self, changes: dict[str, Any]) -> None:
        """Have the chart installed with the e2e's values and ``changes``; does nothing when it is
        so already.
        """
        wanted = {"preflight-injector": injector_values(changes), "preflight-gang": GANG_VALUES}
        if wanted == self._values:
            return
        if self._values is None:
            self.release.uninstall()
            self.release.install(wanted)
        else:
            self.release.upgrade(wanted)
        self._values = wanted
        until("old replicas are gone", self._settled)

    def without_chart(self) -> None:
        """Take the chart away; returns when its certificate has gone too, which the next release
        would find and lose.
        """
        self.release.uninstall()
        self._values = None
        label = "app.kubernetes.io/managed-by=preflight-webhook-certs"
        left = self.api.list_namespaced_secret
        until(
            "the release's certificate is gone",
            lambda: not left("preflight", label_selector=label).items,
        )

    def _settled(self) -> bool:
        for component in ("webhook", "controller"):
            pods = self.api.list_namespaced_pod(
                "preflight", label_selector=f"app.kubernetes.io/component={component}"
            ).items
            for name in {
                p.metadata.name for p in pods if p.metadata.deletion_timestamp
            } - self._told:
                self._told.add(name)
                # It would answer for ten seconds more; told twice, it ends at once.
                with contextlib.suppress(client.ApiException):  # it has ended
                    self.terminate("preflight", name, component)
            ready = [p for p in pods if all(c.ready for c in p.status.container_statuses or [])]
            if (
                len(pods) != len(ready)
                or len({p.metadata.labels["pod-template-hash"] for p in pods}) != 1
            ):
                return False
        return True

    # --- pods

    def create(self, namespace: str, collection: str, body: dict[str, Any]) -> None:
        """Create any namespaced object, e.g. in `scheduling.k8s.io/v1alpha2/podgroups`."""
        group, version, plural = collection.split("/")
        client.CustomObjectsApi().create_namespaced_custom_object(
            group, version, namespace, plural, body
        )

    def log(self, namespace: str, pod: str, container: str) -> str:
        """The container's log; empty while it has none."""
        try:
            answer = self.api.read_namespaced_pod_log(
                pod, namespace, container=container, _preload_content=False
            )
        except client.ApiException as error:
            if error.status in {400, 404}:  # not started yet
                return ""
            raise
        return str(answer.data.decode(errors="replace"))

    def terminate(self, namespace: str, pod: str, container: str) -> None:
        """End a container's process, a Python one, in place and as its kubelet would."""
        # A client of its own: `stream` turns the client it is given into one for websockets.
        run: Any = stream.stream
        run(
            client.CoreV1Api(client.ApiClient(self._as_node())).connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=container,
            command=["python3", "-c", "import os, signal; os.kill(1, signal.SIGTERM)"],
            stderr=True,
            stdout=True,
        )

    def _as_node(self) -> Any:
        """How the fake nodes' account reaches the API server."""
        asked = {"spec": {"expirationSeconds": 600}}
        token = self.api.create_namespaced_service_account_token(
            NODE_ACCOUNT, FAKES, asked
        ).status.token
        target: Any = client.Configuration.get_default_copy()
        target.cert_file = target.key_file = target.refresh_api_key_hook = None
        target.api_key, target.api_key_prefix = (
            {"authorization": token},
            {"authorization": "Bearer"},
        )
        return target

    @contextlib.contextmanager
    def addresses(self, namespace: str) -> Iterator[dict[str, float]]:
        """By pod, the time (seconds since the epoch) at which the API server first told its
        address; filled as it goes.
        """
        seen: dict[str, float] = {}
        over = threading.Event()
        watching: Any = watch.Watch()  # type: ignore[no-untyped-call]

        def follow() -> None:
            api = client.CoreV1Api(client.ApiClient())
            while not over.is_set():
                # The namespace's removal ends the connection.
                with contextlib.suppress(urllib3.exceptions.HTTPError, client.ApiException):
                    for event in watching.stream(
                        api.list_namespaced_pod, namespace, timeout_seconds=600
                    ):
                        # None: a line that the end of the connection cut off.
                        if event is not None and (pod := event["object"]).status.pod_ip:
                            seen.setdefault(pod.metadata.name, time.time())

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            watching.stop()

    # --- namespaces

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """A new opted-in namespace, once the webhook is called for its pods."""
        self.api.create_namespace(
            {"metadata": {"name": name, "labels": {**OPTED_IN, **(labels or {})}}}
        )
        self.reached(name)
        return name

    def reached(self, name: str) -> None:
        """Return once the webhook is called for pods of namespace ``name``."""
        # A gang's member is stamped whichever checks are configured.
        probe = {
            "metadata": {"name": "probe", "labels": {"app.kubernetes.io/gang-id": "probe"}},
            "spec": {"containers": [{"name": "c", "image": "x"}]},
        }

        def asked() -> bool:
            try:
                pod = self.api.create_namespaced_pod(name, probe, dry_run="All")
            except client.ApiException as error:
                if error.status in {
                    403,
                    500,
                }:  # no default ServiceAccount yet, or no webhook replica reached yet
                    return False
                raise
            return "preflight.nvsentinel.nvidia.com/gang" in (pod.metadata.annotations or {})

        until(f"the webhook is called for pods of namespace {name}", asked, 30)

    def remove_namespace(self, name: str) -> None:
        """Remove it; returns when its pods and claims have given back their devices."""
        claims: Any = client.ResourceV1Api()
        self.api.delete_namespace(name)
        # The namespace's own controller does the same, but begins after five seconds.
        for what, delete, listing in (
            ("pods", self.api.delete_collection_namespaced_pod, self.api.list_namespaced_pod),
            (
                "claims",
                claims.delete_collection_namespaced_resource_claim,
                claims.list_namespaced_resource_claim,
            ),
        ):
            delete(name, grace_period_seconds=1)
            until(
                f"the {what} of namespace {name} are gone",
                lambda listing=listing: not listing(name).items,  # type: ignore[misc]
                120,
            )

    def _exists(self, name: str) -> bool:
        try:
            self.api.read_namespace(name)
        except client.ApiException as error:
            if error.status == 404:
                return False
            raise
        return True

    def close(self) -> None:
        """Take away what this lab has brought."""
        self.release.uninstall(wait=False)
        for name in (FAKES, "preflight"):
            if self._exists(name):
                self.api.delete_collection_namespaced_pod(name, grace_period_seconds=1)
                self.api.delete_namespace(name)
        rights: Any = client.RbacAuthorizationV1Api()
        classes: Any = client.ResourceV1Api()
        for delete in (
            rights.delete_collection_cluster_role,
            rights.delete_collection_cluster_role_binding,
            classes.delete_collection_device_class,
        ):
            delete(label_selector=f"app.kubernetes.io/part-of={FAKES}")
