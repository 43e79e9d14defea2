"""Another webhook to be measured beside ours: the one kept in `e2e/bench/peers`, or any that a URL
leads to.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from preflight_testing.apidouble.patches import copied, json_patch
from preflight_testing.apiserver import free_port

from .load import BenchError, built, until
from .served import PATIENCE, ReviewServer, pinned

SOURCE = Path(__file__).resolve().parents[3] / "bench" / "peers" / "controller-runtime"
SKIPPED = "peer: SKIPPED, as it is written in Go and go is not on PATH; install Go 1.26, or give another webhook's --peer-url."


def by_url(url: str) -> ReviewServer:
    """The webhook at an https URL."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise BenchError(
            f'--peer-url: "{url}" is not an https URL; give one such as https://127.0.0.1:9443/mutate.'
        )
    return ReviewServer(f"{parts.hostname}:{parts.port or 443}", parts.path or "/")


@contextmanager
def serving(folder: Path, core: int, patch: list[dict[str, Any]]) -> Iterator[ReviewServer | None]:
    """The peer with the certificate in ``folder``, adding what ``patch`` adds; None where there is
    no Go to build it.
    """
    if shutil.which("go") is None:
        yield None
        return
    (folder / "inject.json").write_text(json.dumps(additions(patch)))
    port = free_port()
    command = [str(built(SOURCE, "peer")), "-port", str(port), "-cert-dir", str(folder)]
    command += ["-inject", str(folder / "inject.json")]
    log = folder / "peer.log"
    with pinned(command, core, log, {}, stderr=subprocess.STDOUT) as process:

        def listens() -> bool:
            if process.poll() is not None:
                raise BenchError(f"the peer did not start: {log.read_text()[-300:].strip()}")
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return True
            return False

        until(listens, "the peer listens", PATIENCE, 0.02)
        yield ReviewServer(f"127.0.0.1:{port}", pid=process.pid)


def patch_of(answer: str) -> list[dict[str, Any]]:
    """The operations in an AdmissionReview's answer."""
    response = json.loads(answer)["response"]
    return list(json.loads(base64.b64decode(response.get("patch", "") or "W10=")))


def additions(patch: list[dict[str, Any]]) -> dict[str, Any]:
    """What a patch on the bench's pod adds, as the peer reads it."""
    bare: dict[str, Any] = {
        "metadata": {"labels": {}, "annotations": {}},
        "spec": {"volumes": [], "containers": [], "resources": {}},
    }
    patched = json_patch(bare, patch)
    return {
        "first": patched["spec"].get("initContainers", []),
        "volumes": patched["spec"]["volumes"],
        "pullSecrets": patched["spec"].get("imagePullSecrets", []),
        **{key: patched["metadata"][key] for key in ("labels", "annotations")},
    }


def difference(
    pod: dict[str, Any], ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> str:
    """Where the pods that both patches make differ, or nothing. What is empty counts as absent:
    typed Go writes it or leaves it out.
    """
    return _difference(
        _bare(json_patch(copied(pod), ours)), _bare(json_patch(copied(pod), theirs)), ""
    )


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        stripped = {key: _bare(entry) for key, entry in value.items()}
        return {
            key: entry
            for key, entry in stripped.items()
            if entry is not None and entry != {} and entry != []
        }
    return [_bare(entry) for entry in value] if isinstance(value, list) else value


def _difference(ours: Any, theirs: Any, path: str) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        both = [
            _difference(ours.get(key), theirs.get(key), f"{path}/{key}")
            for key in sorted({*ours, *theirs})
        ]
        return next((difference for difference in both if difference), "")
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next(
            (
                difference
                for i, (ours, other) in pairs
                if (difference := _difference(ours, other, f"{path}/{i}"))
            ),
            "",
        )
    same = ours == theirs
    return (
        ""
        if same
        else f"{path}: {msgspec.json.encode(ours).decode()} and {msgspec.json.encode(theirs).decode()}"
    )
