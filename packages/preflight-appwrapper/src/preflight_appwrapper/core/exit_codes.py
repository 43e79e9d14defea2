"""With which exit codes the containers of failed pods ended, and whether one of them ends the
retries. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from preflight_proto import names

from preflight_appwrapper.api.types import ContainerStatus, Pod, Terminated
from preflight_appwrapper.core.parameters import ExitCodes

__all__ = ["Exit", "exits", "terminal"]


class Exit(msgspec.Struct, frozen=True):
    """A container that ended with another code than 0."""

    pod: str
    node: str
    container: str
    code: int


def exits(pod: Pod) -> Iterator[Exit]:
    """Init containers first, as they run; those of preflight have a rule of their own."""
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if one.name.startswith(names.CONTAINER_PREFIX):
            continue
        found = _ended(one)
        if found is not None and found.exit_code != 0:
            yield Exit(pod.name, pod.node, one.name, found.exit_code)


def terminal(pods: Iterable[Pod], codes: ExitCodes) -> Exit | None:
    """The first exit that ends the retries."""
    return next((one for pod in pods for one in exits(pod) if codes.ends_retries(one.code)), None)


def _ended(one: ContainerStatus) -> Terminated | None:
    return one.state.terminated
