"""What the configuration makes of a known check's variables, judged as the check would judge it in
every pod.

A timeout, an address or a threshold that only the check would refuse is refused here once, by the
name that it has in the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preflight_proto import names, settings

__all__ = ["problems"]


def problems(raw: dict[str, Any]) -> list[str]:
    """One sentence for each value of ``raw`` that a known check among its checks would refuse,
    beginning with the value's path.
    """
    listed = raw.get("checks")
    checks = [
        (i, one)
        for i, one in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    ]
    known: set[str] = set()
    found: list[str] = []
    for i, one in checks:
        image = one.get("image")
        check = settings.check_of(image) if isinstance(image, str) else None
        if check is not None and one.get("enabled") is not False:
            known.add(check)
            found += _judged(
                check, f"checks[{i}].timeout", names.ENV_CHECK_TIMEOUT, one.get("timeout")
            )
    for check in sorted(known):
        for path, variable, value in _values(raw):
            if variable in settings.schema(check)["properties"]:
                found += _judged(check, path, variable, value)
    return list(dict.fromkeys(found))


def _values(raw: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(path, variable, value) of what all checks are given alike."""

    def of(section: str, key: str) -> Any:
        found = raw.get(section)
        return found.get(key) if isinstance(found, dict) else None

    yield "checkTimeout", names.ENV_CHECK_TIMEOUT, raw.get("checkTimeout")
    yield "gangTimeout", names.ENV_GANG_TIMEOUT, raw.get("gangTimeout")
    yield "dcgm.hostengineAddr", names.ENV_DCGM_HOSTENGINE, of("dcgm", "hostengineAddr")
    yield (
        "nccl.loopbackThresholdGBps",
        names.ENV_LOOPBACK_THRESHOLD,
        of("nccl", "loopbackThresholdGBps"),
    )
    yield (
        "nccl.allreduceThresholdGBps",
        names.ENV_ALLREDUCE_THRESHOLD,
        of("nccl", "allreduceThresholdGBps"),
    )
    yield (
        "ncclTopology.instanceTypeMapping",
        names.ENV_TOPOLOGY_MAP,
        of("ncclTopology", "instanceTypeMapping"),
    )


def _judged(check: str, path: str, variable: str, value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    elif isinstance(value, dict):
        value = ",".join(f"{key}={one}" for key, one in value.items())
    if value is None or isinstance(value, bool) or not isinstance(value, str | int | float):
        return  # the schema says so
    for said in settings.problems(check, {variable: str(value)}):
        yield f"{path}: {said.partition(': ')[2].partition(', or remove it to use ')[0].rstrip('.')}."
