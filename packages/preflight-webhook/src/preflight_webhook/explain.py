"""`preflight-webhook explain`: what would be decided about a pod, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import to_builtins
from preflight_proto.durations import format_duration, parse_duration
from preflight_proto.names import DCGM_DIAG

from .admission import decide
from .config import Config
from .decision import Decision
from .review import BadReview

__all__ = ["explain", "pods_in"]

# Where the pod template of each kind is.
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_DCGM_SECONDS = {1: 120.0, 2: 900.0, 3: 2700.0, 4: 10800.0}  # what check-dcgm allows where nothing is set


def pods_in(text: str, where: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(what it is, namespace, pod) for each pod or pod template in the YAML or JSON documents of ``text``.

    Raises :class:`ValueError` with one sentence when there is none, or when it is no YAML.
    """
    try:
        documents = [d for d in yaml.safe_load_all(text) if isinstance(d, dict)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        raise ValueError(
            f"{where}:{place} is not YAML ({getattr(error, 'problem', None) or error}); mend it there."
        ) from None
    objects = [item for d in documents for item in (d.get("items", []) if d.get("kind") == "List" else [d])]
    found = 0
    for item in objects:
        pod = _pod_of(item)
        if pod is not None:
            found += 1
            metadata = item.get("metadata") or {}
            yield f"{item.get('kind')} {metadata.get('name', '(no name)')}", metadata.get("namespace") or "default", pod
    if not found:
        kinds = ", ".join(sorted({str(item.get("kind")) for item in objects})) or "nothing"
        raise ValueError(f"{where}: no pod in it (found {kinds}); give a Pod or one of {', '.join(_TEMPLATES)}.")


def _pod_of(item: dict[str, Any]) -> dict[str, Any] | None:
    if item.get("kind") == "Pod":
        return item
    path = _TEMPLATES.get(str(item.get("kind")))
    for key in path or ():
        item = item.get(key) or {}
    return (
        {"apiVersion": "v1", "kind": "Pod", "metadata": item.get("metadata") or {}, "spec": item.get("spec")}
        if path
        else None
    )


def explain(what: str, namespace: str, pod: dict[str, Any], config: Config, form: str) -> str:
    """The decision about one pod of ``namespace`` as text or JSON. Raises :class:`ValueError` when the pod cannot be read."""
    try:
        decision = decide(json.dumps(pod).encode(), namespace, config)
    except BadReview as error:
        raise ValueError(f"{what}: {error}.") from None
    delay = sum(_seconds(name, config) for name in decision.checks)
    if form == "json":
        fields = {
            name: getattr(decision, name) for name in ("result", "message", "checks", "gpus", "warnings", "patch")
        }
        fields["skipped"] = [{"check": s.check, "reason": s.reason, "message": s.message} for s in decision.skipped]
        fields["gang"] = to_builtins(decision.stamp)
        return json.dumps({"object": what, **fields, "worst_case_start_delay_seconds": delay}, indent=2)
    return "\n".join(_lines(what, decision, delay))


def _lines(what: str, decision: Decision, delay: float) -> Iterator[str]:
    yield f"{what}: {decision.result}"
    yield f"  why: {decision.message}"
    for name, count in decision.gpus.items():
        yield f"  reserves: {count} {name}"
    if (gang := decision.stamp) is not None:
        size = f"{gang.size} members" if gang.size is not None else "size not known at admission"
        part = "takes part" if gang.takes_part else "takes no part"
        yield f"  gang: {gang.id} (by {gang.source}, {size}); {part} in its checks; told in ConfigMap {gang.config_map}"
    for skip in decision.skipped:
        yield f"  left out: {skip.check} ({skip.reason}): {skip.message}"
    if decision.checks:
        yield f"  worst-case start delay: {format_duration(delay)} if every check uses up its time"
    for warning in decision.warnings:
        yield f"  warning: {warning}"
    yield f"  patch: {len(decision.patch)} operation(s)"
    for operation in decision.patch:
        value = json.dumps(operation["value"], indent=2).replace("\n", "\n      ") if "value" in operation else ""
        yield f"    {operation['op']} {operation['path']}" + (f"\n      {value}" if value else "")


def _seconds(name: str, config: Config) -> float:
    check = next(c for c in config.checks if c.name == name)
    waiting = parse_duration(config.gang_timeout) if check.gang_wide else 0.0
    if given := check.timeout or config.check_timeout:
        return waiting + parse_duration(given)
    return waiting + (_DCGM_SECONDS[config.dcgm.diag_level] if name == DCGM_DIAG else 300.0)
