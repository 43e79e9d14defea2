"""Text that others wrote, made fit for a log line, an error or an Event. Pure."""

from __future__ import annotations


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
