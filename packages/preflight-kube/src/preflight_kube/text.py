"""Text that others wrote, made fit for a log line, an error or an Event. Pure."""

from __future__ import annotations

from functools import lru_cache

_LONGEST, _TEXTS = 256, 8192
"""Characters and number of the texts that :func:`shared` keeps, 10 MB of them at most."""


def printable(text: str) -> str:
    """``text`` with a space for each character that no terminal should get."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def printable_lines(text: str) -> str:
    """The lines of ``text``, each :func:`printable`."""
    return "\n".join(map(printable, text.split("\n")))


def one_line(text: str, most: int) -> str:
    """``text`` as one line of printable characters, each run of white space one space, cut to
    ``most`` characters.
    """
    line = " ".join(printable(text[: 8 * most]).split())
    return line if len(line) <= most else line[: max(0, most - 1)] + "…"


def shared(text: str) -> str:
    """``text``, as the one object of all that say the same, for what thousands of objects have in
    common. Texts are tenants': no long one, and no more than the last few thousand, are kept for it
    (``sys.intern`` of Python 3.12 keeps each for good).
    """
    return _last(text) if len(text) <= _LONGEST else text


_last = lru_cache(maxsize=_TEXTS)(str)
