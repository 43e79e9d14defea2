"""The release workflow's own commands, run here against a registry that lives as long as they do.

What the steps of a job ``run:`` is taken from the workflow as it stands, for an index of this
machine's architecture. What ``uses:`` an action is not run, nor what asks who the runner is;
where there is no cosign, nothing is signed. What came out is read back from the registry.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trustme
import yaml

from .assets import AssetsError, bring_tool
from .images import ROOT
from .labels import image_id

WORKFLOW = ROOT / ".github/workflows/release.yaml"
USER = PASSWORD = "rehearsal"
HTPASSWD = f"{USER}:$2b$04$0c2W7BAfYzLzb0CmqeLYVOgy9UlH73ASXNBqqAq6e5iP0DEUuMmTe\n"
"""The password as bcrypt has it, of a registry that nobody but this process reaches."""
ARCHITECTURES = {"x86_64": ("amd64", "X64"), "aarch64": ("arm64", "ARM64")}
"""By machine: as Go names it, and as the workflow's runners do."""
NOX = f"""#!/bin/sh
# nox -s SESSION -- WORDS: what the session runs, in the environment that is there already.
session=$2; shift 3
if [ "$session" = sbom ]; then session=supply_chain; set -- sbom "$@"; fi
exec {shlex.quote(sys.executable)} -m "preflight_e2e.$session" "$@"
"""
UNSIGNED = '#!/bin/sh\necho "not run, for want of a cosign: cosign $1" >&2\n'
SIGNED = """#!/bin/sh
# With a key, as there is no runner here whose identity could sign, and in no public log.
command=$1; shift
exec {cosign} "$command" --key {key} --tlog-upload=false "$@"
"""
NOT_HERE = {"pip install": "it is there", "git merge-base": "the main branch may lie elsewhere"}
"""By what stands in a command: why it is not run."""


class RehearsalError(Exception):
    """What failed; one sentence."""


class Workflow:
    """The jobs of a workflow, and what its expressions stand for."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self._jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
        self._known = dict(known)

    def run(self, job: str, folder: Path, environ: Mapping[str, str]) -> list[str]:
        """Run a job's commands in ``folder``; what of it was not run. Raises RehearsalError."""
        about, left, known = self._jobs[job], [], dict(self._known)
        own = {name: _filled(value, known) for name, value in about.get("env", {}).items()}
        known |= {f"env.{name}": value for name, value in own.items()}
        for step in about["steps"]:
            if "run" not in step:
                left.append(step["uses"])
                continue
            command, outputs = _filled(step["run"], known), folder / "outputs"
            title = step.get("name") or command.splitlines()[0]
            if any(words in command for words in NOT_HERE):
                left.append(title)
                continue
            outputs.write_text("")
            given = {name: _filled(value, known) for name, value in step.get("env", {}).items()}
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", command],
                cwd=folder,
                env={**environ, **own, **given, "GITHUB_OUTPUT": str(outputs)},
                stdout=2,  # stdout is for what came out
                check=False,
            )
            if done.returncode:
                raise RehearsalError(f"job {job}: {title}: ended with status {done.returncode}.")
            for name, _, value in (
                line.partition("=") for line in outputs.read_text().splitlines()
            ):
                known[f"steps.{step['id']}.outputs.{name}"] = value
        for name, value in about.get("outputs", {}).items():
            self._known[f"needs.{job}.outputs.{name}"] = _filled(value, known)
        return left


def _filled(text: str, known: Mapping[str, str]) -> str:
    """``text`` with what its expressions stand for. Raises RehearsalError for an unknown one."""

    def value(expression: re.Match[str]) -> str:
        if expression[1] not in known:
            raise RehearsalError(
                f"{expression[0]}: stands for nothing here; say in rehearsal.py what."
            )
        return known[expression[1]]

    return re.sub(r"\$\{\{\s*(.*?)\s*\}\}", value, str(text))


