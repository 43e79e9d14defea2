"""Where scenarios run: ``existing`` (the cluster of KUBECONFIG) and ``kind`` (made for the run);
the demo makes its own, ``simulated``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from . import existing, kind


class Cluster(Protocol):
    """A cluster with an admin's kubeconfig, and a way to bring an image archive to its nodes."""

    @property
    def kubeconfig(self) -> Path: ...

    def load(self, archive: Path) -> None: ...


class ClusterError(Exception):
    """There is no usable cluster. The message is one sentence."""


@contextmanager
def cluster(name: str, load_command: str | None) -> Iterator[Cluster]:
    """The cluster ``name``; what was made for the run is removed after it. Raises
    :class:`ClusterError`.
    """
    try:
        if name == "existing":
            yield existing.Existing.from_environment(load_command)
        else:
            with kind.created() as created:
                yield created
    except (existing.ClusterUnusable, kind.KindUnusable) as error:
        raise ClusterError(str(error)) from None
