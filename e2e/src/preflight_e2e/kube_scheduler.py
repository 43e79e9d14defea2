"""The cluster's own kube-scheduler as an image, which the GPU scheduler's chart asks for."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from preflight_testing.apiserver import ASSETS

from .engine import Engine, ImageError
from .images import ROOT, BuiltImage, cache_folder

IMAGE = "preflight-kube-scheduler:dev"
MISSING = "PREFLIGHT_KUBE_SCHEDULER_MISSING"
"""For tests on a cluster: why the image is not on the nodes; not set where it is."""
DOCKERFILE = Path("e2e/kube-scheduler.Dockerfile")


def build(engine: Engine, *, root: Path = ROOT, cache: Path | None = None) -> BuiltImage:
    """Build (or find) the archive with kube-scheduler of ``KUBEBUILDER_ASSETS``, which has to be of
    the cluster's version, and nothing else. Raises ImageError.
    """
    folder = os.environ.get(ASSETS)
    program = Path(folder or "/") / "kube-scheduler"
    if not folder or not program.is_file():
        raise ImageError(
            f"{ASSETS} names no folder with kube-scheduler ({folder or 'it is not set'}); set it to that of the cluster."
        )
    cache = cache or cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256((root / DOCKERFILE).read_bytes())
    with program.open("rb") as read:
        key.update(hashlib.file_digest(read, "sha256").digest())
    stem = IMAGE.replace(":", "-")
    archive = cache / f"{stem}-{key.hexdigest()[:16]}.tar"
    if archive.exists():
        return BuiltImage(IMAGE, archive, 0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(program, context)
        engine.build(root / DOCKERFILE, Path(context), IMAGE, {})
    engine.save(IMAGE, archive)
    for older in cache.glob(f"{stem}-*.tar"):
        if older != archive:
            older.unlink(missing_ok=True)
    return BuiltImage(IMAGE, archive, time.monotonic() - started)