def rehearse(parts: Mapping[str, str], registry: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Release what a tag says (``parts``) to ``registry``; a line for each thing that came out.

    Raises RehearsalError.
    """
    architecture, runner = ARCHITECTURES[platform.machine()]
    known = {f"needs.agrees.outputs.{name}": value for name, value in parts.items()}
    known |= {"matrix.platform": f"linux/{architecture}", "runner.arch": runner}
    known |= {"vars.IMAGE_REGISTRY": f"{registry}/images", "vars.CHART_REGISTRY": f"{registry}/charts"}  # fmt: skip
    known |= {"secrets.REGISTRY_USER": USER, "secrets.REGISTRY_PASSWORD": PASSWORD}
    workflow, left = Workflow(WORKFLOW.read_text(), known), []
    with tempfile.TemporaryDirectory() as folder:

        def run(job: str) -> Path:
            place = Path(folder, job)
            _asked(environ, "git", "clone", "--quiet", "--shared", str(ROOT), str(place))
            with suppress(FileNotFoundError):  # what the job before has left for it
                shutil.move(Path(folder, "built"), place / "built")
            left.extend(workflow.run(job, place, environ))
            return place

        if image := parts["image"]:
            out = run("image") / "out"
            shutil.copytree(out, Path(folder, "built", f"image-{image}-{runner}"))
            run("index")
            yield _image(
                environ, f"{registry}/images/{image}:{parts['version']}", out / f"{image}.tar"
            )
        if chart := parts["chart"]:
            run("chart")
            pulled = Path(folder, "pulled")
            name = f"oci://{registry}/charts/{Path(chart).name}"
            _asked(environ, "helm", "pull", name, "--version", parts["version"], "--untar", "--untardir", str(pulled))  # fmt: skip
            yield _chart(environ, pulled / Path(chart).name)
        if parts["package"]:
            files = sorted(path.name for path in (run("package") / "dist").iterdir())
            yield f"package: {', '.join(file for file in files if not file.startswith('.'))}"
    if shutil.which("cosign") is None:
        left.append("cosign, which is not on PATH")
    yield f"not run: {', '.join(dict.fromkeys(left))}"


def _image(environ: Mapping[str, str], name: str, archive: Path) -> str:
    """What the registry has under ``name``. Raises RehearsalError where that is not ``archive``."""
    index = json.loads(_asked(environ, "crane", "manifest", name))
    [manifest] = index["manifests"]
    digest = f"{name.rpartition(':')[0]}@{manifest['digest']}"
    config = json.loads(_asked(environ, "crane", "manifest", digest))["config"]["digest"]
    if config != image_id(archive):
        raise RehearsalError(f"{name}: is {config}, and {image_id(archive)} was built.")
    platforms = f"{manifest['platform']['os']}/{manifest['platform']['architecture']}"
    return f"image {name.partition('/')[2]} for {platforms}: {config}"


def _chart(environ: Mapping[str, str], folder: Path) -> str:
    """How many images a chart names by digest. Raises RehearsalError where the registry has not one
    of them."""
    images = []
    for path in sorted(folder.rglob("values.yaml")):
        if image := (yaml.safe_load(path.read_text()) or {}).get("image"):
            if not image["digest"]:
                raise RehearsalError(f"{path.relative_to(folder.parent)}: image.digest is empty.")
            images.append(f"{image['repository']}@{image['digest']}")
    for image in images:
        _asked(environ, "crane", "manifest", image)
    return f"chart {folder.name}: {len(images)} images by digest, all there"


def _asked(environ: Mapping[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RehearsalError(f"{' '.join(command)} ended with status {done.returncode}.")
    return done.stdout


@contextmanager
def registry() -> Iterator[tuple[str, dict[str, str]]]:
    """A registry with TLS and a password, by its address, and an environment whose programs trust
    it. Raises RehearsalError where a program is missing."""
    served = shutil.which("docker-registry") or shutil.which("registry")
    if served is None:
        raise RehearsalError(
            "no registry on PATH; install one, such as Debian's package docker-registry."
        )
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder, programs = Path(name), Path(name, "bin")
        programs.mkdir()
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        authority = trustme.CA()
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "pem")  # fmt: skip
        known = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
        (folder / "trusted").write_bytes(Path(known).read_bytes() if known else b"")
        authority.cert_pem.write_to_path(folder / "trusted", append=True)
        (folder / "htpasswd").write_text(HTPASSWD)
        (folder / "docker").mkdir()
        (folder / "docker/config.json").write_text("{}")  # buildah wants one where it is told of it
        settings = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(folder / "stored")}},
            "auth": {"htpasswd": {"realm": "rehearsal", "path": str(folder / "htpasswd")}},
            "http": {
                "addr": address,
                "tls": {"certificate": str(folder / "pem"), "key": str(folder / "pem")},
            },
        }
        (folder / "registry.yaml").write_text(yaml.safe_dump(settings))
        environ = {
            **os.environ,
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SSL_CERT_FILE": str(folder / "trusted"),
            "DOCKER_CONFIG": str(folder / "docker"),
            **{f"HELM_{what}_HOME": str(folder / "helm") for what in ("CACHE", "CONFIG", "DATA")},
            "COSIGN_PASSWORD": "",
        }
        cosign = shutil.which("cosign")
        scripts = {"nox": NOX, "cosign": UNSIGNED}
        if cosign:
            subprocess.run([cosign, "generate-key-pair"], cwd=folder, env=environ, check=True)
            scripts["cosign"] = SIGNED.format(cosign=cosign, key=folder / "cosign.key")
        for program, text in scripts.items():
            (programs / program).write_text(text)
            (programs / program).chmod(0o755)
        try:
            for tool in ("crane", "helm"):
                (programs / tool).symlink_to(bring_tool(tool, os.environ))
        except AssetsError as error:
            raise RehearsalError(str(error)) from error
        process = subprocess.Popen([served, "serve", folder / "registry.yaml"])
        try:
            _answers(process, address)
            yield address, environ
        finally:
            process.terminate()
            process.wait()


def _answers(process: subprocess.Popen[bytes], address: str) -> None:
    host, _, port = address.partition(":")
    while process.poll() is None:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.05)
    raise RehearsalError(f"the registry ended with status {process.returncode}.")
