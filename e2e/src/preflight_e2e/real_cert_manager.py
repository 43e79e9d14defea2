"""The real cert-manager without a cluster: its controller and what writes CA bundles, compiled from
their source at one commit.

`nox -s real-cert-manager -- --source cert-manager=CLONE` compiles once and keeps it by commit; then
`tests/test_real_cert_manager.py` runs it on a real API server. Its webhook, which only judges its
own objects, is left out, and the issuer Venafi.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .program import leave
from .sources import PinnedSource, checkout, compile_go, kept_at, rig

CERT_MANAGER: Final = PinnedSource(
    "cert-manager",
    "https://github.com/cert-manager/cert-manager",
    version="v1.21.1",
    commit="24e33194fb39488eff2bbf10c6dc640f407cad44",
    license="Apache-2.0",
    paths=("go.mod", "go.sum", "cmd", "internal", "pkg", "third_party", "test/unit", "deploy/crds"),
)
NAMES_VENAFI: Final = (
    "cmd/controller/app/start.go",
    "internal/apis/config/controller/v1alpha1/defaults.go",
)
PROGRAMS: Final = ("controller", "cainjector")


def build(given: Mapping[str, Path]) -> Path:
    """The folder with controller, cainjector and their definitions of kinds (`crds`); ``given``: a
    repository to take the source from. Raises RigError, SourceError.
    """
    kept = kept_at("real-cert-manager")
    out = kept / CERT_MANAGER.commit[:12]
    source = checkout(CERT_MANAGER, given.get("cert-manager"), kept / "sources")
    shutil.copytree(source / "deploy/crds", out / "crds", dirs_exist_ok=True)
    overlay = out / "overlay.json"
    overlay.write_text(json.dumps({"Replace": _without_venafi(source, out)}))
    for name in PROGRAMS:
        if not (out / name).exists():
            compile_go("cert-manager", source / "cmd" / name, out / name, f"-overlay={overlay}")
    return out


def _without_venafi(source: Path, out: Path) -> dict[str, str]:
    """By file, what stands for it without this issuer, whose module not every mirror has."""
    replaced = {}
    for name in NAMES_VENAFI:
        lines = (source / name).read_text().splitlines()
        kept = out / Path(name).name
        kept.write_text("\n".join(line for line in lines if "venafi" not in line))
        replaced[str(source / name)] = str(kept)
    return replaced


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; prints the folder, or exits 1 with one sentence."""
    return rig(argv, "real-cert-manager", __doc__, ["cert-manager"], build)


if __name__ == "__main__":
    leave(main)
