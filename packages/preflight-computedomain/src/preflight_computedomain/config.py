"""The values that the programs read, and feature gates: read, forced, and judged. Pure.

The programs get it in their environment and arguments; ``validate-config`` judges the values as
the programs will. The gate ``HostManagedIMEX`` says that the operator owns ``nvidia-imex``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.files import schema
from preflight_kube.text import one_line
from preflight_proto import helm_values

CHART: Final = "preflight-computedomain"
EXCLUSIVE: Final = "EXCLUSIVE_CLIQUES"
"""The variable by which the programs get ``exclusiveCliques``."""
OWN: Final = helm_values.ALIKE | {
    "admission",
    "altProcDevices",
    "cdiRoot",
    "controller",
    "crd",
    "exports",
    "kubeletPlugin",
    "logVerbosity",
    "nvidiaDriverRoot",
}
"""Values that say how the chart itself is deployed; the others are what the programs read."""

Gate = bool | Literal["true", "false"]
"""``--set-string`` makes text of it."""


class Imex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``mode``, ``isolation``: as NVIDIA's chart has them; the mode counts with the gate
    HostManagedIMEXDaemon.
    """

    mode: Literal["", "driverManaged", "hostManaged"] = ""
    isolation: Literal["", "domain"] = ""


class ComputeDomains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether ComputeDomains are served, and by whose IMEX daemons."""

    enabled: bool = True
    imex: Imex = Imex()


class Gpus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs by claim, which another driver serves."""

    enabled: bool = False


class Resources(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The kinds of device that this driver may serve."""

    compute_domains: ComputeDomains = ComputeDomains()
    gpus: Gpus = Gpus()


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``exclusiveCliques``: of an NVLink clique one ComputeDomain has channels at a time, and the
    claims of others wait. ``featureGates``: by name. ``leaseSeconds``: a leader that has not
    renewed its lease for so long writes no more.
    """

    exclusive_cliques: bool = False
    feature_gates: dict[str, Gate] = {}
    lease_seconds: Annotated[int, Meta(ge=1, le=3600)] = 15
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    resources: Resources = Resources()


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`; the chart's values.schema.json contains it."""
    document = msgspec.json.schema(Config)
    names = {"enum": sorted({*KNOWN, *IGNORED})}
    document["$defs"]["Config"]["properties"]["featureGates"]["propertyNames"] = names
    return document


def problems(raw: object, path: str = "") -> list[str]:
    """All that is wrong with ``raw``, which stands at ``path``; so is IMEX not host-managed."""
    # The names of gates are judged below, in better words.
    problems = [
        problem if problem.startswith("the file") else f"{path}{problem}"
        for problem in schema.problems(msgspec.json.schema(Config), raw, "the file")
    ]
    if not isinstance(raw, Mapping):
        return problems
    decides = {key: raw[key] for key in ("featureGates", "resources") if key in raw}
    try:
        config = msgspec.convert(decides, Config)
        imex = config.resources.compute_domains.imex
        # As the chart writes FEATURE_GATES.
        text = ",".join(
            f"{name}={str(value).lower()}" for name, value in sorted(config.feature_gates.items())
        )
        read_gates(text, imex.mode, imex.isolation)
    except msgspec.ValidationError:
        pass  # it is among those found
    except GatesInvalid as error:
        problems += [f"{path}featureGates: {problem}" for problem in error.problems]
    return problems


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
"""Texts that Go's strconv.ParseBool takes, by which Kubernetes' components read their gates."""
_MODES: Final = ("driverManaged", "hostManaged")

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
    """The gates that count. ``notes``: what the log is to say about all, one line each."""

    crash_on_fabric_errors: bool
    notes: tuple[str, ...]


def read_gates(text: str, mode: str = "", isolation: str = "") -> Gates:
    """The gates in ``text`` (``Name=true,Other=false``). Raises :class:`GatesInvalid`, also where
    IMEX is not host-managed.

    Forced before they are judged: with host-managed IMEX ``IMEXDaemonsWithDNSNames`` and
    ``ComputeDomainCliques`` are false, whatever was given.
    """
    given, ignored, problems = _parse(text)
    values = {**KNOWN, **given}
    if mode not in ("", *_MODES):
        problems.append(
            f"IMEX_MODE: {one_line(mode, 200)!r} is not a mode; use {' or '.join(_MODES)}."
        )
    if isolation == "channel":
        problems.append(
            "IMEX_ISOLATION: 'channel' is not supported, as every ComputeDomain uses channel 0; use domain."
        )
    elif isolation not in ("", "domain"):
        problems.append(
            f"IMEX_ISOLATION: {one_line(isolation, 200)!r} is not a kind of isolation; use domain."
        )
    if mode == "hostManaged" and not (values[ALIAS] or values[GATE]):
        problems.append(
            f"IMEX_MODE: hostManaged needs the feature gate {GATE} (or {ALIAS}); set it to true."
        )
    host_managed = values[GATE] or (values[ALIAS] and mode == "hostManaged")
    if not host_managed and values[CLIQUES] and not values[DNS_NAMES]:
        problems.append(f"feature gate {CLIQUES} requires {DNS_NAMES} to also be enabled")
    if problems or not host_managed:
        raise GatesInvalid(tuple(problems) or (OFF,))
    notes = [
        f"Feature gate {name} means nothing to this driver, and is ignored."
        for name in sorted(ignored)
    ]
    if mode == "driverManaged":
        notes.append("IMEX_MODE driverManaged has no effect, because IMEX is host-managed.")
    notes += [
        f"Feature gate {name} is forced to false, because IMEX is host-managed."
        for name in (DNS_NAMES, CLIQUES)
        if values[name]
    ]
    return Gates(values[CRASH], tuple(notes))


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
            shown = repr(one_line(value, 200)) if sign else "no value"
            problems.append(
                f"FEATURE_GATES: {one_line(name, 200)} has {shown}; write {one_line(name, 200)}=true or =false."
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
