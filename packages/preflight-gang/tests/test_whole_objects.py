"""Nothing that a pod, a ConfigMap or a custom object can hold does more than make it unreadable."""

from __future__ import annotations

import json
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from gangs import stamp
from hostile import DEEP, bomb, deep
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preflight_gang.api.sources import BUILT_IN
from preflight_gang.api.types import ConfigMap, Node, Pod
from preflight_gang.config import Config
from preflight_gang.controller.controller import Controller
from preflight_gang.core.reconcile import decide
from preflight_gang.core.unchecked import AuditedPod
from preflight_gang.metrics import Metrics
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_kube.client.decoding import Undecodable, decode, unreadable
from preflight_kube.runtime.reflector import Change
from preflight_proto import names
from preflight_proto.stamp import configmap_name, encode_stamp, gang_hash
from preflight_testing.apidouble import write_kubeconfig

NS = "evil"
STAMP = stamp("g", namespace=NS)

TEXTS = [
    DEEP,
    deep(100_000),
    encode_stamp(STAMP),
    "",
    "null",
    "{",
    "x" * 300_000,
    "\0\u2028\x85\x1b[2J",
    "9" * 5000,
    '{"v":1,"pod_uid":"u","generation":1e999,"epoch":-1,"answer":"sealed"}',
    '{"v":1,"check":"dcgm-diag","outcome":"passed","code":"OK","gated":true,"duration":1e308}',
    '{"v":1,"token":"t","master_port":1,"control_port":2,"members":[]}',
    "1",
    bomb(100_000),
]
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, -1, 10**30, 10**400, 1.5, 1e308, -0.0]),
    st.sampled_from(TEXTS),
    st.text(max_size=20),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def or_anything(likely: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(likely, likely, likely, likely, anything)


def fields(**some: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return or_anything(
        st.fixed_dictionaries({}, optional={k.rstrip("_"): or_anything(v) for k, v in some.items()})
    )


OUR_KEYS = [
    names.GANG_ANNOTATION,
    names.ROSTER_ANNOTATION,
    names.PREFIX + "gang-id",
    names.TOPOLOGY_ANNOTATION,
]
texts = st.sampled_from(TEXTS)
time_ = st.sampled_from(
    ["2026-11-21T08:00:00Z", "9999-12-31T23:59:59Z", "0000-00-00T00:00:00Z", ""]
)
ended = fields(
    exitCode=st.sampled_from([0, 1, 137]),
    message=texts,
    reason=texts,
    containerID=texts,
    finishedAt=time_,
    startedAt=time_,
)
state = fields(
    terminated=ended,
    running=fields(startedAt=time_),
    waiting=fields(reason=st.just("ErrImagePull"), message=texts),
)
check = st.sampled_from(["preflight-dcgm-diag", "preflight-nccl-allreduce", "x"])
status = fields(
    phase=st.sampled_from(["Pending", "Failed", "Running"]),
    podIP=st.sampled_from(["10.0.0.1", ""]),
    conditions=st.lists(
        fields(type=st.just("PodScheduled"), status=st.just("False"), message=texts), max_size=3
    ),
    initContainerStatuses=st.lists(
        fields(name=check, restartCount=st.just(1), state=state, lastState=state), max_size=3
    ),
)
spec = fields(
    nodeName=st.just("node-a"),
    initContainers=st.lists(
        fields(name=check, volumeMounts=st.lists(fields(name=st.just(names.GANG_VOLUME)))),
        max_size=3,
    ),
    volumes=st.lists(fields(name=st.just(names.NODE_VOLUME)), max_size=2),
)
owner = fields(
    apiVersion=st.just("batch/v1"),
    kind=st.just("Job"),
    name=texts,
    uid=texts,
    controller=st.booleans(),
)
metadata = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["p", configmap_name(NS, "g", "labels")]),
        "namespace": st.just(NS),
        "uid": st.sampled_from(["u1", "u2"]),
        "labels": or_anything(
            st.just(
                {
                    names.GANG_LABEL: gang_hash(NS, "g", "labels"),
                    names.CHECKED_LABEL: "true",
                    names.MANAGED_BY_LABEL: names.MANAGED_BY,
                }
            )
        ),
        "annotations": or_anything(
            st.dictionaries(st.sampled_from(OUR_KEYS), or_anything(texts), max_size=4).map(
                lambda found: {
                    names.GANG_ANNOTATION: encode_stamp(STAMP),
                    names.PREFIX + "gang-id": "g",
                    names.PREFIX + "gang-source": "labels",
                    **found,
                }
            )
        ),
    },
    optional={
        "ownerReferences": or_anything(st.lists(owner, max_size=2)),
        "deletionTimestamp": or_anything(time_),
        "managedFields": anything,
    },
)
pods = st.fixed_dictionaries({"metadata": metadata}, optional={"spec": spec, "status": status})
maps = st.fixed_dictionaries(
    {"metadata": metadata},
    optional={
        "data": or_anything(
            st.fixed_dictionaries(
                {}, optional={"members": or_anything(texts), "generation": or_anything(texts)}
            )
        ),
        "binaryData": or_anything(
            st.fixed_dictionaries(
                {"members": or_anything(st.sampled_from([bomb(1 << 20), "AAAA", "=="]))}
            )
        ),
    },
)
KINDS = sorted({kind for kinds in BUILT_IN.values() for kind in kinds}, key=str)
PARTS = [
    "podGroups",
    "minMember",
    "podSets",
    "podgroups",
    "parallelism",
    "replicatedJobs",
    "schedulingPolicy",
    "trainer",
]
parts = st.lists(
    fields(
        name=texts,
        replicas=st.just(2),
        policy=fields(gang=fields(minCount=st.just(2))),
        count=st.just(1),
    ),
    max_size=3,
)
objects = st.fixed_dictionaries(
    {"metadata": metadata},
    optional={
        "spec": or_anything(
            st.dictionaries(st.sampled_from(PARTS), st.one_of(parts, anything), max_size=4)
        )
    },
)


