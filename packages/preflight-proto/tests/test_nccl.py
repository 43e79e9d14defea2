"""What NCCL's words mean: environment before device, device before class, and which variables bend
a measurement.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import Action
from preflight_proto.check.nccl import (
    ErrorKind,
    bends,
    classify,
    clean_environment,
    environment,
    transport_variables,
    unusual_variables,
    workload_variables,
)

INTERNAL = "h: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '"
NO_SPACE = "u:9621:9691 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes"
SYSTEM = "h: Test NCCL failure common.cu:1119 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"
ECC = "h:1:2 [3] enqueue.cc:1 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"
REFUSED = "h:1:2 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.1<4242> failed : Connection refused"
NO_FILE = "h:1:2 [0] graph/xml.cc:300 NCCL WARN XML Parse : Unexpected EOF"

ENVIRONMENT, DEVICE = ErrorKind.ENVIRONMENT, ErrorKind.DEVICE
PEER, CLASS = ErrorKind.PEER, ErrorKind.CLASS
LINES = [
    ("SHM_FULL", ENVIRONMENT, "h:1:2 [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"),
    ("MEMLOCK", ENVIRONMENT, "h:1:2 [0] misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"),
    ("DUPLICATE_GPU", ENVIRONMENT, "h:1:2 [1] init.cc:525 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"),
    ("DUPLICATE_GPU", ENVIRONMENT, "init.cc:1141 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."),
    ("GPU_COUNT", ENVIRONMENT, "Invalid number of GPUs: 8 requested but only 4 were found."),
    ("DRIVER_MISMATCH", ENVIRONMENT, "h: Test CUDA failure common.cu:1 'CUDA driver version is insufficient for CUDA runtime version'"),
    ("GPU_OCCUPIED", ENVIRONMENT, "h: Test CUDA failure common.cu:941 'CUDA-capable device(s) is/are busy or unavailable'"),
    ("GPU_OCCUPIED", ENVIRONMENT, "h: Test CUDA failure common.cu:941 'all CUDA-capable devices are busy or unavailable'"),
    ("GPU_NOT_VISIBLE", ENVIRONMENT, "h:1:2 [3] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found"),
    ("LIBRARY_MISSING", ENVIRONMENT, "all_reduce_perf: error while loading shared libraries: libnccl.so.2: cannot open shared object file: No such file"),
    ("GPU_MEMORY", ENVIRONMENT, "h: Test CUDA failure common.cu:1 'out of memory'"),
    ("BOOTSTRAP", ENVIRONMENT, REFUSED),
    ("TOPOLOGY_FILE_UNREADABLE", ENVIRONMENT, NO_FILE),
    ("GPU_ECC", DEVICE, ECC),
    ("GPU_NVLINK", DEVICE, "h:1:2 [1] enqueue.cc:1 NCCL WARN Cuda failure 'uncorrectable NVLink error detected during the execution'"),
    ("GPU_LOST", DEVICE, "Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost."),
    ("GPU_LOST", DEVICE, "NVRM: Xid (PCI:0000:1b:00): 79, pid=0, GPU has fallen off the bus."),
    # 714: a kernel's stack was spoilt or too small, which a program can do
    ("NCCL_CUDA_ERROR", CLASS, "h:1:2 [1] enqueue.cc:1 NCCL WARN Cuda failure 714 'hardware stack error'"),
    ("NCCL_REMOTE_ERROR", PEER, "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
    ("NCCL_REMOTE_ERROR", PEER, "h: Test NCCL failure common.cu:1 'remote process exited or there was a network error'"),
    ("NCCL_TIMEOUT", CLASS, "h: Test timeout (60s) common.cu:501"),
    ("NCCL_TIMEOUT", CLASS, "h: Test NCCL failure common.cu:1204 'timeout / '"),  # since NCCL 2.30
    ("NCCL_SYSTEM_ERROR", CLASS, SYSTEM),
    ("NCCL_INTERNAL_ERROR", CLASS, INTERNAL),
    ("NCCL_INTERNAL_ERROR", CLASS, "ncclInternalError: Internal check failed."),
    ("NCCL_INVALID_USAGE", CLASS, "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    ("NCCL_CUDA_ERROR", CLASS, "HCA-28: Test NCCL failure common.cu:1204 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind", "line"), LINES)
def test_each_line_has_its_code_and_kind_and_no_environment_is_fatal(
    code: str, kind: ErrorKind, line: str
) -> None:
    error = classify(f"some words\n{line}\nmore words")
    assert error is not None
    assert (error.code, error.kind, error.line) == (code, kind, line)
    assert not (kind is ErrorKind.ENVIRONMENT and error.fatal)
    assert ";" not in error.says, "it goes into a condition's message"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([INTERNAL, NO_SPACE], "SHM_FULL"),
        ([SYSTEM, ECC], "GPU_ECC"),
        ([REFUSED, ECC], "GPU_ECC"),
        ([NO_FILE, ECC], "GPU_ECC"),
        ([REFUSED, "ncclRemoteError: …"], "BOOTSTRAP"),
        (["ncclInternalError: …", "ncclRemoteError: …"], "NCCL_REMOTE_ERROR"),
    ],
)
def test_the_cause_decides_and_not_the_class_that_it_ends_in(lines: list[str], code: str) -> None:
    for order in (lines, lines[::-1]):
        error = classify("\n".join(order))
        assert error is not None
        assert error.code == code


@pytest.mark.parametrize(
    ("code", "action", "fatal"),
    [
        ("NCCL_SYSTEM_ERROR", Action.CONTACT_SUPPORT, True),
        ("NCCL_INTERNAL_ERROR", Action.RUN_DCGMEUD, True),
        ("NCCL_INVALID_USAGE", Action.NONE, False),
        ("NCCL_TIMEOUT", Action.NONE, False),
        ("NCCL_REMOTE_ERROR", Action.CONTACT_SUPPORT, True),
    ],
)
def test_classes_carry_the_actions_of_adr_026(code: str, action: Action, fatal: bool) -> None:
    error = classify(next(line for known, _, line in LINES if known == code))
    assert error is not None
    assert (error.action, error.fatal) == (action, fatal)


def test_the_device_is_the_number_in_a_warning_s_brackets() -> None:
    error = classify(ECC)
    assert error is not None
    assert error.device == 3
    bare = classify("h: Test CUDA failure common.cu:1 'uncorrectable ECC error encountered'")
    assert bare is not None
    assert bare.device is None


@pytest.mark.parametrize(
    "output",
    ["", "NCCL version 2.29.3+cuda13.1", "h:1:2 [0] NCCL INFO out of memory is not what happened"],
)
def test_what_is_no_error_has_none(output: str) -> None:
    assert classify(output) is None


@given(st.text())
def test_no_output_makes_it_raise(output: str) -> None:
    classify(output)


def test_what_would_join_or_redirect_is_never_inherited() -> None:
    never = "NCCL_COMM_ID NCCL_TESTS_MIN_BW NCCL_DEBUG_FILE NCCL_DEBUG TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_USE_COMM_NONBLOCKING "
    never += "NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG OMPI_COMM_WORLD_RANK NCCL_LOOPBACK_SIZE"
    theirs = dict.fromkeys(never.split(), "x")
    kept = environment(
        {**theirs, "HOME": "/data", "PATH": "/bin", "NCCL_IB_HCA": "mlx5"}, CUDA_VISIBLE_DEVICES="0"
    )
    ours = {
        "NCCL_DEBUG": "WARN",
        "NCCL_CONF_FILE": "/dev/null",
        "HOME": "/tmp",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    ours |= {"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"}
    assert kept == {"PATH": "/bin", "NCCL_IB_HCA": "mlx5", **ours}


def test_only_variables_that_can_slow_a_healthy_node_are_unusual() -> None:
    harmless = [
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_TC",
        "NCCL_IB_SL",
        "NCCL_TOPO_FILE",
        "NCCL_NET_PLUGIN",
    ]
    ours = ["NCCL_LOOPBACK_SIZE", "NCCL_ALLREDUCE_THRESHOLD_GBPS", "NCCL_DEBUG", "PATH"]
    assert unusual_variables([*harmless, *ours]) == []
    assert unusual_variables(["NCCL_P2P_DISABLE", "NCCL_ALGO"]) == ["NCCL_ALGO", "NCCL_P2P_DISABLE"]


@pytest.mark.parametrize(
    ("fabric", "name"),
    [
        ("ib", "NCCL_IB_QPS_PER_CONNECTION"),
        ("ib", "NCCL_IB_ADAPTIVE_ROUTING"),
        ("roce", "NCCL_NET_GDR_LEVEL"),
        ("efa", "NCCL_P2P_NET_CHUNKSIZE"),
        ("tcpxo", "NCCL_FASTRAK_CTRL_DEV"),
        ("tcpxo", "NCCL_CROSS_NIC"),
        ("tcpxo", "NCCL_NVLS_ENABLE"),
    ],
)
def test_what_a_fabrics_vendor_has_everybody_set_is_usual_there_and_nowhere_else(
    fabric: str, name: str
) -> None:
    assert unusual_variables([name, "NCCL_P2P_DISABLE"], fabric) == ["NCCL_P2P_DISABLE"]
    assert unusual_variables([name]) == [name]


def test_torchs_old_names_excuse_nothing() -> None:
    assert (
        unusual_variables(["NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG"])
        == []
    )


def test_the_log_has_what_steers_nccl_between_nodes_on_one_line() -> None:
    given = {
        "NCCL_IB_HCA": "mlx5",
        "FI_PROVIDER": "efa",
        "TOKEN": "x",
        "NCCL_DEBUG": "WARN",
        "NCCL_NET": "a\nb",
    }
    assert transport_variables(given) == ["FI_PROVIDER=efa", "NCCL_IB_HCA=mlx5", "NCCL_NET=a b"]
    assert len(transport_variables({"NCCL_IB_HCA": "x" * 10_000})[0]) < 200


def test_a_clean_environment_holds_nothing_of_the_workload() -> None:
    given = dict.fromkeys(("PATH", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES"), "x")
    theirs = (
        "NCCL_ALGO",
        "UCX_TLS",
        "OMPI_MCA_btl",
        "LD_PRELOAD",
        "CUDA_LAUNCH_BLOCKING",
        "API_TOKEN",
        "HOME",
        "FI_PROVIDER",
    )
    clean = clean_environment(given | dict.fromkeys(theirs, "y"), CUDA_VISIBLE_DEVICES="GPU-1")
    ours = {
        "NCCL_DEBUG": "WARN",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "HOME": "/tmp",
        "NCCL_CONF_FILE": "/dev/null",
    }
    assert clean == given | ours


def test_wishes_are_what_nccl_would_heed_and_those_that_bend_a_node_come_first() -> None:
    environ = {
        "NCCL_IB_HCA": "1",
        "NCCL_P2P_DISABLE": "1",
        "UCX_TLS": "tcp",
        "NCCL_COMM_ID": "x",
        "NCCL_TESTS_DEVICE": "0",
        "PATH": "/",
    }
    assert list(workload_variables(environ)) == ["NCCL_P2P_DISABLE", "NCCL_IB_HCA", "UCX_TLS"]


BENDING = "NCCL_ALGO NCCL_PROTO NCCL_MAX_NCHANNELS NCCL_TOPO_FILE NCCL_FOO NCCL_CUMEM_ENABLE"
NETWORK = "NCCL_IB_TIMEOUT NCCL_IB_PCI_RELAXED_ORDERING NCCL_NET_GDR_LEVEL NCCL_CROSS_NIC NCCL_FASTRAK_NUM_FLOWS"
NOBODYS = "NCCL_ASYNC_ERROR_HANDLING NCCL_DEBUG UCX_TLS"


@pytest.mark.parametrize(
    ("names", "expected"), [(BENDING, True), (NETWORK, False), (NOBODYS, False)]
)
def test_what_is_nccls_and_not_about_the_network_may_bend_a_node(
    names: str, expected: bool
) -> None:
    assert {name: bends(name) for name in names.split()} == dict.fromkeys(names.split(), expected)


def test_a_service_of_the_namespace_is_no_setting_of_nccl() -> None:
    service = ["NCCL_X_SERVICE_HOST", "NCCL_X_SERVICE_PORT", "NCCL_X_SERVICE_PORT_HTTP", "NCCL_X_PORT", "NCCL_X_PORT_80_TCP",
               "NCCL_X_PORT_80_TCP_ADDR", "NCCL_X_PORT_53_UDP_PROTO"]  # fmt: skip
    assert unusual_variables(service) == []
    assert not environment(dict.fromkeys(service, "x")).keys() & set(service)
    assert unusual_variables(["NCCL_IB_RESILIENCY_PORT_FAILOVER"]) == [
        "NCCL_IB_RESILIENCY_PORT_FAILOVER"
    ]


def test_a_named_card_that_is_not_there_is_found_among_what_nccl_narrates() -> None:
    told = [
        "h:1:2 [0] NCCL INFO NCCL_IB_HCA set to mlx5_9",
        "h:1:2 [0] NCCL INFO NET/IB : No device found.",
    ]
    failed = "h:1:2 [0] NCCL WARN Error: network IB not found."
    error = classify("\n".join([*told, failed]))
    assert error is not None
    assert error.code == "NO_SUCH_HCA"
    other = classify("\n".join([told[1], failed]))  # nobody named one
    assert other is not None
    assert other.code == "NO_NETWORK"
    assert (
        classify("\n".join([*told, "h:1:2 [0] NCCL INFO Using network Socket"])) is None
    )  # it went on without
