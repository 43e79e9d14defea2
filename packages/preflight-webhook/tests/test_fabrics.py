"""Fabrics and nodes of many kinds: network devices, folders of the node, engines, connectors; and
pods that no check applies to.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from pods import judged
from preflight_proto import names
from preflight_webhook.config.config import ConfigError, parse

GPU = "nvidia.com/gpu"
EFA = """
checks:
  - name: nccl-loopback
    image: l
    extraVolumes: [{name: efa, hostPath: {path: /opt/amazon}}]
    extraVolumeMounts: [{name: efa, mountPath: /opt/amazon}]
  - name: mine
    image: m
    extraVolumes: [{name: efa, hostPath: {path: /opt/amazon}}, {name: work, emptyDir: {medium: Memory}}]
    extraVolumeMounts: [{name: efa, mountPath: /usr/local/nvidia, subPath: lib}, {name: work, mountPath: /w, readOnly: false}]
"""


def pod(limits: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "i", "resources": {"limits": {GPU: "8", **(limits or {})}}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [main], **spec}}


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    return raised.value.problems


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mlnxnics",
        "nvidia.com/hostdev",
        "nvidia.com/sriov-rdma-vf",
        "rdma/hca_shared_devices_a",
        "rdma/ib",
        "vpc.amazonaws.com/efa",
        "networking.gke.io.networks/rdma-0",
        "networking.gke.io.networks/vpc1.IP",
    ],
)
def test_the_network_devices_of_every_cloud_are_known_and_given_to_the_checks(name: str) -> None:
    config = parse("checks: [{name: nccl-allreduce, image: a}]")
    decision, after = judged(pod({name: "4"}, schedulingGroup={"podGroupName": "train"}), config)
    assert decision.checks == ["nccl-allreduce"]
    assert after["spec"]["initContainers"][0]["resources"]["limits"] == {GPU: "8", name: "4"}


def test_network_devices_may_be_named_by_globs() -> None:
    config = parse(
        "checks: [{name: mine, image: m}]\nnetworkDetection: {resourceNames: ['example.com/nic-*']}"
    )
    _, after = judged(pod({"example.com/nic-7": "1", "rdma/ib": "1"}), config)
    assert after["spec"]["initContainers"][0]["resources"]["limits"] == {
        GPU: "8",
        "example.com/nic-7": "1",
    }


def test_folders_of_the_node_reach_the_checks_that_the_operator_gives_them() -> None:
    _, after = judged(pod(volumes=[{"name": "efa", "emptyDir": {}}]), parse(EFA))
    loopback, mine = after["spec"]["initContainers"]
    assert {
        "name": "preflight-extra-efa",
        "mountPath": "/opt/amazon",
        "readOnly": True,
    } in loopback["volumeMounts"]
    assert {
        "name": "preflight-extra-efa",
        "mountPath": "/usr/local/nvidia",
        "subPath": "lib",
        "readOnly": True,
    } in mine["volumeMounts"]
    assert {"name": "preflight-extra-work", "mountPath": "/w"} in mine["volumeMounts"]
    volumes = after["spec"]["volumes"]
    assert (
        volumes.count(
            {"name": "preflight-extra-efa", "hostPath": {"path": "/opt/amazon", "type": ""}}
        )
        == 1
    )
    assert {"name": "preflight-extra-work", "emptyDir": {"medium": "Memory"}} in volumes
    assert {"name": "efa", "emptyDir": {}} in volumes, "the workload's own keeps its name"
    assert judged(after, parse(EFA))[0].result == "unchanged"


def test_where_a_namespace_forbids_folders_of_the_node_the_pod_is_denied_with_the_check_that_wants_one() -> (
    None
):
    for setting in ("deny", "report-off"):
        decision, _ = judged(pod(), parse(EFA + f"onPodSecurityConflict: {setting}"), confined=True)
        assert decision.denied
        assert "pod-security.kubernetes.io/enforce" in decision.message
        assert "nccl-loopback (extraVolumes: /opt/amazon)" in decision.message


def test_a_mount_of_the_operators_goes_before_one_that_the_workload_has_there() -> None:
    made = pod(volumes=[{"name": "mine", "emptyDir": {}}])
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "mine", "mountPath": "/data"}]
    config = parse(
        "checks: [{name: mine, image: m, mountPatterns: [/data], extraVolumes: [{name: d, hostPath: {path: /d}}],"
        " extraVolumeMounts: [{name: d, mountPath: /data}]}]"
    )
    mounts = judged(made, config)[1]["spec"]["initContainers"][0]["volumeMounts"]
    assert [one["name"] for one in mounts if one["mountPath"] == "/data"] == ["preflight-extra-d"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            "extraVolumeMounts: [{name: efa, mountPath: /e}]",
            "is none of the check's extraVolumes (none)",
        ),
        (
            "container: {volumeMounts: [{name: efa, mountPath: /e}]}",
            "goes into extraVolumes and extraVolumeMounts",
        ),
        ("extraVolumes: [{name: v}]", "has not one of hostPath and emptyDir"),
        (
            "extraVolumes: [{name: v, hostPath: {path: /a}, emptyDir: {}}]",
            "has not one of hostPath and emptyDir",
        ),
        ("extraVolumes: [{name: v, hostPath: {path: /a/../b}}]", '".." in it'),
        *(
            (
                f"extraVolumes: [{{name: v, hostPath: {{path: {path}}}}}]",
                "leads to /var/run/nvsentinel",
            )
            for path in ("/", "/var", "/var/run", "/run/", "/run/nvsentinel/x")
        ),
        ("extraVolumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]", "is also the name at"),
        *(
            (
                f"extraVolumes: [{{name: v, emptyDir: {{}}}}], extraVolumeMounts: [{{name: v, mountPath: {path}}}]",
                "would cover",
            )
            for path in (
                "/",
                "/usr",
                "/usr/local",
                "/opt/venv",
                "/opt",
                "/tmp/",
                "/var/run/nvsentinel",
                "/etc",
                "/dev",
            )
        ),
    ],
)
def test_a_volume_or_mount_that_cannot_be_is_refused_before_any_pod(fields: str, said: str) -> None:
    found = problems(f"checks: [{{name: mine, image: m, {fields}}}]")
    assert len(found) == 1
    assert found[0].startswith("checks[0].")
    assert said in found[0]


def test_what_a_tenant_of_the_namespace_writes_is_no_volume_of_a_check() -> None:
    for source in (
        "configMap: {name: x}",
        "secret: {secretName: x}",
        "persistentVolumeClaim: {claimName: x}",
    ):
        kind = source.split(":", 1)[0]
        assert any(
            f"{kind}: unknown key" in one
            for one in problems(
                f"checks: [{{name: mine, image: m, extraVolumes: [{{name: v, {source}}}]}}]"
            )
        )


def test_two_checks_may_share_a_volume_and_not_its_name() -> None:
    other = EFA.replace("/opt/amazon}}, {name: work", "/opt/other}}, {name: work")
    [found] = problems(other)
    assert (
        'checks[1].extraVolumes[0].name: "efa" is another volume than at checks[0].extraVolumes[0]'
        in found
    )


def test_a_volume_of_ours_that_the_pod_does_not_get_is_not_mounted() -> None:
    config = parse(
        "checks: [{name: mine, image: m, container: {volumeMounts: [{name: preflight-shm, mountPath: /s}]}}]"
    )
    assert "preflight-shm" not in json.dumps(judged(pod(), config)[1])


CANDIDATES = "$(NODE_IP):5555,nvidia-dcgm.gpu-operator.svc:5555"
DCGM = parse("checks: [{name: dcgm-diag, image: d}]")


def engine(after: dict[str, Any]) -> str:
    env = after["spec"]["initContainers"][0]["env"]
    return next(str(one["value"]) for one in env if one["name"] == names.ENV_DCGM_HOSTENGINE)


def test_the_nodes_own_engine_is_asked_first_and_then_the_gpu_operators() -> None:
    assert engine(judged(pod(), DCGM)[1]) == CANDIDATES


def test_one_address_or_a_list_of_them_is_taken() -> None:
    for given, expected in (
        ("a.b.svc:1", "a.b.svc:1"),
        ("['10.0.0.1:1', 'a.b.svc:2']", "10.0.0.1:1,a.b.svc:2"),
    ):
        config = parse(
            f"checks: [{{name: dcgm-diag, image: d}}]\ndcgm: {{hostengineAddr: {given}}}"
        )
        assert engine(judged(pod(), config)[1]) == expected


@pytest.mark.parametrize(
    "spec",
    [
        {"hostAliases": [{"ip": "10.6.6.6", "hostnames": ["nvidia-dcgm.gpu-operator.svc"]}]},
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.6.6.6"]}},
        {"hostNetwork": True},
    ],
)
def test_a_name_that_the_pod_could_lead_elsewhere_is_left_out_while_an_address_is_left(
    spec: dict[str, Any],
) -> None:
    decision, after = judged(pod(**spec), DCGM)
    assert decision.checks == ["dcgm-diag"]
    assert engine(after) == "$(NODE_IP):5555"
    assert judged(after, DCGM)[0].result == "unchanged"


@pytest.mark.parametrize(
    "address",
    ["dcgm", "a.b.svc", "a.b.svc:0", "a.b.svc:99999", "a.b.svc:port", "tcp://a.b.svc:5555"],
)
def test_what_is_no_host_and_port_is_refused_with_its_place(address: str) -> None:
    for given, at in ((f"'{address}'", ""), (f"['$(NODE_IP):5555', '{address}']", "[1]")):
        [found] = problems(f"dcgm: {{hostengineAddr: {given}}}")
        assert (
            found
            == f'dcgm.hostengineAddr{at}: "{address}" is not host:port; set e.g. $(NODE_IP):5555.'
        )


def test_by_default_dcgm_tests_hardware() -> None:
    env = judged(pod(), DCGM)[1]["spec"]["initContainers"][0]["env"]
    assert {"name": "DCGM_DIAG_LEVEL", "value": "2"} in env


def test_without_a_connector_nothing_of_it_is_mounted_and_the_checks_are_told() -> None:
    config = parse(
        "checks: [{name: dcgm-diag, image: d}]\nplatformConnector: {enabled: false, auth: {enabled: true}}"
    )
    for confined in (False, True):
        decision, after = judged(pod(), config, confined=confined)
        assert (decision.result, decision.warnings) == ("injected", [])
        text = json.dumps(after)
        assert names.SOCKET_VOLUME not in text
        assert names.TOKEN_VOLUME not in text
        env = after["spec"]["initContainers"][0]["env"]
        assert {"name": "PLATFORM_CONNECTOR_SOCKET", "value": "off"} in env


FABRIC = parse("checks: [{name: nccl-allreduce, image: a}]\npodSelection: {enabled: true}")


def label(after: dict[str, Any]) -> str | None:
    found = (after["metadata"].get("labels") or {}).get(names.CHECKED_LABEL)
    return found if found is None else str(found)


def test_a_gpu_pod_to_which_no_check_applies_is_marked_for_the_audit() -> None:
    decision, after = judged(pod(), FABRIC)
    assert (decision.label, label(after)) == ("no-checks-no-gang", names.NO_CHECK_APPLIES)
    assert judged(after, FABRIC)[0].result == "unchanged"


def test_a_pod_that_asked_for_nothing_or_gets_no_gpus_is_not_marked() -> None:
    asking = pod()
    asking["metadata"]["annotations"] = {names.CHECKS_ANNOTATION: ""}
    assert label(judged(asking, FABRIC)[1]) is None
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    assert label(judged(plain, FABRIC)[1]) is None


def test_a_pod_cannot_mark_itself() -> None:
    for own in (names.NO_CHECK_APPLIES, "true"):
        forged = pod()
        forged["metadata"]["labels"] = {names.CHECKED_LABEL: own}
        assert label(judged(forged, DCGM)[1]) == names.CHECKED
        asking = copy.deepcopy(forged)
        asking["metadata"]["annotations"] = {names.CHECKS_ANNOTATION: ""}
        assert label(judged(asking, FABRIC)[1]) is None
