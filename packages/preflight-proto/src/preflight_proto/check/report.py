"""What a run leaves behind: a batch of events at the node's platform connector, within one budget
of time, and the result where the kubelet finds it.

A connector that is absent, slow, refusing or hanging never decides a verdict: :func:`send` returns
what happened as a sentence and raises nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from .. import names, time_limits
from ..printable import printable
from . import log
from .events import EventDraft
from .kit import KitSettings
from .verdict import Verdict

if TYPE_CHECKING:
    import datetime

    from ..wire import HealthEvents

EVENT_VERSION = 1
BUDGET = time_limits.REPORT
"""Seconds for all attempts together; the pod waits for them."""
ATTEMPT = 3.0
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
MAX_TEXT = 4096
"""Characters of one text of an event: etcd and the connector's store take no more gladly."""


def batch(events: Sequence[EventDraft], kit: KitSettings, now: datetime.datetime) -> HealthEvents:
    """The wire message: all events are about the sender's own node, and every text in them is
    printable.
    """
    from .. import wire

    strategy = wire.ProcessingStrategy["STORE_ONLY" if kit.observe else kit.strategy]
    return wire.HealthEvents(
        version=EVENT_VERSION,
        events=[
            wire.HealthEvent(
                version=EVENT_VERSION,
                agent=event.agent,
                component_class=event.component,
                check_name=event.check_name,
                is_fatal=event.fatal,
                is_healthy=event.healthy,
                message=_text(event.message),
                recommended_action=wire.RecommendedAction[event.action.value],
                error_code=[_text(code) for code in event.error_codes],
                entities_impacted=[
                    wire.Entity(entity_type=kind, entity_value=_text(value))
                    for kind, value in event.entities
                ],
                metadata={_text(key): _text(value) for key, value in event.metadata.items()}
                | ({"pod": _text(kit.pod_name)} if kit.pod_name else {}),
                generated_timestamp=now,
                node_name=_text(kit.node_name),
                processing_strategy=strategy,
            )
            for event in events
        ],
    )


def _text(value: str) -> str:
    return printable(value, MAX_TEXT)


async def send(
    events: Sequence[EventDraft],
    kit: KitSettings,
    progress: Callable[[str], None],
    budget: float = BUDGET,
) -> str | None:
    """Send ``events`` in one batch; None when they were taken or are not wanted, else one sentence
    that says why not.

    A refusal for good (a malformed or foreign batch) and a socket that does not exist or may not be
    opened are not tried again; anything else is, until the budget is spent.
    """
    if not events:
        return None
    if kit.socket == names.SOCKET_OFF:
        progress("reports are switched off here; nothing is sent, the verdict is unchanged")
        return None
    import datetime

    path = kit.socket.removeprefix("unix://")
    message = batch(events, kit, datetime.datetime.now(datetime.UTC))
    trouble, pause = "not tried", FIRST_PAUSE
    with anyio.move_on_after(budget):
        while True:
            final, trouble_now = await _attempt(message, path, kit.token_path)
            if trouble_now is None:
                return None
            trouble = trouble_now
            if final:
                break
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    what = f"{len(events)} event{'s' if len(events) != 1 else ''}"
    sentence = (
        f"platform connector at {path}: {trouble}; {what} not delivered, the verdict is unchanged"
    )
    progress(sentence)
    return sentence


async def _attempt(
    message: HealthEvents, path: str, token_path: str | None
) -> tuple[bool, str | None]:
    """(whether to give up, what went wrong); the latter is None on success."""
    from grpclib.client import Channel
    from grpclib.const import Status
    from grpclib.exceptions import GRPCError, StreamTerminatedError

    from ..wire import PlatformConnectorStub

    metadata: dict[str, str] = {}
    if token_path is not None:
        # Read afresh: the kubelet rotates it. Never send without: a tokenless caller is somebody
        # else.
        try:
            token = (await anyio.Path(token_path).read_text()).strip()
        except OSError as error:
            return False, f"the token file {token_path} cannot be read ({error.strerror})"
        if not token:
            return False, f"the token file {token_path} is empty"
        metadata["authorization"] = f"Bearer {token}"
    channel = Channel(path=path)
    final = {Status.INVALID_ARGUMENT, Status.UNIMPLEMENTED, Status.PERMISSION_DENIED}
    try:
        # In a task of its own: where its time is up or the connection ends, grpclib cancels the
        # task that waits without taking that back, and anyio's scopes then end the whole run.
        call = PlatformConnectorStub(channel).health_event_occurred_v_1(message, metadata=metadata)
        with anyio.fail_after(ATTEMPT):
            await asyncio.ensure_future(call)
    except GRPCError as error:
        return error.status in final, f"refused with {error.status.name} ({error.message})"
    except TimeoutError:
        return False, f"no answer within {ATTEMPT:g} s"
    except FileNotFoundError:
        return (
            True,
            "there is no such socket, so no connector runs on this node or its folder is not mounted here; see that the connector runs, or set platformConnector.enabled to false",
        )
    except PermissionError:
        return (
            True,
            f"user {os.geteuid()} may not open the socket; let its mode and that of its folder admit this check, or set runAsUser or runAsGroup "
            "in the check's securityContext; where they do, see SELinux's log on the node",
        )
    except (OSError, StreamTerminatedError) as error:
        return False, f"cannot be reached ({getattr(error, 'strerror', None) or error})"
    except Exception as error:
        # grpclib's own: asyncio calls a socket connected whose queue of connections is full.
        return (
            False,
            f"it takes no connection, or is no connector ({type(error).__name__}: {error})",
        )
    finally:
        channel.close()
    return True, None


def write_result(
    check: str, verdict: Verdict, path: str, *, gated: bool, seconds: float, unreported: str = ""
) -> None:
    """Write the result to ``path``, over one that is there; a line in the log where that fails.

    ``seconds``: how long the check took; ``unreported``: why its events did not arrive, which the
    result's reader is the only one to learn. It stands first in the reason: what is too long is cut
    at its end.
    """
    import msgspec  # loaded beside the tools; see Check.later

    from ..result import VERSION, Result, encode_result

    reason = f"not reported ({unreported}): {verdict.reason}" if unreported else verdict.reason
    result = Result(
        v=VERSION,
        check=check,
        outcome=verdict.outcome.value,
        code=verdict.code,
        gated=gated,
        duration=round(seconds, 3),
        subject=verdict.subject,
        reason=reason,
        measured=verdict.measured,
        expected=verdict.expected,
        blames=verdict.blames or msgspec.UNSET,
        details=dict(verdict.details) if verdict.details else msgspec.UNSET,
    )
    try:
        Path(path).write_bytes(encode_result(result))
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        why = getattr(error, "strerror", None) or error
        log.echo(
            f"result: {path} cannot be written ({why}); the exit status still says the verdict"
        )
