"""What our images are made of: audited against the public advisories, listed in an SBOM each, built
by a pinned builder.

    python -m preflight_e2e.supply_chain audit    # exit 1 where a locked package has an advisory
    python -m preflight_e2e.supply_chain sbom     # CycloneDX JSON, one file an image
    python -m preflight_e2e.supply_chain builder  # builder.txt: the Dockerfiles' uv, with its hash

What comes from the Python index is what uv.lock says, read by uv itself, the tool that installs
from it; what a check's base is compiled from is what its table [tool.preflight.image] says.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .images import COMPONENTS, ROOT, ImageTable
from .program import add_version, leave
from .sources import PinnedSource

REQUIRED = "AUDIT_REQUIRED"
"""Variable: ``1`` makes an audit fail that could not ask."""
UV = Path(sysconfig.get_path("scripts")) / "uv"
SHIPPED = ("--frozen", "--no-dev")
"""As the Dockerfiles install."""
TORCH_LICENSE = "Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSD-2-Clause AND BSD-3-Clause AND BSL-1.0 AND MIT"
"""As its wheel says, with those of what it contains."""
OSV = "https://api.osv.dev/"
"""The advisories that uv asks, too."""
VULNERABLE = 1
"""uv's exit status where the audit found something; 2 where it could not be done."""


class SupplyError(Exception):
    """The message is one sentence."""


