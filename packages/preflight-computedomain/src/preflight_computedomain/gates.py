"""The feature gates of an installation: read, forced, and judged, in this order.

Pure. The gate ``HostManagedIMEX`` says that the operator owns ``nvidia-imex``; it is all that this
package does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from preflight_kube.text import one_line

__all__ = ["GATE", "IGNORED", "KNOWN", "OFF", "Gates", "GatesInvalid", "read"]

GATE: Final = "HostManagedIMEX"
ALIAS: Final = "HostManagedIMEXDaemon"
DNS_NAMES: Final = "IMEXDaemonsWithDNSNames"
CLIQUES: Final = "ComputeDomainCliques"
CRASH: Final = "CrashOnNVLinkFabricErrors"

KNOWN: Final = {GATE: False, ALIAS: False, DNS_NAMES: True, CLIQUES: True, CRASH: True}
"""The gates that are read, each with its default."""
IGNORED: Final = frozenset(
    {
        "AllAlpha",
        "AllBeta",
        "ConsumableShares",
        "ContextualLogging",
        "DRAListTypeAttributes",
        "DeviceMetadata",
        "DynamicMIG",
        "FabricManagerPartitioning",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
        "MPSSupport",
        "NVMLDeviceHealthCheck",
        "PassthroughSupport",
        "TimeSlicingSettings",
    }
)
"""Gates of NVIDIA's driver that mean nothing here."""
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}
"""What Go's strconv.ParseBool takes, by which Kubernetes' components read their gates."""
_MODES: Final = ("driverManaged", "hostManaged")
_ISOLATIONS: Final = ("domain", "channel")

OFF: Final = (
    f"Feature gate {GATE} is off, and driver-managed IMEX is not part of this driver; "
    f"set featureGates.{GATE}=true, or install NVIDIA's own driver."
)


class GatesInvalid(ValueError):
    """``problems``: one sentence each, all that were found."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Gates:
    """What holds after forcing. ``notes``: what the log is to say about it, one line each."""

    host_managed: bool = False
    dns_names: bool = True
    cliques: bool = True
    crash_on_fabric_errors: bool = True
    notes: tuple[str, ...] = field(default=(), compare=False)


def read(text: str, *, mode: str = "", isolation: str = "") -> Gates:
    """The gates in ``text`` (``Name=true,Other=false``), with ``IMEX_MODE`` and ``IMEX_ISOLATION``.

    Forced before they are judged: with host-managed IMEX ``IMEXDaemonsWithDNSNames`` and
    ``ComputeDomainCliques`` are false, whatever was given. Raises :class:`GatesInvalid` with every
    problem.
    """
    given, ignored, problems = _parse(text)
    values = {**KNOWN, **given}
    if mode and mode not in _MODES:
        problems.append(
            f"IMEX_MODE: {one_line(mode, 200)!r} is not a mode; use {' or '.join(_MODES)}."
        )
    if isolation == "channel":
        problems.append(
            "IMEX_ISOLATION: 'channel' is not supported, as every ComputeDomain uses channel 0; use domain."
        )
    elif isolation and isolation not in _ISOLATIONS:
        problems.append(
            f"IMEX_ISOLATION: {one_line(isolation, 200)!r} is not a kind of isolation; use domain."
        )
    if mode == "hostManaged" and not (values[ALIAS] or values[GATE]):
        problems.append(
            f"IMEX_MODE: hostManaged needs the feature gate {GATE} (or {ALIAS}); set it to true."
        )
    host_managed = values[GATE] or (values[ALIAS] and mode == "hostManaged")
    notes = [
        f"Feature gate {name} means nothing to this driver, and is ignored."
        for name in sorted(ignored)
    ]
    if host_managed:
        for name in (DNS_NAMES, CLIQUES):
            if values[name]:
                notes.append(
                    f"Feature gate {name} is forced to false, because IMEX is host-managed."
                )
            values[name] = False
    if values[CLIQUES] and not values[DNS_NAMES]:
        problems.append(f"feature gate {CLIQUES} requires {DNS_NAMES} to also be enabled")
    if problems:
        raise GatesInvalid(tuple(problems))
    return Gates(host_managed, values[DNS_NAMES], values[CLIQUES], values[CRASH], tuple(notes))


def _parse(text: str) -> tuple[dict[str, bool], set[str], list[str]]:
    """The gates that are known, the names of those that are ignored, and what is wrong."""
    given: dict[str, bool] = {}
    ignored: set[str] = set()
    problems: list[str] = []
    for part in text.split(","):
        if not part.strip():
            continue
        name, sign, value = (word.strip() for word in part.partition("="))
        known = name in KNOWN or name in IGNORED
        if not known:
            problems.append(
                f"FEATURE_GATES: {one_line(name, 200)!r} is not a feature gate; known are {', '.join(sorted(KNOWN))}."
            )
        if (on := _BOOLEANS.get(value)) is None:
            found = repr(one_line(value, 200)) if sign else "no value"
            problems.append(
                f"FEATURE_GATES: {one_line(name, 200)} has {found}; write {one_line(name, 200)}=true or =false."
            )
        elif name in IGNORED:
            ignored.add(name)
        elif known:
            if given.get(name, on) != on:
                problems.append(
                    f"FEATURE_GATES: {name} is given as true and as false; keep one of them."
                )
            given[name] = on
    return given, ignored, problems
