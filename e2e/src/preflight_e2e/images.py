"""Builds every component's image with docker, podman or buildah, whichever works here.

    python -m preflight_e2e.images                      # build all, print what came out
    python -m preflight_e2e.images --base preflight-nccl-allreduce=registry.example/torch:2.13
    --output out/ python -m preflight_e2e.images --source nccl-tests=/srv/git/nccl-tests.git --only
    preflight-nccl-loopback

What an image is made of is written in its member's pyproject.toml, under [tool.preflight.image];
its tag is the member's version. A check's image without its tool is not built. An archive whose
inputs have not changed is not built again: archives are kept by the hash of their inputs in
``~/.cache/preflight/images`` (``XDG_CACHE_HOME`` moves it).

The time in an image is that of the commit, so that the same commit on the same base has the same
id. Where docker builds, only its configuration has that time, and files have their own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from preflight_testing.fakes import NvmlError, build_nvml

from .engine import Engine, ImageError, find_engine
from .labels import changed, image_id, labels, version
from .program import add_version, leave
from .sources import PinnedSource, SourceError, checkout

ROOT = Path(__file__).resolve().parents[3]
BASE = "python:3.11-slim-bookworm"
"""What the Dockerfiles build on unless told otherwise."""

FAKES = Path("e2e/fakes/bin")
LAYER_DOCKERFILE = Path("e2e/fakes.Dockerfile")
"""Puts the fakes on top of a check's image (`--build-arg IMAGE`)."""


FAKE_NODE = "preflight-fake-node:dev"

REAL = "preflight-nccl-loopback"
"""The check whose image, tool included, can be made of what is public: without the fakes it runs
where there is no GPU, too.
"""
REAL_IMAGE, REAL_IMAGE_MISSING = "PREFLIGHT_REAL_LOOPBACK_IMAGE", "PREFLIGHT_REAL_LOOPBACK_MISSING"
"""For tests on a cluster: its reference where it is on the nodes, else why it is not."""


@dataclass(frozen=True)
class ImageTable:
    """The table [tool.preflight.image] of one member.

    ``image``: its `name`; ``package``: the member's folder. ``shared``: its `dockerfile`, which
    several packages share and which is given the package's name as MEMBER and what it is as
    DESCRIPTION; None: the package has its own. ``base``: what it is built on, where neither
    `--base IMAGE=BASE` nor a recipe says otherwise. ``recipe``: a Dockerfile that makes the base,
    with the tool in it, from ``base`` and the sources. ``tool``: what the image must bring for the
    check; a build without it fails. ``versions``: of the tool, and of what it works with, as the
    recipe brings them. ``test_base``: what the e2e builds on instead: it puts stand-ins for the
    tool on top; ``test_recipe``: a Dockerfile that makes that one from ``test_base``.
    ``architectures``: what base and tool exist for. ``sources``: repository, version and commit of
    what a recipe compiles, and which folders of it; without network `--source NAME=REPOSITORY`.
    ``debian``: packages whose libraries the recipe takes along, with their licenses.
    """

    image: str
    package: str
    base: str
    shared: str | None = None
    recipe: str | None = None
    tool: str | None = None
    test_base: str | None = None
    test_recipe: str | None = None
    versions: tuple[tuple[str, str], ...] = ()
    architectures: tuple[str, ...] = ()
    sources: tuple[PinnedSource, ...] = ()
    debian: tuple[tuple[str, str], ...] = ()

    @property
    def is_check(self) -> bool:
        return self.tool is not None

    def reference(self, *, e2e: bool, root: Path = ROOT) -> str:
        """What :func:`build_all` calls its image: by its version, or for the e2e, whose images are
        nobody's release.
        """
        if not e2e:
            return f"{self.image}:{version(root, self.package)}"
        return f"{self.image}:{'e2e' if self.is_check else 'dev'}"

    def dockerfile(self, root: Path) -> Path:
        return root / (self.shared or f"{self.package}/Dockerfile")

    def arguments(self, root: Path) -> dict[str, str]:
        """What a Dockerfile that several packages share is told of this one."""
        if self.shared is None:
            return {}
        about = tomllib.loads((root / self.package / "pyproject.toml").read_text())["project"]
        return {"MEMBER": about["name"], "DESCRIPTION": about["description"]}

    def inputs(self, root: Path) -> tuple[Path, ...]:
        """Whatever can change the image: what the Dockerfile copies, and itself."""
        names = [
            "pyproject.toml",
            "uv.lock",
            "builder.txt",
            ".dockerignore",
            *([self.shared] if self.shared else []),
        ]
        libraries = ["preflight-proto"] if self.is_check else ["preflight-proto", "preflight-kube"]
        members = [*(root / "packages" / library for library in libraries), root / self.package]
        copied = (
            path for member in members for path in _files(member) if "tests" not in path.parts
        )
        return (*(root / name for name in names), *copied)