def _uv(
    *words: str, root: Path = ROOT, codes: tuple[int, ...] = (0,)
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([UV, *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        lines = [
            line.split(":", 1)[-1].strip()
            for line in done.stderr.splitlines()
            if "warning" not in line and line.strip()
        ]
        raise SupplyError(
            f"uv {words[0]} ended with status {done.returncode} ({'; '.join(lines) or 'it said nothing'})"
        )
    return done


def packages(component: ImageTable) -> dict[str, str]:
    """The locked packages of an image, name to version; our own aside."""
    return {
        part["name"]: part["version"]
        for part in bom(component)["components"]
        if part.get("purl", "").startswith("pkg:pypi/")
    }


def bom(component: ImageTable) -> dict[str, Any]:
    """The image's CycloneDX document: uv's own export of the lock, what its base is compiled from,
    and what all of it is built on, with the image as its subject.

    The same lock gives the same bytes: there is no time in it, and its serial number follows from
    its content. Raises :class:`SupplyError`.
    """
    member = Path(component.package).name
    groups = tomllib.loads((ROOT / component.package / "pyproject.toml").read_text())
    tool = ["--group", "tool"] if "tool" in groups.get("dependency-groups", {}) else []
    output = _uv(
        "export", "--quiet", *SHIPPED, "--all-extras", *tool, "--package", member,
        "--format", "cyclonedx1.5",
    ).stdout  # fmt: skip
    document: dict[str, Any] = json.loads(output)
    document["metadata"].pop("timestamp", None)
    document.pop("serialNumber", None)
    document["metadata"]["component"] |= {"type": "container", "name": component.image}
    for part in document["components"]:
        if (license := _license(part["name"])) is not None:
            part["licenses"] = license
    document["components"] += _base(component)
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}"
    return document


def _base(component: ImageTable) -> list[dict[str, Any]]:
    """What is in an image beside packages of the Python index, as components of CycloneDX.

    Debian's libraries have no version here: a build takes the newest of its release.
    """
    name, _, tag = component.base.partition(":")
    parts: list[dict[str, Any]] = [
        {
            "type": "container",
            "bom-ref": f"base-{component.base}",
            "name": name,
            "version": tag,
            "purl": f"pkg:docker/{name}@{tag}",
        }
    ]
    for source in component.sources:
        owner = source.repository.split("://", 1)[1].split("/", 1)[1]
        parts.append(
            {
                "type": "library",
                "bom-ref": f"source-{source.name}@{source.commit}",
                "name": source.name,
                "version": source.version,
                "purl": f"pkg:github/{owner.lower()}@{source.commit}",
                "licenses": [{"license": {"id": source.license}}],
                "externalReferences": [{"type": "vcs", "url": source.repository}],
            }
        )
    for package, license in component.debian:
        parts.append(
            {
                "type": "library",
                "bom-ref": f"debian-{package}",
                "name": package,
                "purl": f"pkg:deb/debian/{package}?distro=bookworm",
                "licenses": [{"license": {"id": license}}],
            }
        )
    return parts


def _license(name: str) -> list[dict[str, Any]] | None:
    """What the metadata of a wheel of the tools says; None: a library of Python, whose own metadata
    in the image says it.
    """
    if name == "torch":
        return [{"expression": TORCH_LICENSE}]
    if name.startswith("nvidia-") and name != "nvidia-ml-py":
        return [{"license": {"name": "LicenseRef-NVIDIA-Proprietary"}}]
    return None


def write_boms(folder: Path) -> list[Path]:
    """``<image>.cdx.json`` of every image. Raises :class:`SupplyError`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for component in COMPONENTS:
        document = bom(component)
        path = folder / f"{component.image}.cdx.json"
        path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        written.append(path)
        print(f"{path}: {len(document['components'])} packages")
    return written


def audit(service: str | None = None) -> int:
    """Ask the advisories about the lock; the exit status."""
    asked = ["--service-url", service] if service else []
    quiet = ["--preview-features", "audit-command,json-output", "--output-format", "json"]
    try:
        output = _uv("audit", *SHIPPED, *quiet, *asked, codes=(0, VULNERABLE)).stdout
        report = json.loads(output)
    except (SupplyError, json.JSONDecodeError) as error:
        return _not_asked(error)
    status, compiled, about = 0, [], sum(len(component.sources) for component in COMPONENTS)
    try:
        compiled = _compiled(service or OSV)
    except (OSError, ValueError, KeyError, TypeError) as error:  # what uv has found is still told
        status, about = _not_asked(error, " about compiled sources"), 0
    advisories = report["vulnerabilities"] + report.get("adverse_statuses", [])
    images = (
        {component.image: packages(component) for component in COMPONENTS} if advisories else {}
    )
    for finding in advisories:
        name, version = finding["dependency"]["name"], finding["dependency"]["version"]
        where = (
            ", ".join(image for image, inside in images.items() if inside.get(name) == version)
            or "no image (a tool)"
        )
        what = finding.get("summary") or finding.get("status") or "no summary"
        fixed = ", ".join(finding.get("fix_versions") or ()) or "no release yet"
        print(
            f"{name} {version}: {finding.get('display_id', finding.get('id', ''))} {what}; fixed in {fixed}; in {where}"
        )
    for component, source, advisory in compiled:
        print(f"{source.name} {source.version}: {advisory}; in {component.image}")
    print(
        f"audit: {report['summary']['audited_packages']} locked packages and {about} compiled sources, "
        f"{len(advisories) + len(compiled)} with an advisory"
    )
    return 1 if advisories or compiled else status


def _not_asked(error: Exception, what: str = "") -> int:
    """Say that the advisories could not be asked; the exit status."""
    required = os.environ.get(REQUIRED) == "1"
    then = (
        f"{REQUIRED}=1 asks for it, so this fails"
        if required
        else f"nothing is known; {REQUIRED}=1 makes this fail"
    )
    print(f"audit: the advisories could not be asked{what}: {error}; {then}.", file=sys.stderr)
    return 1 if required else 0


def _compiled(service: str) -> list[tuple[ImageTable, PinnedSource, str]]:
    """The sources that an image is compiled from and that an advisory names, by commit, with the
    advisory's id. Raises OSError and ValueError where the service does not answer so.
    """
    about = [(component, source) for component in COMPONENTS for source in component.sources]
    body = json.dumps({"queries": [{"commit": source.commit} for _, source in about]}).encode()
    request = urllib.request.Request(
        f"{service.rstrip('/')}/v1/querybatch",
        data=body,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        results = json.load(answer)["results"]
    return [
        (component, source, advisory["id"])
        for (component, source), result in zip(about, results, strict=True)
        for advisory in result.get("vulns", ())
    ]


def builder(lock: Path = ROOT / "uv.lock") -> str:
    """The text of builder.txt: the locked uv with the hash of every build of it, as pip's
    --require-hashes wants it.
    """
    [uv] = [
        package for package in tomllib.loads(lock.read_text())["package"] if package["name"] == "uv"
    ]
    hashes = sorted(artefact["hash"] for artefact in [*uv["wheels"], uv["sdist"]])
    head = "# What the Dockerfiles install first: made from uv.lock by `nox -s codegen`.\n"
    return (
        head
        + " \\\n    ".join([f"uv=={uv['version']}", *(f"--hash={digest}" for digest in hashes)])
        + "\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="supply_chain", description="What our images are made of."
    )
    add_version(parser)
    commands = parser.add_subparsers(dest="command", required=True)
    asks = commands.add_parser("audit", help="the public advisories about every locked package")
    asks.add_argument("--service-url", help="another OSV service than the public one")
    lists = commands.add_parser("sbom", help="CycloneDX JSON of every image")
    lists.add_argument("--output", type=Path, default=Path("sbom"), help="folder (%(default)s)")
    commands.add_parser("builder", help="write builder.txt")
    args = parser.parse_args(argv)
    if args.command == "audit":
        return audit(args.service_url)
    try:
        if args.command == "sbom":
            write_boms(args.output)
        else:
            (ROOT / "builder.txt").write_text(builder())
    except (SupplyError, OSError) as error:
        print(f"supply: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    leave(main)
