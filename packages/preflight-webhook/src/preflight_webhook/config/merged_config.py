"""What a namespace sets for itself, laid over the configuration of the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace
from preflight_proto.policy import PreflightConfig, PreflightConfigSpec, refusal

from preflight_webhook.config.config import Config


@lru_cache(maxsize=256)
def effective(config: Config, spec: PreflightConfigSpec) -> Config:
    """The configuration for a namespace that has set ``spec``.

    The same object for the same two, as decisions are remembered by it.
    """
    if spec.gang_discovery is not UNSET:
        config = replace(config, gang_discovery=_laid(config.gang_discovery, spec.gang_discovery))
    if spec.enforcement is not UNSET:
        checks = tuple(replace(check, enforcement=spec.enforcement) for check in config.checks)
        config = replace(config, checks=checks)
    return config


def _laid(under: Any, over: Struct) -> Any:
    """Field by field; the two have the same names."""
    given = {name: value for name, value in asdict(over).items() if value is not UNSET}
    return replace(
        under,
        **{
            n: _laid(getattr(under, n), v) if isinstance(v, Struct) else v for n, v in given.items()
        },
    )


def in_force(items: Iterable[PreflightConfig]) -> PreflightConfig | None:
    """Of those of one namespace, the one that the gang controller has put in force.

    None as well where two say so: then one status is out of date, and it is the controller's to say
    which.
    """
    readable = [item for item in items if not refusal(item)]
    return readable[0] if len(readable) == 1 else None
