"""The page of a PodCliqueSet's review: what would fail later is said when it is applied. Pure.

Older objects, deletion and the removal of finalizers pass: only what a change brings is judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight_mnnvl.api import names
from preflight_mnnvl.api.annotations import CLASS_WITHOUT_EFFECT, odd
from preflight_mnnvl.api.identity import CliqueIdentity, CliqueRefused
from preflight_mnnvl.api.types import BadObject, Clique, Group, PodCliqueSet, decode, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import refuse_claims, refuse_class, refuse_group, without_gpus
from preflight_mnnvl.core.domain import domain_of
from preflight_mnnvl.core.expansion import SET_PATH, Planned, nodes_needed, plan
from preflight_mnnvl.core.support import Support

MOST_PROBLEMS = 20


class SetAnswer(NamedTuple):
    """``problems``: one sentence each, which begins with a path; without any it is admitted."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    name: str = ""

    @property
    def allowed(self) -> bool:
        """Tell whether the set is admitted."""
        return not self.problems

    @property
    def message(self) -> str:
        """The first problems, and how many more there are; empty where there is none."""
        if self.allowed:
            return ""
        rest = len(self.problems) - MOST_PROBLEMS
        more = f" {rest} more problems." if rest > 0 else ""
        return f"PodCliqueSet {self.name}: {' '.join(self.problems[:MOST_PROBLEMS])}{more}"


def review(
    operation: str, new: bytes | None, old: bytes | None, config: Config, support: Support
) -> SetAnswer:
    """The answer about the PodCliqueSet ``new`` in place of ``old`` (JSON); never raises."""
    if operation == "DELETE" or new is None:
        return SetAnswer()
    try:
        set_ = decode(new, PodCliqueSet)
    except BadObject as error:
        # The schema of Grove's own resource says what is wrong with it, and refuses it.
        return SetAnswer(warnings=(f"multi-node NVLink was not judged: {error}",))
    meta = set_.metadata
    name = "/".join(filter(None, map(shown, (meta.namespace, meta.name or meta.generate_name))))
    if meta.going:
        return SetAnswer(name=name)
    before = None
    if old is not None:
        try:
            before = decode(old, PodCliqueSet)
        except BadObject:
            before = PodCliqueSet()
    planned = plan(set_, config)
    sentences = problems(set_, planned, config, support)
    if before is not None:
        old_problems = problems(before, plan(before, config), config, support) if sentences else ()
        known = {_anywhere(problem) for problem in old_problems}
        sentences = [problem for problem in sentences if _anywhere(problem) not in known]
        sentences = [*changed(before, set_), *sentences]
    warned = warnings(set_, planned, config, support)
    return SetAnswer(tuple(dict.fromkeys(sentences)), tuple(warned), name)


def _anywhere(problem: str) -> str:
    """A problem without its place in a list: an entry that is moved is no worse than before."""
    return re.sub(r"\[[0-9]+\]", "[]", problem)


def problems(
    set_: PodCliqueSet, planned: list[Planned], config: Config, support: Support
) -> list[str]:
    """Why PodCliques of the set would be refused: one sentence each, with its path."""
    asked = [clique for clique in planned if clique.wish.enabled]
    sentences = [problem for clique in asked for problem in _of_clique(set_, clique, config)]
    enrolled = next((clique for clique in planned if clique.enrolled), None)
    if config.on_unsupported == "deny" and not support.ok and enrolled is not None:
        path = enrolled.wish.at[names.ENABLED]
        sentences.append(f"{path}.annotations[{names.ENABLED}]: {support.why}.")
    return sentences


def _of_clique(set_: PodCliqueSet, planned: Planned, config: Config) -> Iterator[str]:
    """What would refuse its PodCliques, of the functions that do; the rule of scaling groups is
    here alone, as a PodClique knows of those by labels.
    """
    if planned.problem:
        yield f"{planned.problem}."
        return
    # Where a claim may give the GPUs, it is not known here whether ours is added at all.
    if not planned.gpus or planned.pod is None:
        return
    pod, path = planned.pod, f"{planned.path}.spec.podSpec"
    wish, on = planned.wish, planned.wish.at[names.ENABLED]
    where = f"{wish.at.get(names.SCOPE, on)}.annotations[{names.SCOPE}]"
    class_at = f"{wish.at.get(names.DEVICE_CLASS, on)}.annotations[{names.DEVICE_CLASS}]"
    ungrouped = planned.scope == "scalingGroupReplica" and planned.group is None
    refusals: list[tuple[str, Callable[[], object]]] = [
        (planned.path, lambda: refuse_group(wish.group)),
        (class_at, lambda: refuse_class(wish.device_class, config)),
        ("", lambda: refuse_claims(pod, None, {}, path)),
    ]
    if not ungrouped:
        named = where if planned.scope is None else f"{planned.path}.name"
        refusals.append((named, lambda: domain_of(_longest(set_, planned), wish.scope)))
    for place, refuse in refusals:
        try:
            refuse()
        except CliqueRefused as error:
            yield f"{place}: {error}.".removeprefix(": ")
    if ungrouped:
        yield (
            f"{where}: the scope scalingGroupReplica is for cliques of a scaling group, and the clique {shown(planned.clique.name)} is in none; "
            "write replica or clique, or set it at the scaling group."
        )


