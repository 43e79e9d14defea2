"""A check on gloo whose workers get a topology file all the same,
as NCCL's do on a node with GPUs.
"""

from __future__ import annotations

import os
from dataclasses import replace

from check_nccl_allreduce import check
from check_nccl_allreduce.ranks import TOPOLOGY_FILE
from check_nccl_allreduce.settings import Settings
from preflight_proto.check import Run
from preflight_proto.check.topology import find_topology


def gloo_gets_a_topology_file() -> None:
    """From now on a check in this process looks for a topology file, whatever its backend."""
    real = check._equipment

    async def equipment(run: Run[Settings]) -> check.Equipment:
        brought, chosen = await real(run), await find_topology(run.settings, os.environ)
        assert chosen.path is not None
        return replace(brought, variables={TOPOLOGY_FILE: chosen.path}, topology_file=chosen.why)

    check._equipment = equipment
