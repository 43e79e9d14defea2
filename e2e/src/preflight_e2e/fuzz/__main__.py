"""`python -m preflight_e2e.fuzz --seconds N`: known attacks one by one, then objects without end;
exit 1 where something did not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ASSETS, assets

from ..program import add_version, leave
from .objects import Maker
from .oddities import VECTORS
from .place import FuzzError, FuzzPlace, place
from .shots import Shot, ShotSender
from .watch import Watch, WatchLimits

FULL = 600.0
"""Seconds of the full form: in shorter ones, attacks by number are scaled down."""
LEAST = 15.0
"""Seconds of random objects, however long the known attacks took."""
SETTLE = 0.5
"""Seconds that are waited for what a known attack does, before it is the next one's turn."""
PARALLEL = {"long-names-at-dry-run", "many-variables", "many-claims"}
"""Attacks by several requests at once."""
KEPT = 100
"""Shots that are saved with a violation of random objects, the last ones first."""


class Fuzz:
    """Sends, counts, and saves what was sent when something did not hold."""

    def __init__(self, where: FuzzPlace, args: argparse.Namespace, seed: int) -> None:
        self.place, self._args, self._seed = where, args, seed
        self.client = ShotSender(where.server)
        self.sent, self.taken = Counter[str](), Counter[str]()
        self.violations: list[tuple[str, str, Path]] = []
        self._recent: deque[Shot] = deque(maxlen=KEPT)
        self._during, self._revived = "start", 0
        self._vector: list[Shot] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def violation(self, what: str) -> None:
        """Called by the watch, from its threads."""
        with self._lock:
            if any(
                when == self._during and violation.split(" ")[:2] == what.split(" ")[:2]
                for when, violation, _ in self.violations
            ):
                return  # the same again
            shots = self._vector or list(reversed(self._recent))
            path = self._args.save / f"violation-{len(self.violations) + 1}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            saved = {
                "what": what,
                "during": self._during,
                "seed": self._seed,
                "shots": [shot.saved() for shot in shots[:KEPT]],
            }
            path.write_text(json.dumps(saved, indent=1))
            self.violations.append((self._during, what, path))
        print(f"  VIOLATION during {self._during}: {what[:400]}", flush=True)
        if not self._args.keep_going:
            self._stop.set()

    def send(self, shot: Shot) -> None:
        self._recent.append(shot)
        code, _ = self.client.send(shot)
        self.sent[shot.what] += 1
        self.taken[shot.what] += 200 <= code < 300

    def attacks(self, names: Iterable[str], volume: float, watch: Watch) -> None:
        """Each known attack once, by a few hands as one tenant has them; what ended is started
        again without what was sent.
        """
        for name in names:
            if self._stop.is_set():
                return
            started, self._during, self._vector = time.monotonic(), name, []
            shots = VECTORS[name](volume)
            lock = threading.Lock()
            hands = [
                threading.Thread(target=self._hand, args=(shots, lock))
                for _ in range(4 if name in PARALLEL else 1)
            ]
            for hand in hands:
                hand.start()
            for hand in hands:
                hand.join()
            seconds = time.monotonic() - started
            self._stop.wait(SETTLE)
            if not any(program.exit_status() is not None for program in self.place.programs):
                watch.prove()
                watch.prove()  # the other kind of gang
            print(f"  {name}: {len(self._vector)} objects in {seconds:.1f} s", flush=True)
            self._revive(watch)
        self._vector = []

    def _hand(self, shots: Any, lock: threading.Lock) -> None:
        while not self._stop.is_set():
            with lock:
                shot = next(shots, None)
                if shot is None:
                    return
                self._vector.append(shot)
            self.send(shot)

    def objects(self, rate: float, end: float, watch: Watch) -> None:
        """Stories of a seed until ``end``, at most ``rate`` a second."""
        self._during, maker = "random objects", Maker(self._seed)
        began, count = time.monotonic(), 0
        while time.monotonic() < end and not self._stop.is_set():
            for shot in maker.story():
                self.send(shot)
            count += 1
            self._stop.wait(max(0.0, began + count / rate - time.monotonic()))
            if count % 50 == 0:
                self._revive(watch)

    def _revive(self, watch: Watch) -> None:
        """Where the run goes on after a violation: new processes, without what the old ones met."""
        if len(self.violations) == self._revived and all(
            p.exit_status() is None for p in self.place.programs
        ):
            return
        time.sleep(SETTLE)  # the watch has to see it
        watch.paused.set()
        self.place.wipe(self.client)
        for program in self.place.programs:
            program.stop()
            program.start()
        for program in self.place.programs:
            if not program.wait_ready():
                self.violation(f"{program.name} does not come back: {program.last_words()}")
                self._stop.set()
        self._revived = len(self.violations)
        watch.paused.clear()


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    if (folder := assets()) is None:
        print(
            f"fuzz: {ASSETS} is not set; set it to a folder with etcd and kube-apiserver.",
            file=sys.stderr,
        )
        return 2
    programs = []
    for name in (args.webhook, args.gang):
        if (path := shutil.which(name)) is None:
            print(
                f"fuzz: {name} is not a program here; run this with `nox -s fuzz`.", file=sys.stderr
            )
            return 2
        programs.append(path)
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}; --seed {seed} sends the same again", flush=True)
    limits = WatchLimits(victim=args.victim_seconds, ordinary=args.ordinary_seconds)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        try:
            where = stack.enter_context(
                place(home, folder, programs[0], programs[1], (args.webhook_mib, args.gang_mib))
            )
        except FuzzError as error:
            print(f"fuzz: {error}", file=sys.stderr)
            return 2
        fuzz = Fuzz(where, args, seed)
        with Watch(where, fuzz.client, limits, fuzz.violation) as watch:
            end = time.monotonic() + args.seconds
            chosen = args.only or list(VECTORS)
            watch.prove()  # it works before anything hostile is sent
            fuzz.attacks(
                [vector for vector in chosen if vector != "random"],
                min(1.0, args.seconds / FULL),
                watch,
            )
            if not args.only or "random" in args.only:
                fuzz.objects(args.rate, max(end, time.monotonic() + LEAST), watch)
                watch.prove()
        return report(fuzz, watch)


