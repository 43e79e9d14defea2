"""Builds every component's image with docker, podman or buildah, whichever works here.

    python -m preflight_e2e.images                      # build all, print what came out
    python -m preflight_e2e.images --e2e --output out/  # with the fakes on top of the checks; archives to out/

An archive whose inputs have not changed is not built again: archives are kept by the hash of their inputs in
``~/.cache/preflight/images`` (``XDG_CACHE_HOME`` moves it).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BASE = "python:3.11-slim-bookworm"
"""What the Dockerfiles build on unless told otherwise."""

FAKES = Path("e2e/fakes/bin")
LAYER_DOCKERFILE = Path("e2e/fakes.Dockerfile")
"""Puts the fakes on top of a check's image (`--build-arg IMAGE`)."""


FAKE_NODE = "preflight-fake-node:dev"


@dataclass(frozen=True)
class Component:
    """A package with a Dockerfile of its own."""

    image: str
    package: str
    is_check: bool
    base: str | None = None
    """A base of its own, taken where the engine has it; else the one for all."""

    def reference(self, *, e2e: bool) -> str:
        """What :func:`build_all` calls its image."""
        return f"{self.image}:{'e2e' if e2e and self.is_check else 'dev'}"

    def dockerfile(self, root: Path) -> Path:
        return root / self.package / "Dockerfile"

    def inputs(self, root: Path) -> tuple[Path, ...]:
        """Whatever can change the image: what the Dockerfile copies, and itself."""
        shared = [root / name for name in ("pyproject.toml", "uv.lock", ".dockerignore")]
        members = [root / "packages/preflight-proto", root / self.package]
        return (*shared, *(path for member in members for path in _files(member) if "tests" not in path.parts))


COMPONENTS = (
    Component("preflight-webhook", "packages/preflight-webhook", is_check=False),
    Component("preflight-gang", "packages/preflight-gang", is_check=False),
    Component("preflight-dcgm-diag", "packages/check-dcgm", is_check=True),
    Component("preflight-nccl-loopback", "packages/check-nccl-loopback", is_check=True),
    # torch for CPUs, with gloo and torchrun: what a test cluster without GPUs can run
    Component(
        "preflight-nccl-allreduce",
        "packages/check-nccl-allreduce",
        is_check=True,
        base="localhost/base/torch-cpu:2.6",
    ),
)


@dataclass(frozen=True)
class Built:
    """One image: its reference in a pod's spec and the docker archive that holds it."""

    reference: str
    archive: Path
    seconds: float
    """Time that building took; 0 when the archive was there already."""

    @property
    def cached(self) -> bool:
        return self.seconds == 0


class ImageError(Exception):
    """No image came out; the message is one sentence, the engine's own words having gone to stderr before."""


