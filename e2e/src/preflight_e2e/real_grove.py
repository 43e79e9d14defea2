"""The real Grove without a cluster: its operator, compiled from its source at one commit.

`nox -s real-grove -- --source grove=CLONE` compiles once and keeps it by commit; then
preflight-mnnvl's own tests run it on a real API server (its `tests/test_real_grove.py`).

Left out are the operator's backends of two schedulers, whose modules nothing here needs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .program import leave
from .sources import PinnedSource, RigError, checkout, compile_go, kept_at, rig

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


def build(given: Mapping[str, Path]) -> Path:
    """The folder with grove-operator and its definitions of kinds (`crds`); ``given``: a repository
    to take the source from. Raises RigError, SourceError.
    """
    kept = kept_at("real-grove")
    out = kept / COMMIT[:12]
    if (out / "grove-operator").exists():
        return out
    source = checkout(GROVE, given.get("grove"), kept / "sources")
    shutil.copytree(source / "operator/api/core/v1alpha1/crds", out / "crds", dirs_exist_ok=True)
    shutil.copytree(source / "scheduler/api/core/v1alpha1/crds", out / "crds", dirs_exist_ok=True)
    operator = source / "operator"
    registry = operator / "internal/scheduler/registry/registry.go"
    (out / "registry.go").write_text(without_backends(registry.read_text()))
    replaced = {"Replace": {str(registry): str(out / "registry.go")}}
    (out / "overlay.json").write_text(json.dumps(replaced))
    shutil.copy(operator / "go.sum", out / "go.sum")
    left_out = "|".join(re.escape(module) for _, module in LEFT_OUT.values())
    required = (operator / "go.mod").read_text()
    (out / "go.mod").write_text(re.sub(rf"(?m)^\s({left_out}) v.*\n", "", required))
    options = [f"-modfile={out}/go.mod", f"-overlay={out}/overlay.json"]
    compile_go("Grove", operator / "cmd", out / "grove-operator", *options)
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
    return rig(argv, "real-grove", __doc__, ["grove"], build)


if __name__ == "__main__":
    leave(main)
