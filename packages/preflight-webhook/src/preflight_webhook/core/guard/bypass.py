"""Ways round a check, and what becomes of a pod that goes one: it is denied where the check holds
pods back, else the check is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight_proto.names import container_name

from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.decision import Skip
from preflight_webhook.core.detect.pod_devices import PodDevices
from preflight_webhook.core.detect.resources import StartStep
from preflight_webhook.core.guard.endpoint_guard import Redirect, servers
from preflight_webhook.core.inject.injection import InjectionPoint, has_room
from preflight_webhook.core.selection import PodRefused


def _must(check: CheckConfig) -> bool:
    """Whether a pod may not start without ``check``: rather than leave it out,
    the pod is denied.
    """
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
    checks, skipped = _not_redirected(checks, skipped, redirects, config)
    _refuse_use_before(checks, users, first.position)
    if devices.gpu_claims or not devices.gpus:  # else nobody holds any before the checks
        return checks, skipped
    return _with_room(checks, skipped, first, last, devices.gpus)


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


def _not_redirected(
    checks: list[CheckConfig], skipped: list[Skip], redirects: Sequence[Redirect], config: Config
) -> tuple[list[CheckConfig], list[Skip]]:
    """Without checks that the pod could lead to a server of its own choice; where one of them holds
    pods back, the pod is denied.
    """
    if not redirects:
        return checks, skipped
    left, without = [], list(skipped)
    for check in checks:
        why = next(((host, why) for host, why in redirects if host in servers(check, config)), None)
        if why is None:
            left.append(check)
            continue
        host, reason = why
        diverted = f"the pod's own settings could lead the check {check.name} to another server than {host.name}: {reason}"
        if check.enforcement == "enforce":
            raise PodRefused(
                f"{diverted}, or have the operator configure an IP address (for DCGM, dcgm.hostengineAddr: $(NODE_IP):5555)."
            )
        without.append(Skip(check.name, "redirected", diverted))
    return left, without


def _refuse_use_before(
    checks: Sequence[CheckConfig], users: Mapping[int, StartStep], first: int
) -> None:
    """Raises :class:`PodRefused` where a container gets GPUs before the required check
    that should have tested them.

    ``first``: the position of the checks that do not stand behind the workload's own init
    containers. Behind those (placement: last) what is over by then does not count: the operator put
    the check there.
    """
    for check in checks:
        before = (
            user
            for position, user in users.items()
            if (position < first if check.placement == "first" else user.sidecar)
        )
        if _must(check) and (user := next(before, None)) is not None:
            raise PodRefused(
                f'spec.initContainers: "{user.name[:80]}" gets GPUs and starts before {container_name(check.name)}, which is required and should '
                "have tested them first; take its GPUs away, or give it a name that does not put it before the checks (providerInit)."
            )


def _with_room(
    checks: list[CheckConfig],
    skipped: list[Skip],
    first: InjectionPoint,
    last: InjectionPoint,
    gpus: Mapping[str, int],
) -> tuple[list[CheckConfig], list[Skip]]:
    """Without the checks for which no GPU is left at their place."""
    rooms = {"first": has_room(first, gpus), "last": first is last or has_room(last, gpus)}
    if all(rooms.values()):
        return checks, skipped
    why = "sidecars that start before this check hold all GPUs of the pod"
    without = [Skip(check.name, "no-room", why) for check in checks if not rooms[check.placement]]
    return [check for check in checks if rooms[check.placement]], [*skipped, *without]
