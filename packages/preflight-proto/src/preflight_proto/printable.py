"""Text that others wrote, made fit for a log line, a result, an Event: one line that changes no
terminal and no reading order.
"""

from __future__ import annotations

import re
from typing import Final

_SEQUENCES: Final = re.compile(
    # ECMA-48: control sequences (CSI), then control strings (OSC, DCS, SOS, PM, APC) that are
    # terminated, then character sets.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[()*+][0-9A-Za-z]"
)


def printable(text: str, most: int | None = None) -> str:
    """``text`` as one line of printable characters, cut to ``most`` characters.

    Terminal sequences are removed. White space of any kind, line and paragraph separators too,
    becomes one space. What else does not print (control and format characters such as NUL,
    bidirectional overrides and zero-width marks, lone surrogates, code points without a character)
    becomes its escape, as ``\\x00`` or ``\\u202e``.
    """
    if most is not None and len(text) > 8 * most:
        text = text[: 8 * most]  # what is cut in the end is not worth the walk
    line = " ".join(_SEQUENCES.sub("", text).split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else _escape(c) for c in line)
    return line if most is None or len(line) <= most else line[: max(0, most - 1)] + "…"


def _escape(character: str) -> str:
    code = ord(character)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )
