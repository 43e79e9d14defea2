"""When something was seen in the cluster: objects as a watch tells them, each with its moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client, watch
from urllib3.exceptions import HTTPError

from .installed_release import until


@dataclass(frozen=True)
class Moment:
    """``at``: seconds of the monotonic clock; ``kind``: ADDED, MODIFIED or DELETED."""

    at: float
    kind: str
    item: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.item["metadata"]["name"])


@dataclass
class Watched:
    """A context: what happens to a collection from its beginning on. ``lists``: a function of the
    kubernetes client; ``given``: its arguments.
    """

    lists: Callable[..., Any]
    given: tuple[Any, ...]
    seen: list[Moment] = field(default_factory=list)

    def __enter__(self) -> Watched:
        page = self.lists(*self.given, limit=1)
        about = page["metadata"] if isinstance(page, dict) else page.metadata.to_dict()
        self._version = about.get("resourceVersion") or about["resource_version"]
        watch_class: Any = watch.Watch
        self._watch = watch_class()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()

    def first(self, fits: Callable[[Moment], bool], what: str) -> Moment:
        """The first that fits, waited for."""
        until(lambda: any(fits(event) for event in list(self.seen)), what)
        return next(event for event in self.seen if fits(event))

    def _follow(self) -> None:
        try:
            for event in self._watch.stream(
                self.lists, *self.given, resource_version=self._version, timeout_seconds=280
            ):
                self.seen.append(Moment(time.monotonic(), event["type"], event["raw_object"]))
        except (client.ApiException, HTTPError):
            pass  # whoever waits says what it waited for
