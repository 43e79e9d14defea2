"""Whatever a pod says of names, its check asks the engine of its own node, or the pod does not
start.

The fakes' hostengines answer at their nodes' addresses and are faulty, healthy or absent as a test
says. Needs KUBECONFIG, two nodes, and the images `preflight-fake-node:dev`,
`preflight-dcgm-diag:e2e` and the webhook's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kubernetes import client, config
from preflight_e2e.impersonation import error_of
from preflight_e2e.installed_release import Installed, until
from preflight_e2e.lab import FAKES, Lab
from preflight_testing.helm import Object
from preflight_testing.matrix.facts import GPUS, uuids

pytestmark = pytest.mark.timeout(400)

IMAGE = "preflight-fake-node:dev"
CHECK = "preflight-dcgm-diag"
NAME = "nvidia-dcgm.gpu-operator.svc"
FAULTS = [
    {
        "gpu": gpu,
        "test": "memory",
        "error_id": 52,
        "severity": 2,
        "category": 10,
        "text": "14 bit errors",
    }
    for gpu in range(GPUS)
]
FAULTY: Object = {"engine": {"seconds": 0.05, "faults": FAULTS}}
HEALTHY: Object = {"engine": {"seconds": 0.05}}
ABSENT: Object = {"engine": {"state": "absent"}}


class Node(NamedTuple):
    name: str
    address: str


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Fake GPU nodes, which the rows of the matrix have taken away with them."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    made = Lab(Path(kubeconfig), print)
    until(
        lambda: FAKES not in {one.metadata.name for one in made.api.list_namespace().items},
        f"the end of {FAKES}",
    )
    try:
        made.fake_nodes()
        yield made
    finally:
        made.close()


@pytest.fixture
def nodes(lab: Lab) -> Iterator[tuple[Node, Node]]:
    """Two nodes, healthy again in the end."""
    if len(lab.nodes) < 2:
        pytest.skip("needs two nodes")

    def node(name: str) -> Node:
        addresses = lab.api.read_node(name).status.addresses
        return Node(name, next(one.address for one in addresses if one.type == "InternalIP"))

    yield node(lab.nodes[0]), node(lab.nodes[1])
    for name in lab.nodes[:2]:
        lab.configure(name, {})


def installed(made: Installed, **dcgm: Any) -> str:
    """An injector, of the chart's own address unless ``dcgm`` says another, whose one check asks
    the fake engines; the name of an opted-in namespace.
    """
    check = {
        "name": "dcgm-diag",
        "image": "preflight-dcgm-diag:e2e",
        "env": [{"name": "DCGM_QUEUE_TIMEOUT", "value": "30s"}],
        "onInconclusive": "block",
    }
    made.release.install(
        made.with_values(checks=[check], replicas=1, dcgm={"diagLevel": 2, **dcgm})
    )
    until(made.published, "the CA bundle")
    return made.opted_in()


def pod(name: str, node: Node, **spec: Any) -> Object:
    container = {
        "name": "train",
        "image": IMAGE,
        "command": ["true"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    where = {"nodeSelector": {"kubernetes.io/hostname": node.name}}
    base = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        **where,
    }
    return {"metadata": {"name": name}, "spec": {**base, **spec}}


def redirections(to: str, own: str) -> dict[str, Object]:
    """Everything by which a pod's author leads names elsewhere; the last one tries it with its
    node's address.
    """
    names = [
        "localhost",
        "nvidia-dcgm",
        NAME,
        f"{NAME}.cluster.local",
        "dcgm-hostengine.nvsentinel.svc",
    ]
    resolver = {"nameservers": [to], "searches": ["evil.example.com"]}
    return {
        "aliases": {"hostAliases": [{"ip": to, "hostnames": names}]},
        "no-policy": {"dnsPolicy": "None", "dnsConfig": resolver},
        "nameservers": {"dnsConfig": {"nameservers": [to]}},
        "searches": {
            "dnsConfig": {
                "searches": ["evil.example.com"],
                "options": [{"name": "ndots", "value": "15"}],
            }
        },
        "aliased-address": {"hostAliases": [{"ip": to, "hostnames": [own]}]},
    }


def ended(made: Installed, namespace: str, name: str) -> tuple[str, str, str]:
    """(phase, outcome, code) of a pod once it has ended."""

    def over() -> bool:
        return made.api.read_namespaced_pod(name, namespace).status.phase in {"Succeeded", "Failed"}

    until(over, f"the end of {name}", 150)
    status = made.api.read_namespaced_pod(name, namespace).status
    [check] = [one for one in status.init_container_statuses if one.name == CHECK]
    result = json.loads(check.state.terminated.message or "{}")
    return status.phase, result.get("outcome", ""), result.get("code", "")


class Heard:
    """What the fakes of a node have heard since this was made."""

    def __init__(self, lab: Lab, node: Node) -> None:
        self._lab, self._node = lab, node.name
        self._before = len(lab.node_log(node.name))

    def _lines(self) -> list[Any]:
        return self._lab.node_log(self._node)[self._before :]

    @property
    def diagnosed(self) -> set[str]:
        """UUIDs of the GPUs that its engine was asked to diagnose."""
        return {uuid for line in self._lines() if "diag" in line for uuid in line["diag"]["gpus"]}

    @property
    def fatal(self) -> set[str]:
        """Entities of the fatal events that its connector was given."""
        events = [
            line["event"] for line in self._lines() if "event" in line and line["event"]["isFatal"]
        ]
        return {one["entityValue"] for event in events for one in event["entitiesImpacted"]} | (
            {"the node"} if any(not event["entitiesImpacted"] for event in events) else set()
        )


def test_by_address_the_nodes_own_engine_is_asked_whatever_the_pod_says_of_names(
    fresh: Installed, lab: Lab, nodes: tuple[Node, Node]
) -> None:
    namespace = installed(fresh)
    faulty, healthy = nodes
    lab.configure(faulty.name, FAULTY)
    lab.configure(healthy.name, HEALTHY)
    of_faulty, of_healthy = Heard(lab, faulty), Heard(lab, healthy)
    wanted: dict[str, tuple[str, str, str]] = {}
    for node, other, end in (
        (faulty, healthy, ("Failed", "failed", "DCGM_FR_FAULTY_MEMORY")),
        (healthy, faulty, ("Succeeded", "passed", "OK")),
    ):
        for how, spec in redirections(other.address, node.address).items():
            name = f"{how}-on-{'faulty' if node is faulty else 'healthy'}"
            fresh.api.create_namespaced_pod(namespace, pod(name, node, **spec))
            wanted[name] = end
    assert {name: ended(fresh, namespace, name) for name in wanted} == wanted
    for node, heard in ((faulty, of_faulty), (healthy, of_healthy)):
        assert heard.diagnosed
        assert heard.diagnosed <= set(uuids(node.name))
    assert of_faulty.fatal
    assert of_faulty.fatal <= set(uuids(faulty.name))
    assert of_healthy.fatal == set()


def test_by_name_a_pod_that_could_lead_it_elsewhere_is_denied_with_the_reason(
    fresh: Installed, lab: Lab, nodes: tuple[Node, Node]
) -> None:
    namespace = installed(fresh, hostengineAddr=f"{NAME}:5555")
    one, other = nodes
    create = fresh.api.create_namespaced_pod
    tried = redirections(other.address, one.address)
    own = tried.pop("aliased-address")
    for how, setting in (
        ("aliases", "spec.hostAliases says where"),
        ("no-policy", "spec.dnsPolicy is None"),
        ("nameservers", "spec.dnsConfig.nameservers says who is asked"),
        ("searches", "spec.dnsConfig.searches says where it is looked for"),
    ):
        answer = error_of(partial(create, namespace, pod(how, one, **tried.pop(how))))
        assert (
            f"could lead the check dcgm-diag to another server than {NAME}: {setting}" in answer
        ), answer
        assert "dcgm.hostengineAddr: $(NODE_IP):5555" in answer, "and what to do"
    assert not tried
    assert error_of(lambda: create(namespace, pod("harmless", one, **own), dry_run="All")) == ""
    assert fresh.api.list_namespaced_pod(namespace).items == []


@pytest.mark.parametrize("by", ["hosts file", "DNS"])
def test_another_nodes_engine_behind_a_name_neither_passes_nor_accuses_anyone(
    fresh: Installed, lab: Lab, nodes: tuple[Node, Node], by: str
) -> None:
    """What no admission sees: a pod that was admitted while an address was configured, and a name
    that DNS leads elsewhere.
    """
    own, foreign = nodes
    lab.configure(own.name, HEALTHY)
    heard = Heard(lab, own), Heard(lab, foreign)
    namespace, spec = _led(fresh, by, own, foreign)
    for does, engine in (("absent", ABSENT), ("passes", HEALTHY), ("fails", FAULTY)):
        lab.configure(foreign.name, engine)
        fresh.api.create_namespaced_pod(namespace, pod(does, own, **spec))
        phase, outcome, code = ended(fresh, namespace, does)
        assert (phase, outcome) == ("Failed", "inconclusive"), (does, code)
        assert code in {"WRONG_HOSTENGINE", "ENGINE_UNREACHABLE"}, does
    assert [one.fatal for one in heard] == [set(), set()]
    assert [one.diagnosed for one in heard] == [set(), set()]


def _led(made: Installed, by: str, own: Node, foreign: Node) -> tuple[str, Object]:
    """A namespace, and what a pod there needs for its check to ask ``foreign``'s
    engine by a name.
    """
    if by == "DNS":
        host = f"engine.{made.name}.svc.cluster.local"
        namespace = installed(made, hostengineAddr=f"{host}:5555")
        ports = [{"port": 5555, "name": "engine"}]
        made.api.create_namespaced_service(
            made.name, {"metadata": {"name": "engine"}, "spec": {"ports": ports}}
        )
        subsets = [{"addresses": [{"ip": foreign.address}], "ports": ports}]
        made.api.create_namespaced_endpoints(
            made.name, {"metadata": {"name": "engine"}, "subsets": subsets}
        )
        return namespace, {}
    namespace = installed(made)
    injected = made.api.create_namespaced_pod(namespace, pod("like", own), dry_run="All")
    plain = made.namespace()
    until(
        lambda: bool(made.api.list_namespaced_service_account(plain).items), "the default account"
    )
    any_client: Any = client.ApiClient()
    spec = any_client.sanitize_for_serialization(injected.spec)
    [check] = spec["initContainers"]
    for variable in check["env"]:
        if variable["name"] == "DCGM_HOSTENGINE_ADDR":
            variable["value"] = f"{NAME}:5555"
    aliases = [{"ip": foreign.address, "hostnames": [NAME]}]
    return plain, {"initContainers": [check], "volumes": spec["volumes"], "hostAliases": aliases}
