"""The roster: the gang controller's answer to one pod.

It travels as the pod annotation ``preflight.nvsentinel.nvidia.com/roster`` and reaches the check as
one file of a projected volume. The annotation alone decides; the ADR's ConfigMap beside it is for
people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from ._versioned import ContractError, decode
from .names import ROSTER_FILE as FILE

__all__ = ["FILE", "ContractError"]

VERSION: Final = 1

Answer = Literal["wait", "sealed", "skip", "fail"]


class Roster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer for one pod at one moment.

    ``pod_uid``: whom it is for; a roster for another uid is ignored. ``generation``: of the gang,
    rises with each sealing. ``epoch``: the leadership (leaseTransitions) that wrote it. ``answer``:
    ``wait`` with ``missing`` (who, and why), ``sealed`` with everything below, ``skip`` or ``fail``
    with ``reason``.

    When sealed: ``rank`` of this pod in 0…``nnodes``-1, ``master_addr`` and ``master_port`` for the
    rendezvous, ``control_port`` for the parents' channel, ``token`` that authenticates it.
    ``successors``: (rank, address) of those who lead in rank 0's place when it is lost, in this
    order; none where nobody does.
    """

    v: int
    pod_uid: str
    generation: int
    epoch: int
    answer: Answer
    missing: tuple[str, ...] = ()
    reason: str = ""
    rank: int | None = None
    nnodes: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    control_port: int | None = None
    token: str | None = None
    successors: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        sealed = (
            self.rank,
            self.nnodes,
            self.master_addr,
            self.master_port,
            self.control_port,
            self.token,
        )
        if self.answer == "sealed":
            if any(value is None for value in sealed):
                raise ValueError(
                    "a sealed roster needs rank, nnodes, master_addr, master_port, control_port and token"
                )
            if not 0 <= (self.rank or 0) < (self.nnodes or 0):
                raise ValueError(f"rank {self.rank} is not in 0…{(self.nnodes or 0) - 1}")
            if not all(0 < rank < (self.nnodes or 0) for rank, _ in self.successors):
                raise ValueError(f"successors are of ranks 1…{(self.nnodes or 0) - 1}")


def encode_roster(roster: Roster) -> str:
    """The annotation's value."""
    return msgspec.json.encode(roster).decode()


def decode_roster(data: bytes | str) -> Roster:
    """Read a roster. Raises :class:`ContractError` on anything unreadable or of a
    higher version.
    """
    return decode("roster", VERSION, Roster, data)


def read_roster(folder: Path, pod_uid: str) -> Roster | None:
    """The roster of this pod, or None while there is none.

    One file, read once: the kubelet swaps the whole folder, and two reads could see two rosters.
    None for a file that is absent or empty (an annotation that is not set yet) or that speaks to
    another pod's uid. Raises :class:`ContractError`.
    """
    try:
        data = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return None
    if not data.strip():
        return None
    roster = decode_roster(data)
    return roster if roster.pod_uid == pod_uid else None