def report(fuzz: Fuzz, watch: Watch) -> int:
    """The table; 1 where something did not hold."""
    print(f"\n{'sent':24}{'objects':>9}{'taken':>9}")
    for what, count in sorted(fuzz.sent.items()):
        print(f"{what:24}{count:9}{fuzz.taken[what]:9}")
    print(f"\n{'property':40}{'worst':>10}{'limit':>10}{'seen':>8}")
    for row in watch.rows():
        verdict = "" if row.held else "  VIOLATED"
        print(
            f"{row.name:40}{row.worst:10.2f}{row.limit:10g}{len(row.seen):8}  {row.unit}{verdict}"
        )
    for during, what, path in fuzz.violations:
        print(f"\nduring {during}: {what[:300]}\n  what was sent: {path}")
    bad = bool(fuzz.violations) or not all(row.held for row in watch.rows())
    empty = not watch.victims.seen or not watch.pods.seen
    if empty:
        print("\nfuzz: no victim was answered at all: nothing is proven.")
    print(f"\nfuzz: {'something did not hold' if bad else 'everything held'}", flush=True)
    return 1 if bad or empty else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fuzz",
        description="Hostile objects through a real API server into the running programs.",
    )
    add_version(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=FULL,
        help="how long (%(default)g; the gate's short form is 60)",
    )
    parser.add_argument(
        "--seed", type=int, help="of the random objects; the one of a run is printed"
    )
    parser.add_argument(
        "--webhook",
        default="preflight-webhook",
        metavar="PROGRAM",
        help="the webhook to attack (%(default)s)",
    )
    parser.add_argument(
        "--gang",
        default="preflight-gang",
        metavar="PROGRAM",
        help="the gang controller to attack (%(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[*VECTORS, "random"],
        metavar="ATTACK",
        help="only this (repeat for more): %(choices)s",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="after a violation, start what ended anew and go on",
    )
    parser.add_argument(
        "--save",
        type=Path,
        default=Path("fuzz"),
        metavar="FOLDER",
        help="where objects are saved (%(default)s)",
    )
    parser.add_argument(
        "--rate", type=float, default=15.0, help="random objects a second (%(default)g)"
    )
    parser.add_argument(
        "--victim-seconds",
        type=float,
        default=2.0,
        help="until a complete gang must be sealed (%(default)g)",
    )
    parser.add_argument(
        "--ordinary-seconds",
        type=float,
        default=1.0,
        help="until an ordinary pod must be admitted (%(default)g)",
    )
    parser.add_argument(
        "--webhook-mib", type=float, default=128.0, help="memory of the webhook (%(default)g)"
    )
    parser.add_argument(
        "--gang-mib", type=float, default=256.0, help="memory of a controller (%(default)g)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    leave(main)
