"""What Grove makes of a PodCliqueSet: its PodCliques, scaling groups, PodGangs and pods, as they
are sent to the API server. Pure.

`nox -s real-grove` holds it against what Grove's own operator makes. What it leaves out is what
nothing of ours reads: the environment of containers, the order in which cliques start, services and
accounts of pods. Nothing of what is tested is used.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple

Json = dict[str, Any]
Labels = Literal["grove", "requirement"]
"""Grove's own set of labels, or that of the requirement."""
GATE = "grove.io/podgang-pending-creation"
FINALIZER = "grove.io/podclique.grove.io"
"""Of each PodClique from its creation. Grove takes it away as soon as one is being
deleted, and leaves what that one owns to the garbage collector.
"""
GROUP_FINALIZER = "grove.io/podcliquescalinggroup.grove.io"
"""The same of each scaling group."""
HASH = "grove.io/pod-template-hash"
"""Label of a PodClique: which template it was made of. One of a scaling group is not written again,
but made anew when that changes.
"""


class MadeClique(NamedTuple):
    """A PodClique that a set makes. ``base``: the gang that its own builds upon, if any."""

    name: str
    template: Json
    replica: int
    group: str
    member: int
    gang: str
    base: str


def made(set_: Json, groups: dict[str, Json]) -> list[MadeClique]:
    """Of a set, and its scaling groups that exist by name, which say how often they are wanted by
    now.
    """
    pcs, template, found = set_["metadata"]["name"], set_["spec"]["template"], []
    by_name = {one["name"]: one for one in template["cliques"]}
    entries = template.get("podCliqueScalingGroups") or []
    grouped = {clique for entry in entries for clique in entry["cliqueNames"]}
    for r in range(set_["spec"].get("replicas", 0)):
        base = f"{pcs}-{r}"
        for name, clique in by_name.items():
            if name not in grouped:
                found.append(MadeClique(f"{base}-{name}", clique, r, "", 0, base, ""))
        for entry in entries:
            full, least = f"{base}-{entry['name']}", entry.get("minAvailable", 1)
            now = groups.get(full, {}).get("spec", {}).get("replicas", entry.get("replicas", 1))
            for i in range(now):
                gangs = (base, "") if i < least else (f"{full}-{i - least}", base)
                for name in entry["cliqueNames"]:
                    about = (f"{full}-{i}-{name}", by_name[name], r, entry["name"], i)
                    found.append(MadeClique(*about, *gangs))
    return found


def podclique(
    set_: Json,
    one: MadeClique,
    namespace: str,
    labels: Labels = "grove",
    groups: Mapping[str, Json] = {},
) -> Json:
    """The PodClique ``one`` as Grove creates it for its set: labelled, nothing shared with its
    template, and owned by the set, or by its scaling group where that is one of ``groups``.
    """
    pcs = set_["metadata"]["name"]
    own = {"grove.io/podgang": one.gang}
    if labels == "grove":
        own |= {
            **_labels(pcs, "pcsg-podclique" if one.group else "pcs-podclique", one.name),
            "grove.io/podcliqueset-replica-index": str(one.replica),
            HASH: _hashed(one.template),
        }
        if one.base:
            own["grove.io/base-podgang"] = one.base
        if one.group:
            own["grove.io/podcliquescalinggroup"] = f"{pcs}-{one.replica}-{one.group}"
            own["grove.io/podcliquescalinggroup-replica-index"] = str(one.member)
    else:
        own |= {"grove.io/pcs-name": pcs, "grove.io/pcs-replica-index": str(one.replica)}
        if one.group:
            own |= {"grove.io/pcsg-name": one.group, "grove.io/pcsg-replica-index": str(one.member)}
    meta: Json = {
        "name": one.name,
        "namespace": namespace,
        "labels": {**one.template.get("labels", {}), **own},
        "finalizers": [FINALIZER],
        "ownerReferences": [owner(set_, "PodCliqueSet")],
    }
    if one.group and (group := groups.get(f"{pcs}-{one.replica}-{one.group}")):
        meta["ownerReferences"] = [owner(group, "PodCliqueScalingGroup")]
    if "annotations" in one.template:
        meta["annotations"] = dict(one.template["annotations"])
    spec = copy.deepcopy(one.template["spec"])
    return {"apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": meta, "spec": spec}


