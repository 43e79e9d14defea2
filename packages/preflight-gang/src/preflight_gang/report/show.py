"""`preflight-gang show`: gangs as a person wants to see them. Reads the cluster, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from preflight_kube.api.workloads.sizes import SizedObject
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_kube.runtime.discovery import served
from preflight_proto import names
from preflight_proto.stamp import ContractError

from preflight_gang.api.sources import SizedKind, Sources
from preflight_gang.api.types import ConfigMap, Pod
from preflight_gang.core.membership import (
    GangMember,
    Key,
    MemberStage,
    config_map_of,
    key_of,
    member,
)
from preflight_gang.core.participants import object_of
from preflight_gang.core.plan import obstacle, owned_by, record_of
from preflight_gang.core.reconcile import MemberAnswer, decide
from preflight_gang.core.snapshot import GangView, assemble
from preflight_gang.report.nodes import aligned

_WORDS: Final = {"wait": "wait", "sealed": "begin", "skip": "skip", "fail": "end"}


async def show(namespace: str, wanted: str | None, sources: Sources) -> str:
    """The text about the gang that ``wanted`` names, or about all. Raises :class:`KubeError`."""
    async with Client(connection(home=Path.home()), agent="preflight-gang") as client:
        members: dict[Key, list[GangMember]] = {}
        async for pods, _ in client.pages(
            f"/api/v1/namespaces/{namespace}/pods", Pod, params={"labelSelector": names.GANG_LABEL}
        ):
            for pod in pods:
                try:
                    stamped = key_of(pod)
                except ContractError:
                    continue
                if stamped is not None:
                    members.setdefault(stamped[0], []).append(member(pod, stamped[1]))
        paragraphs = []
        for key, found in sorted(members.items()):
            called = {key[1], key[1].partition(":")[2], config_map_of(key)[1]}
            called |= {one.name for one in found}
            if wanted is None or wanted in called:
                paragraphs.append(render(await _gang(client, key, found, sources)))
        return "\n\n".join(paragraphs)


async def _gang(client: Client, key: Key, members: list[GangMember], sources: Sources) -> GangView:
    namespace, name = config_map_of(key)
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
    stored = await client.get_or_none(path, ConfigMap)
    about: SizedObject | str = "is not looked for"
    if (named := object_of(members)) is not None:
        about = await _object(client, sources.get(named[0], ()), namespace, named[1])
    return assemble(
        key,
        members,
        lambda *_: about,
        sources,
        config_map=name,
        record=record_of(stored) if stored is not None and owned_by(stored) else None,
        obstacle=obstacle(stored),
    )


async def _object(
    client: Client, kinds: Sequence[SizedKind], namespace: str, name: str
) -> SizedObject | str:
    state = "does not exist"
    for kind in kinds:
        try:
            path = await served(client, kind.group, kind.resource)
            if path is None:
                state = kind.absent
                continue
            root, _, plural = path.rpartition("/")
            return await client.get(f"{root}/namespaces/{namespace}/{plural}/{name}", kind.type)
        except NotFound:
            state = "does not exist"
        except KubeError as error:
            state = f"cannot be read: {error}"
    return state


def render(gang: GangView) -> str:
    """A paragraph about one gang: how far it is, what it waits for or ended with, its members."""
    answers = decide(gang).answers
    first = gang.members[0]
    by = f"{first.source} {first.object}" if first.object else first.source
    lines = [
        f"gang {gang.namespace}/{gang.id}  (by {by}; ConfigMap {gang.config_map})",
        f"  {_state(gang)}",
    ]
    causes = dict.fromkeys(a.reason for a in answers.values() if a.answer == "fail")
    lines += [f"  ends, for {cause}" for cause in causes]
    missing = dict.fromkeys(
        text for a in answers.values() if a.answer == "wait" for text in a.missing
    )
    if missing and not gang.sized.unknown:
        lines += ["  waits for", *(f"    {text}" for text in missing)]
    sealed = gang.record.assignments if gang.record is not None else ()
    ranks = {assigned.uid: str(rank) for rank, assigned in enumerate(sealed)}
    table = [("POD", "RANK", "NODE", "ADDRESS", "STATE")]
    for one in gang.members:
        stage = _stage(one, answers.get(one.uid))
        table.append((one.name, ranks.get(one.uid, ""), one.node, one.ip, stage))
    return "\n".join([*lines, aligned(table, "  ")])


def _state(gang: GangView) -> str:
    if gang.sized.skip:
        return f"not tested: {gang.sized.skip}"
    if gang.sized.participants is None:
        size_ = gang.sized.unknown
    else:
        here = {MemberStage.CHECKING, MemberStage.WAITING}
        ready = sum(m.alive and m.stage in here for m in gang.members)
        size_ = f"{gang.sized.participants} members take part, {ready} of them ready"
    blocked = f"; {gang.obstacle}" if gang.obstacle else ""
    if gang.record is None:
        return f"{size_}; not sealed{blocked}"
    by_uid = {m.uid: m for m in gang.members}
    now = [by_uid.get(assigned.uid) for assigned in gang.record.assignments]
    passed = sum(m is not None and m.passed for m in now)
    gone = sum(m is None for m in now)
    progress = f", {passed} passed" + (f", {gone} gone" if gone else "")
    return f"{size_}; generation {gang.record.generation} sealed with {len(now)}{progress}{blocked}"


def _stage(one: GangMember, answer: MemberAnswer | None) -> str:
    if not one.takes_part:
        return "takes no part (no gang check)"
    said = {MemberStage.WAITING: "in its gang check"}.get(one.stage, one.why)
    again = f", started {one.attempt + 1} times" if one.attempt else ""
    if answer is None:
        return said + again
    words = f"; skips: {answer.reason}" if answer.answer == "skip" else ""
    silent = ""
    if one.stage is MemberStage.WAITING and not one.answered(answer.answer, answer.generation):
        silent = f"; not told to {_WORDS[answer.answer]} yet"
    return said + again + words + silent
