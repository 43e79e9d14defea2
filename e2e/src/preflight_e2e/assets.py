"""A real API server for tests: etcd and kube-apiserver of both Kubernetes versions, and what else
runs beside them; and, by name, tools that tests and a rehearsed release run.

    python -m preflight_e2e.assets                      # prints the variables that tests find it by
    python -m preflight_e2e.assets promtool crane helm kueue

Programs come from the folders that ``KUBEBUILDER_ASSETS`` and its sibling name, where they do, else
from the cache (``preflight/control-plane`` in ``XDG_CACHE_HOME`` or ``~/.cache``), else from Go
modules, whose versions and checksums are pinned in ``e2e/control-plane``. Tools are those on PATH,
else they come likewise, by the pins in ``e2e/tools``.
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

PINS: Final = Path(__file__).parents[2] / "control-plane"
TOOL_PINS: Final = Path(__file__).parents[2] / "tools"
TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "crane": (),
    "helm": (),
    "kueue": (),
    "promtool": ("-tags", "remove_all_sd"),  # of what it can discover, nothing: half as much code
}
"""By name, how each is compiled besides."""
BESIDE: Final[Mapping[str, str]] = {"kueue": "config"}
"""By name, the folder of its module that is kept beside the program."""
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


def bring_tool(name: str, environ: Mapping[str, str], *, pins: Path = TOOL_PINS) -> Path:
    """The program, compiled where there is none yet. Raises :class:`AssetsError`."""
    if there := shutil.which(name, path=environ.get("PATH")):
        return Path(there)
    module = (pins / name / "go.mod").read_text()
    [package] = [line.split()[1] for line in module.splitlines() if line.startswith("tool ")]
    [version] = {
        line.split()[-1]
        for line in module.replace(" // indirect", "").splitlines()
        if line.startswith("\t") and f"{package}/".startswith(f"{line.split()[0]}/")
    }
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "preflight/tools" / version / name
    if not os.access(program, os.X_OK):
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as out:
            words = [*TOOLS[name], "-ldflags", "-s -w", package]
            go = _go(f"{program}: {name}")
            _build(go, pins / name, f"{out}/{name}", words)
            if folder := BESIDE.get(name):
                asked = [go, "list", "-f", "{{.Module.Dir}}", package]
                environ = {**os.environ, "GOFLAGS": "", "GOWORK": "off"}
                source = subprocess.check_output(asked, cwd=pins / name, env=environ, text=True)
                beside = program.parent / folder
                shutil.rmtree(beside, ignore_errors=True)  # of a run that was ended
                shutil.copytree(Path(source.strip(), folder), beside, copy_function=shutil.copyfile)
                for path in (beside, *beside.rglob("*/")):  # Go keeps modules read-only
                    path.chmod(0o755)
            Path(out, name).replace(program)
    return program


def _go(what: str) -> str:
    if (go := shutil.which("go")) is None:
        raise AssetsError(
            f"{what} would be compiled from Go modules, and there is no go; install Go 1.26 or newer, "
            "or set KUBEBUILDER_ASSETS to a folder that has an API server, such as setup-envtest makes, or PATH to one with a tool."
        )
    return go


def _missing(folder: Path, programs: Sequence[str]) -> list[str]:
    return [name for name in programs if not os.access(folder / name, os.X_OK)]


def _compile(version: str, programs: Sequence[str], folder: Path, pins: Path) -> None:
    go = _go(f"{folder}: {', '.join(programs)} of Kubernetes {version}")
    folder.mkdir(parents=True, exist_ok=True)
    print(
        f"compiling {', '.join(programs)} of Kubernetes {version}: minutes, once", file=sys.stderr
    )
    major, minor, _ = version.removeprefix("v").split(".")
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [f"-X {_VERSION}.{name}={value}" for name, value in stamped.items()]
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in programs if name != "etcd"]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if packages:
            flags = " ".join(["-s -w", *stamps])
            _build(go, pins / version, f"{scratch}/", ["-ldflags", flags, *packages])
        if "etcd" in programs:
            _build(go, pins / "etcd", f"{scratch}/etcd", ["-ldflags", "-s -w", ETCD])
        for name in programs:
            Path(scratch, name).replace(folder / name)


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
    """Bring the tools that are named, or an API server, and print the variables that tests find
    them by."""
    if unknown := sorted(set(names := sys.argv[1:]) - set(TOOLS)):
        sys.exit(
            f"assets: {', '.join(unknown)}: no tool of that name; there are {', '.join(TOOLS)}."
        )
    try:
        if names:
            paths = {f"PREFLIGHT_{name.upper()}": bring_tool(name, os.environ) for name in names}
        else:
            paths = {plane.variable: bring(plane, os.environ) for plane in CONTROL_PLANES}
    except AssetsError as error:
        sys.exit(f"assets: {error}")
    for variable, folder in paths.items():
        print(f"export {variable}={folder}")


if __name__ == "__main__":
    main()