@dataclass(frozen=True)
class Engine:
    """A program that builds images. The three differ in few words."""

    name: str

    def build(self, dockerfile: Path, context: Path, tag: str, args: dict[str, str]) -> None:
        options = [word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")]
        if self.name == "buildah":
            # chroot: works where a sandbox forbids the namespaces that a container would need.
            bases_here = all(self.has(value) for value in args.values())
            options += ["--isolation", "chroot", "--layers", *(["--pull-never"] if bases_here else [])]
        self._run(self._verb("build"), *options, "-f", str(dockerfile), "-t", tag, str(context))

    def save(self, tag: str, archive: Path) -> None:
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        if self.name == "buildah":
            self._run("push", "-q", tag, f"docker-archive:{part}:{tag}")
        else:
            self._run("save", "-o", str(part), tag)
        part.replace(archive)

    def has(self, tag: str) -> bool:
        return self.identity(tag) is not None

    def identity(self, tag: str) -> str | None:
        """The id of a local image: a base that was made anew makes new images."""
        words: tuple[str, ...] = ("inspect", "--type", "image", "--format", "{{.FromImageID}}", tag)
        if self.name != "buildah":
            words = ("image", "inspect", "--format", "{{.Id}}", tag)
        found = subprocess.run([self.name, *words], capture_output=True, text=True, check=False)
        return found.stdout.strip() if found.returncode == 0 else None

    def _verb(self, verb: str) -> str:
        return "bud" if self.name == "buildah" and verb == "build" else verb

    def _run(self, *words: str) -> None:
        done = subprocess.run([self.name, *words], stdout=2, check=False)  # stdout is for what came out
        if done.returncode != 0:
            raise ImageError(f"{self.name} {words[0]} ended with status {done.returncode}; its last lines say why.")


def find_engine(wanted: str | None = None) -> Engine:
    """The engine named, else the first that works. Raises ImageError with what was tried."""
    probes = {"docker": ("info",), "podman": ("info",), "buildah": ("--version",)}
    tried = []
    for name in [wanted] if wanted else probes:
        if shutil.which(name) is None:
            tried.append(f"{name} is not installed")
        elif subprocess.run([name, *probes[name]], capture_output=True, check=False).returncode != 0:
            tried.append(f"{name} has no engine that answers")
        else:
            return Engine(name)
    raise ImageError(f"nothing here builds images ({'; '.join(tried)}); install docker, podman or buildah.")


def build_all(
    engine: Engine,
    *,
    root: Path = ROOT,
    cache: Path | None = None,
    base: str = BASE,
    e2e: bool = False,
    only: Iterable[str] = (),
) -> list[Built]:
    """Build (or find) the archive of every component, checks with the fakes on top where ``e2e``.

    References are ``<image>:dev``, and ``<image>:e2e`` for those with fakes. Raises ImageError.
    """
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    chosen = [component for component in COMPONENTS if not only or component.image in set(only)]
    return [_built(engine, component, root, cache, base, fakes=e2e and component.is_check) for component in chosen]


def build_fake_node(engine: Engine, *, root: Path = ROOT, cache: Path | None = None, base: str = BASE) -> Built:
    """The image of the fake GPU node, with the NVML stand-in compiled here. Raises ImageError."""
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder, nvml, proto = (
        root / "e2e/fakes/node",
        root / "e2e/fakes/nvml/nvml.c",
        root / "packages/preflight-proto/proto/health_event.proto",
    )
    key = _hash(root, (*_files(folder), nvml, proto), base, engine.identity(base) or "")
    archive = cache / f"preflight-fake-node-dev-{key}.tar"
    if archive.exists():
        return Built(FAKE_NODE, archive, 0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        context = Path(made) / "context"
        shutil.copytree(folder, context)
        shutil.copy(proto, context)
        build_nvml(nvml, context / "libnvidia-ml.so.1")
        engine.build(context / "Dockerfile", context, FAKE_NODE, {"BASE": base})
    engine.save(FAKE_NODE, archive)
    for older in cache.glob("preflight-fake-node-dev-*.tar"):
        if older != archive:
            older.unlink(missing_ok=True)
    return Built(FAKE_NODE, archive, time.monotonic() - started)


def build_nvml(source: Path, library: Path) -> None:
    """Compile the NVML stand-in. Raises ImageError where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ImageError("the NVML stand-in needs a C compiler; install gcc.")
    done = subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], stdout=2, check=False)
    if done.returncode != 0:
        raise ImageError(f"{compiler} ended with status {done.returncode} on {source.name}; its last lines say why.")


def _built(engine: Engine, component: Component, root: Path, cache: Path, base: str, *, fakes: bool) -> Built:
    plain, reference = component.reference(e2e=False), component.reference(e2e=fakes)
    if component.base is not None and engine.has(component.base):
        base = component.base
    key = _hash(root, component.inputs(root), base, engine.identity(base) or "")
    if fakes:
        key = _hash(root, (root / LAYER_DOCKERFILE, *_files(root / FAKES)), key)
    archive = cache / f"{reference.replace(':', '-')}-{key}.tar"
    if archive.exists():
        return Built(reference, archive, 0)
    started = time.monotonic()
    engine.build(component.dockerfile(root), root, plain, {"BASE": base})
    if fakes:
        engine.build(root / LAYER_DOCKERFILE, root, reference, {"IMAGE": plain})
    engine.save(reference, archive)
    for older in cache.glob(f"{reference.replace(':', '-')}-*.tar"):
        if older != archive:
            older.unlink(missing_ok=True)
    return Built(reference, archive, time.monotonic() - started)


def cache_folder() -> Path:
    """Where archives are kept, outside the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "preflight" / "images"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _hash(root: Path, files: Sequence[Path], *words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for path in files:
        digest.update(f"\0{path.relative_to(root)}\0{path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="images", description="Build every component's image.")
    parser.add_argument("--engine", choices=["docker", "podman", "buildah"], help="instead of the first that works")
    parser.add_argument("--base", default=BASE, help="base image with Python 3.11 or newer (%(default)s)")
    parser.add_argument("--e2e", action="store_true", help="put the fakes on top of the checks (tag e2e)")
    parser.add_argument("--only", action="append", default=[], choices=[c.image for c in COMPONENTS])
    parser.add_argument("--output", type=Path, help="folder to put the archives in, as IMAGE.tar")
    parser.add_argument("--json", type=Path, help="write what came out to this file")
    args = parser.parse_args(argv)
    try:
        images = build_all(find_engine(args.engine), base=args.base, e2e=args.e2e, only=args.only)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    for image in images:
        archive = image.archive
        if args.output:
            args.output.mkdir(parents=True, exist_ok=True)
            archive = args.output / f"{image.reference.split(':')[0]}.tar"
            shutil.copyfile(image.archive, archive)
        took = "unchanged" if image.cached else f"built in {image.seconds:.0f} s"
        print(f"{image.reference:28} {archive.stat().st_size / 1e6:6.0f} MB  {took:16} {archive}")
    if args.json:
        args.json.write_text(json.dumps([{**asdict(i), "archive": str(i.archive)} for i in images], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
