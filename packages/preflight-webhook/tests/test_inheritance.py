"""What the checks of the fabric inherit of the workload, and what they never do."""

from __future__ import annotations

import json
import os
import posixpath
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pods import judged as decided
from preflight_proto.names import INSTANCE_TYPE_ANNOTATION, TOPOLOGY_ANNOTATION
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.decision import Decision

CHECKS = "checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false\n"
CONFIG = parse(CHECKS)
GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}


def container(name: str = "main", *, gpus: bool = True, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", **(GPUS if gpus else {}), **fields}


def judged(
    *containers: dict[str, Any], config: Config = CONFIG, **spec: Any
) -> tuple[Decision, dict[str, Any]]:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}
    return decided(pod, config)


def check(pod: dict[str, Any], name: str = "nccl-loopback") -> dict[str, Any]:
    made: dict[str, Any] = next(
        c for c in pod["spec"]["initContainers"] if c["name"] == f"preflight-{name}"
    )
    return made


def variables(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "value": f"of {name}"} for name in names]


def inherited(pod: dict[str, Any], name: str = "nccl-loopback") -> dict[str, Any]:
    own = {"of ", "valueFrom"}
    return {
        e["name"]: e for e in check(pod, name)["env"] if any(mark in json.dumps(e) for mark in own)
    }


def test_variables_that_match_a_pattern_reach_the_nccl_check_and_no_others() -> None:
    _, pod = judged(
        container(env=variables("NCCL_IB_HCA", "UCX_TLS", "OMPI_MCA_pml", "HOME", "SECRET"))
    )
    assert {"NCCL_IB_HCA", "UCX_TLS", "OMPI_MCA_pml"} <= inherited(pod).keys()
    assert not {"HOME", "SECRET"} & {e["name"] for e in check(pod)["env"]}
    assert not {"NCCL_IB_HCA", "UCX_TLS"} & {e["name"] for e in check(pod, "dcgm-diag")["env"]}


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_COMM_ID",
        "NCCL_TESTS_DEVICE",
        "NCCL_DEBUG_FILE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG",
        "NCCL_LOOPBACK_TOOL",
        "NCCL_LOOPBACK_THRESHOLD_GBPS",
        "GATE",
        "EXPECTED_GPUS",
        "PLATFORM_CONNECTOR_SOCKET",
        "PREFLIGHT_TOPOLOGY_MAP",
    ],
)
def test_what_would_bend_the_check_is_never_inherited_even_if_listed(name: str) -> None:
    config = parse(CHECKS + f"ncclEnvPatterns: ['*', {name}]")
    _, pod = judged(container(env=variables(name)), config=config)
    assert f"of {name}" not in json.dumps(check(pod))


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "PATH"]
)
@pytest.mark.parametrize("listed", [True, False])
def test_names_that_load_code_are_inherited_only_when_listed_literally(
    name: str, listed: bool
) -> None:
    config = parse(CHECKS + f"ncclEnvPatterns: ['*'{', ' + name if listed else ''}]")
    _, pod = judged(container(env=variables(name)), config=config)
    assert (name in inherited(pod)) is listed


def test_a_variable_of_a_file_that_the_pod_writes_first_stays_behind() -> None:
    """No kubelet starts a container whose file is not there, be the variable optional or not, and
    the init container that writes it waits for the check."""
    file = {"volumeName": "made", "path": "nccl.env", "key": "HCA", "optional": True}
    env = [
        {"name": "NCCL_IB_HCA", "valueFrom": {"fileKeyRef": file}},
        {"name": "NCCL_NET", "value": "$(NCCL_IB_HCA)"},
        {"name": "NCCL_ALGO", "value": "Ring"},
    ]
    decision, pod = judged(container(env=env), volumes=[{"name": "made", "emptyDir": {}}])
    assert {e["name"] for e in check(pod)["env"]} & {"NCCL_IB_HCA", "NCCL_NET", "NCCL_ALGO"} == {
        "NCCL_ALGO"
    }
    assert "fileKeyRef" in decision.warnings[0]


