"""Names and borders in JSON that cannot be decoded: nested deeper, or longer, than a decoder takes.

Iterative, so no depth ends it, and it keeps nothing but what it is asked for, so no length fills
the memory. It takes for granted that the text is JSON, as an API server writes it, and judges
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

__all__ = ["MOST_TEXT", "Scanner"]

MOST_TEXT: Final = 4096
"""Bytes of a string that are kept: names have 253 at most, the tokens by which a list goes on some
700.
"""

Path = tuple[str, ...]
"""Keys from the root; lists add none."""

_NEAR: Final = re.compile(rb'[^"\[\]{},:]*+')
_DEEP: Final = re.compile(rb'[^"\[\]{}]*+')
_TEXT: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OPENED: Final = re.compile(rb"[\[{]++")
_CLOSED: Final = re.compile(rb"[\]}]++")
_QUOTE, _COMMA, _COLON, _BRACE, _BRACKET, _BRACE_END, _BRACKET_END = b'",:{[}]'


class Scanner:
    """Feed it a text in pieces of any size; ``found`` holds the strings at the ``wanted`` paths,
    cut at ``MOST_TEXT`` bytes.

    Where ``items`` names the key of a list at the root, ``on_item`` is called at the end of each
    object in it, with its bytes (None where it has more than ``most``) and with the strings found
    within it, which are then forgotten.
    """

    def __init__(
        self,
        wanted: Collection[Path],
        *,
        items: str = "",
        on_item: Callable[[bytes | None, dict[Path, str]], None] = lambda *_: None,
        most: int = 0,
    ) -> None:
        self.found: dict[Path, str] = {}
        self.ended = False
        """Whether the text's outermost object or list has been closed."""
        self._wanted = frozenset(wanted)
        self._levels = max(map(len, self._wanted)) + bool(items)
        self._items, self._on_item, self._most = items, on_item, most
        self._open: list[
            tuple[bool, str]
        ] = []  # of the levels that matter: whether it is an object, and its present key
        self._deep = 0  # levels open beyond those
        self._is_value = False  # a string that comes now
        self._text: bytearray | None = None  # the string that is being read
        self._left = b""
        self._kept: bytearray | None = (
            None  # the item that is being read, as far as it is not too long
        )
        self._in_item = False

    @property
    def complete(self) -> bool:
        """Whether everything that is wanted has been found."""
        return len(self.found) == len(self._wanted)

    def feed(self, piece: bytes) -> None:
        """Take the next ``piece`` of the text."""
        data, self._left = self._left + piece, b""
        at, kept_from, end = 0, 0, len(data)
        while at < end:
            if self._text is not None:
                # The pattern matches an empty text, too: there is always a match.
                stop = _TEXT.match(data, at).end()  # type: ignore[union-attr]
                if (room := MOST_TEXT - len(self._text)) > 0:
                    self._text += data[at : min(stop, at + room)]
                at = stop
                if at < end and data[at] == _QUOTE:
                    self._string(bytes(self._text))
                    self._text = None
                    at += 1
                    continue
                self._left = data[
                    at:
                ]  # nothing, or a backslash whose fellow comes with the next piece
                break
            at = (_DEEP if self._deep else _NEAR).match(data, at).end()  # type: ignore[union-attr]
            if at >= end:
                break
            sign = data[at]
            if self._deep and sign != _QUOTE:
                at = self._far(data, at)
                continue
            at += 1
            if sign == _QUOTE:
                self._text = bytearray()
            elif sign in {_BRACE, _BRACKET}:
                if self._begins_item(sign):
                    self._in_item, self._kept, kept_from = True, bytearray(), at - 1
                self._opens(sign == _BRACE)
            elif sign in {_BRACE_END, _BRACKET_END}:
                if self._open:
                    self._open.pop()
                    self.ended = not self._open
                if self._in_item and len(self._open) == 2:
                    self._keep(data[kept_from:at])
                    self._item_ends()
            else:
                self._is_value = sign == _COLON
        if self._in_item:
            self._keep(data[kept_from : end - len(self._left)])

    def _opens(self, is_object: bool) -> None:
        if len(self._open) < self._levels:
            self._open.append((is_object, ""))
        else:
            self._deep = 1
        self._is_value = False

    def _far(self, data: bytes, at: int) -> int:
        """Past one run of brackets beyond the levels that matter."""
        if data[at] in {_BRACE, _BRACKET}:
            stop = _OPENED.match(data, at).end()  # type: ignore[union-attr]
            self._deep += stop - at
            return stop
        stop = _CLOSED.match(data, at, at + self._deep).end()  # type: ignore[union-attr]
        self._deep -= stop - at
        return stop

    def _begins_item(self, sign: int) -> bool:
        return (
            not self._in_item
            and sign == _BRACE
            and bool(self._items)
            and len(self._open) == 2
            and self._open[0] == (True, self._items)
            and not self._open[1][0]
        )

    def _string(self, text: bytes) -> None:
        if self._deep or not self._open or not self._open[-1][0]:
            return
        if not self._is_value:
            self._open[-1] = (True, text.decode(errors="replace"))
            return
        path = tuple(key for is_object, key in self._open if is_object)
        if path in self._wanted:
            self.found.setdefault(path, text.decode(errors="replace"))

    def _keep(self, piece: bytes) -> None:
        if self._kept is not None:
            self._kept += piece
            if len(self._kept) > self._most:
                self._kept = None

    def _item_ends(self) -> None:
        within = {path: text for path, text in self.found.items() if path[0] == self._items}
        for path in within:
            del self.found[path]
        whole, self._kept, self._in_item = self._kept, None, False
        self._on_item(bytes(whole) if whole is not None else None, within)
