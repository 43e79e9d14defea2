"""Releases components: sets their versions wherever they stand, dates changelogs, builds.

    python -m preflight_e2e.release check-dcgm minor        # or patch, or major
    python -m preflight_e2e.release all minor --dry-run     # prints, and changes nothing
    python -m preflight_e2e.release generate                # images.txt, and the page of versions
    python -m preflight_e2e.release check-dcgm/v0.2.0       # what that tag releases, for a workflow
    python -m preflight_e2e.release check-dcgm/v0.2.0 --rehearse    # that workflow's commands, here

A component is a member of `packages` with a changelog, or `charts`: the umbrella and the library
chart. A member's version is that of its image, and of its chart; who depends on it takes the same
minor version. What its changelog has in the first section, as long as that bears no date, is what
is not released yet.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .engine import ImageError, find_engine
from .images import ROOT, build_all
from .program import add_version, leave
from .rehearsal import RehearsalError, registry, rehearse

PACKAGES, PARTS = "packages", "charts/preflight/charts"
UMBRELLA, LIBRARY = "charts/preflight/Chart.yaml", "charts/preflight-common/Chart.yaml"
INJECTOR = f"{PARTS}/preflight-injector/Chart.yaml"
IMAGES, PAGE = "images.txt", "docs/versions.md"
TEXTS = ("*.md", "*.toml", "*.yaml", "*.txt", "uv.lock")
KINDS = ("major", "minor", "patch")
_NUMBER = r"\d+\.\d+\.\d+"
_DATED = re.compile(r"^## (?P<version>\S+) \(\d{4}-\d\d-\d\d\)$", re.MULTILINE)
_FIRST = re.compile(r"^## .*$", re.MULTILINE)
_TABLE = re.compile(r"(tables\.versions\(\) \]{3} -->\n).*?(<!-- \[{3}end)", re.DOTALL)

Files = Mapping[str, str]
"""Texts of the repository by path."""


class ReleaseError(Exception):
    """Nothing can be released; the message is one sentence for each reason."""


@dataclass(frozen=True)
class ReleasedComponent:
    """What has a version of its own; ``chart``: the Chart.yaml that bears it, too."""

    name: str
    folder: str
    version: str
    image: str | None = None
    chart: str | None = None
    kind: str = ""

    @property
    def tag(self) -> str:
        return f"{self.name}/v{self.version}"

    def bumped(self, part: str) -> ReleasedComponent:
        numbers, at = [int(number) for number in self.version.split(".")], KINDS.index(part)
        numbers[at:] = [numbers[at] + 1, 0, 0][: 3 - at]
        return replace(self, version=".".join(map(str, numbers)))


@dataclass(frozen=True)
class VersionPlace:
    """Where a component's version stands in a file: after what the pattern ``before`` matches.

    ``minor``: its patch counts for nothing and stands as 0; ``least``: how often it must be there.
    """

    path: str
    before: str
    minor: bool = False
    least: int = 1

    def expected(self, version: str) -> str:
        return version.rpartition(".")[0] + ".0" if self.minor else version

    def written(self, text: str, version: str) -> str:
        return re.sub(f"({self.before}){_NUMBER}", rf"\g<1>{self.expected(version)}", text)

    def found(self, text: str) -> list[str]:
        return re.findall(f"{self.before}({_NUMBER})", text)


def components(files: Files) -> dict[str, ReleasedComponent]:
    """All that have a changelog, by name, in the order of their names."""
    by_name = {}
    for path in sorted(files):
        folder, _, name = path.rpartition("/")
        if name != "pyproject.toml" or f"{folder}/CHANGELOG.md" not in files:
            continue
        read = tomllib.loads(files[path])
        project, ours = read["project"], read["tool"]["preflight"]
        part = {"preflight-webhook": "preflight-injector"}.get(project["name"], project["name"])
        chart = f"{PARTS}/{part}/Chart.yaml"
        by_name[project["name"]] = ReleasedComponent(
            project["name"],
            folder,
            project["version"],
            ours.get("image", {}).get("name"),
            chart if chart in files else None,
            ours["kind"],
        )
    by_name["charts"] = ReleasedComponent(
        "charts",
        "charts",
        VersionPlace(UMBRELLA, r"(?m:^)version: ").found(files[UMBRELLA])[0],
        chart=UMBRELLA,
    )
    return by_name


def places(component: ReleasedComponent, files: Files) -> Iterator[VersionPlace]:
    """Wherever its version stands."""
    start = r"(?m:^)"
    if component.name == "charts":
        copies = [path for path in files if path.endswith("/charts/preflight-common/Chart.yaml")]
        yield from (VersionPlace(path, f"{start}version: ") for path in (LIBRARY, *copies))
        needs = r"name: preflight-common(?:\n +|, )version: "
        yield from (VersionPlace(p, needs, least=0) for p in files if p.endswith("/Chart.yaml"))
    else:
        for path in (f"{component.folder}/pyproject.toml", "uv.lock"):
            yield VersionPlace(path, rf'{start}name = "{component.name}"\nversion = "')
        for path in files:
            if re.fullmatch(rf"{PACKAGES}/[^/]+/pyproject\.toml", path):
                yield VersionPlace(path, rf'"{component.name}(?:\[\w+\])?~=', minor=True, least=0)
    if component.chart:
        yield VersionPlace(component.chart, f"{start}version: ")
        yield VersionPlace(component.chart, f'{start}appVersion: "')
        if component.chart != UMBRELLA:
            yield VersionPlace(UMBRELLA, rf"- name: {component.chart.split('/')[-2]}\n +version: ")
    if component.image:
        for path in files:
            if re.search(r"(?<!CHANGELOG)\.md$|/values\.yaml$|^charts/recipes/|^docs/", path):
                yield VersionPlace(path, rf"\b{component.image}:", least=0)
        if component.kind == "check":
            yield VersionPlace(INJECTOR, f'{start}  {component.image}: "')


def problems(files: Files) -> list[str]:
    """What does not agree, one sentence each."""
    sentences = []
    every = components(files)
    for component in every.values():
        for place in places(component, files):
            versions = place.found(files.get(place.path, ""))
            wrong = sorted({*versions} - {place.expected(component.version)})
            if wrong:
                sentences.append(
                    f"{place.path}: {component.name} is {component.version}, but here it is {' and '.join(wrong)}; nox -s release sets both."
                )
            elif len(versions) < place.least:
                sentences.append(
                    f"{place.path}: has no version after {place.before!r}, where that of {component.name} belongs; write {place.expected(component.version)}."
                )
        dated = _DATED.search(files[f"{component.folder}/CHANGELOG.md"])
        if dated and dated["version"] != component.version:
            sentences.append(
                f"{component.folder}/CHANGELOG.md: the last release is {dated['version']}, but {component.name} is {component.version}; nox -s release sets both."
            )
    sentences += [
        f"{path}: is not what its generator makes; run nox -s release -- generate."
        for path, text in generated(files).items()
        if files.get(path) != text
    ]
    return sentences


def unreleased(files: Files, component: ReleasedComponent) -> bool:
    """Whether the first section of its changelog bears no date."""
    first = _FIRST.search(files[f"{component.folder}/CHANGELOG.md"])
    return first is not None and _DATED.match(first[0]) is None


def plan(files: Files, names: Iterable[str], part: str, day: str) -> dict[str, str]:
    """The files that a release of the components of these names changes, as they are then.

    Raises ReleaseError for an unknown component, and where a changelog says nothing new.
    """
    every, updated = components(files), dict(files)
    for name in names:
        if name not in every:
            raise ReleaseError(
                f"{name}: no component of that name; there are all, {', '.join(every)}."
            )
        if not unreleased(files, every[name]):
            raise ReleaseError(
                f"{every[name].folder}/CHANGELOG.md: begins with what is released already; write what is new in a section above, headed ## Unreleased."
            )
        after = every[name].bumped(part)
        for place in places(after, updated):
            updated[place.path] = place.written(updated[place.path], after.version)
        log = f"{after.folder}/CHANGELOG.md"
        updated[log] = _FIRST.sub(f"## {after.version} ({day})", updated[log], count=1)
    updated |= generated(updated)
    if errors := problems(updated):
        raise ReleaseError("\n".join(errors))
    return {path: text for path, text in updated.items() if files.get(path) != text}


def described(files: Files, tag: str) -> dict[str, str]:
    """What is made for a tag. Raises ReleaseError where the files are of another version."""
    component = components(files).get(tag.partition("/")[0])
    if component is None or component.tag != tag:
        known = ", ".join(each.tag for each in components(files).values())
        raise ReleaseError(f"{tag}: no tag of these files, whose tags are {known}.")
    if errors := problems(files):
        raise ReleaseError("\n".join(errors))
    chart = (component.chart or "").removesuffix("/Chart.yaml")
    package = "" if component.kind in {"", "tests"} else component.name
    return {
        "version": component.version,
        "image": component.image or "",
        "chart": chart,
        "package": package,
    }


def image_list(every: Mapping[str, ReleasedComponent]) -> str:
    """References of all images, one a line."""
    return "".join(
        sorted(
            f"{component.image}:{component.version}\n"
            for component in every.values()
            if component.image
        )
    )


def table(every: Mapping[str, ReleasedComponent]) -> str:
    """Markdown: what has which version, and is released by which tag."""
    lines = ["| component | version | image | chart | tag |", "| --- | --- | --- | --- | --- |"]
    for component in every.values():
        if component.kind != "tests":
            chart = f"`{component.chart.split('/')[-2]}`" if component.chart else ""
            image = f"`{component.image}:{component.version}`" if component.image else ""
            lines.append(
                f"| {component.name} | {component.version} | {image} | {chart} | `{component.tag}` |"
            )
    return "\n".join(lines) + "\n"


def generated(files: Files) -> dict[str, str]:
    """The files that are made of the versions."""
    every = components(files)
    page = _TABLE.sub(lambda match: match[1] + table(every) + match[2], files.get(PAGE, ""))
    return {IMAGES: image_list(every), PAGE: page}


def read(root: Path) -> dict[str, str]:
    """What may name a version: texts that git knows, but for tests and sources."""
    listed = ["git", "-C", str(root), "ls-files", "-z", "--", *TEXTS]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    kept = [name for name in names if name and "/tests/" not in name]
    return {name: (root / name).read_text() for name in kept if (root / name).is_file()}


def write(changed: Files) -> None:
    """Raises ReleaseError where the lock does not come along."""
    for path, text in changed.items():
        (ROOT / path).write_text(text)
    if subprocess.run(["uv", "lock", "--quiet"], cwd=ROOT, check=False).returncode != 0:
        raise ReleaseError("uv.lock: uv lock failed, for the reason above.")


def build(component: ReleasedComponent, out: Path, *, with_images: bool) -> list[str]:
    """What is made of it, and what is pushed where, a line each. Raises ReleaseError."""
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    if component.name != "charts" and component.kind != "tests":
        command = ["uv", "build", "--quiet", "--package", component.name, "--out-dir", str(out)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            raise ReleaseError(f"{component.name}: uv build failed, for the reason above.")
        stem = f"{component.name.replace('-', '_')}-{component.version}"
        for file in (f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"):
            if not (out / file).is_file():
                raise ReleaseError(
                    f"{out}: uv build has made no {file}; are builder and version those of the pyproject.toml?"
                )
            lines.append(f"push to the package index: {out / file}")
    if component.chart:
        from helm_python import HelmError, package

        try:
            lines.append(
                f"push to the OCI registry of charts: {package(ROOT / component.chart.removesuffix('/Chart.yaml'), destination=out)}"
            )
        except HelmError as error:
            raise ReleaseError(f"{component.chart}: cannot be packaged: {error}.") from error
    if component.image and with_images:
        try:
            [image] = build_all(find_engine(), only=[component.image])
            lines.append(
                f"push to the registry of images: {image.reference} ({image.id}), in {image.archive}"
            )
        except ImageError as error:
            lines.append(f"image not built: {error}")
    elif component.image:
        lines.append(f"image: nox -s images -- --only {component.image}")
    return lines


def rehearsed(files: Files, tags: Iterable[str]) -> int:
    """Run the workflow's commands for each of ``tags``; the exit status."""
    status = 0
    try:
        with registry() as (address, environ):
            for tag in tags:
                try:
                    for line in rehearse(described(files, tag), address, environ):
                        print(f"{tag}: {line}", flush=True)
                except (ReleaseError, RehearsalError) as error:
                    status = 2
                    print(f"release: {tag}: {error}", file=sys.stderr)
    except RehearsalError as error:
        status = 2
        print(f"release: {error}", file=sys.stderr)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="release", description="Release one component, or all.")
    add_version(parser)
    parser.add_argument(
        "component", help="a member, charts, all, a tag; generate: what is made of versions"
    )
    parser.add_argument("part", nargs="?", choices=KINDS)
    parser.add_argument("--dry-run", action="store_true", help="print, and change nothing")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="of a tag, or of all: run the workflow's commands as committed, against a registry that lives for that long",
    )
    parser.add_argument(
        "--date",
        default=datetime.datetime.now(datetime.UTC).date().isoformat(),
        help="of the changelog's section; today",
    )
    parser.add_argument("--without-images", action="store_true", help="build no image")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "out/release", help="for what is built"
    )
    args = parser.parse_args(argv)
    files = read(ROOT)
    if args.component == "generate":
        for path, text in generated(files).items():
            (ROOT / path).write_text(text)
        return 0
    if args.rehearse:
        tags = [component.tag for component in components(files).values()]
        return rehearsed(files, tags if args.component == "all" else [args.component])
    if args.part is None and "/" not in args.component:
        parser.error("say which part of the version changes: major, minor or patch.")
    before = components(files)
    names = [args.component]
    if args.component == "all":
        names = [name for name, component in before.items() if unreleased(files, component)]
    try:
        if "/" in args.component:
            print(*map("=".join, described(files, args.component).items()), sep="\n")
            return 0
        changed = plan(files, names, args.part, args.date)
        after = components({**files, **changed})
        for path in sorted(changed):
            print(f"{'would change' if args.dry_run else 'changes'} {path}")
        if not args.dry_run:
            write(changed)
        for component in (after[name] for name in names):
            print(f"{component.name} {before[component.name].version} -> {component.version}")
            if not args.dry_run:
                for line in build(component, args.output, with_images=not args.without_images):
                    print(f"  {line}")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    print("then, once this is committed and on the main branch:")
    for component in (after[name] for name in names):
        print(f"  git tag {component.tag} && git push origin {component.tag}")
    return 0


if __name__ == "__main__":
    leave(main)
