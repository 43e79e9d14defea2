"""Members of gangs: stamp, label, volumes and environment, and what nobody can forge."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from pods import GPU, cost, gangs, is_member, join, pods, qos
from pods import judged as decided
from preflight_proto.stamp import Stamp, configmap_name, decode_stamp, gang_hash
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.decision import Decision

PREFIX = "preflight.nvsentinel.nvidia.com/"
CONFIG = parse(
    "checks: [{name: dcgm-diag, image: d}, {name: nccl-allreduce, image: a}, {name: ring, image: r, gang: true}]\n"
    "nccl: {allreduceThresholdGBps: 12.5}\nskipNcclWithoutNetwork: false"
)


def judged(
    pod: dict[str, Any], config: Config = CONFIG, namespace: str = "ml"
) -> tuple[Decision, dict[str, Any]]:
    return decided(pod, config, namespace=namespace)


def member(
    gang: tuple[str, str] = ("schedulingGroup", "train"), *, gpus: int = 8
) -> dict[str, Any]:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    pod: dict[str, Any] = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": resources}]},
    }
    join(gang, pod["metadata"], pod["spec"])
    return pod


def stamp_of(pod: dict[str, Any]) -> Stamp:
    return decode_stamp(pod["metadata"]["annotations"][PREFIX + "gang"])


def ours(pod: dict[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    both = {
        **(metadata.get("labels") or {}),
        **{f"@{k}": v for k, v in (metadata.get("annotations") or {}).items()},
    }
    return {key: value for key, value in both.items() if key.removeprefix("@").startswith(PREFIX)}


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e["value"] for e in container["env"] if "value" in e}


@pytest.mark.parametrize(
    ("gang", "raw_id", "object_name", "size"),
    [
        (("schedulingGroup", "train"), "train", "train", None),
        (("workloadRef", "train"), "train/workers/0", "train", None),
        (("labels", "train"), "train", None, 2),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_member_carries_its_gangs_stamp(
    gang: tuple[str, str], raw_id: str, object_name: str | None, size: int | None
) -> None:
    _, after = judged(member(gang))
    assert stamp_of(after) == Stamp(
        v=2,
        id=raw_id,
        source=gang[0],
        config_map=configmap_name("ml", raw_id, gang[0]),
        takes_part=True,
        object=object_name,
        size=size,
    )
    assert after["metadata"]["labels"][PREFIX + "gang"] == gang_hash("ml", raw_id, gang[0])
    assert after["metadata"]["annotations"][PREFIX + "roster"] == ""


def test_a_gang_wide_check_sees_its_roster_and_keeps_its_generation() -> None:
    _, after = judged(member())
    plain, *gang_wide = [
        c for c in after["spec"]["initContainers"] if c["name"].startswith("preflight-")
    ]
    assert [c["name"] for c in gang_wide] == ["preflight-nccl-allreduce", "preflight-ring"]
    for container in gang_wide:
        mounts = {m["name"]: m for m in container["volumeMounts"]}
        assert mounts["preflight-gang-config"] == {
            "name": "preflight-gang-config",
            "mountPath": "/etc/preflight",
            "readOnly": True,
        }
        assert mounts["preflight-state"] == {
            "name": "preflight-state",
            "mountPath": "/var/lib/preflight",
        }
        assert env_of(container).items() >= {
            ("GANG_TIMEOUT", "600s"),
            ("GANG_CONFIG_DIR", "/etc/preflight"),
            ("PREFLIGHT_STATE_DIR", "/var/lib/preflight"),
            ("NCCL_ALLREDUCE_THRESHOLD_GBPS", "12.5"),
        }
    assert "preflight-gang-config" not in {m["name"] for m in plain["volumeMounts"]}
    assert "GANG_TIMEOUT" not in env_of(plain)


def test_the_roster_annotation_wins_over_a_key_of_that_name_in_the_config_map() -> None:
    volumes = {v["name"]: v for v in judged(member())[1]["spec"]["volumes"]}
    config_map, annotation = volumes["preflight-gang-config"]["projected"]["sources"]
    assert config_map == {"configMap": {"name": "preflight-train", "optional": True}}
    shown = {
        item["path"]: item["fieldRef"]["fieldPath"] for item in annotation["downwardAPI"]["items"]
    }
    assert shown["roster"] == f"metadata.annotations['{PREFIX}roster']"
    assert volumes["preflight-state"] == {"name": "preflight-state", "emptyDir": {}}


def test_the_topology_of_a_members_node_comes_in_the_volume_of_its_roster() -> None:
    volumes = {v["name"]: v for v in judged(member())[1]["spec"]["volumes"]}
    _, annotations = volumes["preflight-gang-config"]["projected"]["sources"]
    shown = {
        item["path"]: item["fieldRef"]["fieldPath"] for item in annotations["downwardAPI"]["items"]
    }
    assert shown["node-topology"] == f"metadata.annotations['{PREFIX}node-topology']"


def test_a_member_without_gpus_is_stamped_and_nothing_else() -> None:
    pod = member(gpus=0)
    decision, after = judged(pod)
    assert (decision.result, after["spec"]) == ("stamped", pod["spec"])
    assert set(ours(after)) == {PREFIX + "gang", f"@{PREFIX}gang"}
    assert not stamp_of(after).takes_part
    assert decision.message.endswith("it is stamped as a member of the gang train.")


def test_a_member_whose_checks_are_none_of_them_gang_wide_takes_no_part() -> None:
    _, after = judged(member(), parse("checks: [{name: dcgm-diag, image: d}]"))
    assert not stamp_of(after).takes_part
    assert PREFIX + "roster" not in after["metadata"]["annotations"]
    assert "preflight-gang-config" not in {v["name"] for v in after["spec"]["volumes"]}


def test_nccl_checks_of_a_gang_need_network_devices_unless_told_otherwise() -> None:
    decision, after = judged(member(), parse("checks: [{name: nccl-allreduce, image: a}]"))
    assert (decision.result, [(s.check, s.reason) for s in decision.skipped]) == (
        "stamped",
        [("nccl-allreduce", "no-network")],
    )
    assert not stamp_of(after).takes_part


def test_windows_members_are_stamped_and_left_alone() -> None:
    pod = member()
    pod["spec"]["os"] = {"name": "windows"}
    decision, after = judged(pod)
    assert (decision.result, after["spec"]) == ("stamped", pod["spec"])


@pytest.mark.parametrize(
    "size", ["two", "0", "-1", "2.0", "1e3", "", " 2", "99999999999999999999", "²"]
)
def test_an_unreadable_size_is_unknown_and_told_to_the_user(size: str) -> None:
    pod = member(("labels", "train"))
    pod["metadata"]["labels"]["app.kubernetes.io/gang-size"] = size
    decision, after = judged(pod)
    assert stamp_of(after).size is None
    [warning] = decision.warnings
    assert "label app.kubernetes.io/gang-size" in warning
    assert f'"{size}"' in warning
    assert warning.endswith("as its members wait until one says it")  # no object does
    assert judged(after)[0].warnings == [warning]


def test_a_size_that_only_a_label_could_say_is_missed() -> None:
    pod = member(("labels", "train"))
    del pod["metadata"]["labels"]["app.kubernetes.io/gang-size"]
    assert judged(pod)[0].warnings == [
        "label app.kubernetes.io/gang-size: is missing; write a whole number from 1, as its members wait until one says it"
    ]


@pytest.mark.parametrize("size", [None, "x"])
@pytest.mark.parametrize(
    ("gpus", "checks"),
    [(0, "ring, image: r, gang: true"), (8, "ours, image: o")],
    ids=["without GPUs", "without a gang's check"],
)
def test_a_size_that_nobody_waits_for_is_not_missed(
    gpus: int, checks: str, size: str | None
) -> None:
    """The others may say it, or nobody asks: such a member waits for no one."""
    pod = member(("labels", "train"), gpus=gpus)
    pod["metadata"]["labels"] |= {"app.kubernetes.io/gang-size": size}
    if size is None:
        del pod["metadata"]["labels"]["app.kubernetes.io/gang-size"]
    decision, after = judged(pod, parse(f"checks: [{{name: {checks}}}]"))
    assert (stamp_of(after).takes_part, decision.warnings) == (False, [])


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\nb", "a" * 254, "ä"])
@pytest.mark.parametrize("source", ["schedulingGroup", "workloadRef", "labels", "volcano"])
def test_an_empty_or_invalid_id_is_no_gang(source: str, name: str) -> None:
    decision, after = judged(member((source, name)))
    assert (decision.result, set(ours(after))) == ("injected", {PREFIX + "checked"})
    assert [(s.check, s.reason) for s in decision.skipped] == [
        ("nccl-allreduce", "no-gang"),
        ("ring", "no-gang"),
    ]


def test_a_warning_comes_with_the_patch_of_a_rebuilt_pod() -> None:
    pod = member(("labels", "train"))
    pod["metadata"]["labels"] |= {"app.kubernetes.io/gang-size": "x", PREFIX + "gang": "forged"}
    assert any("gang-size" in warning for warning in judged(pod)[0].warnings)


@given(pods(), pods(), gangs)
def test_two_members_carry_the_same_label_and_stamp(
    one: dict[str, Any], other: dict[str, Any], gang: tuple[str, str]
) -> None:
    marks = []
    for pod in (one, other):
        for key in ("schedulingGroup", "workloadRef"):
            pod["spec"].pop(key, None)
        pod["metadata"] = {"name": "p"}
        join(gang, pod["metadata"], pod["spec"])
        decision, after = judged(pod)
        if not is_member(pod):
            assert decision.stamp is None
            return
        assert decision.stamp == stamp_of(after)
        marks.append((after["metadata"]["labels"][PREFIX + "gang"], stamp_of(after)))
    (label, stamp), (label2, stamp2) = marks
    assert label == label2
    assert [getattr(stamp, f) for f in ("id", "source", "config_map", "object", "size")] == [
        getattr(stamp2, f) for f in ("id", "source", "config_map", "object", "size")
    ]


@given(pods())
def test_stamping_is_idempotent_and_changes_no_cost(pod: dict[str, Any]) -> None:
    _, after = judged(pod)
    again, last = judged(after)
    assert (again.patch, last) == ([], after)
    assert qos(after) == qos(pod)
    for name in ("cpu", "memory", GPU):
        assert cost(after, "requests", name) == cost(pod, "requests", name), name


@given(pods())
def test_no_forged_stamp_label_or_roster_survives(pod: dict[str, Any]) -> None:
    honest = ours(judged(pod)[1])
    forged = copy.deepcopy(pod)
    forged["metadata"]["labels"] = {
        **(pod["metadata"].get("labels") or {}),
        PREFIX + "gang": "ffffffffffffffff",
    }
    forged["metadata"]["annotations"] = {
        **(pod["metadata"].get("annotations") or {}),
        PREFIX
        + "gang": '{"v":1,"id":"theirs","source":"labels","config_map":"preflight-theirs","takes_part":true}',
        PREFIX + "roster": '{"v":1,"answer":"skip"}',
        PREFIX + "other": "x",
    }
    assert ours(judged(forged)[1]) == honest


def test_the_same_id_in_two_namespaces_is_two_gangs() -> None:
    labels = {
        judged(member(), namespace=name)[1]["metadata"]["labels"][PREFIX + "gang"]
        for name in ("ml", "hpc")
    }
    assert len(labels) == 2


def test_a_gang_that_another_webhook_names_between_two_calls_is_found_on_the_second() -> None:
    pod = member(("broken", ""))
    _, after = judged(pod)
    join(("labels", "train"), after["metadata"], after["spec"])
    decision, again = judged(after)
    honest = judged(
        {
            **pod,
            "metadata": {
                **after["metadata"],
                "labels": {
                    k: v for k, v in after["metadata"]["labels"].items() if not k.startswith(PREFIX)
                },
            },
        }
    )[1]
    assert (decision.result, stamp_of(again).takes_part) == ("injected", True)
    assert again["spec"] == honest["spec"]
    assert judged(again)[0].patch == []
