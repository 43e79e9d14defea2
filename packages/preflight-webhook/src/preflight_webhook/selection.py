"""Which of the configured checks a pod gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from preflight_proto.names import CHECKS_ANNOTATION

from .config import CheckConfig, Config
from .decision import Skip

__all__ = ["Refused", "Situation", "select"]


class Refused(ValueError):
    """The pod asks for something that cannot be given. The message is one sentence."""


_OTHER_DEVICES: Final = {
    "mig": "the pod gets slices of GPUs (MIG), which this check cannot test",
    "shared": "the pod's GPUs are shared with other pods, whose work this check would measure and disturb",
}


class Situation(NamedTuple):
    """What a check must know of the pod: has it ``network`` devices, is it in a ``gang``, why does it not start together
    with the others of it (``ordered``), and what beside whole GPUs of its own does it get (``others``)."""

    network: bool
    gang: bool
    ordered: str
    others: frozenset[str]


def select(config: Config, asked: str | None, pod: Situation) -> tuple[list[CheckConfig], list[Skip]]:
    """The checks to inject, in run order, and the ones left out.

    ``asked`` is the pod's annotation, which counts only where ``podSelection.enabled``; required checks stay.
    Raises :class:`Refused` for unknown or repeated names.
    """
    wanted: Sequence[CheckConfig] = config.checks
    skipped: list[Skip] = []
    if asked is not None and config.pod_selection.enabled:
        wanted, skipped = _asked(config.checks, asked)
    chosen = []
    for check in wanted:
        cannot = sorted(pod.others.difference(check.supports))
        if cannot:
            skipped.append(Skip(check.name, cannot[0], _OTHER_DEVICES[cannot[0]]))
        elif check.gang_wide and not pod.gang:
            skipped.append(
                Skip(check.name, "no-gang", "the pod belongs to no gang that is known here; a fabric test needs one")
            )
        elif check.gang_wide and pod.ordered:
            skipped.append(
                Skip(check.name, "start-order", f"the gang's members would wait for each other: {pod.ordered}")
            )
        elif check.nccl and config.skip_nccl_without_network and not pod.network:
            skipped.append(
                Skip(check.name, "no-network", "the pod requests no network device, and skipNcclWithoutNetwork is set")
            )
        else:
            chosen.append(check)
    return chosen, skipped


def _asked(checks: Sequence[CheckConfig], asked: str) -> tuple[list[CheckConfig], list[Skip]]:
    names = [name.strip() for name in asked.split(",") if name.strip()]
    by_name = {check.name: check for check in checks}
    unknown = sorted({name for name in names if name not in by_name})
    repeated = sorted({name for name in names if names.count(name) > 1})
    if unknown or repeated:
        what = [f"unknown: {', '.join(unknown)}"] if unknown else []
        what += [f"more than once: {', '.join(repeated)}"] if repeated else []
        raise Refused(
            f'annotation {CHECKS_ANNOTATION}: "{asked}" names checks that cannot be run ({"; ".join(what)}); configured are {", ".join(by_name)}.'
        )
    required = [check for check in checks if check.stays and check.name not in names]
    left_out = [check for check in checks if not check.stays and check.name not in names]
    skips = [Skip(check.name, "not-asked", "the pod's annotation does not name it") for check in left_out]
    return required + [by_name[name] for name in names], skips
