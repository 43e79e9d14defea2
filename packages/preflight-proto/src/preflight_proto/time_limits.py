"""How long a check may take where nothing is set, in seconds: a check allows itself as much, and
the webhook says it beforehand.

What an all-reduce over a gang may take depends on its size: :func:`~.durations.gang_run`.
"""

from __future__ import annotations

from typing import Final

CHECK: Final = 300.0
"""Of a check that says nothing else."""
DCGM_DIAG: Final = {1: 120.0, 2: 900.0, 3: 2700.0, 4: 10800.0}
"""By the diagnostic's level: level 1 takes seconds, level 2 was seen to take 2.5
to 10.5 minutes.
"""
NCCL_LOOPBACK: Final = 600.0
"""NCCL was seen to start for 55 s on eight GPUs, and a slow node is measured up to some twenty
times.
"""
REPORT: Final = 10.0
"""Sending what was found, to a connector that does not answer."""
