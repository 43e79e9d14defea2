"""A GPU that was allotted and is not there, as the engine sees it: the second opinion after the
driver's.

Pure: :mod:`preflight_proto.check.presence` has found it missing; the engine's list is read by
:mod:`.hostengine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from preflight_proto.check import Finding, Verdict

LOST: Final = "LOST"
"""The status in the engine's list of all GPUs that NVML's "GPU is lost" makes. ``INACCESSIBLE``
says only that the engine could not open it, "usually due to cgroups" (dcgm_structs.h).
"""


def confirmed(verdict: Verdict, listed: Mapping[str, int], statuses: Mapping[str, str]) -> Verdict:
    """``verdict`` (``GPU_MISSING``) with what the engine says of each GPU that it names.

    Two sources make it fatal: the driver does not list the GPU, and the engine, which lists the
    GPUs that are there, calls it lost or does not list it either while the driver calls it lost. An
    engine that lists none of the pod's GPUs is not a source.
    """
    findings = tuple(_confirmed(finding, listed, statuses) for finding in verdict.findings)
    return replace(verdict, findings=findings)


def _confirmed(finding: Finding, listed: Mapping[str, int], statuses: Mapping[str, str]) -> Finding:
    uuid = finding.subject.gpu_uuid
    if uuid is None or not listed:
        return finding
    status = statuses.get(uuid)
    if status == LOST:
        reason, fatal = f"its status is {status}", True
    elif uuid not in listed:
        reason = f"its status is {status}" if status else "it does not list the GPU"
        fatal = any(key.startswith("lost_by_") for key in finding.metadata)
    else:
        return replace(finding, metadata={**finding.metadata, "engine": "it lists the GPU"})
    return replace(
        finding,
        fatal=finding.fatal or fatal,
        metadata={**finding.metadata, "lost_by_engine": reason},
    )
