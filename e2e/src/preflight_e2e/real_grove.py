"""The real Grove without a cluster: its operator, compiled from its source at one commit.

`nox -s real-grove -- --source grove=CLONE` compiles once and keeps it by commit; then
preflight-mnnvl's own tests run it on a real API server (its `tests/test_real_grove.py`).

Left out are the operator's backends of two schedulers, whose modules nothing here needs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .program import leave
from .sources import PinnedSource, RigError, SourceError, checkout

COMMIT: Final = "fcc3b3bbbc5e6a2a797cd080bdbc6983b1ccec24"
GROVE: Final = PinnedSource(
    "grove",
    "https://github.com/ai-dynamo/grove",
    version=COMMIT,
    commit=COMMIT,
    license="Apache-2.0",
    paths=("operator", "scheduler/api"),
)
"""Of 19 August 2026, a month after v0.1.0-alpha.12-rc1."""
LEFT_OUT: Final = {
    "kai": ("SchedulerNameKai", "github.com/kai-scheduler/KAI-scheduler"),
    "volcano": ("SchedulerNameVolcano", "volcano.sh/apis"),
}
"""Package of a backend → its case in the registry, and the module that it alone needs."""
KEPT = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "preflight/real-grove"


def build(given: Path | None, kept: Path = KEPT) -> Path:
    """The folder with grove-operator and its definitions of kinds (`crds`); ``given``: a repository
    to take the source from. Raises RigError, SourceError.
    """
    out = kept / COMMIT[:12]
    if (out / "grove-operator").exists():
        return out
    if shutil.which("go") is None:
        raise RigError("Grove cannot be compiled here: there is no go; install Go 1.26 or newer.")
    source = checkout(GROVE, given, kept / "sources")
    shutil.copytree(source / "operator/api/core/v1alpha1/crds", out / "crds", dirs_exist_ok=True)
    shutil.copytree(source / "scheduler/api/core/v1alpha1/crds", out / "crds", dirs_exist_ok=True)
    operator = source / "operator"
    registry = operator / "internal/scheduler/registry/registry.go"
    (out / "registry.go").write_text(without_backends(registry.read_text()))
    replaced = {"Replace": {str(registry): str(out / "registry.go")}}
    (out / "overlay.json").write_text(json.dumps(replaced))
    for name in ("go.mod", "go.sum"):
        shutil.copy(operator / name, out / name)
    dropped = [f"-droprequire={module}" for _, module in LEFT_OUT.values()]
    options = [f"-modfile={out}/go.mod", f"-overlay={out}/overlay.json", "-trimpath"]
    static = {**os.environ, "CGO_ENABLED": "0"}
    with (out / "build.log").open("w") as log:
        for step in (
            ["mod", "edit", *dropped, str(out / "go.mod")],
            ["build", "-p", "1", *options, "-o", str(out / "grove-operator"), "./cmd"],
        ):
            words = ["nice", "-n", "19", "go", *step]
            ran = subprocess.run(
                words, cwd=operator, env=static, stdout=log, stderr=log, check=False
            )
            if ran.returncode != 0:
                raise RigError(
                    f"Grove {COMMIT[:12]} does not compile here; the first error is in {log.name}."
                )
    return out


def without_backends(registry: str) -> str:
    """The operator's registry of schedulers without those that are left out. Raises RigError where
    it is not written as it was.
    """
    for package, (case, _) in LEFT_OUT.items():
        for pattern in (rf'.*/scheduler/{package}"\n', rf"\tcase .*\.{case}:\n.*\n"):
            registry, count = re.subn(pattern, "", registry)
            if count != 1:
                raise RigError(f"Grove's registry of schedulers names {package} in another way.")
    return registry


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; prints the folder, or exits 1 with one sentence."""
    parser = argparse.ArgumentParser(prog="nox -s real-grove --", description=__doc__)
    parser.add_argument(
        "--source",
        metavar="grove=REPOSITORY",
        default="",
        help="a clone of Grove on this machine, instead of the public one",
    )
    name, _, where = parser.parse_args(argv).source.partition("=")
    if name not in {"", "grove"} or bool(name) != bool(where):
        parser.error("--source: not grove=REPOSITORY.")
    try:
        print(build(Path(where).resolve() if where else None))
    except (RigError, SourceError) as error:
        print(f"real-grove: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    leave(main)
