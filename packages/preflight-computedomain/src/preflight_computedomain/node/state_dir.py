"""The checkpoint and the CDI files on the node's disk; a crash may interrupt any change of them.

Everything that changes them is called with the lock held, and reads the checkpoint anew: another
plugin may have written it.

- Prepare: entry ``PrepareStarted`` · CDI file · entry ``PrepareCompleted``.
- Unprepare: CDI file away · entry away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from preflight_kube.logs import get_logger

from preflight_computedomain.api import checkpoint, names
from preflight_computedomain.api.checkpoint import Channel, Checkpoint, Corrupt, Entry
from preflight_computedomain.core.claims import ChannelRequest, Refusal, decide
from preflight_computedomain.core.facts import NodeFacts, Unfit
from preflight_computedomain.node.atomic_file import TEMPORARY, Disk

CHECKPOINT: Final = "checkpoint.json"
MAX_BYTES: Final = 8 << 20
"""The size that a checkpoint may have: it holds a claim's status twice, of 1.5 MB at most, and that
of what was begun once.
"""
_NOW: Final = partial(datetime.now, UTC)
_log = get_logger(__name__)


class ClaimStore:
    """``folder``: the plugin's own; ``cdi``: where the container runtime reads. ``major``: that of
    the IMEX channels, now; raises Unfit where there is none. Blocking; raises OSError.
    """

    def __init__(
        self,
        folder: Path,
        cdi: Path,
        facts: NodeFacts,
        major: Callable[[], int],
        disk: Disk,
        *,
        now: Callable[[], datetime] = _NOW,
    ) -> None:
        self._path, self._cdi = folder / CHECKPOINT, cdi
        self._facts, self.major, self._disk, self.now = facts, major, disk, now
        self._kept: tuple[tuple[int, ...], Mapping[str, Entry]] = ((), {})
        """The content of a file, and its inode, time and size."""
        self._last = Checkpoint()
        self.corrupt = 0
        """Checkpoints that had to be moved aside so far."""

    def entries(self) -> Mapping[str, Entry]:
        """The claims of the checkpoint now, without the lock. Raises :class:`Corrupt`, after which
        :meth:`repaired` has them.
        """
        try:
            stat = self._path.stat()
            signature = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if self._kept[0] != signature:
                self._kept = signature, checkpoint.decode(self._bytes()).claims
        except FileNotFoundError:
            return {}
        return self._kept[1]

    def repaired(self) -> Mapping[str, Entry]:
        """The claims of the checkpoint, which is written anew where it cannot be read."""
        return self._read().claims

    def prepared(self) -> int:
        """How many claims have channel 0, by what was last read or written under the lock."""
        return sum(1 for uid, entry in self._last.claims.items() if entry.channel(uid))

    def start(self) -> None:
        """Drop the claims of another boot, and make the CDI files what the entries say."""
        self._disk.remove(self._path.with_name(CHECKPOINT + TEMPORARY))
        last = self._read()
        if last.boot and last.boot != self._facts.boot:
            _log.info(
                "the node was rebooted, claims of the last boot dropped", claims=len(last.claims)
            )
            last = Checkpoint()
        if last.boot != self._facts.boot or not self._path.exists():
            self._write(last.claims)
        self._sweep(last.claims)
        for uid, entry in last.claims.items():
            if entry.channel(uid):
                self.restore(uid)

    def _sweep(self, claims: Mapping[str, Entry]) -> None:
        kept = {
            names.cdi_file(uid)
            for uid, entry in claims.items()
            if entry.state == checkpoint.COMPLETED
        }
        for path in self._files():
            if uid_of(path.name) and path.name not in kept:
                _log.info("CDI file of no prepared claim removed", path=path)
                self._disk.remove(path)

    def prepare(
        self, request: ChannelRequest, domains: Collection[str], clique: str
    ) -> Channel | Refusal:
        """Decide once more, by the disk of now, and do it. Raises Unfit where the driver goes."""
        claims = dict(self._read().claims)
        done = decide(request, domains, clique, claims, self.now())
        if done is not None:
            return done
        ref, major, node = request.ref, self.major(), self._facts.node
        begun = Entry(
            checkpoint.STARTED, Raw(request.status), name=ref.name, namespace=ref.namespace
        )
        claims[ref.uid] = begun
        self._write(claims)
        self._disk.write(self._file(ref.uid), document(ref.uid, major), 0o644)
        devices = checkpoint.completed((request.request,), node, ref.uid, request.domain)
        claims[ref.uid] = replace(begun, state=checkpoint.COMPLETED, devices=devices)
        self._write(claims)
        self._confirm(major, lambda: self.unprepare(ref.uid))
        return Channel((request.request,), node)

    def _confirm(self, major: int, undo: Callable[[], object]) -> None:
        """Undo what was written with ``major`` where that may be another driver's. Raises Unfit."""
        try:
            if self.major() != major:
                raise Unfit("the NVIDIA driver was loaded anew at this very moment; try again")
        except Unfit:
            undo()
            raise

    def current(self, uid: str) -> bool:
        """Tell whether a completed claim's CDI file has the driver's major of now. Raises Unfit."""
        return self._held(uid) == document(uid, self.major())

    def whole(self, uid: str) -> bool:
        """Tell whether a completed claim's CDI file is as it was written, with some major."""
        return is_document(uid, self._held(uid))

    def restore(self, uid: str) -> bool:
        """Make the CDI file of a prepared claim again; False where it is not that. Raises Unfit."""
        entry = self._read().claims.get(uid)
        if entry is None or not entry.channel(uid):
            return False
        if not self.current(uid):
            major, path = self.major(), self._file(uid)
            self._disk.write(path, document(uid, major), 0o644)
            self._confirm(major, lambda: self._disk.remove(path))
        return True

    def _held(self, uid: str) -> bytes:
        try:
            return self._file(uid).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return b""

    def unprepare(self, uid: str) -> bool:
        """Leave nothing of the claim; whether there was an entry."""
        claims = dict(self._read().claims)
        self._disk.remove(self._file(uid))
        if claims.pop(uid, None) is None:
            return False
        self._write(claims)
        return True

    def _file(self, uid: str) -> Path:
        return self._cdi / names.cdi_file(uid)

    def _write(self, claims: Mapping[str, Entry], keep: Path | None = None) -> None:
        now = Checkpoint(claims, self._facts.boot)
        self._disk.write(self._path, checkpoint.encode(now), keep=keep)
        self._last = now

    def _read(self) -> Checkpoint:
        try:
            self._last = checkpoint.decode(self._bytes())
        except FileNotFoundError:
            self._last = Checkpoint()
        except Corrupt as error:
            self._aside(error)
        return self._last

    def _bytes(self) -> bytes:
        if (size := self._path.stat().st_size) > MAX_BYTES:
            raise Corrupt(f"it has {size} bytes, more than {MAX_BYTES}")
        try:
            return self._path.read_bytes()
        except IsADirectoryError:
            raise Corrupt("it is a folder") from None

    def _aside(self, error: Corrupt) -> None:
        """Begin anew: a node without a driver for ever is worse. A process that has only just
        started knows nothing yet, but the claim whose CDI file stands is in use: its containers may
        run, and the kubelet asks only for an end of it.
        """
        claims = self._last.claims or self._in_files()
        other = self._path.with_name(f"{CHECKPOINT}.corrupt-{self.now():%Y%m%dT%H%M%S.%fZ}")
        self._write(claims, keep=other)
        self.corrupt += 1
        _log.error(
            "checkpoint not readable, moved aside and written anew",
            path=self._path,
            error=str(error),
            moved_to=other.name,
            claims=", ".join(claims) or "none",
        )

    def _in_files(self) -> Mapping[str, Entry]:
        """The prepared claim, where one CDI file is as this driver writes them."""
        uids = {uid_of(path.name) for path in self._files()}
        whole = [uid for uid in uids if names.fits_as_uid(uid) and self.whole(uid)]
        if len(whole) != 1:
            return {}
        devices = checkpoint.completed((), self._facts.node, whole[0], "")
        return {whole[0]: Entry(checkpoint.COMPLETED, Raw(b"{}"), devices)}

    def _files(self) -> list[Path]:
        return sorted(self._cdi.iterdir()) if self._cdi.is_dir() else []


# --- the CDI document of a prepared claim, by which a container gets channel 0: the runtime makes
# the device node inside the container, and the host's own is not needed


def document(uid: str, major: int) -> bytes:
    """The file's content for the claim ``uid``; ``major``: of the IMEX channels' device nodes."""
    # 0.5.0 is the first version in which a device's name may begin with a digit, as a uid does.
    node = {"path": names.DEVICE_NODE, "type": "c", "major": major, "minor": 0, "fileMode": 0o666}
    spec: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": names.CDI_KIND,
        "devices": [{"name": names.cdi_device(uid), "containerEdits": {"deviceNodes": [node]}}],
    }
    return msgspec.json.encode(spec)


def is_document(uid: str, data: bytes) -> bool:
    """Tell whether ``data`` is the :func:`document` of the claim ``uid`` with some major."""
    match = re.search(rb'"major":([0-9]{1,4}),', data)
    return match is not None and data == document(uid, int(match[1]))


def uid_of(file: str) -> str:
    """The claim's uid in the name of such a file, finished or not; empty where it is another's."""
    if not file.startswith(names.CDI_PREFIX):
        return ""
    return file.removeprefix(names.CDI_PREFIX).removesuffix(".tmp").removesuffix(".json")
