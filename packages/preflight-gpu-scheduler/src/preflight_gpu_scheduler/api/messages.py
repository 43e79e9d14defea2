"""Why a node does not do, and why a pod cannot be bound: constants, as the scheduler adds up equal
ones. Figures are what `explain` is for.
"""

from __future__ import annotations

from typing import Final

import msgspec

CLAIM_NOT_FOUND: Final = "GpuClaim not found"
CLAIM_NOT_VALID: Final = "GpuClaim is not valid"
COUNT_DIFFERS: Final = "pod was admitted for another number of GPUs than its GpuClaim's"
ELSEWHERE: Final = "its GPUs are reserved on another node"
GANG_NOT_RESERVED: Final = "gang is not reserved yet"
GANG_GATHERS: Final = "gang gathers: the scheduler has not been asked about all of its members"
GANG_NOT_TOGETHER: Final = "the gang's members were not all there to be bound"
GANG_RESTS: Final = "gang was not placed whole; it is tried again"
GANG_TURN: Final = "another gang of higher priority, or that waits longer, comes first"
GANG_TOO_FEW: Final = "too few free GPUs for all of its gang"
KEPT: Final = "its free GPUs are kept for a gang that waits"
LABELS_DIFFER: Final = "node labels do not match the claim's selector"
NODE_UNKNOWN: Final = "node is not known"
NO_STATUS: Final = "no GpuNodeStatus"
STATUS_STALE: Final = "GpuNodeStatus is stale"
GPUS_UNKNOWN: Final = "NVML does not answer"
STATUS_NOT_VALID: Final = "GpuNodeStatus is not valid"
STATUS_CHANGED: Final = "GpuNodeStatus numbers its GPUs anew; try again"
UNLOCKED: Final = "the Lease of a GPU of a pod there is lost; it is made again first"
TAKEN: Final = "its GPUs are another pod's"
PLUGIN: Final = "a device plugin hands out the same GPUs"
DRIVER: Final = "a DRA driver hands out the same GPUs"
TOO_FEW: Final = "too few free GPUs"
TOO_SMALL: Final = "node has too few usable GPUs"
NO_ISLAND: Final = "no NVLink island with enough free GPUs"
ISLANDS_TOO_SMALL: Final = "no NVLink island is large and fast enough"
NOT_ADJACENT: Final = "no adjacent free GPUs on one NVLink island"

UNRESOLVABLE: Final = frozenset(
    {
        *(CLAIM_NOT_FOUND, CLAIM_NOT_VALID, COUNT_DIFFERS, ELSEWHERE, GANG_NOT_RESERVED),
        *(LABELS_DIFFER, NODE_UNKNOWN, UNLOCKED, NO_STATUS, GPUS_UNKNOWN, STATUS_STALE),
        *(STATUS_NOT_VALID, PLUGIN, DRIVER, TOO_SMALL, ISLANDS_TOO_SMALL),
    }
)
"""What evicting pods from the node does not change: preemption need not try."""


def misfit(error: Exception, whole: str) -> str:
    """One sentence, with its path, for what types refuse; ``whole``: what the data is called."""
    what, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`') or whole}: {what[:1].lower()}{what[1:200]}; correct it."


def misfits(types: type, raw: object, error: Exception, whole: str) -> list[str]:
    """Every problem of ``raw``, of which :func:`misfit` has the first."""
    from preflight_kube.files import schema  # loads jsonschema, which good data do not cost

    # Types refuse what a schema does not, as 60.0 for 60.
    return schema.problems(msgspec.json.schema(types), raw, whole) or [misfit(error, whole)]