def test_of_two_containers_the_first_with_gpus_decides_and_the_user_is_told() -> None:
    def setting(value: str) -> dict[str, Any]:
        return {"env": [{"name": "NCCL_IB_HCA", "value": value}]}

    decision, pod = judged(container("side", gpus=False, **setting("a")), container(**setting("b")))
    assert [e for e in check(pod)["env"] if e["name"] == "NCCL_IB_HCA"] == [
        {"name": "NCCL_IB_HCA", "value": "b"}
    ]
    assert decision.warnings == [
        "NCCL_IB_HCA differs between spec.containers[1] and spec.containers[0]; nccl-loopback runs with that of spec.containers[1]"
    ]


def test_a_value_that_refers_to_what_is_not_inherited_stays_behind() -> None:
    env = [
        *variables("NIC"),
        {"name": "NCCL_SOCKET_IFNAME", "value": "=$(NIC)"},
        {"name": "NCCL_ALGO", "value": "$$(NIC)"},
    ]
    decision, pod = judged(container(env=env))
    assert [e["name"] for e in check(pod)["env"] if e["name"].startswith("NCCL")] == ["NCCL_ALGO"]
    assert "refers to NIC" in decision.warnings[0]


def test_the_operators_value_wins_over_the_workloads() -> None:
    config = parse(
        "checks: [{name: nccl-loopback, image: l, env: [{name: NCCL_IB_HCA, value: mine}]}]\nskipNcclWithoutNetwork: false"
    )
    _, pod = judged(container(env=variables("NCCL_IB_HCA")), config=config)
    assert [e["value"] for e in check(pod)["env"] if e["name"] == "NCCL_IB_HCA"] == ["mine"]


SHM = {"name": "dev-shm", "emptyDir": {"medium": "Memory"}}
TOPO = {"name": "topo", "configMap": {"name": "topo"}}


def test_the_workloads_dev_shm_is_used_and_no_second_one_made() -> None:
    mounts = [{"name": "dev-shm", "mountPath": "/dev/shm/"}]
    _, pod = judged(container(volumeMounts=mounts), volumes=[SHM])
    assert [m for m in check(pod)["volumeMounts"] if "shm" in m["mountPath"]] == mounts
    assert "preflight-shm" not in json.dumps(pod)
    assert "dev-shm" not in json.dumps(check(pod, "dcgm-diag"))


def test_without_one_an_nccl_check_gets_shared_memory_of_its_own() -> None:
    _, pod = judged(container())
    assert {"name": "preflight-shm", "mountPath": "/dev/shm"} in check(pod)["volumeMounts"]
    assert {"name": "preflight-shm", "emptyDir": {"medium": "Memory"}} in pod["spec"]["volumes"]


def test_the_users_topology_file_comes_with_the_mount_that_holds_it() -> None:
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "data", "mountPath": "/etc/nccl-conf", "subPath": "x"},
        {"name": "topo", "mountPath": "/etc/nccl-conf/topo"},
    ]
    env = [{"name": "NCCL_TOPO_FILE", "value": "/etc/nccl-conf/topo/h100.xml"}]
    _, pod = judged(
        container(env=env, volumeMounts=mounts), volumes=[TOPO, {"name": "data", "emptyDir": {}}]
    )
    made = {e["name"]: e.get("value") for e in check(pod)["env"]}
    assert made["NCCL_TOPO_FILE"] == "/etc/preflight-topology/h100.xml"
    assert made["PREFLIGHT_USER_TOPOLOGY"] == "/etc/nccl-conf/topo/h100.xml"
    theirs = [m for m in check(pod)["volumeMounts"] if not m["name"].startswith("preflight-")]
    assert theirs == [{"name": "topo", "mountPath": "/etc/preflight-topology", "readOnly": True}]