def read(root: Path) -> tuple[ImageTable, ...]:
    """The images of the packages in ``root``: services, then checks, and last those for which even
    a base without the tool must be made.
    """
    components = []
    for path in sorted(root.glob("packages/*/pyproject.toml")):
        table = tomllib.loads(path.read_text()).get("tool", {}).get("preflight", {})
        if "image" in table:
            components.append(_component(str(path.parent.relative_to(root)), table["image"]))
    return tuple(
        sorted(
            components,
            key=lambda component: (component.is_check, component.test_recipe is not None),
        )
    )


def _component(package: str, table: Mapping[str, Any]) -> ImageTable:
    sources = tuple(
        PinnedSource(name, **{**about, "paths": tuple(about.get("paths", ()))})
        for name, about in table.get("sources", {}).items()
    )
    return ImageTable(
        table["name"],
        package,
        table["base"],
        shared=table.get("dockerfile"),
        recipe=table.get("recipe"),
        tool=table.get("tool"),
        test_base=table.get("test-base"),
        test_recipe=table.get("test-recipe"),
        versions=tuple(table.get("versions", {}).items()),
        architectures=tuple(table["architectures"]),
        sources=sources,
        debian=tuple(table.get("debian", {}).items()),
    )


COMPONENTS = read(ROOT)


@dataclass(frozen=True)
class BuiltImage:
    """One image: its reference in a pod's spec and the docker archive that holds it."""

    reference: str
    archive: Path
    seconds: float
    """Time that building took; 0 when the archive was there already."""

    @property
    def cached(self) -> bool:
        return self.seconds == 0

    @property
    def id(self) -> str:
        """``sha256:…``, the same wherever the image is pushed to."""
        return image_id(self.archive)


def build_all(
    engine: Engine,
    *,
    root: Path = ROOT,
    cache: Path | None = None,
    bases: Mapping[str, str] | None = None,
    sources: Mapping[str, Path] | None = None,
    e2e: bool = False,
    only: Iterable[str] = (),
    no_cache: bool = False,
) -> list[BuiltImage]:
    """Build (or find) the archive of every component, checks with the fakes on top where ``e2e``.

    ``bases``: by image, instead of what its table says; ``sources``: by name, a repository that
    has the commit; ``no_cache``: build also what is there already. References
    are ``<image>:<version>``; for the e2e ``<image>:dev``, and ``<image>:e2e`` for those with
    fakes. Raises ImageError.
    """
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    chosen = [component for component in COMPONENTS if not only or component.image in set(only)]
    built = []
    for component in chosen:
        fakes = e2e and component.is_check
        if engine.architecture not in (None, *component.architectures):
            raise ImageError(
                f"{component.image}: there is no base of it for {engine.architecture}, only for {' and '.join(component.architectures)}."
            )
        given = (bases or {}).get(component.image)
        base = given or _base(engine, component, root, cache, sources or {}, fakes=fakes)
        built.append(
            _built(
                engine,
                component,
                root,
                cache,
                base,
                given or component.base,
                e2e=e2e,
                no_cache=no_cache,
            )
        )
    return built


