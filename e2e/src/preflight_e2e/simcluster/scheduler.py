"""First fit: each pod, oldest first, goes to the first node that its selector and the affinity that
it requires allow, and that has GPUs left for it. What it only prefers is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from preflight_testing.apidouble.store import Object, Resource, Store

GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def gpus(pod: Object) -> int:
    """What the scheduler reserves: containers run together, ordinary init containers one after the
    other before them.
    """

    def asked(kind: str) -> list[int]:
        return [
            int(c.get("resources", {}).get("limits", {}).get(GPU, 0))
            for c in pod["spec"].get(kind) or []
        ]

    return max([sum(asked("containers")), *asked("initContainers")])


def ended(pod: Object) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def requires(pod: Object, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one that the pod's required node affinity allows."""
    required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return not required or any(
        all(_holds(requirement, labels) for requirement in term["matchExpressions"])
        for term in required["nodeSelectorTerms"]
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise NotImplementedError(f"the operator {other}")


def fit(pod: Object, nodes: Iterable[Object], pods: Iterable[Object]) -> str | None:
    """The name of the first node that can take ``pod``, None when there is none. ``pods`` are all
    there are.
    """
    wanted = pod["spec"].get("nodeSelector") or {}
    taken = [
        (p["spec"]["nodeName"], gpus(p)) for p in pods if p["spec"].get("nodeName") and not ended(p)
    ]
    for node in nodes:
        name = node["metadata"]["name"]
        free = int(node["status"]["allocatable"].get(GPU, 0)) - sum(
            count for where, count in taken if where == name
        )
        labels = node["metadata"]["labels"]
        if wanted.items() <= labels.items() and requires(pod, labels) and gpus(pod) <= free:
            return str(name)
    return None


async def schedule(store: Store, nodes: Resource, pods: Resource) -> None:
    """Bind pods for as long as this runs."""
    while True:
        news = store.news
        for pod in list(store.objects.get(pods, {}).values()):  # in the order of their creation
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            everyone = list(store.objects[pods].values())
            if name := fit(pod, store.objects.get(nodes, {}).values(), everyone):
                store.update(pods, pod, pod | {"spec": pod["spec"] | {"nodeName": name}})
            elif "conditions" not in pod["status"]:
                message = f"0/{len(store.objects.get(nodes, {}))} nodes are available for {gpus(pod)} {GPU}"
                why = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
                store.update(
                    pods, pod, pod | {"status": pod["status"] | {"conditions": [why]}}, status=True
                )
        await news.wait()
