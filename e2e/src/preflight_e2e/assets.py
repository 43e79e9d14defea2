"""A real API server for tests: etcd and kube-apiserver of both Kubernetes versions, and what else
runs beside them.

Programs come from the folders that ``KUBEBUILDER_ASSETS`` and its sibling name, where they do, else
from the cache (``preflight/control-plane`` in ``XDG_CACHE_HOME`` or ``~/.cache``), else from Go
modules, whose versions and checksums are pinned in ``e2e/control-plane``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["CONTROL_PLANES", "AssetsError", "ControlPlane", "bring"]

PINS: Final = Path(__file__).parents[2] / "control-plane"
ETCD: Final = "go.etcd.io/etcd/server/v3"
_VERSION: Final = "k8s.io/component-base/version"


class AssetsError(Exception):
    """Why there is no real API server, and what to do."""


@dataclass(frozen=True)
class ControlPlane:
    """Programs of one Kubernetes version, and the variable by which tests find their folder.

    ``besides``: for tests that also want controllers or a scheduler; a folder that the variable
    names need not have them.
    """

    variable: str
    version: str
    programs: tuple[str, ...]
    besides: tuple[str, ...] = ()


CONTROL_PLANES: Final = (
    ControlPlane(
        "KUBEBUILDER_ASSETS",
        "v1.36.3",
        ("etcd", "kube-apiserver"),
        ("kube-controller-manager", "kube-scheduler"),
    ),
    ControlPlane("PREFLIGHT_KUBEBUILDER_ASSETS_135", "v1.35.4", ("kube-apiserver",)),
)


def bring(plane: ControlPlane, environ: Mapping[str, str], *, pins: Path = PINS) -> Path:
    """The folder with the programs of one version, compiled where they are not there yet.

    Raises :class:`AssetsError`.
    """
    if named := environ.get(plane.variable):
        if missing := _missing(Path(named), plane.programs):
            raise AssetsError(
                f"{plane.variable}: {named} has no {' and no '.join(missing)}; "
                "name a folder that has, or unset it to have them compiled."
            )
        return Path(named)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "preflight/control-plane" / plane.version
    if missing := _missing(folder, plane.programs + plane.besides):
        _compile(plane.version, missing, folder, pins)
    return folder


def _missing(folder: Path, programs: Sequence[str]) -> list[str]:
    return [name for name in programs if not os.access(folder / name, os.X_OK)]


def _compile(version: str, programs: Sequence[str], folder: Path, pins: Path) -> None:
    if (go := shutil.which("go")) is None:
        raise AssetsError(
            f"{folder}: {', '.join(programs)} of Kubernetes {version} would be compiled from Go modules, and there is no go; "
            "install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a folder that has them, such as setup-envtest makes."
        )
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"compiling {', '.join(programs)} of Kubernetes {version}: minutes, once", file=sys.stderr
    )
    major, minor, _ = version.removeprefix("v").split(".")
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [f"-X {_VERSION}.{name}={value}" for name, value in stamped.items()]
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in programs if name != "etcd"]
    with tempfile.TemporaryDirectory(dir=folder) as made:
        if packages:
            flags = " ".join(["-s -w", *stamps])
            _build(go, pins / version, f"{made}/", ["-ldflags", flags, *packages])
        if "etcd" in programs:
            _build(go, pins / "etcd", f"{made}/etcd", ["-ldflags", "-s -w", ETCD])
        for name in programs:
            Path(made, name).replace(folder / name)


def _build(go: str, module: Path, out: str, words: list[str]) -> None:
    """Compile packages of a module that pins them, to a file, or to a folder (``out/``)."""
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", out, *words],
        cwd=module,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        check=False,
    )
    if done.returncode:
        raise AssetsError(
            f"{module}: go build ended with {done.returncode}, for the reason that it gives above; "
            "modules need the network, GOPROXY or Go's cache, and some gigabytes of room."
        )


def main() -> None:
    """Bring all, and print the variables that tests find them by."""
    try:
        folders = {plane.variable: bring(plane, os.environ) for plane in CONTROL_PLANES}
    except AssetsError as error:
        sys.exit(f"assets: {error}")
    for variable, folder in folders.items():
        print(f"export {variable}={folder}")


if __name__ == "__main__":
    main()
