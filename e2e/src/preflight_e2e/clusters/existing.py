"""The cluster of KUBECONFIG."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path


class ClusterUnusable(Exception):
    """One sentence."""


@dataclass(frozen=True)
class Existing:
    """``load_command`` brings one archive to all nodes; ``{archive}`` in it stands for the file."""

    kubeconfig: Path
    load_command: str | None

    @classmethod
    def from_environment(cls, load_command: str | None) -> Existing:
        path = os.environ.get("KUBECONFIG", "")
        if not path or not Path(path).is_file():
            raise ClusterUnusable(
                f'KUBECONFIG: "{path}" is not a file; set it to the kubeconfig of the cluster to test on.'
            )
        if load_command is not None and "{archive}" not in load_command:
            raise ClusterUnusable(
                f'--load-images: "{load_command}" does not say {{archive}}; write e.g. "load-image {{archive}}".'
            )
        return cls(Path(path), load_command)

    def load(self, archive: Path) -> None:
        if self.load_command is None:
            return  # the images are on the nodes already, or come from a registry
        argv = [word.replace("{archive}", str(archive)) for word in shlex.split(self.load_command)]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            last_line = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["nothing"]
            raise ClusterUnusable(
                f"--load-images: {argv[0]} ended with status {done.returncode} on {archive.name} ({last_line[0]})."
            )
