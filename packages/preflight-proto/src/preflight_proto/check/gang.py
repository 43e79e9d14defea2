"""A gang check's roster: wait for the one to join, write down that it is joined, notice when it no
longer holds.

The roster comes as one small file that the kubelet swaps whenever the pod's annotation changes. It
is read afresh some twenty times a second: a watch on a folder that is replaced under it would be
the harder way to the same answer.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from .. import names
from ..durations import format_duration
from .kit import KitSettings
from .settings import Parser, duration, setting, text
from .verdict import Inconclusive, Skipped

if TYPE_CHECKING:
    from ..roster import Roster

POLL: Final = 0.05
"""Seconds between two looks at the roster."""
UNANSWERED: Final = "no answer from the gang controller yet"
CONTROLLER: Final = "app.kubernetes.io/name=preflight-gang"
"""How its chart labels the gang controller's pods."""
GENERATION_FILE: Final = "generation"
"""In ``PREFLIGHT_STATE_DIR``: the generation that this pod joined last, as a decimal number."""


def _address() -> Parser[str]:
    printable = text()

    def parse(raw: str) -> str:
        ipaddress.ip_address(printable.parse(raw))
        return raw

    return Parser(parse, "an IP address", "the pod's IP (status.podIP)", schema=printable.schema)


@dataclass(frozen=True)
class GangSettings(KitSettings):
    """What the webhook gives to a gang-wide check, which must know whose roster it reads."""

    timeout: float = setting(
        names.ENV_GANG_TIMEOUT,
        duration(least=1),
        default=600.0,
        help="how long to wait for the whole gang, from the first question for the roster",
    )
    folder: str = setting(
        names.ENV_GANG_CONFIG_DIR,
        text("a folder", f"e.g. {names.GANG_DIR}"),
        default=names.GANG_DIR,
        help=f"folder with the file {names.ROSTER_FILE}, the gang controller's answer to this pod",
    )
    state: str = setting(
        names.ENV_STATE_DIR,
        text("a folder", f"e.g. {names.STATE_DIR}"),
        default=names.STATE_DIR,
        help="folder that outlives the container (emptyDir): which generation this pod has joined",
    )
    pod_uid: str = setting(
        names.ENV_POD_UID,
        text("a uid", "the pod's uid (metadata.uid)"),
        help="a roster for another uid is ignored",
    )
    pod_ip: str = setting(
        names.ENV_POD_IP, _address(), help="where the other members reach this one"
    )


