"""`preflight-webhook explain`: what would be decided about a pod, and why."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import yaml
from msgspec import to_builtins
from preflight_proto.durations import format_duration
from preflight_proto.policy import KIND, ContractError, decode_spec, refusal

from .admission import decide
from .config import Config
from .decision import Decision
from .delay import longest
from .inheritance import held_back, loads_code
from .patch import applied
from .policy import effective, in_force
from .review import BadReview
from .workloads import Found, Object

__all__ = ["explain"]

_COLOURS = {"+": "\33[32m", "-": "\33[31m", "@": "\33[36m"}
_END = "\33[0m"


def explain(found: Found, config: Config, form: str, *, coloured: bool = False, brief: bool = False) -> str:
    """The decision about one pod as text, JSON or YAML; ``brief``: without the patch. Raises :class:`ValueError` when the pod cannot be read."""
    config, own = _of_namespace(found, config)
    try:
        body = json.dumps(found.pod).encode()
        decision = decide(body, found.namespace, config, found.claims, confined=found.confined)
    except BadReview as error:
        raise ValueError(f"{found.what}: {error}.") from None
    delays = {check.name: longest(check, config) for check in config.checks if check.name in decision.checks}
    warnings = [*decision.warnings, *_unseen(decision), *_code(found.pod, decision, config)]
    if form == "text":
        lines = [*_lines(found, decision, delays, own, warnings)]
        if decision.patch and not brief:
            lines += _diff(found.pod, applied(deepcopy(found.pod), decision.patch), coloured=coloured)
        return "\n".join(lines)
    fields: dict[str, Any] = {
        name: getattr(decision, name)
        for name in ("result", "message", "checks", "gpus", "patch")
        if not (brief and name == "patch")
    }
    fields["warnings"] = warnings
    fields["skipped"] = [{"check": s.check, "reason": s.reason, "message": s.message} for s in decision.skipped]
    fields["gang"] = to_builtins(decision.stamp)
    fields["preflight_config"] = own or None
    told = {"object": found.what, **fields, "worst_case_start_delay_seconds": sum(delays.values())}
    return json.dumps(told, indent=2) if form == "json" else _yaml(told)


def _of_namespace(found: Found, config: Config) -> tuple[Config, str]:
    """The configuration that holds in the pod's namespace, and a word on its PreflightConfigs; none where there are none."""
    items = found.policies
    if not items:
        return config, ""
    if not config.preflight_configs.enabled:
        return config, f"no {KIND} is read, as preflightConfigs.enabled is false in the configuration"
    if len(items) == 1 and not items[0].metadata.uid and not items[0].status.conditions:  # as people write it in a file
        chosen, how = items[0], "as if the gang controller had accepted it"
    elif (one := in_force(items)) is not None:
        chosen, how = one, "in force"
    else:
        why = [f"{item.metadata.name} ({refusal(item) or 'in force, as another one'})" for item in items]
        return config, f"no {KIND} is in force: {', '.join(why)}"
    try:
        return effective(config, decode_spec(chosen.spec)), f"{KIND} {chosen.metadata.name}, {how}"
    except ContractError as error:
        raise ValueError(f"{KIND} {chosen.metadata.name}: {error}; mend it there.") from None


def _unseen(decision: Decision) -> Iterator[str]:
    """Variables that may be missing in a check, for nobody here may read where they stand."""
    by_place: dict[tuple[str, str, str], list[str]] = {}
    for one in decision.unseen:
        by_place.setdefault((one.where, one.kind, one.name), []).append(one.check)
    for (where, kind, name), checks in by_place.items():
        yield (
            f"{where}: what {kind} {name} holds is not known at admission and not passed on to {', '.join(checks)}; "
            "list the variables that NCCL needs in env, with valueFrom, to have them passed on"
        )


def _code(pod: Object, decision: Decision, config: Config) -> Iterator[str]:
    """Names that load code: those that reach a check, and those that a pattern alone does not bring there."""
    for operation in decision.patch:
        value = operation.get("value")
        for container in value if isinstance(value, list) else [value]:
            if not (isinstance(container, dict) and operation["path"].startswith("/spec/initContainers")):
                continue
            for entry in container.get("env") or ():
                if loads_code(entry["name"]):
                    yield f"{entry['name']} makes {container.get('name')} load code of the workload"
    spec = pod.get("spec")
    for container in (spec.get("containers") if isinstance(spec, dict) else None) or ():
        for name in held_back([str(e.get("name")) for e in container.get("env") or ()], config):
            yield f"{name} is not passed on to the checks, as it loads code; list the very name in ncclEnvPatterns to have it"


def _lines(found: Found, decision: Decision, delays: dict[str, float], own: str, warnings: list[str]) -> Iterator[str]:
    yield f"{found.what}: {decision.result}"
    if own:
        yield f"  by: {own}"
    yield f"  why: {decision.message}"
    for name, count in decision.gpus.items():
        yield f"  reserves: {count} {name}"
    if (gang := decision.stamp) is not None:
        size = f"{gang.size} members" if gang.size is not None else "size not known at admission"
        part = "takes part" if gang.takes_part else "takes no part"
        yield f"  gang: {gang.id} (by {gang.source}, {size}); {part} in its checks; told in ConfigMap {gang.config_map}"
    for skip in decision.skipped:
        yield f"  left out: {skip.check} ({skip.reason}): {skip.message}"
    if delays:
        each = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in delays.items())
        yield f"  worst-case start delay: {format_duration(sum(delays.values()))} if every check waits, runs and reports as long as it may{f' ({each})' if len(delays) > 1 else ''}"
    for warning in warnings:
        yield f"  warning: {warning}"
    yield f"  patch: {len(decision.patch)} operation(s)"


def _diff(before: Object, after: Object, *, coloured: bool) -> Iterator[str]:
    old, new = _yaml(before).splitlines(), _yaml(after).splitlines()
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:  # without its two lines of file names
        colour = _COLOURS.get(line[:1], "") if coloured else ""
        yield f"    {colour}{line}{_END if colour else ''}"


def _yaml(value: Any) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # what stands twice is written twice

    return yaml.dump(value, Dumper=Plain, sort_keys=False, width=1000).rstrip()