def reapplied(old: Json, body: Json) -> Json:
    """A stored PodClique with the template written over it: spec but for the replicas, labels and
    annotations, also where it is being deleted.
    """
    new = {**copy.deepcopy(old), "spec": {**body["spec"], "replicas": old["spec"].get("replicas")}}
    new["metadata"]["labels"] = body["metadata"]["labels"]
    if "annotations" in body["metadata"]:
        new["metadata"]["annotations"] = body["metadata"]["annotations"]
    else:
        new["metadata"].pop("annotations", None)
    return new


def scaling_groups(set_: Json) -> list[Json]:
    """The PodCliqueScalingGroups of a set: one for each of its replicas and each entry; without a
    namespace.
    """
    found, pcs = [], set_["metadata"]["name"]
    for r in range(set_["spec"].get("replicas", 0)):
        for entry in set_["spec"]["template"].get("podCliqueScalingGroups") or []:
            keys = {"replicas", "minAvailable", "cliqueNames"}
            name = f"{pcs}-{r}-{entry['name']}"
            labels = _labels(pcs, "pcs-podcliquescalinggroup", name)
            meta = {
                "name": name,
                "labels": {**labels, "grove.io/podcliqueset-replica-index": str(r)},
                "annotations": dict(entry.get("annotations") or {}),
                "finalizers": [GROUP_FINALIZER],
                "ownerReferences": [owner(set_, "PodCliqueSet")],
            }
            kind = {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueScalingGroup"}
            spec = {key: value for key, value in entry.items() if key in keys}
            found.append({**kind, "metadata": meta, "spec": spec})
    return found


def gang(
    name: str, set_: Json, members: Collection[MadeClique] = (), there: Json | None = None
) -> Json:
    """A PodGang of a set, without a namespace and without the pods; ``members``: those that make it
    up. What the set says of itself is mirrored, and of what is ``there`` already Grove's own prefix
    is kept.
    """
    meta = {
        "name": name,
        "labels": {
            **_mirrored("labels", set_, there),
            **_labels(set_["metadata"]["name"], "podgang"),
            "grove.io/scheduler-name": "default-scheduler",
        },
        "annotations": _mirrored("annotations", set_, there),
        "ownerReferences": [owner(set_, "PodCliqueSet")],
    }
    groups = []
    for member in members:
        spec = member.template["spec"]
        least = spec.get("minAvailable", spec.get("replicas", 1))
        groups.append({"name": member.name, "podReferences": [], "minReplicas": least})
    kind = {"apiVersion": "scheduler.grove.io/v1alpha1", "kind": "PodGang"}
    return {**kind, "metadata": meta, "spec": {"podgroups": groups}}


def _hashed(template: Json) -> str:
    """What makes a template another one: all but how many pods there are to be."""
    parts = [template.get("labels"), template.get("annotations"), template["spec"]["podSpec"]]
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def _mirrored(key: str, set_: Json, there: Json | None) -> dict[str, str]:
    old = ((there or {}).get("metadata") or {}).get(key) or {}
    new = set_["metadata"].get(key) or {}
    own = {name: value for name, value in old.items() if name.startswith("grove.io/")}
    return own | {name: value for name, value in new.items() if not name.startswith("grove.io/")}


def _labels(pcs: str, component: str, name: str = "") -> dict[str, str]:
    return {
        "app.kubernetes.io/managed-by": "grove-operator",
        "app.kubernetes.io/part-of": pcs,
        "app.kubernetes.io/component": component,
        **({"app.kubernetes.io/name": name} if name else {}),
    }


def pods(clique: Json) -> list[Json]:
    """The pods of a stored PodClique: its labels, annotations and template; they wait at a gate
    until their PodGang is there.
    """
    about, found = clique["metadata"], []
    for i in range(clique["spec"].get("replicas", 1)):
        own = {"grove.io/podclique": about["name"], "grove.io/podclique-pod-index": str(i)}
        meta = {
            "name": f"{about['name']}-{i}",
            "labels": {**about.get("labels", {}), **own},
            "annotations": dict(about.get("annotations", {})),
            "ownerReferences": [owner(clique, "PodClique")],
        }
        spec = copy.deepcopy(clique["spec"]["podSpec"]) | {"schedulingGates": [{"name": GATE}]}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    return found


def owner(found: Json, kind: str) -> Json:
    """The reference by which Grove's controller owns what it makes; ``found`` has
    its uid already.
    """
    about = {key: found["metadata"][key] for key in ("name", "uid")}
    of = {"apiVersion": "grove.io/v1alpha1", "kind": kind, **about}
    return {**of, "controller": True, "blockOwnerDeletion": True}
