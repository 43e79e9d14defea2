"""Output of nccl-tests, era by era: rows as published or as its source prints them."""

from __future__ import annotations

GIB, MIB = 1 << 30, 1 << 20

# mid 2021: twelve words, a deviation where later eras count; published with -c 0
OLDEST = """# nThread 1 nGpus 8 minBytes 134217728 maxBytes 134217728 step: 1048576(bytes) warmup iters: 5 iters: 20 validation: 0
#
# Using devices
#   Rank  0 Pid 112424 on host device  0 [0x00] A100-SXM4-40GB
#   Rank  1 Pid 112424 on host device  1 [0x00] A100-SXM4-40GB
#
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
   134217728      33554432   float     sum   1162.2  115.49  202.11    N/A   1162.5  115.46  202.05    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 202.08
#
"""
OLDEST_CHECKED = OLDEST.replace("N/A", "4e-07")
OLDEST_WRONG = OLDEST.replace("N/A", "3e+02").replace(": 0 OK", ": 3 FAILED")

# since 2.13: thirteen words
ROW_13 = "  8589934592    2147483648     float     sum      -1    33605  255.62  479.28      0    33628  255.44  478.95      0"
SINCE_2_13 = f"""# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   5953 on      gpu47 device  0 [0x0a] NVIDIA H200
#  Rank  1 Group  0 Pid   5953 on      gpu47 device  1 [0x18] NVIDIA H200
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{ROW_13}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 479.115
#
"""
TIMESTAMPED = SINCE_2_13.replace(ROW_13, ROW_13 + "  2025-10-17 09:12:44")

# since 2.17.6: the version first, whole PCI addresses
NEWEST = (
    "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n# Collective test starting: all_reduce_perf\n"
    + SINCE_2_13.replace("[0x0a]", "[0000:0f:00]").replace("[0x18]", "[0000:2d:00]")
    + "# Collective test concluded: all_reduce_perf\n"
)

# 2.19.2 with -I 1: twenty-one words
PER_ITERATION = SINCE_2_13.replace(
    ROW_13,
    "  8589934592    2147483648     float     sum      -1    33605  255.62  479.28      0    33500    33800    33790     0.21"
    "    33628  255.44  478.95      0    33510    33810    33800     0.20",
)

# repeats compared bit by bit: fifteen words
BITWISE = SINCE_2_13.replace(
    ROW_13,
    "  8589934592    2147483648     float     sum      -1    33605  255.62  479.28      0         0"
    "    33628  255.44  478.95      0         0",
)

WRONG = SINCE_2_13.replace("479.28      0 ", "479.28     12 ").replace(": 0 OK", ": 12 FAILED")
NOT_COMPARED = SINCE_2_13.replace("479.28      0 ", "479.28    N/A ").replace(
    "478.95      0", "478.95    N/A"
)

# NCCL speaks into a row that the tool has begun
INTERRUPTED = SINCE_2_13.replace(
    ROW_13,
    "  8589934592    2147483648     float     sum      -1NCCL version 2.29.3+cuda13.1\n"
    "gpu47:5953:5960 [3] NCCL INFO comm 0x55 rank 3 nranks 8 cudaDev 3 busId 44000 - Init COMPLETE\n"
    "    33605  255.62  479.28      0    33628  255.44  478.95      0",
)
BY_MPIRUN = "\n".join(f"[1,0]<stdout>:{line}" for line in SINCE_2_13.splitlines())
BY_PRTERUN = "\n".join(
    f"[prterun-gpu47-5921@1,0]<stdout>: {line}" for line in SINCE_2_13.splitlines()
)
BY_SRUN = "\n".join(f"0: {line}" for line in SINCE_2_13.splitlines())

EVERY_ERA = {
    "oldest": OLDEST_CHECKED,
    "2.13": SINCE_2_13,
    "timestamps": TIMESTAMPED,
    "2.17.6": NEWEST,
    "per-iteration": PER_ITERATION,
    "bitwise": BITWISE,
    "interrupted": INTERRUPTED,
    "mpirun": BY_MPIRUN,
    "prterun": BY_PRTERUN,
    "srun": BY_SRUN,
    "colours": "\n".join(f"\x1b[32m{line}\x1b[0m" for line in SINCE_2_13.splitlines()),
    "crlf": SINCE_2_13.replace("\n", "\r\n"),
}

REDUCED = """# nThread 1 nGpus 2 minBytes 68719476736 maxBytes 68719476736 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Reducing maxBytes to 27951912277 due to memory limitation
 27951912277    6987978069     float     sum      -1    93457  183.83  367.29      0    93420  183.90  367.44      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 367.365
#
"""