@pytest.mark.parametrize(
    ("mount", "file", "there", "expected"),
    [
        ({"mountPath": "/t"}, "/t/a/b.xml", "/etc/preflight-topology/a/b.xml", {"mountPath": "/etc/preflight-topology"}),
        ({"mountPath": "/t/", "subPath": "x"}, "//t/./b.xml", "/etc/preflight-topology/b.xml",
         {"mountPath": "/etc/preflight-topology", "subPath": "x"}),
        ({"mountPath": "/t/b.xml", "subPath": "b.xml"}, "/t/b.xml", "/etc/preflight-topology/b.xml",
         {"mountPath": "/etc/preflight-topology/b.xml", "subPath": "b.xml"}),
        ({"mountPath": "/"}, "/etc/shadow", "/etc/preflight-topology/etc/shadow", {"mountPath": "/etc/preflight-topology"}),
        ({"mountPath": "/t", "mountPropagation": "Bidirectional", "readOnly": False, "recursiveReadOnly": "Disabled"}, "/t/b",
         "/etc/preflight-topology/b", {"mountPath": "/etc/preflight-topology"}),
    ],
)  # fmt: skip
def test_a_topology_file_comes_to_a_path_of_ours(
    mount: dict[str, Any], file: str, there: str, expected: dict[str, Any]
) -> None:
    env = [{"name": "NCCL_TOPO_FILE", "value": file}]
    _, pod = judged(container(env=env, volumeMounts=[{"name": "topo", **mount}]), volumes=[TOPO])
    assert {"name": "NCCL_TOPO_FILE", "value": there} in check(pod)["env"]
    assert [m for m in check(pod)["volumeMounts"] if m["name"] == "topo"] == [
        {"name": "topo", **expected, "readOnly": True}
    ]


@pytest.mark.parametrize(
    "value", ["/t/$(NCCL_ALGO)", "/t/../x.xml", "/t/$(X)/a", "relative.xml", ""]
)
def test_a_topology_file_that_cannot_be_placed_stays_behind(value: str) -> None:
    env = [
        {"name": "NCCL_ALGO", "value": "../../proc/1/environ"},
        {"name": "NCCL_TOPO_FILE", "value": value},
    ]
    decision, pod = judged(
        container(env=env, volumeMounts=[{"name": "topo", "mountPath": "/t"}]), volumes=[TOPO]
    )
    assert "NCCL_TOPO_FILE" not in json.dumps(check(pod))
    assert "NCCL_TOPO_FILE" in decision.warnings[0]


@pytest.mark.parametrize("source", [{"medium": "Memory"}, {}])
def test_a_topology_file_that_an_init_container_writes_is_not_waited_for(
    source: dict[str, Any],
) -> None:
    """A check that stands before it would never find it; one behind it does."""
    own: dict[str, Any] = {
        "env": [{"name": "NCCL_TOPO_FILE", "value": "/t/x.xml"}],
        "volumeMounts": [{"name": "topo", "mountPath": "/t"}],
    }
    spec: dict[str, Any] = {"initContainers": [container("write", gpus=False)]}
    volumes = [{"name": "topo", "emptyDir": source}]
    decision, pod = judged(container(**own), volumes=volumes, **spec)
    assert "NCCL_TOPO_FILE" not in json.dumps(check(pod))
    assert "lies in an emptyDir" in decision.warnings[0]
    behind = parse(CHECKS.replace("image: l", "image: l, placement: last"))
    _, pod = judged(container(**own), config=behind, volumes=volumes, **spec)
    assert "NCCL_TOPO_FILE" in json.dumps(check(pod))


def test_a_topology_file_of_the_workloads_image_stays_behind() -> None:
    decision, pod = judged(
        container(env=[{"name": "NCCL_TOPO_FILE", "value": "/opt/image/topo.xml"}])
    )
    assert "NCCL_TOPO_FILE" not in json.dumps(check(pod))
    assert "lies in no volume" in decision.warnings[0]


