"""Ways round a check, and what becomes of a pod that goes one: it is denied where the check holds
pods back, else the check is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight_kube.api.quantities import UNIT
from preflight_proto.names import container_name

from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.decision import Skip
from preflight_webhook.core.detect.pod_devices import PodDevices
from preflight_webhook.core.detect.resources import InjectionPoint, StartStep
from preflight_webhook.core.guard.endpoint_guard import Redirect, servers
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
    left, without = [], list(skipped)
    held = {} if devices.gpu_claims else devices.gpus  # by sidecars; of claims nobody holds any
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