def _longest(set_: PodCliqueSet, planned: Planned) -> CliqueIdentity:
    """The identity of its PodClique with the longest name."""
    group = planned.group.name if planned.group else ""
    index = _last(planned.group.replicas) if planned.group else ""
    clique = f"{group}-{index}-{planned.clique.name}" if group else planned.clique.name
    pcs, replica = set_.metadata.name or "x", _last(set_.spec.replicas)
    return CliqueIdentity(pcs, replica, clique, planned.clique.name, group, index, "", "")


def _last(replicas: int | None) -> str:
    return str(max(0, (replicas or 1) - 1))


def changed(old: PodCliqueSet, new: PodCliqueSet) -> list[str]:
    """Changes of the three annotations, layer by layer; entries are found by name."""
    changes = _changed(SET_PATH, old.metadata.annotations, new.metadata.annotations)
    for (path, before), (_, after) in zip(_entries(old), _entries(new), strict=True):
        named = {entry.name: entry.annotations for entry in reversed(before)}
        for i, entry in enumerate(after):
            if entry.name in named:
                changes += _changed(f"{path}[{i}]", named[entry.name], entry.annotations)
    return changes


def _entries(set_: PodCliqueSet) -> Iterator[tuple[str, Sequence[Clique | Group]]]:
    yield "spec.template.cliques", set_.cliques
    yield "spec.template.podCliqueScalingGroups", set_.groups


def _changed(path: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> list[str]:
    before, after = old or {}, new or {}
    return [
        f"{path}.annotations[{key}]: cannot be changed ({_was(before.get(key))} before, {_was(after.get(key))} now), as running pods keep their domain; "
        "undo it, or delete the PodCliqueSet and create it again."
        for key in names.KEYS
        if before.get(key) != after.get(key)
    ]


def _was(value: str | None) -> str:
    return "absent" if value is None else f'"{shown(value, 40)}"'


def surprises(set_: PodCliqueSet, planned: Iterable[Planned], config: Config) -> list[str]:
    """Where a clique's wish is not what one layer alone says. For who asks: most is meant so."""
    sentences: list[str] = []
    if set_.spec.replicas is None:
        sentences.append("spec.replicas is not written: Grove's default is 0, and it makes nothing")
    for template in planned:
        wish, layers = template.wish, [(template.path, template.clique.annotations)]
        if template.group is not None:
            at = f"spec.template.podCliqueScalingGroups[{set_.groups.index(template.group)}]"
            layers.append((at, template.group.annotations))
        for key in names.KEYS if wish.enabled else (names.ENABLED,):
            for where, own in [*layers, (SET_PATH, set_.metadata.annotations)]:
                value, used = (own or {}).get(key), wish.keys.get(key)
                if value is None or value == used:
                    continue
                why = f"in mode {config.mode} a clique of a scaling group does not ask the set"
                if used is not None:
                    why = f"what counts is {_was(used)} of {wish.at[key]}"
                sentences.append(
                    f"{template.path}: {key} {_was(value)} of {where} has no effect; {why}"
                )
    return sentences


def warnings(
    set_: PodCliqueSet,
    planned: list[Planned],
    config: Config,
    support: Support,
    needed: int | None = None,
) -> list[str]:
    """Warnings about a set that is admitted; ``needed``: nodes, by default as it is written."""
    layers = [(SET_PATH, set_.metadata.annotations)]
    for path, entries in _entries(set_):
        layers += [(f"{path}[{i}]", clique.annotations) for i, clique in enumerate(entries)]
    sentences = [
        f"{path}.annotations: {warning}"
        for path, annotations in layers
        if (warning := odd((annotations or {}).get(names.ENABLED)))
    ]
    asked = [clique for clique in planned if clique.wish.enabled]
    # A set has GPUs also where a nearer layer asks for them.
    may = {path for clique in asked if clique.gpus is not False for path in clique.layers}
    paths = dict.fromkeys(clique.wish.at[names.ENABLED] for clique in asked)
    sentences += [f"{path}: {without_gpus(config)}" for path in paths if path not in may]
    if config.mode == "driver" and any(names.DEVICE_CLASS in clique.wish.keys for clique in asked):
        sentences.append(CLASS_WITHOUT_EFFECT)
    if not asked:
        return sentences
    if not support.ok:
        return [*sentences, support.why] if config.on_unsupported == "ignore" else sentences
    sentences += support.warnings
    needed = nodes_needed(set_, planned) if needed is None else needed
    if support.fabric_nodes and needed > support.fabric_nodes:
        sentences.append(
            f"its MNNVL pods need {needed} nodes, one each, and {support.fabric_nodes} carry the label {names.FABRIC_LABEL}: the others will wait"
        )
    return sentences
