"""A kind cluster, made for one run and removed after it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONFIG = """kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes: [{role: control-plane}, {role: worker}, {role: worker}]
"""


class KindUnusable(Exception):
    """One sentence."""


@dataclass(frozen=True)
class KindCluster:
    name: str
    kubeconfig: Path

    def load(self, archive: Path) -> None:
        _kind("load", "image-archive", str(archive), "--name", self.name)


@contextmanager
def created() -> Iterator[KindCluster]:
    """A cluster with two workers. Raises :class:`KindUnusable` where kind or a container engine is
    missing.
    """
    if shutil.which("kind") is None:
        raise KindUnusable(
            "kind is not installed; install it, or use --cluster existing with the KUBECONFIG of a cluster."
        )
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig, config = Path(folder) / "kubeconfig", Path(folder) / "kind.yaml"
        config.write_text(CONFIG)
        name = f"preflight-{uuid.uuid4().hex[:6]}"
        try:
            _kind(
                "create",
                "cluster",
                "--name",
                name,
                "--kubeconfig",
                str(kubeconfig),
                "--config",
                str(config),
                "--wait",
                "180s",
            )
            yield KindCluster(name, kubeconfig)
        finally:
            subprocess.run(
                ["kind", "delete", "cluster", "--name", name], check=False, capture_output=True
            )


def _kind(*words: str) -> None:
    done = subprocess.run(["kind", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        last_line = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise KindUnusable(
            f"kind {words[0]} {words[1]} ended with status {done.returncode} ({last_line[0]}); does a container engine run here?"
        )