def _base(
    engine: Engine,
    component: ImageTable,
    root: Path,
    cache: Path,
    given: Mapping[str, Path],
    *,
    fakes: bool,
) -> str:
    """The base with the tool, or with what the fakes run on: made by the recipe
    where there is one.
    """
    named, of_recipe = component.base, component.recipe
    if fakes:
        named, of_recipe = component.test_base or BASE, component.test_recipe
    if of_recipe is None:
        return named
    recipe = root / of_recipe
    copied = _copied(recipe, root)
    sources = () if fakes else component.sources
    commits = (source.commit for source in sources)
    platform_of = engine.architecture or ""
    key = _hash(root, (recipe, *copied), named, engine.identity(named) or "", platform_of, *commits)
    tag = f"localhost/{component.image}-{'test-' if fakes else ''}base:{key}"
    if not engine.has(tag):
        try:
            folders = {
                source.name: checkout(source, given.get(source.name), cache.parent / "sources")
                for source in sources
            }
        except SourceError as error:
            raise ImageError(
                f"{component.image}: {error} Or give a base that has {component.tool}: --base {component.image}=BASE."
            ) from None
        facts = {
            key: value
            for source in sources
            for key, value in source.arguments()
            if f"ARG {key}" in recipe.read_text()
        }
        engine.build(recipe, root, tag, {"BASE": named, **facts}, folders)
    return tag


def _copied(recipe: Path, root: Path) -> list[Path]:
    """The files of the repository that a recipe copies: it is made again where one
    of them changes.
    """
    lines = [
        line.split()[1:-1] for line in recipe.read_text().splitlines() if line.startswith("COPY ")
    ]
    places = [root / word for words in lines if not words[0].startswith("--") for word in words]
    return sorted(
        path for place in places for path in (_files(place) if place.is_dir() else [place])
    )


def build_fake_node(
    engine: Engine, *, root: Path = ROOT, cache: Path | None = None, base: str = BASE
) -> BuiltImage:
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
        return BuiltImage(FAKE_NODE, archive, 0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch) / "context"
        shutil.copytree(folder, context)
        shutil.copy(proto, context)
        try:
            build_nvml(nvml, context / "libnvidia-ml.so.1")
        except NvmlError as error:
            raise ImageError(str(error)) from None
        engine.build(context / "Dockerfile", context, FAKE_NODE, {"BASE": base})
    engine.save(FAKE_NODE, archive)
    for older in cache.glob("preflight-fake-node-dev-*.tar"):
        if older != archive:
            older.unlink(missing_ok=True)
    return BuiltImage(FAKE_NODE, archive, time.monotonic() - started)


def _built(
    engine: Engine,
    component: ImageTable,
    root: Path,
    cache: Path,
    base: str,
    known_as: str,
    *,
    e2e: bool,
    no_cache: bool,
) -> BuiltImage:
    """Its archive; its labels say what ``base``, which a recipe may have made here, comes from:
    ``known_as``.
    """
    reference, fakes = component.reference(e2e=e2e, root=root), e2e and component.is_check
    key = _hash(
        root, component.inputs(root), base, engine.identity(base) or "", engine.architecture or ""
    )
    if fakes:
        key = _hash(root, (root / LAYER_DOCKERFILE, *_files(root / FAKES)), key)
    archive = cache / f"{reference.replace(':', '-')}-{key}.tar"
    if archive.exists() and not no_cache:
        return BuiltImage(reference, archive, 0)
    started = time.monotonic()
    args = {"BASE": base, **component.arguments(root)}
    if fakes:
        bare = f"{component.image}:bare"
        engine.build(component.dockerfile(root), root, bare, {**args, "TOOL": "later"})
        engine.build(root / LAYER_DOCKERFILE, root, reference, {"IMAGE": bare})
    else:
        about = labels(
            root, component.package, component.inputs(root), known_as, engine.digest(known_as)
        )
        engine.build(
            component.dockerfile(root),
            root,
            reference,
            args,
            labels=about,
            created=None if e2e else changed(root, component.inputs(root)),
        )
    engine.save(reference, archive)
    for older in cache.glob(f"{reference.replace(':', '-')}-*.tar"):
        if older != archive:
            older.unlink(missing_ok=True)
    return BuiltImage(reference, archive, time.monotonic() - started)


