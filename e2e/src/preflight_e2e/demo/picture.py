"""The README's picture: the first screen of the report, by a browser, with what it was made of."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Final

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_KEY: Final = b"made-of\0"
_SIZE: Final = "1100,1180"
"""Pixels; the header and the table of verdicts."""


def sources() -> str:
    """Return a digest of all that decides how the report looks, and what it shows."""
    here = Path(__file__).parent
    scenario = here.parents[2] / "demo.toml"
    digest = hashlib.sha256()
    for file in (here / "page.py", here / "page.css", here / "story.py", scenario):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def made_of(png: bytes, digest: str) -> bytes:
    """Add `digest` to a PNG, as a text chunk (PNG specification, 11.3.4.3) before its end."""
    body = b"tEXt" + _KEY + digest.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    end = png.rindex(b"IEND") - 4
    return png[:end] + chunk + png[end:]


def read_stamp(png: bytes) -> str:
    """Return the digest that a picture bears, "" for none."""
    at = png.find(b"tEXt" + _KEY)
    return "" if at < 0 else png[at + 4 + len(_KEY) :][:64].decode("ascii", "replace")


def take(report: Path, picture: Path) -> None:
    """Make `picture` of `report`.

    Raises OSError where no browser is there, or it makes none.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise FileNotFoundError(2, "no chromium is in the PATH, which takes the picture", "PATH")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options += ["--disable-background-networking", "--no-first-run", f"--window-size={_SIZE}"]
    with tempfile.TemporaryDirectory(prefix="picture-") as folder:
        shot = Path(folder, "shot.png")
        command = [browser, *options, f"--user-data-dir={folder}/profile", f"--screenshot={shot}"]
        subprocess.run(
            [*command, report.resolve().as_uri()], capture_output=True, timeout=120, check=False
        )
        png = shot.read_bytes()
    if not png.startswith(_SIGNATURE):
        raise OSError(5, "chromium wrote no PNG", str(picture))
    picture.write_bytes(made_of(png, sources()))
