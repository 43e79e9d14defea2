"""`preflight-webhook explain`: what would be decided about a pod, and why."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import yaml
from msgspec import to_builtins
from preflight_kube.admission.limits import of_object
from preflight_kube.admission.review import BadReview
from preflight_kube.api.workloads.model import map_of, maps
from preflight_kube.text import printable
from preflight_proto import names, time_limits
from preflight_proto.durations import format_duration, gang_run, parse_duration
from preflight_proto.policy import KIND, ContractError, decode_spec, refusal

from preflight_webhook.config import allow
from preflight_webhook.config.config import CheckConfig, Config, effective, in_force
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision
from preflight_webhook.core.inject.allow_list import (
    NEVER,
    VARIABLES,
    WorkloadSetting,
    of_the_fabric,
)
from preflight_webhook.core.inject.patch import applied
from preflight_webhook.report.release import InstalledRelease, OptIn, opt_in
from preflight_webhook.report.workloads import FoundPod, Object


class _Report(NamedTuple):
    """All that is reported of one pod."""

    target: FoundPod
    given: InstalledRelease
    asked: OptIn
    decision: Decision
    own: str
    delays: dict[str, float]
    warnings: list[str]


def explain(target: FoundPod, given: InstalledRelease, form: str, *, brief: bool = False) -> str:
    """The decision about one pod as text, JSON or YAML; ``brief``: without the patch. Raises
    :class:`ValueError` when the pod cannot be read.
    """
    config, own = _of_namespace(target, given.config)
    try:
        body = json.dumps(target.pod).encode()
        if problem := of_object(body):
            decision = Decision("denied", problem)
        else:
            decision = decide(
                body, target.namespace, config, target.claims, confined=target.confined
            )
    except BadReview as error:
        raise ValueError(f"{target.what}: {str(error).removeprefix('request.object ')}.") from None
    size = decision.stamp.size if decision.stamp is not None else None
    ranks = (size or 0) * sum(decision.gpus.values())
    delays = {
        check.name: worst_case_delay(check, config, ranks)
        for check in config.checks
        if check.name in decision.checks
    }
    warnings = [
        *decision.warnings,
        *_unseen(decision),
        *_left_behind(target.pod, decision, config),
    ]
    asked = opt_in(target.namespace, target.labels, given.lists)
    report = _Report(target, given, asked, decision, own, delays, warnings)
    if form == "text":
        lines = [*map(printable, _unasked(report) if asked.asked == "no" else _lines(report))]
        if decision.patch and not brief and asked.asked != "no":
            lines += _diff(target.pod, applied(deepcopy(target.pod), decision.patch))
        return "\n".join(lines)
    fields = _fields(report)
    if brief:
        fields.pop("patch")
    return json.dumps(fields, indent=2) if form == "json" else _yaml(fields)


def _fields(report: _Report) -> dict[str, Any]:
    decision, asked = report.decision, report.asked
    fields: dict[str, Any] = {"object": report.target.what, "opt_in": asked._asdict()}
    fields["configuration"] = report.given.source
    if asked.asked == "no":
        otherwise = {"result": decision.result, "message": decision.message}
        return {
            **fields,
            "result": "not-opted-in",
            "message": f"{asked.why}.",
            "checks": [],
            "patch": [],
            "otherwise": otherwise,
        }
    fields |= {name: getattr(decision, name) for name in ("result", "checks", "gpus", "patch")}
    return {
        **fields,
        "message": decision.message,
        "warnings": report.warnings,
        "skipped": to_builtins(decision.skipped),
        "claims": to_builtins(decision.claims),
        "gang": to_builtins(decision.stamp),
        "preflight_config": report.own or None,
        "worst_case_start_delay_seconds": sum(report.delays.values()),
    }


def _unasked(report: _Report) -> Iterator[str]:
    """About a pod that the API server never asks the webhook about."""
    yield f"{report.target.what}: not checked"
    yield f"  opt-in: {report.asked.why}"
    yield f"  if it were asked about: {report.decision.result}: {report.decision.message}"
    yield f"  configuration: {report.given.source}"


def _of_namespace(target: FoundPod, config: Config) -> tuple[Config, str]:
    """The configuration that holds in the pod's namespace, and a word on its PreflightConfigs; none
    where there are none.
    """
    items, off = target.policies, "as preflightConfigs.enabled is false in the configuration"
    if not items:
        return config, ""
    if not config.preflight_configs.enabled:
        return config, f"no {KIND} is read, {off}"
    chosen, how = in_force(items), "in force"
    # As people write it in a file.
    if len(items) == 1 and not items[0].metadata.uid and not items[0].status.conditions:
        chosen, how = items[0], "as if the gang controller had accepted it"
    if chosen is None:
        whys = ((item.metadata.name, refusal(item) or "in force, as another one") for item in items)
        why = ", ".join(f"{name} ({why})" for name, why in whys)
        return config, f"no {KIND} is in force: {why}"
    try:
        return effective(config, decode_spec(chosen.spec)), f"{KIND} {chosen.metadata.name}, {how}"
    except ContractError as error:
        raise ValueError(f"{KIND} {chosen.metadata.name}: {error}; correct it there.") from None


def _unseen(decision: Decision) -> Iterator[str]:
    """Variables that may be missing in a check, for nobody here may read where they stand."""
    by_place: dict[tuple[str, str, str], list[str]] = {}
    for env in decision.unseen:
        by_place.setdefault((env.where, env.kind, env.name), []).append(env.check)
    for (where, kind, name), checks in by_place.items():
        yield (
            f"{where}: what {kind} {name} holds is not known at admission and not passed on to {', '.join(checks)}; "
            "list the variables that NCCL needs in env, with valueFrom, to have them passed on"
        )


def _left_behind(pod: Object, decision: Decision, config: Config) -> Iterator[str]:
    """Variables that change how the workload uses its fabric, do not reach the checks of it, and
    which value brings them there.
    """
    settings: dict[str, tuple[tuple[str, ...], str]] = {}
    for check in config.checks:
        if check.name not in decision.checks or check.is_required:
            continue
        if (own := check.env_patterns) is not None:
            settings[f"envPatterns of the check {check.name}"] = own, check.name
        elif check.nccl:
            settings["ncclEnvPatterns"] = config.nccl_env_patterns, "the checks"
    containers = maps(map_of(pod.get("spec")).get("containers"))  # of a file, which nobody checked
    there = {str(entry.get("name")) for c in containers for entry in maps(c.get("env"))}
    for name in sorted(name for name in there if of_the_fabric(name)):
        for value, (patterns, checks) in settings.items():
            # What never is there: a rank, another communicator, a setting of the check itself.
            why = allow.refusal(VARIABLES, WorkloadSetting(name, patterns, setting=value))
            if why and why != NEVER:
                what, how = why.split("; ")
                yield f"{name} is not passed on to {checks}, as {what}; {how} in {value} to have it"


def _lines(report: _Report) -> Iterator[str]:
    decision = report.decision
    already = decision.result == "unchanged" and decision.checks
    result = "injected already" if already else decision.result
    yield f"{report.target.what}: {result}{'' if report.asked.asked == 'yes' else ', if its namespace is opted in'}"
    yield f"  opt-in: {report.asked.why}"
    if report.own:
        yield f"  by: {report.own}"
    yield f"  why: {decision.message}"
    for name, count in decision.gpus.items():
        yield f"  reserves: {count} {name}"
    for name, seen in decision.claims.items():
        what = "GPUs" if seen.gpu else "no GPUs"
        yield f"  claim {name}: {seen.kind} {seen.name}, taken to be for {what}; counted where the pod gets another when it is scheduled"
    if (gang := decision.stamp) is not None:
        size = f"{gang.size} members" if gang.size is not None else "size not known at admission"
        part = "takes part" if gang.takes_part else "takes no part"
        yield f"  gang: {gang.id} (by {gang.source}, {size}); {part} in its checks; its roster is in ConfigMap {gang.config_map}"
    for skip in decision.skipped:
        yield f"  left out: {skip.check} ({skip.reason}): {skip.message}"
    if report.delays:
        delays = {name: format_duration(seconds) for name, seconds in report.delays.items()}
        each = ", ".join(f"{name} {text}" for name, text in delays.items())
        yield f"  worst-case start delay: {format_duration(sum(report.delays.values()))} if every check waits, runs and reports as long as it may{f' ({each})' if len(report.delays) > 1 else ''}"
    for warning in report.warnings:
        yield f"  warning: {warning}"
    yield f"  configuration: {report.given.source}"
    yield f"  patch: {len(decision.patch)} operation(s)"


def _diff(before: Object, after: Object) -> Iterator[str]:
    old, new = _yaml(before).splitlines(), _yaml(after).splitlines()
    _, _, *lines = difflib.unified_diff(old, new, lineterm="", n=2)  # two are names of files
    yield from (f"    {line}" for line in lines)


def _yaml(value: Any) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # what stands twice is written twice

    return yaml.dump(value, Dumper=Plain, sort_keys=False, width=1000).rstrip()


def worst_case_delay(check: CheckConfig, config: Config, ranks: int = 0) -> float:
    """Seconds: waiting for others, running, reporting. ``ranks``: GPUs of the whole gang, 0 where
    its size is not known.
    """
    own = {variable.name: variable.value for variable in check.env}
    given = own.get(names.ENV_CHECK_TIMEOUT) or check.timeout or config.check_timeout
    runs = _seconds(given) or {
        names.DCGM_DIAG: time_limits.DCGM_DIAG[config.dcgm.diag_level],
        names.NCCL_LOOPBACK: time_limits.NCCL_LOOPBACK,
        names.NCCL_ALLREDUCE: gang_run(ranks),
    }.get(check.name, time_limits.CHECK)
    waits = 0.0
    if check.gang_wide:
        waits = _seconds(own.get(names.ENV_GANG_TIMEOUT) or config.gang_timeout)
    elif check.name == names.DCGM_DIAG:  # an engine runs one diagnostic at a time
        waits = _seconds(own.get("DCGM_QUEUE_TIMEOUT", "")) or runs
    return waits + runs + time_limits.REPORT


def _seconds(text: str) -> float:
    """0 for what is empty, or no duration: the check itself refuses that."""
    try:
        return parse_duration(text) if text else 0.0
    except ValueError:
        return 0.0
