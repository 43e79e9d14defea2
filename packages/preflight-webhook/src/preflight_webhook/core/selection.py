"""Which of the configured checks a pod gets, whether its namespace allows what they mount, and ways
round a check: the pod is denied where the check holds pods back, else the check is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from preflight_kube.api.quantities import UNIT
from preflight_proto.names import CHECKS_ANNOTATION, container_name

from preflight_webhook.api.review import shown
from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.config.extra_volumes import host_paths
from preflight_webhook.core.decision import Skip
from preflight_webhook.core.detect.devices import PodDevices
from preflight_webhook.core.detect.resources import InjectionPoint, StartStep
from preflight_webhook.core.guard.endpoint_guard import Redirect, servers


class PodRefused(ValueError):
    """The pod asks for something that cannot be given. The message is one sentence."""


def not_applicable(skipped: Sequence[Skip]) -> bool:
    """Whether each check was left out because there is nothing in the pod that it could test."""
    # Other reasons lie in what its author asks for, or in how he lays it out.
    return all(skip.reason in _SKIPS for skip in skipped)


def select(
    config: Config, asked: str | None, devices: PodDevices, *, gang: bool, ordered: str
) -> tuple[list[CheckConfig], list[Skip]]:
    """The checks to inject, in run order, and the ones left out.

    ``asked`` is the pod's annotation, which counts only where ``podSelection.enabled``; required
    checks stay. Raises :class:`PodRefused` for unknown or repeated names.
    """
    wanted: Sequence[CheckConfig] = config.checks
    chosen: list[CheckConfig] = []
    skipped: list[Skip] = []
    if asked is not None and config.pod_selection.enabled:
        wanted, skipped = _asked(config.checks, asked)
    for check in wanted:
        if reason := _untestable(check, config, devices, gang=gang, ordered=ordered):
            skipped.append(Skip(check.name, reason, _SKIPS[reason].format(ordered)))
        else:
            chosen.append(check)
    return chosen, skipped


_SKIPS: Final = {
    "mig": "the pod gets slices of GPUs (MIG), which this check cannot test",
    "shared": "the pod's GPUs are shared with other pods, whose work this check would measure and disturb",
    "no-gang": "the pod belongs to no gang that is known here; a fabric test needs one",
    "start-order": "the gang's members would wait for each other: {}",
    "no-network": "the pod requests no network device (networkDetection), and skipNcclWithoutNetwork is set",
}
"""Why there is nothing of a pod that a check could test, by the reason that is counted."""


def _untestable(
    check: CheckConfig, config: Config, devices: PodDevices, *, gang: bool, ordered: str
) -> str:
    """The first of :data:`_SKIPS` that holds; empty for none."""
    kinds = devices.of_gpus
    if "gpu" not in kinds and kinds.isdisjoint(check.supports):
        return min(kinds)
    if not check.gang_wide:
        return ""
    if not gang:
        return "no-gang"
    if ordered:
        return "start-order"
    needless = check.nccl and not devices.network and config.skip_nccl_without_network
    return "no-network" if needless else ""


def _asked(checks: Sequence[CheckConfig], asked: str) -> tuple[list[CheckConfig], list[Skip]]:
    names = [name.strip() for name in asked.split(",") if name.strip()]
    by_name = {check.name: check for check in checks}
    unknown = sorted({name for name in names if name not in by_name})
    repeated = sorted({name for name in names if names.count(name) > 1})
    if unknown or repeated:
        what = [f"unknown: {shown(', '.join(unknown))}"] if unknown else []
        what += [f"more than once: {shown(', '.join(repeated))}"] if repeated else []
        raise PodRefused(
            f'annotation {CHECKS_ANNOTATION}: "{shown(asked)}" names checks that cannot be run ({"; ".join(what)}); configured are {", ".join(by_name)}.'
        )
    required = [check for check in checks if check.is_required and check.name not in names]
    left_out = [check for check in checks if not check.is_required and check.name not in names]
    skips = [
        Skip(check.name, "not-asked", "the pod's annotation does not name it") for check in left_out
    ]
    return required + [by_name[name] for name in names], skips


_LEVEL: Final = (
    "the namespace's Pod Security level (label pod-security.kubernetes.io/enforce) forbids"
)
_CONFINED: Final = (
    f"{_LEVEL} the hostPath volume through which checks report; set that label to privileged, or set onPodSecurityConflict: report-off to "
    "check without reports."
)


def forbidden(checks: Sequence[CheckConfig], config: Config) -> str | None:
    """Why a pod with ``checks`` is denied in a namespace whose Pod Security level is baseline or
    restricted: the API server would refuse it with a sentence about volumes that its author never
    wrote. None where the checks can do without."""
    for check in checks:
        if paths := host_paths(check.extra_volumes):
            return (
                f"{_LEVEL} the hostPath volumes of the check {check.name} (extraVolumes: {', '.join(paths)[:200]}); set that label to privileged, "
                "or have the operator leave that check or its extraVolumes out."
            )
    if config.platform_connector.enabled and config.on_pod_security_conflict == "deny":
        return _CONFINED
    return None


def _must(check: CheckConfig) -> bool:
    """Say whether the pod is denied rather than started without ``check``."""
    return check.is_required and check.enforcement == "enforce"


def guarded(  # noqa: PLR0917
    checks: list[CheckConfig],
    skipped: list[Skip],
    devices: PodDevices,
    redirects: Sequence[Redirect],
    users: Mapping[int, StartStep],
    first: InjectionPoint,
    last: InjectionPoint,
    config: Config,
) -> tuple[list[CheckConfig], list[Skip]]:
    """(the checks that the pod cannot go round, those left out). ``users``: which init containers
    get GPUs, by position; ``first`` and ``last``: where checks stand. Raises :class:`PodRefused`.
    """
    _refuse_busy(checks, skipped, devices, config)
    if not redirects and not users:  # who holds GPUs gets them
        return checks, skipped
    left, without = [], list(skipped)
    held: Mapping[str, int] = (
        {} if devices.gpu_claims else devices.gpus
    )  # by sidecars; of claims nobody holds any
    for check in checks:
        is_first = check.placement == "first"
        here = first if is_first else last
        # Behind the workload's own init containers what is over by then does not count: the
        # operator put the check there.
        before = (
            user
            for position, user in users.items()
            if (position < first.position if is_first else user.sidecar)
        )
        if led := [(host, why) for host, why in redirects if host in servers(check, config)]:
            host, why = led[0]
            diverted = f"the pod's own settings could lead the check {check.name} to another server than {host.name}: {why}"
            if check.enforcement == "enforce":
                raise PodRefused(
                    f"{diverted}, or have the operator configure an IP address (for DCGM, dcgm.hostengineAddr: $(NODE_IP):5555)."
                )
            without.append(Skip(check.name, "redirected", diverted))
        elif _must(check) and (user := next(before, None)) is not None:
            raise PodRefused(
                f'spec.initContainers: "{user.name[:80]}" gets GPUs and starts before {container_name(check.name)}, which is required and should '
                "have tested them first; take its GPUs away, or give it a name that does not put it before the checks (providerInit)."
            )
        elif held and all(n <= here.accounts[r].requests.held // UNIT for r, n in held.items()):
            why = "sidecars that start before this check hold all GPUs of the pod"
            without.append(Skip(check.name, "no-room", why))
        else:
            left.append(check)
    return left, without


def _refuse_busy(
    checks: Sequence[CheckConfig], skipped: Sequence[Skip], devices: PodDevices, config: Config
) -> None:
    """Raises :class:`PodRefused` for GPUs that a required check should test and another
    pod uses just now.
    """
    if not devices.busy or config.gpu_detection.shared_claims != "auto":
        return
    left_out = {skip.check for skip in skipped if skip.reason == "shared"}
    wanting = [check for check in config.checks if check in checks or check.name in left_out]
    if must := [check.name for check in wanting if _must(check) and "shared" not in check.supports]:
        name, pod = next(iter(devices.busy.items()))
        raise PodRefused(
            f'spec.resourceClaims: claim "{name}" is in use by pod {pod[:253]}, whose work {", ".join(must)} would measure and disturb; wait until '
            "that pod has ended, give this one a claim of its own (resourceClaimTemplateName), or have the operator set "
            "gpuDetection.sharedClaims."
        )
