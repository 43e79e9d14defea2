"""`preflight-gang show`: gangs as a person wants to see them. Reads the cluster once; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from preflight_proto import names
from preflight_proto.stamp import ContractError, configmap_name

from .kube.client import Client, KubeError, NotFound
from .kube.connection import connection
from .lookup import served
from .membership import Key, Member, Stage, key_of, member
from .objects import ConfigMap, Pod
from .sealing import Gang, decide
from .sizes import Kind, Known
from .sizing import object_of, size
from .sources import Sources
from .writer import obstacle, record_in

__all__ = ["render", "show"]


async def show(namespace: str, wanted: str | None, sources: Sources) -> str:
    """The text about the gang that ``wanted`` names, or about all; empty when there is none. Raises :class:`KubeError`."""
    async with Client(connection()) as client:
        members: dict[Key, list[Member]] = {}
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
        told = []
        for (_, raw), found in sorted(members.items()):
            name = configmap_name(namespace, raw)
            if wanted is None or wanted in {raw, name, *(m.name for m in found)}:
                told.append(render(await _gang(client, namespace, raw, found, sources)))
        return "\n\n".join(told)


async def _gang(client: Client, namespace: str, raw: str, members: list[Member], sources: Sources) -> Gang:
    name = configmap_name(namespace, raw)
    try:
        stored = await client.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}", ConfigMap)
    except NotFound:
        stored = None
    about: Known | str = "is not looked for"
    if (named := object_of(members)) is not None:
        about = await _object(client, sources.get(named[0], ()), namespace, named[1])
    everyone = tuple(sorted(members, key=lambda m: (m.name, m.uid)))
    return Gang(
        namespace=namespace,
        id=raw,
        config_map=name,
        members=everyone,
        sized=size(namespace, raw, everyone, lambda *_: about, sources),
        record=record_in(stored),
        obstacle=obstacle(stored),
    )


async def _object(client: Client, kinds: Sequence[Kind], namespace: str, name: str) -> Known | str:
    state = "does not exist"
    for kind in kinds:
        try:
            path = await served(client, kind)
            if path is None:
                state = f"cannot be read: the cluster does not serve {kind.resource}.{kind.group}"
                continue
            root, _, plural = path.rpartition("/")
            return await client.get(f"{root}/namespaces/{namespace}/{plural}/{name}", kind.type)
        except NotFound:
            state = "does not exist"
        except KubeError as error:
            state = f"cannot be read: {error}"
    return state


def render(gang: Gang) -> str:
    """A few lines about one gang: what state it is in, and a line for each member."""
    answers = decide(gang).answers
    first = gang.members[0]
    by = f"{first.source} {first.object}" if first.object else first.source
    lines = [f"gang {gang.namespace}/{gang.id}  (by {by}; ConfigMap {gang.config_map})", f"  {_state(gang)}"]
    width = max(len(m.name) for m in gang.members)
    ranks = {seat.uid: rank for rank, seat in enumerate(gang.record.seats)} if gang.record else {}
    for one in gang.members:
        answer = answers.get(one.uid)
        rank = f"rank {ranks[one.uid]}" if one.uid in ranks else "-"
        place = f"{one.node or '-'} {one.ip or '-'}"
        said = ""
        if not one.takes_part:
            said = "takes no part (no gang check)"
        elif answer is not None and answer.answer != "sealed":
            said = f"told to {answer.answer}: {answer.reason or ', '.join(answer.missing)}"
        stage = one.why if one.stage in {Stage.STARTING, Stage.CHECKING, Stage.FAILED, Stage.GONE} else str(one.stage)
        lines.append(f"  {one.name:{width}}  {rank:7}  {place}  {stage}{'  ' + said if said else ''}")
    return "\n".join(lines)


def _state(gang: Gang) -> str:
    if gang.sized.skip:
        return f"not tested: {gang.sized.skip}"
    size_ = f"{gang.sized.participants} members take part" if gang.sized.participants else gang.sized.unknown
    sealed = (
        f"; generation {gang.record.generation} sealed with {len(gang.record.seats)}" if gang.record else "; not sealed"
    )
    blocked = f"; {gang.obstacle}" if gang.obstacle else ""
    return size_ + sealed + blocked
