"""Objects for tests, and what becomes of them at admission."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from preflight_mnnvl.api.types import PodClique, PodCliqueSet
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.mutate_podclique import ClusterView, Needs, Review, ReviewAnswer, decide
from preflight_mnnvl.core.reconcile import plans
from preflight_mnnvl.core.snapshot import World
from preflight_mnnvl.core.support import ClusterFacts, Support, judge
from preflight_testing.apidouble.patches import json_patch

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
ON = {"grove.io/mnnvl-enabled": "true"}
BY_CLIQUE = {**ON, "grove.io/mnnvl-scope": "clique"}
BY_GROUP = {**ON, "grove.io/mnnvl-scope": "scalingGroupReplica"}
DRIVER = Config()
LITERAL = Config(mode="literal")
SERVED = ClusterFacts(domain="v1beta1", device_class=True, fabric_nodes=100)


def support(config: Config) -> Support:
    return judge(SERVED, config)


def container(name: str = "main", gpus: object = 8, **more: Any) -> Object:
    return {
        "name": name,
        "image": "x",
        **({"resources": {"limits": {GPU: gpus}}} if gpus is not None else {}),
        **more,
    }


def clique(
    name: str,
    gpus: object = 8,
    replicas: int = 2,
    annotations: dict[str, str] | None = None,
    **pod: Any,
) -> Object:
    found: Object = {
        "name": name,
        "spec": {
            "roleName": name,
            "replicas": replicas,
            "podSpec": {"containers": [container(gpus=gpus)], **pod},
        },
    }
    return {**found, "annotations": annotations} if annotations else found


def group(
    name: str,
    cliques: list[str],
    annotations: dict[str, str] | None = None,
    replicas: int = 1,
    least: int = 1,
) -> Object:
    found: Object = {
        "name": name,
        "cliqueNames": cliques,
        "replicas": replicas,
        "minAvailable": least,
    }
    return {**found, "annotations": annotations} if annotations else found


def pcs(
    name: str,
    cliques: list[Object],
    groups: list[Object] | None = None,
    annotations: dict[str, str] | None = None,
    replicas: int = 1,
) -> Object:
    meta: Object = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    if annotations:
        meta["annotations"] = annotations
    template: Object = {"cliques": cliques}
    if groups:
        template["podCliqueScalingGroups"] = groups
    return {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodCliqueSet",
        "metadata": meta,
        "spec": {"replicas": replicas, "template": template},
    }


def podclique(
    name: str,
    set_: str,
    replica: int = 0,
    annotations: dict[str, str] | None = None,
    pod: Object | None = None,
    **labels: str,
) -> Object:
    """With Grove's own labels; ``labels`` are others, by short names."""
    keys = {
        "gang": "grove.io/podgang",
        "base": "grove.io/base-podgang",
        "group": "grove.io/podcliquescalinggroup",
        "index": "grove.io/podcliquescalinggroup-replica-index",
    }
    found = {
        "app.kubernetes.io/managed-by": "grove-operator",
        "app.kubernetes.io/part-of": set_,
        "grove.io/podcliqueset-replica-index": str(replica),
        "grove.io/podgang": f"{set_}-{replica}",
        **{keys[key]: value for key, value in labels.items()},
    }
    meta: Object = {"name": name, "namespace": "default", "labels": found}
    if annotations is not None:
        meta["annotations"] = annotations
    spec = {
        "roleName": "x",
        "replicas": 2,
        "podSpec": pod if pod is not None else {"containers": [container()]},
    }
    return {"apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": meta, "spec": spec}


def decoded_set(found: Object) -> PodCliqueSet:
    return msgspec.json.decode(json.dumps(found), type=PodCliqueSet)


def admit(
    found: Object, config: Config = DRIVER, set_: Object | None = None, /, **known: Any
) -> ReviewAnswer:
    """The answer to its creation; the set is known, and so are the claims unless the caller says
    otherwise.
    """
    known.setdefault("support", support(config))
    known.setdefault("classes", {})
    whole = ClusterView(set_=decoded_set(set_) if set_ else None, has_set=True, **known)
    return decide(Review("CREATE", "default", json.dumps(found).encode()), config, whole)


def makes(
    found: Object, config: Config = DRIVER, set_: Object | None = None, /, **known: Any
) -> list[Object]:
    """What the controller makes once the PodClique is stored as it was admitted."""
    stored = patched(found, admit(found, config, set_, **known))
    meta = {"name": stored["metadata"]["labels"]["app.kubernetes.io/part-of"], "uid": "uid-of-set"}
    of = decoded_set({"metadata": {**meta, "namespace": "default"}})
    world = World(
        cliques={("default", "w"): msgspec.json.decode(json.dumps(stored), type=PodClique)},
        sets={("default", meta["name"]): of},
    )
    planned = plans(world, config, known.get("support", support(config)), 1_800_000_000.0)
    return [action.body for plan in planned.values() for action in plan.actions]


def on_update(found: Object, old: Object, config: Config = DRIVER) -> ReviewAnswer:
    """Nothing at all is known of the cluster: an update asks nobody."""
    unknown = judge(ClusterFacts(), config)
    answer = decide(
        Review("UPDATE", "default", json.dumps(found).encode(), json.dumps(old).encode()),
        config,
        ClusterView(unknown),
    )
    assert not isinstance(answer.needs, Needs)
    return answer


def patched(found: Object, answer: ReviewAnswer) -> Object:
    assert answer.allowed, answer.message
    stored: Object = json_patch(found, list(answer.patch))
    return stored


def review_of(
    found: Object, old: Object | None = None, namespace: str = "default", **more: Any
) -> Object:
    """What an API server asks about its creation, or (``old``) its change; ``more``: of the
    request.
    """
    about = {"group": "grove.io", "version": "v1alpha1"}
    request = {
        "uid": "1",
        "kind": {**about, "kind": found["kind"]},
        "resource": {**about, "resource": f"{found['kind'].lower()}s"},
        "operation": "CREATE" if old is None else "UPDATE",
        "namespace": namespace,
        "name": found["metadata"].get("name", ""),
        "object": found,
        "oldObject": old,
        **more,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
