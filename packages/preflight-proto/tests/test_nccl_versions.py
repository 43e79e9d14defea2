"""What NCCL 2.9 to 2.30, nccl-tests and torch printed on machines of others, and what each of it
is.

Lines of a public report name it; the others are the format strings of NCCL's source at the tag that
stands beside them.
"""

from __future__ import annotations

import pytest
from preflight_proto.check.nccl import ErrorKind, classify

CUDA = "h: Test NCCL failure common.cu:1005 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
SYSTEM = "h: Test NCCL failure common.cu:1119 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"
INTERNAL = "h: Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '"
REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
TO = "10.0.0.1<4242>"

FABRIC = (
    "[2025-05-10 23:09:41] bm-h100-02:630335:630409 [2] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'",  # NVIDIA/nccl#1705
    "node2:242431:242479 [5] transport/nvls.cc:158 NCCL WARN Cuda failure 1 'invalid argument'",  # NVIDIA/nccl#1338
    "transport/nvls.cc:165 NCCL WARN Cuda failure 'invalid argument'",  # NVIDIA/nccl#976
    "h:1:2 [0] transport/nvls.cc:268 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 1 "
    "'invalid argument'.\nThis is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",  # 2.29
    "h:1:2 [0] mnnvl.cc:69 NCCL WARN MNNVL (cliqueSize 8) is available but not supported on this system. Check the IMEX configuration.",  # 2.21 to 2.26
    "h:1:2 [0] mnnvl.cc:66 NCCL WARN MNNVL (cliqueSize 18) is available but not working on this system. Check the IMEX channel "
    "configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.",  # 2.29
    "gpu: Test CUDA failure common.cu:1030 'system not yet initialized'",  # NVIDIA/nccl-tests#338
    "h:1:2 [0] init.cc:1 NCCL WARN Cuda failure 802 'system not yet initialized'",  # 2.21
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",  # torch
)
BOOTSTRAP = (
    f"h:1:2 [0] misc/socket.cc:424 NCCL WARN Net : Connect to {TO} failed : Connection refused",  # 2.14
    f"h:1:2 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {TO} failed : No route to host",  # 2.18
    f"h:1:2 [0] misc/socket.cc:567 NCCL WARN socketPollConnect: Connect to {TO} returned 111(Connection refused) errno 115(Operation now in progress)",  # 2.21
    f"h:1:2 [0] misc/socket.cc:567 NCCL WARN socketPollConnect: connect to {TO} returned Connection refused, exceeded error retry count after 35 attempts",  # 2.27
    "h:1:2 [0] misc/socket.cc:550 NCCL WARN socketStartConnect: connect to fd00::1<4242> failed : Network is unreachable",  # 2.27
    "h:1:2 [0] misc/socket.cc:550 NCCL WARN socketPollConnect: exceeded timeouts (10)",  # 2.18
    "h:1:2 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",  # 2.14 to 2.29
    f"h:1:2 [0] misc/socket.cc:1 NCCL WARN Net : No interface found in the same subnet as remote address {TO}",
    "h:1:2 [0] bootstrap.cc:1 NCCL WARN no device found matching net9, verify NCCL_OOB_NET_IFNAME",  # 2.27
    "h:1:2 [0] misc/socket.cc:516 NCCL WARN socketPollConnect: exceeded retries (20000)",  # 2.18 to 2.23
    "h:1:2 [0] misc/socket.cc:543 NCCL WARN socketPollConnect: connect returned Connection refused, exceeded error retry count (35)",  # 2.24 to 2.26
    f"h:1:2 [0] misc/socket.cc:556 NCCL WARN socketStartConnect: Connect to {TO} failed : Operation not permitted",  # 2.26, a policy on the way out
    "h:1:2 [0] misc/socket.cc:579 NCCL WARN socketPollConnect poll() failed with error Bad address",  # 2.24
    f"h:1:2 [0] misc/socket.cc:622 NCCL WARN socketPollConnect to {TO} failed with error Network is down",  # 2.28
    "h:1:2 [0] misc/socket.cc:453 NCCL WARN socketTryAccept: exceeded error retry count after 35 attempts, Network is down",  # 2.27
    "h:1:2 [0] misc/socket.cc:1 NCCL WARN Call to bind failed: Cannot assign requested address",  # 2.24
    "h:1:2 [0] misc/socket.cc:1 NCCL WARN Call to setsockopt TCP NODELAY failed: Invalid argument",  # 2.28
    "h:1:2 [0] bootstrap.cc:108 NCCL WARN NET/Socket : No usable listening interface found",
    "h:1:2 [0] transport/net_ib.cc:170 NCCL WARN NET/IB : No IP interface found.",
    "h:1:2 [0] bootstrap.cc:145 NCCL WARN Bootstrap Root : rank 3 of 16 ranks has already checked in",
)
PEER = (
    "h:1:2 [0] misc/socket.cc:523 NCCL WARN Net : Connection closed by remote peer node-2<34567>",  # 2.14
    "h:1:2 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node-2<34567>",  # 2.18
    f"h:1:2 [0] transport/net_ib.cc:1219 NCCL WARN NET/IB : Got completion from peer {TO} with error 12, opcode 32, len 0, vendor err 129",  # 2.14
    f"h:1:2 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer {TO} with status=12 opcode=0 len=0 vendor err 129 (Send)",  # 2.21
    f"h:1:2 [0] p2p.cc:1 NCCL WARN NET/IB: Got completion from peer {TO} with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_3",  # 2.29
    "h:1:2 [0] misc/socket.cc:1 NCCL WARN Net : Call to recv from node-2<34567> failed : Connection reset by peer",  # 2.14
    "h:1:2 [0] misc/socket.cc:1 NCCL WARN socketProgressOpt: Call to send to node-2<34567> failed : Broken pipe",  # 2.24
    "h:1:2 [0] os/linux.cc:1 NCCL WARN ncclOsSocketProgressOpt: Call to recv from node-2<34567> failed : 104 (Connection reset by peer)",  # 2.29
    "[2026-01-01 12:08:32] node-0:194:710 [0] int cm_req_handle_error_entry(nccl_net_ofi_context_t*, fid_cq*, fi_cq_err_entry*, uint16_t):46 NCCL WARN "
    "NET/OFI Request 0x7f456c222f60 completed with error. RC: 103. Error: 4126 (Unresponsive receiver (reachable by EFA device but handshake failed)",  # aws-ofi-nccl
    f"h:1:2 [0] misc/socket.cc:1 NCCL WARN socketProgressOpt: Call to recv from {TO} failed : No route to host",  # 2.24
    "h:1:2 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_modify_qp failed with 113 No route to host, on dev mlx5_0:1, curr state INIT, next state RTR",  # 2.27
    "h:1:2 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110",  # 2.20
    "h:1:2 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR",  # 2.27
)
MEMLOCK = (
    "libibverbs: Warning: RLIMIT_MEMLOCK is 32768 bytes.",
    "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid argument",
)
NO_ADDRESS = (
    "NCCL WARN NET/IB : Can't merge net devices with different link_layer. i=0 remMeta.ndevs=1 link_layer=1 rem_link_layer=2",  # 2.21
    "NCCL WARN NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try selecting NICs of only one link type using NCCL_IB_HCA",  # 2.28
    "misc/ibvwrap.cc:284 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",  # a wrong GID index, or InfiniBand and RoCE mixed
    "NCCL WARN Call to ibv_modify_qp failed with error No such device",  # RoCE in a container without the card's network
    "NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f0:1, curr state INIT, next state RTR, local GID index 3, local GID ::, remote GID ::",
)
SHM = (
    "h:202016:202235 [0] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",  # pytorch/ci-infra#490
    "[3] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-1462445a6f01cbfc-1-2-3 (size 9637888)",  # NVIDIA/nccl#525
    "h:1:2 [1] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file or directory (2)",  # vllm-project/vllm#18831
)
TOPOLOGY = (
    "h:1:2 [0] graph/xml.cc:100 NCCL WARN XML Parse : Unexpected EOF",  # 2.14 to 2.29
    "h:1:2 [0] graph/xml.cc:160 NCCL WARN XML Mismatch : cpu / system",
    "h:1:2 [0] graph/xml.cc:130 NCCL WARN XML Parse error : expecting '<', got 'x'",
    "h:1:2 [0] graph/xml.cc:140 NCCL WARN Error : XML parser is limited to 1024 nodes",
    "h:1:2 [0] graph/xml.cc:150 NCCL WARN Error : too many XML nodes (max 1024)",
    "h:1:2 [0] graph/xml.cc:290 NCCL WARN XML Topology has wrong version 2, 1 needed",
    "h:1:2 [0] graph/xml.cc:65 NCCL WARN Error : value 0000:1b:00.0/0000:1c:00.0 too long (max 256)",
)
SETTINGS = (
    "h:1:2 [0] init.cc:729 NCCL WARN Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22907",  # 2.27
    "h:1:2 [0] bootstrap.cc:209 NCCL WARN Message truncated : received 1024 bytes instead of 256",  # 2.18 to 2.28
    "h:1:2 [0] transport/net_socket.cc:508 NCCL WARN NET/Socket : peer 10.0.0.1<4242> message truncated : receiving 8388608 bytes instead of 4194304.",
    "h:1:2 [0] transport/net_ib.cc:1081 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.1<4242> collective mismatch error, local size 8 remote size 16",
)
PFN = "h:1:2 [0] misc/cudawrap.cc:229 NCCL WARN CUDA some PFN functions not found in the library"  # 2.18 to 2.28
DRIVER = (
    "h:1:2 [0] misc/nvmlwrap.cc:1 NCCL WARN nvmlInit_v2() failed: Driver/library version mismatch",
    "h: Test CUDA failure common.cu:892 'system has unsupported display driver / cuda driver combination'",
    "noodle-4090-0:1896106:1896121 [1] enqueue.cc:47 NCCL WARN Cuda failure 'named symbol not found'",  # NVIDIA/nccl-tests#208
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",  # torch
    "h: Test CUDA failure common.cu:1 'CUDA driver is a stub library'",
    "h: Test CUDA failure common.cu:1 'API call is not supported in the installed CUDA driver'",
    "h:1:2 [0] misc/cudawrap.cc:1 NCCL WARN CUDA Driver version found is 11030. Minimum requirement is 11040",
    "h:1:2 [0] enqueue.cc:1 NCCL WARN Cuda failure 98 'invalid device function'",
    PFN,
)
HOST = (
    "h:1:2 [0] misc/socket.cc:1 NCCL WARN ncclSocketInit: Socket creation failed : Too many open files",  # 2.18
    "h:1:2 [0] misc/socket.cc:1 NCCL WARN socketTryAccept: Accept failed: Too many open files",
    "h:1:2 [0] proxy.cc:1 NCCL WARN Call to pthread_create failed: Resource temporarily unavailable",  # 2.27
    "h:1:2 [0] proxy.cc:1 NCCL WARN Thread creation failed: Resource temporarily unavailable",  # 2.29
    "h:1:2 [0] include/alloc.h:1 NCCL WARN Failed to malloc 8589934592 bytes",
    "h:1:2 [0] misc/utils.cc:1 NCCL WARN misc/utils.cc:269 Unrecoverable error detected: malloc(size=64) returned null.",
    "h:1:2 [0] misc/shmutils.cc:1 NCCL WARN Error: failed to create shared memory file /dev/shm/nccl-XXXXXX, error Permission denied (13)",  # 2.27
    "h:1:2 [0] misc/shmutils.cc:1 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 33030528), error: Permission denied (13)",
    "h:1:2 [0] misc/shmutils.cc:1 NCCL WARN Call to open failed: Read-only file system",
    "h:1:2 [0] transport/p2p.cc:1 NCCL WARN Cuda failure 800 'operation not permitted'",
    "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable",
)
WHAT = [
    *((ErrorKind.ENVIRONMENT, "HOST_LIMIT", line, SYSTEM) for line in HOST),
    *(
        (ErrorKind.ENVIRONMENT, "NCCL_VERSIONS", line, "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.")
        for line in SETTINGS
    ),
    *(
        (ErrorKind.ENVIRONMENT, "NO_NETWORK", line, "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.")
        for line in (
            "h:1:2 [0] net.cc:1 NCCL WARN Error: network AWS Libfabric not found.",  # 2.21
            "h:1:2 [0] plugin/net.cc:326 NCCL WARN Failed to initialize any NET plugin",  # 2.29
        )
    ),
    (
        ErrorKind.ENVIRONMENT,
        "GPU_NOT_VISIBLE",
        "h:1:2 [0] misc/nvmlwrap.cc:1 NCCL WARN Failed to open libnvidia-ml.so.1",
        SYSTEM,
    ),
    *((ErrorKind.ENVIRONMENT, "FABRIC_NOT_READY", line, CUDA) for line in FABRIC),
    *((ErrorKind.ENVIRONMENT, "BOOTSTRAP", line, REMOTE) for line in BOOTSTRAP),
    *((ErrorKind.PEER, "NCCL_REMOTE_ERROR", line, SYSTEM) for line in PEER),
    *((ErrorKind.ENVIRONMENT, "RDMA_ADDRESS", line, SYSTEM) for line in NO_ADDRESS),
    *((ErrorKind.ENVIRONMENT, "MEMLOCK", line, SYSTEM) for line in MEMLOCK),
    *((ErrorKind.ENVIRONMENT, "SHM_FULL", line, SYSTEM) for line in SHM),
    *((ErrorKind.ENVIRONMENT, "TOPOLOGY_FILE_UNREADABLE", line, INTERNAL) for line in TOPOLOGY),
    *((ErrorKind.ENVIRONMENT, "DRIVER_MISMATCH", line, SYSTEM) for line in DRIVER),
    (
        ErrorKind.ENVIRONMENT,
        "GPU_NOT_VISIBLE",
        "h:1:2 [0] misc/nvmlwrap.cc:1 NCCL WARN nvmlDeviceGetHandleByIndex(3) failed: Not Found",
        SYSTEM,
    ),
    (ErrorKind.ENVIRONMENT, "GPU_COUNT", "RuntimeError: No CUDA GPUs are available", ""),
    (
        ErrorKind.ENVIRONMENT,
        "PEER_ACCESS",
        "h:1:2 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
        CUDA,
    ),
    (ErrorKind.ENVIRONMENT, "DRIVER_MISMATCH", "h: Test CUDA failure common.cu:262 'no kernel image is available for execution on the device'", ""),
    (ErrorKind.DEVICE, "GPU_ECC", "qh138: Test CUDA failure common.cu:422 'uncorrectable ECC error encountered'", ""),
    (ErrorKind.ENVIRONMENT, "DRIVER_MISMATCH", "h: Test CUDA failure util.cu:1 'device kernel image is invalid'", ""),
    (
        ErrorKind.ENVIRONMENT,
        "GPU_OCCUPIED",
        "h: Test CUDA failure common.cu:1 'MPS client failed to connect to the MPS control daemon or the MPS server'",
        "",
    ),
    *(
        (ErrorKind.ENVIRONMENT, "LIBRARY_MISSING", f"all_reduce_perf: {words}", "")
        for words in (
            "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by all_reduce_perf)",
            "symbol lookup error: all_reduce_perf: undefined symbol: ncclCommWindowRegister",
        )
    ),
    (ErrorKind.DEVICE, "GPU_LOST", "h:1:2 [3] misc/nvmlwrap.cc:1 NCCL WARN nvmlDeviceGetHandleByIndex(3) failed: GPU is lost", SYSTEM),
    (ErrorKind.DEVICE, "GPU_ECC", "h:1:2 [3] enqueue.cc:1 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'", CUDA),
    (
        ErrorKind.DEVICE,
        "GPU_ECC",
        "h:1:2 [3] transport/nvls.cc:254 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'",
        CUDA,
    ),
    (
        ErrorKind.DEVICE,
        "GPU_ECC",
        "h:1:2 [3] transport/nvls.cc:268 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 214 "
        "'uncorrectable ECC error encountered'.",  # 2.29
        CUDA,
    ),
    (ErrorKind.CLASS, "NCCL_CUDA_ERROR", "h:1:2 [3] enqueue.cc:1 NCCL WARN Cuda failure 719 'unspecified launch failure'", CUDA),
    (ErrorKind.CLASS, "NCCL_CUDA_ERROR", "w:2918:4483 [4] init.cc:263 NCCL WARN Cuda failure 'initialization error'", ""),  # NVIDIA/nccl#1029
    (ErrorKind.CLASS, "NCCL_CUDA_ERROR", "h:1:2 [1] init.cc:263 NCCL WARN Cuda failure 1 'invalid argument'", CUDA),
    (ErrorKind.CLASS, "NCCL_INVALID_ARGUMENT", "h: Test NCCL failure common.cu:94 'invalid argument / '", ""),
    (
        ErrorKind.CLASS,
        "NCCL_INVALID_ARGUMENT",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid argument (run with NCCL_DEBUG=WARN for details)",
        "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "code", "line", "ends_in"), WHAT)
def test_the_words_of_every_version_are_what_they_mean_whatever_class_it_ends_in(
    kind: ErrorKind, code: str, line: str, ends_in: str
) -> None:
    for order in (f"{line}\n{ends_in}", f"{ends_in}\n{line}"):
        error = classify(order)
        assert error is not None
        assert (error.kind, error.code) == (kind, code)


@pytest.mark.parametrize("line", [*BOOTSTRAP, SHM[2], TOPOLOGY[0], *FABRIC[:3], *HOST, MEMLOCK[0]])
def test_what_a_dead_peer_leaves_behind_or_nccl_survives_does_not_hide_a_device_fault(
    line: str,
) -> None:
    error = classify(
        f"{line}\nh:1:2 [3] enqueue.cc:1 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'"
    )
    assert error is not None
    assert error.code == "GPU_ECC"


@pytest.mark.parametrize("closed", [line for line in PEER if "ibv_modify_qp" not in line])
@pytest.mark.parametrize("beside", [*BOOTSTRAP, FABRIC[0], MEMLOCK[0]])
def test_a_broken_connection_is_the_peers_whatever_stands_beside_it(
    closed: str, beside: str
) -> None:
    error = classify(f"{beside}\n{closed}\n{REMOTE}")
    assert error is not None
    assert error.kind is ErrorKind.PEER


RAS = "h:1:2 [0] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use"


@pytest.mark.parametrize("line", [RAS, PFN])
@pytest.mark.parametrize(
    ("code", "beside"),
    [
        ("GPU_ECC", "h:1:2 [3] enqueue.cc:1 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'"),
        ("NCCL_REMOTE_ERROR", PEER[0]),
    ],
)  # fmt: skip
def test_what_nccl_goes_on_without_hides_neither_a_device_nor_a_peer(
    code: str, beside: str, line: str
) -> None:
    error = classify(f"{line}\n{beside}")
    assert error is not None
    assert error.code == code


def test_a_port_that_nccls_ras_does_not_get_is_not_why_a_gang_fails() -> None:
    for words in (REMOTE, CUDA):
        alone, beside = classify(words), classify(f"{RAS}\n{words}")
        assert alone is not None
        assert beside is not None
        assert beside.code == alone.code


@pytest.mark.parametrize(
    "line",
    [
        "h:1:2 [0] NCCL INFO NET/IB : No device found.",
        "h:1:2 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "h:1:2 [0] NCCL INFO socketPollConnect: connect to 10.0.0.1<4242> returned Connection refused, retrying (1/35) after sleep for 100 msec",
        "h:1:2 [0] NCCL INFO Could not open XML topology file /x.xml : No such file or directory",
        "h:1:2 [0] graph/xml.cc:300 NCCL WARN Could not open XML topology file /x.xml : No such file or directory",  # up to 2.27
        "h:1:2 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory",
        "h:1:2 [0] NCCL INFO Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, retrying 1/5 after 100 msec of sleep",
    ],
)
def test_what_nccl_merely_narrates_or_goes_on_without_is_no_error(line: str) -> None:
    assert classify(line) is None
