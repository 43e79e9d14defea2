"""Where a real API server for tests comes from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from preflight_e2e.assets import (
    BESIDE,
    CONTROL_PLANES,
    PINS,
    TOOLS,
    AssetsError,
    ControlPlane,
    bring,
    bring_tool,
)

NEW, OLD = CONTROL_PLANES
GO = f"""#!{sys.executable}
import os, sys
from pathlib import Path
words = sys.argv[1:]
if words[0] == "list":
    module = Path(os.environ["CALLS"]).with_name("module")
    (module / "config").mkdir(parents=True, exist_ok=True)
    print(module)
    sys.exit()
with open(os.environ["CALLS"], "a") as calls:
    print(Path.cwd().name, *words, file=calls)
if os.environ.get("BREAKS"):
    sys.exit(1)
out = words[words.index("-o") + 1]
for package in words[words.index("-ldflags") + 2:]:
    made = Path(out, package.rpartition("/")[2]) if out.endswith("/") else Path(out)
    made.touch(0o755)
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for go was asked to do, one call a line."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/go").write_text(GO)
    (tmp_path / "bin/go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


def test_what_is_not_there_is_compiled_once_and_kept_outside_of_the_checkout(
    tmp_path: Path, calls: Path
) -> None:
    for _ in range(2):
        folder = bring(NEW, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
        assert folder == tmp_path / "cache/preflight/control-plane/v1.36.3"
        assert {path.name for path in folder.iterdir()} == {*NEW.programs, *NEW.besides}
    kubernetes, etcd = calls.read_text().splitlines()
    assert kubernetes.startswith("v1.36.3 build -mod=readonly")
    assert "gitVersion=v1.36.3" in kubernetes
    assert kubernetes.endswith(
        "cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes/cmd/kube-scheduler"
    )
    assert etcd.startswith("etcd build")
    (folder / "kube-scheduler").unlink()
    bring(NEW, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert calls.read_text().splitlines()[2:] == [
        line for line in calls.read_text().splitlines()[2:] if line.endswith("cmd/kube-scheduler")
    ]


@pytest.mark.usefixtures("calls")
def test_a_compilation_that_fails_leaves_nothing_and_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKS", "1")
    with pytest.raises(AssetsError, match=r"go build ended with 1.*modules need the network"):
        bring(OLD, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert not any((tmp_path / "cache/preflight/control-plane/v1.35.4").iterdir())


def test_without_go_the_error_says_what_else_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssetsError, match=r"there is no go; install Go 1\.26.*setup-envtest"):
        bring(OLD, {"XDG_CACHE_HOME": str(tmp_path)})


def test_a_folder_that_is_named_is_taken_and_one_that_lacks_programs_is_refused(
    tmp_path: Path, calls: Path
) -> None:
    environ = {NEW.variable: str(tmp_path)}
    with pytest.raises(AssetsError, match=r"has no etcd and no kube-apiserver; name a folder"):
        bring(NEW, environ)
    for name in NEW.programs:
        (tmp_path / name).touch(0o755)
    assert bring(NEW, environ) == tmp_path
    assert calls.read_text() == ""


@pytest.mark.parametrize("plane", CONTROL_PLANES, ids=lambda plane: plane.version)
def test_every_module_is_pinned_with_its_checksum(plane: ControlPlane) -> None:
    module = (PINS / plane.version / "go.mod").read_text()
    assert f"k8s.io/kubernetes {plane.version}" in module
    assert f"k8s.io/kubernetes {plane.version} h1:" in (PINS / plane.version / "go.sum").read_text()


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_compiled_once_by_the_version_that_is_pinned_unless_path_has_it(
    name: str, tmp_path: Path, calls: Path
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    made = [bring_tool(name, environ) for _ in range(2)][1]
    assert all((made.parent / folder).is_dir() for folder in [BESIDE.get(name)] if folder)
    assert (made.parent.parent, made.name) == (tmp_path / "cache/preflight/tools", name)
    [built] = calls.read_text().splitlines()
    assert built.startswith(f"{name} build -mod=readonly")
    assert f"{made.parent.name} h1:" in (PINS.parent / f"tools/{name}/go.sum").read_text()
    there = tmp_path / "there"
    there.mkdir()
    (there / name).touch(0o755)
    assert bring_tool(name, {**environ, "PATH": str(there)}) == there / name