IMAGE = [
    "/", "/usr", "/usr/bin", "/etc", "/dev", "/opt", "/opt/venv/lib", "/var/run", "/run/nvsentinel", "/tmp", "//tmp/",
    "/var/run/nvsentinel/nvsentinel.sock", "/dev/termination-log", "/etc/preflight/roster", "/var/lib/preflight/../preflight",
    "/etc/ld.so.preload", "/etc/ld.so.conf.d", "/etc/ld.so.cache", "/etc/nccl.conf", "/tmp/.nccl.conf", "/etc/ucx/ucx.conf",
    "/opt/conda/lib/python3.11/site-packages/torch", "/usr/local/lib/python3.11/site-packages/x.pth", "/usr/local/nvidia",
    "/opt/nvsentinel", "/opt/nvsentinel/nccl-topologies", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf",
    "/etc/gai.conf", "/etc/passwd", "/etc/ssl/certs", "/home", "/home/nonroot/.local", "/root/.nccl.conf", "/bin/sh",
    "/lib", "/lib64/ld-linux-x86-64.so.2", "/lib32", "/proc/self/environ", "/sys", "/sbin", "/boot", "/workspace", "/app",
    "/etc/preflight-topology", "/etc/preflight-node/instance-type", "/dev/shm/sub", "/dev/nvidia0", "usr", "/data/../usr/lib",
    "/nix/store", "/conda", "/venv",
]  # fmt: skip
"""Paths of images that programs run, load, or read their settings from."""


@pytest.mark.parametrize("path", IMAGE)
def test_no_mount_comes_where_an_image_has_anything(path: str) -> None:
    config = parse(
        CHECKS
        + "ncclMountPatterns: ['*', '/*/*', '/etc/*', '/usr*', '/opt/*', '/home', '/app', '/workspace']"
    )
    mounts = [
        {"name": "topo", "mountPath": path},
        {"name": "topo", "mountPath": path + "/x", "subPath": "y"},
    ]
    decision, pod = judged(container(volumeMounts=mounts), volumes=[TOPO], config=config)
    assert "topo" not in json.dumps(check(pod))
    assert any("not passed on" in warning for warning in decision.warnings)
    advised = any("extraVolumeMounts" in warning for warning in decision.warnings)
    assert advised or not path.startswith("/usr/")


@pytest.mark.parametrize("path", IMAGE)
def test_a_topology_file_anywhere_in_an_image_appears_under_our_path_alone(path: str) -> None:
    env = [{"name": "NCCL_TOPO_FILE", "value": f"{path}"}]
    for mount in (path, posixpath.dirname(path) or "/"):
        _, pod = judged(
            container(env=env, volumeMounts=[{"name": "topo", "mountPath": mount}]), volumes=[TOPO]
        )
        theirs = [m for m in check(pod)["volumeMounts"] if m["name"] == "topo"]
        assert all(
            m["mountPath"].split("/")[:3] == ["", "etc", "preflight-topology"] for m in theirs
        )
        assert all(m["readOnly"] is True for m in theirs)


def test_no_mount_covers_any_file_of_the_file_system_that_runs_this() -> None:
    config = parse(CHECKS + "ncclMountPatterns: ['*', '/*', '/*/*']")
    tops = [entry.path for entry in os.scandir("/") if entry.name not in {"work", "data", "mnt"}]
    deeper = [
        *sys.path,
        sys.executable,
        sys.prefix,
        *(os.path.realpath(one) for one in (sys.executable, sys.prefix)),
    ]
    mounts = [{"name": "topo", "mountPath": path} for path in {*tops, *filter(None, deeper)}]
    _, pod = judged(container(volumeMounts=mounts), volumes=[TOPO], config=config)
    assert "topo" not in json.dumps(check(pod))


@pytest.mark.parametrize(
    "source",
    [
        {"configMap": {"name": "x"}},
        {"persistentVolumeClaim": {"claimName": "x"}},
        {"emptyDir": {}},
        {"emptyDir": {"medium": "HugePages-2Mi"}},
        {"hostPath": {"path": "/dev/shm"}},
        {"csi": {"driver": "x"}},
        {"image": {"reference": "evil"}},
    ],
)
def test_dev_shm_comes_from_memory_alone(source: dict[str, Any]) -> None:
    mounts = [{"name": "dev-shm", "mountPath": "/dev/shm"}]
    decision, pod = judged(container(volumeMounts=mounts), volumes=[{"name": "dev-shm", **source}])
    assert [m["name"] for m in check(pod)["volumeMounts"] if m["mountPath"] == "/dev/shm"] == [
        "preflight-shm"
    ]
    assert "not an emptyDir of medium Memory" in decision.warnings[0]


