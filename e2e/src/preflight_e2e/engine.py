"""The program that builds images: docker, podman or buildah."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class ImageError(Exception):
    """No image came out; the message is one sentence, the engine's own words having gone to stderr
    before.
    """


@dataclass(frozen=True)
class Engine:
    """A program that builds images. The three differ in few words."""

    name: str
    architecture: str | None = None
    """What to build for, as Go names it; none: this machine's. Another one's programs run in the
    build by emulation.
    """

    def build(
        self,
        dockerfile: Path,
        context: Path,
        tag: str,
        args: Mapping[str, str],
        named: Mapping[str, Path] | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        created: int | None = None,
    ) -> None:
        """``named``: further contexts, for ``COPY --from=NAME``; ``created``: time of the image and
        of its files, in seconds, which is then built from nothing: a step that is there already
        keeps its own time.
        """
        options = [
            word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")
        ]
        options += [
            word for key, value in (labels or {}).items() for word in ("--label", f"{key}={value}")
        ]
        if created is not None and self.name == "docker":
            options += ["--build-arg", f"SOURCE_DATE_EPOCH={created}"]
        elif created is not None:
            options += ["--timestamp", str(created)]
        if created is not None:
            options.append("--no-cache")
        if self.architecture is not None:
            options += ["--platform", f"linux/{self.architecture}"]
        options += [
            word
            for key, path in (named or {}).items()
            for word in ("--build-context", f"{key}={path}")
        ]
        if self.name == "buildah":
            # chroot: works where a sandbox forbids the namespaces that a container would need.
            bases_here = all(
                self.has(value) for key, value in args.items() if key in {"BASE", "IMAGE"}
            )
            options += [
                "--isolation",
                "chroot",
                "--layers",
                *(["--pull-never"] if bases_here else []),
            ]
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
        """The id of a local image: a base that was made again makes new images."""
        return self._inspect(tag, "{{.FromImageID}}" if self.name == "buildah" else "{{.Id}}")

    def digest(self, tag: str) -> str | None:
        """The digest by which a registry knows a local image; none where there is none, or where it
        came from no registry.
        """
        form = {"buildah": "{{.FromImageDigest}}", "podman": "{{.Digest}}"}.get(
            self.name, '{{join .RepoDigests " "}}'
        )
        match = re.search(r"sha256:[0-9a-f]{64}", self._inspect(tag, form) or "")
        return match and match[0]

    def _inspect(self, tag: str, form: str) -> str | None:
        words = ("inspect", "--type", "image") if self.name == "buildah" else ("image", "inspect")
        asked = [self.name, *words, "--format", form, tag]
        completed = subprocess.run(asked, capture_output=True, text=True, check=False)
        return completed.stdout.strip() if completed.returncode == 0 else None

    def _verb(self, verb: str) -> str:
        return "bud" if self.name == "buildah" and verb == "build" else verb

    def _run(self, *words: str) -> None:
        done = subprocess.run(
            [self.name, *words], stdout=2, check=False
        )  # stdout is for what came out
        if done.returncode != 0:
            raise ImageError(
                f"{self.name} {words[0]} ended with status {done.returncode}; its last lines say why."
            )


def find_engine(wanted: str | None = None) -> Engine:
    """The engine named, else the first that works. Raises ImageError with what was tried."""
    probes = {"docker": ("info",), "podman": ("info",), "buildah": ("--version",)}
    tried = []
    for name in [wanted] if wanted else probes:
        if shutil.which(name) is None:
            tried.append(f"{name} is not installed")
        elif (
            subprocess.run([name, *probes[name]], capture_output=True, check=False).returncode != 0
        ):
            tried.append(f"{name} has no engine that answers")
        else:
            return Engine(name)
    raise ImageError(
        f"nothing here builds images ({'; '.join(tried)}); install docker, podman or buildah."
    )
