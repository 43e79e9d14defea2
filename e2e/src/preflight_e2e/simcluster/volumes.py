"""What a kubelet puts into a pod's folders: emptyDir, the node's own paths, and projected files
that are swapped as a whole.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

from preflight_testing.apidouble.store import Object

KINDS = {"emptyDir", "hostPath", "projected"}
SOURCES = {"downwardAPI", "configMap"}


def field(pod: Object, path: str) -> str:
    """What a ``fieldRef`` says of the pod. Raises KeyError for a path that is not implemented."""
    if match := re.fullmatch(r"metadata\.(annotations|labels)\['(.+)'\]", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
    known = {f"metadata.{name}": meta[name] for name in ("name", "namespace", "uid")}
    known |= {"spec.nodeName": spec.get("nodeName", ""), "status.hostIP": status.get("hostIP", "")}
    return str((known | {"status.podIP": status.get("podIP", "")})[path])


def folder(volume: Object, pod_root: Path, node_root: Path) -> Path:
    """The folder on this machine that stands for ``volume``."""
    path = pod_root / str(volume["name"])
    if "hostPath" in volume:
        path = node_root / str(volume["hostPath"]["path"]).lstrip("/")
    path.mkdir(parents=True, exist_ok=True)
    return path


def project(
    volume: Object, into: Path, pod: Object, config_map: Callable[[str], Object | None]
) -> None:
    """Write the files of a projected volume anew, and swap them in at one stroke as a kubelet does
    (``..data``).
    """
    files: dict[str, str] = {}
    for source in volume["projected"]["sources"]:
        if "configMap" in source:
            files |= (config_map(source["configMap"]["name"]) or {}).get("data", {})
        for item in source.get("downwardAPI", {}).get("items", []):
            files[item["path"]] = field(pod, item["fieldRef"]["fieldPath"])
    new, link, part = into / f"..{uuid.uuid4().hex[:12]}", into / "..data", into / "..data_tmp"
    old = link.resolve() if link.is_symlink() else None
    if old is not None and {f.name: f.read_text() for f in old.iterdir()} == files:
        return
    new.mkdir()
    for name, text in files.items():
        (new / name).write_text(text)
    part.symlink_to(new.name)
    part.replace(link)
    for name in files:
        if not (into / name).is_symlink():
            (into / name).symlink_to(f"..data/{name}")
    if old is not None:
        for path in old.iterdir():
            path.unlink()
            if path.name not in files:
                (into / path.name).unlink()
        old.rmdir()