def read(item: Any, type_: type[Any]) -> Any:
    data = json.dumps(item).encode()  # with whole numbers of any size
    try:
        return decode(msgspec.json.Decoder(type_), data)
    except Undecodable as error:
        assert len(str(error)) < 500
        assert str(error).isprintable()
        assert unreadable(data, str(error)).metadata.uid in {item["metadata"]["uid"], ""}
        return None


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(["added", "modified", "deleted"]), st.one_of(pods, maps)),
        max_size=4,
    )
)
def test_whatever_pods_and_config_maps_hold_a_gang_of_them_can_be_looked_at(
    changes: list[tuple[Any, Any]],
) -> None:
    controller = _controller()
    for kind, item in changes:
        is_pod = "data" not in item and "binaryData" not in item
        found = read(item, Pod if is_pod else ConfigMap)
        read(item, AuditedPod)
        if found is None:
            continue
        change = Change(kind, found.metadata.uid, found, None)
        (controller._pod_changed if is_pod else controller._config_map_changed)(change)
        for key in list(controller._gangs):
            gang = controller.gang(key)
            assert gang is None or decide(gang) is not None


@settings(suppress_health_check=list(HealthCheck))
@given(objects, st.sampled_from(KINDS))
def test_whatever_an_object_holds_it_says_a_size_or_why_not(item: Any, kind: Any) -> None:
    found = read(item, kind.type)
    if found is not None:
        said = found.size("g/g/0")
        assert said.count is None or (said.count > 0 and math.isfinite(said.count))


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries({"metadata": metadata}, optional={"spec": anything, "status": anything})
)
def test_whatever_a_node_holds_it_is_read_or_not(item: Any) -> None:
    read(item, Node)


def _controller() -> Controller:
    return Controller(_client(), Config(), Metrics())


@cache
def _client() -> Client:
    """To nobody. To read the authorities that a machine trusts takes most of an example's time."""
    kubeconfig = write_kubeconfig(Path(tempfile.mkdtemp()) / "kubeconfig", "http://127.0.0.1:1")
    return Client(connection({"KUBECONFIG": str(kubeconfig)}), agent="tests")
