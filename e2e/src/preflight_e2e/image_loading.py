"""Images on their way to the nodes while the first rows run already: the largest takes most of a
minute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from .images import BuiltImage

Build = Callable[[], BuiltImage]


class Images:
    """By reference, what is built and loaded, in the order in which it arrives."""

    def __init__(self, coming: Mapping[str, Future[None]]) -> None:
        self._coming = coming

    def before(self, values: Mapping[str, Any]) -> list[str]:
        """What has to be there before ``values`` are installed: whatever comes no later than an
        image that they name.
        """
        text = json.dumps(values, default=str)
        references = list(self._coming)
        named = [
            number for number, reference in enumerate(references, 1) if f'"{reference}"' in text
        ]
        return references[: max(named, default=0)]

    def wait(self, references: Iterable[str]) -> None:
        """Return once ``references`` are on the nodes. Raises what building or loading raised."""
        for reference in references:
            self._coming[reference].result()

    def wait_for_all(self) -> None:
        """Return once everything is on the nodes. Raises what building or loading raised."""
        self.wait(self._coming)


@contextmanager
def loading(builds: Mapping[str, Build], load: Callable[[BuiltImage], None]) -> Iterator[Images]:
    """Build in the order of ``builds``, one after the other, and load in the same order, the next
    one being built meanwhile; what has not begun at the end is left.
    """

    def bring(built: Future[BuiltImage]) -> None:
        load(built.result())

    with ThreadPoolExecutor(1) as builders, ThreadPoolExecutor(1) as loaders:
        pending = {reference: builders.submit(build) for reference, build in builds.items()}
        try:
            yield Images(
                {reference: loaders.submit(bring, future) for reference, future in pending.items()}
            )
        finally:
            loaders.shutdown(wait=False, cancel_futures=True)
            builders.shutdown(wait=True, cancel_futures=True)