class GangMembership:
    """The gang controller's answers to this pod. ``clock`` gives seconds since
    the check's start.
    """

    def __init__(
        self, settings: GangSettings, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self._say, self._clock = say, clock
        self._give_up: float | None = None

    @property
    def patience(self) -> float:
        """Seconds left of ``GANG_TIMEOUT``, which covers all waits of one run together."""
        return (
            self.settings.timeout
            if self._give_up is None
            else max(0.0, self._give_up - anyio.current_time())
        )

    async def sealed(self) -> Roster:
        """The sealed roster that this pod joins from now on.

        Its generation is newer than any that the pod has joined before, whatever container restarts
        lie between, and is on disk when this returns. Raises :class:`Skipped` when the controller
        says so, and :class:`Inconclusive`: ``PEER_FAILED`` with the common cause, ``GANG_TIMEOUT``
        naming who is missing, ``ROSTER_UNREADABLE``, ``STATE_UNUSABLE``.
        """
        self._give_up = self._give_up or anyio.current_time() + self.settings.timeout
        state = Path(self.settings.state)
        joined = read_generation(state)
        situation = ""
        while True:
            roster = self._read()
            # Whatever is said of a generation that this pod has joined in an earlier life is not
            # said to this one.
            if roster is not None and roster.generation > joined:
                if roster.answer == "sealed":
                    write_generation(state, roster.generation)
                    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
                    self._say(
                        f"roster: generation {roster.generation}, rank {roster.rank} of {roster.nnodes}, read {self._clock():.3f} s after start, "
                        f"at {now.replace('+00:00', 'Z')}"
                    )
                    return roster
                if roster.answer == "skip":
                    why = roster.reason or "the gang controller gave no reason"
                    raise Skipped("GANG_SKIPPED", _sentence(why))
                if roster.answer == "fail":
                    raise failed_peer(roster)
            if (now_missing := _situation(roster, joined, situation)) != situation:
                situation = now_missing
                self._say(f"waiting for the gang: {situation}")
            if anyio.current_time() >= self._give_up:
                advice = f"raise {names.ENV_GANG_TIMEOUT} if its pods need longer to start."
                if situation == UNANSWERED:
                    advice = f"is preflight-gang running and watching this namespace (kubectl get pods -A -l {CONTROLLER})? If so, {advice}"
                raise Inconclusive(
                    "GANG_TIMEOUT",
                    f"the gang was not complete within {format_duration(self.settings.timeout)}: {situation}; {advice}",
                )
            await anyio.sleep(POLL)

    async def changed(self, roster: Roster) -> Roster:
        """Returns, with the newer answer, once ``roster`` (a sealed one) is no longer the answer
        for this pod.

        That is: it failed, a newer generation was sealed, or the controller waits again for a
        member that was replaced.
        """
        while True:
            try:
                now = self._read()
            except (
                Inconclusive
            ):  # for a gang that is complete, an answer it cannot read is no reason to stop
                now = None
            if now is not None and (now.answer != "sealed" or now.generation != roster.generation):
                return now
            await anyio.sleep(POLL)

    def _read(self) -> Roster | None:
        from ..roster import ContractError, read_roster  # checks without a gang need neither

        path = Path(self.settings.folder)
        try:
            return read_roster(path, self.settings.pod_uid)
        except ContractError as error:
            raise Inconclusive(
                "ROSTER_UNREADABLE", f"{path / names.ROSTER_FILE}: {error}."
            ) from None
        except OSError as error:
            raise Inconclusive(
                "ROSTER_UNREADABLE",
                f"{path / names.ROSTER_FILE}: cannot be read ({error.strerror}).",
            ) from None


def failed_peer(roster: Roster) -> Inconclusive:
    """What the answer ``fail`` means for this pod: somebody else's cause, and no verdict about this
    node.
    """
    return Inconclusive(
        "PEER_FAILED", _sentence(roster.reason or "another member failed; the cause was not given")
    )


def _situation(roster: Roster | None, joined: int, before: str) -> str:
    if roster is None:  # also for the moment in which the kubelet swaps the folder
        return before or UNANSWERED
    if roster.answer != "wait":
        return f"generation {roster.generation} was joined by this pod before it restarted; waiting for a newer one"
    return ", ".join(roster.missing) or "the gang controller does not say who is missing"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def read_generation(state: Path) -> int:
    """The generation that this pod joined last, 0 for none. Raises :class:`Inconclusive`
    ``STATE_UNUSABLE``.
    """
    path = state / GENERATION_FILE
    try:
        return int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError) as error:
        raise Inconclusive(
            "STATE_UNUSABLE", f"{path}: cannot be read as a number ({error}); remove it."
        ) from None


def write_generation(state: Path, generation: int) -> None:
    """Put ``generation`` on disk, whole or not at all. Raises :class:`Inconclusive`
    ``STATE_UNUSABLE``.
    """
    path, part = state / GENERATION_FILE, state / (GENERATION_FILE + ".part")
    try:
        with part.open("w", encoding="ascii") as file:
            file.write(f"{generation}\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise Inconclusive(
            "STATE_UNUSABLE",
            f"{path}: cannot be written ({error.strerror}); without it a restart could join an old gang; {names.ENV_STATE_DIR} must be a writable emptyDir.",
        ) from None