def test_a_place_that_no_image_has_may_be_named_by_the_operator() -> None:
    config = parse(CHECKS + "ncclMountPatterns: [/data*, '/mnt/*']")
    mounts = [{"name": "topo", "mountPath": path} for path in ("/data", "/data2", "/mnt/x", "/srv")]
    _, pod = judged(container(volumeMounts=mounts), volumes=[TOPO], config=config)
    assert [m["mountPath"] for m in check(pod)["volumeMounts"] if m["name"] == "topo"] == [
        "/data",
        "/data2",
        "/mnt/x",
    ]


DANGEROUS = [
    "LD_PRELOAD", "LD_AUDIT", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN",
    "NCCL_RMA_PLUGIN", "NCCL_IBVERBS_LIB", "NCCL_CONF_FILE", "NCCL_GRAPH_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE",
    "NCCL_TUNER_CONFIG_FILE", "NCCL_PROFILE_DUMP_FILE", "NCCL_INSPECTOR_DUMP_DIR", "NCCL_PROXY_DUMP_SIGNAL", "NCCL_RAS_ADDR",
    "NCCL_HOSTID", "UCX_GDB_COMMAND", "UCX_HANDLE_ERRORS", "UCX_CONFIG_DIR", "UCX_LOG_FILE", "UCX_ERROR_MAIL_TO", "UCX_MODULE_DIR",
    "UCX_MODULES", "UCX_PLUGIN_PATH", "UCX_STATS_DEST", "UCX_MEMTRACK_DEST", "UCX_PROFILE_FILE", "UCX_VFS_SOCK_PATH",
    "UCX_PROTO_INFO_DIR", "UCX_POSIX_DIR", "UCX_DLOPEN_PROCESS_RPATH", "OMPI_MCA_mca_base_env_list", "OMPI_MCA_plm_rsh_agent",
    "OMPI_MCA_mca_base_component_path", "OMPI_MCA_mca_base_param_files", "OMPI_MCA_btl_openib_device_param_files",
    "OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_orte_launch_agent", "FI_PROVIDER_PATH", "FI_HOOK", "FI_CXI_CURL_LIB_PATH",
    "FI_CXI_JSON_LIB_PATH", "FI_OFI_HOOK_MONITOR_BASEPATH", "FI_CXI_COLL_FABRIC_MGR_URL", "FI_LOG_LEVEL", "PYTHONPATH", "BASH_ENV",
    "GLIBC_TUNABLES", "HOSTALIASES", "RES_OPTIONS", "HOME", "TMPDIR", "CUDA_INJECTION64_PATH", "NCCL_SOMETHING_NEW",
]  # fmt: skip


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_is_not_known_to_be_harmless_comes_by_no_pattern(name: str) -> None:
    config = parse(CHECKS + "ncclEnvPatterns: ['*', 'NCCL_*', 'UCX_*', 'OMPI_*', 'FI_*', 'LD_*']")
    _, pod = judged(container(env=variables(name)), config=config)
    assert f"of {name}" not in json.dumps(check(pod))


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL", "NCCL_NVLS_ENABLE",
        "NCCL_MIN_NCHANNELS", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_MNNVL_ENABLE", "UCX_TLS",
        "UCX_NET_DEVICES", "UCX_IB_TRAFFIC_CLASS", "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_pml", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA",
        "NCCL_FASTRAK_IFNAME", "NCCL_BUFFSIZE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_CUMEM_ENABLE",
    ],
)  # fmt: skip
def test_what_real_jobs_set_comes_by_the_default_patterns(name: str) -> None:
    _, pod = judged(container(env=variables(name)))
    assert name in inherited(pod)


