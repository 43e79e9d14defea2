"""The README's way to a first verdict: its files, its commands, and what each command says where
all is well.

    python -m preflight_e2e.first_verdict       # runs them on KUBECONFIG's fake nodes, timed

Substituted are the images, which a cluster of tests has not from a registry; the folder of the two
files; `.venv/bin/uv` by the same uv of this environment; and `helm`, where no such program is on
PATH, by its own engine (`helm_program`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .program import leave

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
IMAGES = {
    r"registry\.example/preflight/preflight-dcgm-diag:[\d.]+": "preflight-dcgm-diag:e2e",
    r"( +repository: )registry\.example/preflight/(preflight-\w+)": r"\1\2\n    tag: dev",
    # Any image with nvidia-smi, which NVIDIA's toolkit mounts elsewhere.
    r"ubuntu:24\.04": "preflight-dcgm-diag:e2e",
}
"""By the README's words, patterns, those of an image that the lab has brought to the nodes."""


PROMISED = 60
"""Seconds to the first verdict, on nodes that have the images."""
VERDICT = "kubectl -n training logs first "
"""How the command begins that shows it."""


class WalkError(Exception):
    """A command that did not do what the README says."""


@dataclass(frozen=True)
class WalkStep:
    """A command by its first words, what it prints (a pattern) where the node is healthy, and where
    its GPUs are not.
    """

    begins: str
    says: str
    sick: str = ""
    soon: bool = False
    """It says so after a moment: an API server's cache, or a controller, comes first."""


STEPS = (
    WalkStep("helm install preflight charts/preflight ", ""),
    WalkStep("kubectl -n preflight wait --for=condition=complete job ", "condition met"),
    WalkStep("kubectl create namespace training", "created"),
    WalkStep("kubectl label namespace training ", "labeled"),
    WalkStep(
        "kubectl -n training create -f pod.yaml --dry-run=server ",
        "^preflight-dcgm-diag$",
        soon=True,
    ),
    WalkStep("kubectl -n training create -f pod.yaml", "created"),
    WalkStep("kubectl -n training wait --for=condition=Initialized pod/first ", "condition met"),
    WalkStep(
        "kubectl -n training logs first -c preflight-dcgm-diag",
        "^dcgm-diag: passed OK: every GPU passed ",
        "^dcgm-diag: failed DCGM_FR_FAULTY_MEMORY: ",
    ),
    WalkStep(
        "kubectl -n training events --for pod/first",
        "PreflightPassed",
        "PreflightFailed",
        soon=True,
    ),
    WalkStep(
        ".venv/bin/uv run --package preflight-webhook preflight-webhook explain --live ",
        "^Pod first: injected already$",
    ),
    WalkStep("kubectl delete namespace training", "deleted"),
    WalkStep("helm uninstall preflight ", ""),
)


def section(readme: str) -> str:
    """The README's section "First verdict"."""
    text: str = readme.split("\n## First verdict\n")[1].split("\n## ", maxsplit=1)[0]
    return text


def commands(readme: str) -> list[str]:
    """Every line of the section's shell blocks, whatever their language is called; continued lines
    are one.
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section(readme), re.DOTALL | re.MULTILINE)
    every = [block for language, block in blocks if language != "yaml"]
    return [
        line for block in every for line in block.replace("\\\n", " ").splitlines() if line.strip()
    ]


def files(readme: str) -> dict[str, str]:
    """The section's files by name, which stands in their first line."""
    return dict(
        re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", section(readme), re.DOTALL | re.MULTILINE)
    )


def local(text: str) -> str:
    """``text`` with the images that the lab has. Raises ValueError where one is left that it has
    not.
    """
    for theirs, ours in IMAGES.items():
        text = re.sub(theirs, ours, text)
    if left := re.search(r"registry\.example\S*", text):
        raise ValueError(
            f"{left[0]}: the README names an image for which IMAGES has no substitute; add one."
        )
    return text


def step(command: str) -> WalkStep:
    """The one step that a command is. Raises ValueError for a command that nothing expects anything
    of.
    """
    matching = [candidate for candidate in STEPS if command.startswith(candidate.begins)]
    if not matching:
        raise ValueError(
            f"{command}: the README has a command that STEPS does not know; say there what it prints."
        )
    return max(matching, key=lambda candidate: len(candidate.begins))


class Shell:
    """Runs the README's commands with KUBECONFIG, in the checkout; ``folder`` takes the files."""

    def __init__(self, kubeconfig: Path, folder: Path, texts: Mapping[str, str]) -> None:
        self._places = {}
        for name, text in texts.items():
            self._places[name] = folder / name
            self._places[name].write_text(local(text))
        programs = folder / "bin"
        programs.mkdir()
        if shutil.which("helm") is None:
            helm = programs / "helm"
            helm.write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m preflight_e2e.helm_program "$@"\n'
            )
            helm.chmod(0o755)
        self._environ = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "UV_PROJECT_ENVIRONMENT": str(folder / "venv"),  # who develops here keeps his own
            "UV_FROZEN": "1",
        }

    def words(self, command: str) -> list[str]:
        """The command as it is run."""
        argv = [str(self._places.get(word, word)) for word in shlex.split(command)]
        if argv[0] == ".venv/bin/uv":
            argv[0] = str(Path(sys.executable).with_name("uv"))
        return argv

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """What it prints, and how it ends."""
        argv, environ = self.words(command), self._environ
        return subprocess.run(
            argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=240
        )

    def follow(self, command: str, *, sick: bool = False) -> None:
        """Run one line; what is said a moment later may be asked for again. Raises WalkError."""
        known = step(command)
        expected = (known.sick if sick else "") or known.says
        end = time.monotonic() + (60 if known.soon else 0)
        while True:
            done = self.run(command)
            print(f"$ {command}\n{done.stdout}{done.stderr}", flush=True)
            if done.returncode == 0 and re.search(expected, done.stdout, re.MULTILINE):
                return
            if time.monotonic() > end:
                raise WalkError(
                    f"{command}: ended with {done.returncode}, and what it printed does not match {expected!r}."
                )
            time.sleep(0.5)


def main() -> int:
    """Follow the README to the end; 1 where the verdict came later than promised, or never."""
    page = README.read_text()
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(os.environ["KUBECONFIG"]), Path(folder), files(page))
        started = time.monotonic()
        try:
            for command in commands(page):
                shell.follow(command)
                if command.startswith(VERDICT):
                    seconds = time.monotonic() - started
        except WalkError as error:
            print(f"first verdict: {error}", file=sys.stderr)
            return 1
    print(f"first verdict after {seconds:.1f} s; promised are {PROMISED} s")
    return int(seconds > PROMISED)


if __name__ == "__main__":
    leave(main)
