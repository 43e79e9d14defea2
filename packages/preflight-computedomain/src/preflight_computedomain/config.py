"""What of the chart's values the programs themselves read: the feature gates, IMEX's mode, the log,
and the leader's lease.

Pure. The programs get it in their environment and arguments; ``validate-config`` judges the values
as the programs will.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.files import schema

from . import gates
from .gates import Gates, GatesInvalid

__all__ = ["CHART", "OWN", "Config", "gates_text", "json_schema", "judged", "problems"]

CHART: Final = "preflight-computedomain"
OWN: Final = frozenset(
    (
        *(
            "enabled",
            "global",
            "admission",
            "altProcDevices",
            "cdiRoot",
            "controller",
            "crd",
            "exports",
            "fullnameOverride",
            "image",
        ),
        *(
            "imagePullPolicy",
            "imagePullSecrets",
            "kubeletPlugin",
            "networkPolicy",
            "nvidiaDriverRoot",
        ),
    )
)
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
    enabled: bool = True
    imex: Imex = Imex()


class Gpus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False


class Resources(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    compute_domains: ComputeDomains = ComputeDomains()
    gpus: Gpus = Gpus()


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """``featureGates``: by name. ``leaseSeconds``: a leader that has not renewed its lease for so
    long writes no more.
    """

    feature_gates: dict[str, Gate] = {}
    lease_seconds: Annotated[int, Meta(ge=1, le=3600)] = 15
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    resources: Resources = Resources()


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`; the chart's values.schema.json contains it."""
    made = _schema()
    names = sorted({*gates.KNOWN, *gates.IGNORED})
    made["$defs"]["Config"]["properties"]["featureGates"]["propertyNames"] = {"enum": names}
    return made


def _schema() -> dict[str, Any]:
    return msgspec.json.schema(Config)


def gates_text(given: Mapping[Any, Any]) -> str:
    """``FEATURE_GATES`` as the chart writes it."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in sorted(given.items()))


def judged(config: Config) -> Gates:
    """The gates that hold. Raises :class:`GatesInvalid`."""
    imex = config.resources.compute_domains.imex
    return gates.read(gates_text(config.feature_gates), mode=imex.mode, isolation=imex.isolation)


def problems(raw: object, path: str = "") -> list[str]:
    """All that is wrong with ``raw``, which stands at ``path`` in its file; also that IMEX is not
    host-managed.
    """
    # The names of gates are judged below, in better words.
    found = [
        one if one.startswith("the file") else f"{path}{one}"
        for one in schema.problems(_schema(), raw, "the file")
    ]
    if not isinstance(raw, Mapping):
        return found
    try:
        decides = {key: raw[key] for key in ("featureGates", "resources") if key in raw}
        if not judged(msgspec.convert(decides, Config)).host_managed:
            found.append(f"{path}featureGates: {gates.OFF}")
    except msgspec.ValidationError:
        pass  # it is among those found
    except GatesInvalid as error:
        found += [f"{path}featureGates: {one}" for one in error.problems]
    return found
