"""What a run of the simulation has played, in a file, so that one that was stopped goes on where it
was.

A gang is drawn from its world's name and its number, so parts of a world may be played whenever one
likes; but only by the same code. The file's first line says by which: a digest over the modules
that decide and that draw.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check_nccl_allreduce import localise

from . import faults, stages, tally
from .stages import StagedWorld
from .tally import Tally


@dataclass
class Kept:
    """Parts by world and numbers; ``file``: where new ones are written, one a line."""

    parts: dict[str, Tally] = field(default_factory=dict)
    file: Path | None = None

    @classmethod
    def open(cls, path: Path) -> Kept:
        """What ``path`` has, which is made where it is not there. Raises ValueError where other
        code has written it.
        """
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) != {"code": code()}:
            raise ValueError(f"{path}: was played by other code; remove it, or name another file.")
        # Whoever was killed in a line left half of it.
        whole = [line for line in lines[1:] if line.endswith("}")]
        parts = {part["part"]: _tally(part["tally"]) for part in map(json.loads, whole)}
        path.write_text("\n".join([json.dumps({"code": code()}), *whole, ""]))
        return cls(parts, path)

    def of(self, world: StagedWorld, numbers: range) -> Tally | None:
        """What was played of these numbers of the world, None: nothing."""
        return self.parts.get(_name(world, numbers))

    def add(self, world: StagedWorld, numbers: range, played: Tally) -> None:
        """Keep a part that has been played, unless it is kept."""
        name = _name(world, numbers)
        if name not in self.parts and self.file is not None:
            with self.file.open("a") as file:
                counts = {key: getattr(played, key) for key in Tally.__slots__}
                file.write(json.dumps({"part": name, "tally": counts}) + "\n")
        self.parts[name] = played


def code() -> str:
    """A digest of what decides the figures: localisation and the worlds."""
    files = [
        *sorted(Path(localise.__file__).parent.glob("*.py")),
        *(Path(str(m.__file__)) for m in (faults, stages, tally)),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _name(world: StagedWorld, numbers: range) -> str:
    return f"{world!r} {numbers.start}-{numbers.stop}"


def _tally(read: dict[str, Any]) -> Tally:
    tally = Tally(**read)
    tally.kinds = Counter(read["kinds"])
    return tally
