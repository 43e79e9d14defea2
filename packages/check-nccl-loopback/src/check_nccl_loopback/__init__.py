"""Preflight check: NCCL bandwidth and correctness between the GPUs of one node."""