def test_two_mounts_at_one_path_become_one() -> None:
    volumes = [SHM, {"name": "other", "emptyDir": {}}]
    first = container("a", volumeMounts=[{"name": "dev-shm", "mountPath": "/dev/shm"}])
    second = container("b", volumeMounts=[{"name": "other", "mountPath": "/dev/shm"}])
    decision, pod = judged(first, second, volumes=volumes)
    assert [m["name"] for m in check(pod)["volumeMounts"] if m["mountPath"] == "/dev/shm"] == [
        "dev-shm"
    ]
    assert "another one is at that path" in decision.warnings[0]


names = st.sampled_from(
    [
        "NCCL_ALGO",
        "NCCL_PROTO",
        "UCX_TLS",
        "NCCL_COMM_ID",
        "LD_PRELOAD",
        "PATH",
        "GATE",
        "NCCL_TOPO_FILE",
    ]
)
paths = st.sampled_from(
    ["/dev/shm", "/dev/shm/", "//dev/shm", "/tmp", "/data", "/var/run/nvsentinel", "/data/topo"]
)
containers = st.builds(
    lambda env, mounts, gpus: {
        "env": [{"name": n, "value": v} for n, v in env],
        "volumeMounts": [{"name": v, "mountPath": p} for p, v in mounts.items()],
        "gpus": gpus,
    },
    st.lists(
        st.tuples(names, st.sampled_from(["x", "$(NCCL_ALGO)", "/data/topo.xml"])), max_size=5
    ),
    st.dictionaries(paths, st.sampled_from(["one", "two"]), max_size=4),
    st.booleans(),
)


@given(st.lists(containers, min_size=1, max_size=3))
def test_no_name_and_no_path_stands_twice_in_a_check(made: list[dict[str, Any]]) -> None:
    config = parse(CHECKS + "ncclMountPatterns: ['/dev/shm', '/data*']\nncclEnvPatterns: ['*']")
    volumes = [{"name": "one", "emptyDir": {}}, {"name": "two", "emptyDir": {}}]
    everyone = [container(f"c{i}", **fields) for i, fields in enumerate(made)]
    _, pod = judged(*everyone, container("gpu"), volumes=volumes, config=config)
    for one in pod["spec"]["initContainers"]:
        variables = [e["name"] for e in one["env"]]
        mounts = ["/" + m["mountPath"].strip("/") for m in one["volumeMounts"]]
        assert len(variables) == len({*variables})
        assert len(mounts) == len({*mounts})
        assert {m["name"] for m in one["volumeMounts"]} <= {
            v["name"] for v in pod["spec"]["volumes"]
        }


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({"capabilities": {"add": ["IPC_LOCK"]}}, True),
        ({"capabilities": {"add": ["CAP_IPC_LOCK"]}}, True),
        ({"privileged": True}, True),
        ({"capabilities": {"drop": ["IPC_LOCK"]}}, False),
        ({}, False),
    ],
)
def test_memory_is_locked_only_where_the_workload_may(
    security: dict[str, Any], expected: bool
) -> None:
    _, pod = judged(container(securityContext=security))
    wanted = {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if expected else {})}
    assert check(pod)["securityContext"]["capabilities"] == wanted
    assert check(pod, "dcgm-diag")["securityContext"]["capabilities"] == {"drop": ["ALL"]}


TYPES = "ncclTopology: {instanceTypeMapping: {p5.48xlarge: aws-p5.48xlarge.xml, a3: gcp.xml}}"


def test_topology_files_by_instance_type_reach_the_check() -> None:
    _, pod = judged(container(), config=parse(CHECKS + TYPES))
    env = {e["name"]: e.get("value") for e in check(pod)["env"]}
    assert env["PREFLIGHT_TOPOLOGY_MAP"] == "a3=gcp.xml,p5.48xlarge=aws-p5.48xlarge.xml"
    assert env["NODE_INSTANCE_TYPE_PATH"] == "/etc/preflight-node/instance-type"
    assert "PREFLIGHT_TOPOLOGY_FALLBACK" not in env
    assert env["NODE_TOPOLOGY_PATH"] == "/etc/preflight-node/node-topology"
    [volume] = [v for v in pod["spec"]["volumes"] if v["name"] == "preflight-node"]
    shown = {item["path"]: item["fieldRef"]["fieldPath"] for item in volume["downwardAPI"]["items"]}
    assert shown == {
        "instance-type": f"metadata.annotations['{INSTANCE_TYPE_ANNOTATION}']",
        "node-topology": f"metadata.annotations['{TOPOLOGY_ANNOTATION}']",
    }
    assert {
        "name": "preflight-node",
        "mountPath": "/etc/preflight-node",
        "readOnly": True,
    } in check(pod)["volumeMounts"]


