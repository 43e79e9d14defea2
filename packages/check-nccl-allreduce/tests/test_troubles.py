"""Lines that torch, gloo and NCCL print, and what is made of them."""

from __future__ import annotations

import pytest
from check_nccl_allreduce import failures


@pytest.mark.parametrize(
    ("error", "ready", "kind", "code"),
    [
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:40142",
            True,
            "peer",
            "NCCL_REMOTE_ERROR",
        ),
        ("RuntimeError: Connection reset by peer", True, "peer", "NCCL_REMOTE_ERROR"),
        (
            "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
            True,
            "peer",
            "NCCL_REMOTE_ERROR",
        ),
        ("DistNetworkError: failed to recv, got 0 bytes", False, "peer", "NCCL_REMOTE_ERROR"),
        (
            "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE",
            False,
            "launch",
            "RENDEZVOUS_FAILED",
        ),
        ("DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.", False, "launch", "RENDEZVOUS_FAILED"),
        ("RuntimeError: Gloo connectFullMesh failed with [..] no error", False, "launch", "RENDEZVOUS_FAILED"),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[10.0.0.7]:40142",
            False,
            "launch",
            "RENDEZVOUS_FAILED",
        ),
        (
            "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0'), "
            "but store->get('0') got error: wait timeout after 60000ms, keys: /default_pg/0//cuda//0",
            False,
            "launch",
            "RENDEZVOUS_FAILED",
        ),
        ("KeyError: 'surprise'", True, "class", "WORKER_ERROR"),
        (
            "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version 2.27.5 ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            True,
            "peer",
            "NCCL_REMOTE_ERROR",
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", True, "device", "GPU_ECC"),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", True, "class", "NCCL_CUDA_ERROR"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True, "class", "NCCL_CUDA_ERROR"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", False, "environment", "DRIVER_MISMATCH"),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", False, "environment", "GPU_OCCUPIED"),
        (
            "DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n"
            "Call to ibv_modify_qp failed with 22 Invalid argument, on dev rocep1s0f0:1, curr state INIT, next state RTR",
            True,
            "environment",
            "RDMA_ADDRESS",
        ),
        (
            "DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.27.5\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
            "socketPollConnect: connect to 10.0.0.1<4242> returned Connection refused, exceeded error retry count after 35 attempts",
            False,
            "environment",
            "BOOTSTRAP",
        ),
        (
            "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1723, remote process exited or there was a network error, NCCL version 2.20.5\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
            "NET/IB : Got completion from peer 10.5.0.34<33956> with error 5, opcode 0, len 1, vendor err 244 (Recv)",
            True,
            "peer",
            "NCCL_REMOTE_ERROR",
        ),
        (
            "RuntimeError: out of memory before the start: 1 of 2 bytes are free on cuda:0, 3 are needed",
            False,
            "environment",
            "GPU_MEMORY",
        ),
    ],
)  # fmt: skip
def test_an_error_is_read_for_whom_it_is_about(
    error: str, ready: bool, kind: str, code: str
) -> None:
    trouble = failures.by_output(error, "", before_ready=not ready)
    assert (trouble.kind, trouble.code) == (kind, code)
    assert len(trouble.text) <= failures.MAX_TEXT


def test_a_full_dev_shm_beside_an_internal_error_is_the_environment() -> None:
    output = "node-1:77:77 [0] NCCL WARN Error: failed to extend /dev/shm/nccl-8X6rs3 to 9637892 bytes, error: No space left on device (28)"
    trouble = failures.by_output(
        "DistBackendError: ncclInternalError: Internal check failed.", output, before_ready=True
    )
    assert (trouble.kind, trouble.code) == ("environment", "SHM_FULL")


def test_torchrun_that_ends_on_its_own_is_the_rendezvous_and_says_its_last_error() -> None:
    output = "INFO starting\nTraceback ...\ntorch.distributed.DistNetworkError: no route\nbye\n"
    trouble = failures.by_output("", output, before_ready=True)
    assert (trouble.code, trouble.text) == (
        "RENDEZVOUS_FAILED",
        "torch.distributed.DistNetworkError: no route",
    )


def test_a_silent_death_is_a_death() -> None:
    assert failures.died("rank 3's process", "").code == "RANK_DIED"


@pytest.mark.parametrize(
    "output", ["", "node-1:7:7 [0] NCCL WARN socketPoll: Connection closed by remote peer"]
)
def test_a_death_beside_a_process_killed_for_memory_is_the_environment(output: str) -> None:
    trouble = failures.died("rank 3's process", output, of_memory=True)
    assert (trouble.kind, trouble.code) == ("environment", "HOST_LIMIT")
    assert "for memory; give the check more memory" in trouble.text


def test_a_device_fault_is_one_beside_a_process_killed_for_memory() -> None:
    xid = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus"
    assert failures.died("rank 3's process", xid, of_memory=True).kind == "device"


def test_a_death_with_an_xid_before_it_is_the_devices() -> None:
    assert (
        failures.died(
            "rank 3's process", "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus"
        ).kind
        == "device"
    )


def test_a_host_whose_imex_daemon_is_dead_is_trouble_of_its_software_and_of_no_gpu() -> None:
    error = (
        "DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.5\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n"
        "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration "
        "(/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue."
    )
    trouble = failures.by_output(error, "", before_ready=False)
    assert (trouble.kind, trouble.code) == ("environment", "FABRIC_NOT_READY")
    assert "IMEX channel" in trouble.text
