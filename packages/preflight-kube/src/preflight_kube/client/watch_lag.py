"""How well what is mirrored follows the cluster: which mirror is behind since when, and what could
not be read.

Shared by all that one process mirrors. A thread of its own may look at it at any time.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from preflight_kube.client.decoding import Unreadable
from preflight_kube.logs import get_logger

_MOST_NAMED: Final = 10_000
"""Objects that are remembered as named in the log; beyond, they are counted only."""
_NAMESPACED: Final = re.compile(r"/namespaces/[^/]+/(?=[^/])")

log = get_logger(__name__)


def collection(path: str) -> str:
    """``path`` without the namespace in it: as a label's value it must come from a closed set."""
    return _NAMESPACED.sub("/", path)


class Mirrors:
    """``unreadable`` counts by collection; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.unreadable: Counter[str] = Counter()
        self._clock = clock
        self._behind: dict[object, tuple[str, float | None, str]] = {}
        self._named: set[tuple[str, str, str]] = set()

    def follows(self, mirror: object, path: str) -> None:
        """It is level with the cluster."""
        self._behind[mirror] = (collection(path), None, "")

    def falls_behind(self, mirror: object, path: str, why: str) -> None:
        """It is not, from the first time on that this is said."""
        _, since, _ = self._behind.get(mirror, ("", None, ""))
        self._behind[mirror] = (collection(path), self._clock() if since is None else since, why)

    def ends(self, mirror: object) -> None:
        """Nobody keeps it any more."""
        self._behind.pop(mirror, None)

    def behind(self) -> dict[str, float]:
        """Each collection that is mirrored: for how many seconds a mirror of it has been behind, 0
        where none is.
        """
        lags: dict[str, float] = {}
        now = self._clock()
        for path, since, _ in list(self._behind.values()):
            lags[path] = max(lags.get(path, 0.0), 0.0 if since is None else max(now - since, 1e-9))
        return lags

    def trouble(self, seconds: float) -> str:
        """Which mirrors have been behind for so long, and why; empty when none has."""
        now = self._clock()
        late = [
            f"{path} has been behind the cluster for {now - since:.0f} s ({why})"
            for path, since, why in list(self._behind.values())
            if since is not None and now - since >= seconds
        ]
        return "; ".join(sorted(late))

    def cannot_read(self, path: str, unreadable: Unreadable) -> None:
        """Count it, and name it in the log the first time."""
        where, about = collection(path), unreadable.metadata
        self.unreadable[where] += 1
        key = (where, f"{about.namespace}/{about.name}", about.uid)
        if key in self._named or len(self._named) >= _MOST_NAMED:
            return
        self._named.add(key)
        log.warning(
            "an object cannot be read and is passed over",
            path=where,
            object=key[1],
            uid=about.uid,
            error=unreadable.why,
        )