def cache_folder() -> Path:
    """Where archives are kept, outside the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "preflight" / "images"


def _files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )


def _hash(root: Path, files: Sequence[Path], *words: str) -> str:
    digest = hashlib.sha256("\0".join(words).encode())
    for path in files:
        digest.update(f"\0{path.relative_to(root)}\0{path.stat().st_mode & 0o111:o}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise argparse.ArgumentTypeError(f'"{text}" is not NAME=VALUE')
    return name, value


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="images", description="Build every component's image.")
    add_version(parser)
    parser.add_argument(
        "--engine", choices=["docker", "podman", "buildah"], help="instead of the first that works"
    )
    parser.add_argument(
        "--base",
        action="append",
        default=[],
        type=_pair,
        metavar="IMAGE=BASE",
        help="another base for one image: Python 3.11 or newer, and the check's tool (its pyproject.toml names it)",
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=REPOSITORY",
        help="where a recipe's source is cloned from instead: a repository on this machine that has its commit",
    )
    parser.add_argument(
        "--platform",
        metavar="linux/ARCH",
        choices=[
            f"linux/{architecture}"
            for architecture in sorted(
                {architecture for c in COMPONENTS for architecture in c.architectures}
            )
        ],
        help="instead of this machine's; the build runs programs of it, so the engine needs emulation (binfmt)",
    )
    parser.add_argument(
        "--e2e", action="store_true", help="put the fakes on top of the checks (tag e2e)"
    )
    parser.add_argument(
        "--only", action="append", default=[], choices=[c.image for c in COMPONENTS]
    )
    parser.add_argument(
        "--twice",
        action="store_true",
        help="then build each once more, from nothing but its base, and fail where its id differs",
    )
    parser.add_argument("--output", type=Path, help="folder to put the archives in, as IMAGE.tar")
    parser.add_argument("--json", type=Path, help="write what came out to this file")
    args = parser.parse_args(argv)
    bases, sources = dict(args.base), {name: Path(where) for name, where in args.source}
    known = {
        "--base": [c.image for c in COMPONENTS],
        "--source": [s.name for c in COMPONENTS for s in c.sources],
    }
    for option, given in (("--base", bases), ("--source", sources)):
        if unknown := sorted(set(given) - set(known[option])):
            parser.error(
                f"{option} {', '.join(unknown)}: in no package's pyproject.toml; known there: {', '.join(known[option])}."
            )
    try:
        engine = find_engine(args.engine)
        if args.platform:
            engine = replace(engine, architecture=args.platform.removeprefix("linux/"))
        images = build_all(engine, bases=bases, sources=sources, e2e=args.e2e, only=args.only)
        if args.twice:
            ids = [image.id for image in images]
            images = build_all(
                engine, bases=bases, sources=sources, e2e=args.e2e, only=args.only, no_cache=True
            )
            if differ := [a.reference for a, b in zip(images, ids, strict=True) if a.id != b]:
                raise ImageError(f"{', '.join(differ)}: another id when built once more.")
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
        print(
            f"{image.reference:32} {archive.stat().st_size / 1e6:6.0f} MB  {took:16} {image.id}  {archive}"
        )
    if args.json:
        written = [{**asdict(i), "archive": str(i.archive), "id": i.id} for i in images]
        args.json.write_text(json.dumps(written, indent=1))
    return 0


if __name__ == "__main__":
    leave(main)