def test_without_a_fallback_the_check_is_told() -> None:
    _, pod = judged(container(), config=parse(CHECKS + "ncclTopology: {enableFallback: false}"))
    assert {"name": "PREFLIGHT_TOPOLOGY_FALLBACK", "value": "false"} in check(pod)["env"]


def test_a_required_check_inherits_nothing() -> None:
    config = parse(
        "checks: [{name: nccl-loopback, image: l, required: true}]\nskipNcclWithoutNetwork: false"
    )
    mounts = [{"name": "dev-shm", "mountPath": "/dev/shm"}]
    _, pod = judged(
        container(env=variables("NCCL_ALGO"), volumeMounts=mounts), volumes=[SHM], config=config
    )
    assert "NCCL_ALGO" not in json.dumps(check(pod))
    assert "dev-shm" not in json.dumps(check(pod))


def test_any_check_may_have_patterns_of_its_own() -> None:
    config = parse("checks: [{name: mine, image: m, envPatterns: [MY_X], mountPatterns: [/data]}]")
    mounts = [{"name": "data", "mountPath": "/data"}]
    volumes = [{"name": "data", "emptyDir": {}}]
    _, pod = judged(
        container(env=variables("MY_X", "NCCL_ALGO"), volumeMounts=mounts),
        volumes=volumes,
        config=config,
    )
    assert {n for n in inherited(pod, "mine") if n.endswith("_X")} == {"MY_X"}
    assert mounts[0] in check(pod, "mine")["volumeMounts"]


OF_CONFIG_MAP = {"configMapRef": {"name": "tuning"}}


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (OF_CONFIG_MAP, "ConfigMap"),
        ({"secretRef": {"name": "tuning"}}, "Secret"),
        ({"prefix": "NCCL_", **OF_CONFIG_MAP}, "ConfigMap"),
        ({"prefix": "NC", **OF_CONFIG_MAP}, "ConfigMap"),
        ({"prefix": "NCCL_IB_", **OF_CONFIG_MAP}, "ConfigMap"),
    ],
)
def test_what_may_stand_in_env_from_is_neither_read_nor_passed_on_but_told(
    entry: dict[str, Any], kind: str
) -> None:
    decision, pod = judged(container(envFrom=[entry]))
    [unseen] = decision.unseen
    assert (unseen.where, unseen.kind, unseen.name, unseen.check) == (
        "spec.containers[0].envFrom[0]",
        kind,
        "tuning",
        "nccl-loopback",
    )
    assert "envFrom" not in check(pod)
    assert decision.warnings == []  # most of it has nothing to do with NCCL


@pytest.mark.parametrize(
    "entry", [{"prefix": "DB_", **OF_CONFIG_MAP}, {"prefix": "X"}, {}, {"configMapRef": "tuning"}]
)
def test_env_from_that_can_hold_no_such_variable_is_not_told(entry: dict[str, Any]) -> None:
    assert judged(container(envFrom=[entry]))[0].unseen == []


def test_env_from_matters_only_where_a_check_inherits() -> None:
    config = parse("checks: [{name: dcgm-diag, image: d}]")
    assert judged(container(envFrom=[OF_CONFIG_MAP]), config=config)[0].unseen == []


def test_a_variable_of_a_config_map_is_passed_on_by_reference() -> None:
    entry = {
        "name": "NCCL_IB_HCA",
        "valueFrom": {"configMapKeyRef": {"name": "tuning", "key": "hca"}},
    }
    decision, pod = judged(container(env=[entry]))
    assert entry in check(pod)["env"]
    assert decision.unseen == []
