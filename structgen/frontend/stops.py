"""Stop strings in a text that comes in pieces.

The stop whose last character comes first in the text wins; of several that end there, the longest.
So the answer depends on the text alone, never on how it was cut into pieces.

Unless the stop is to be part of the text, an end of the text that may still grow into a stop is
held back:

    text seen        |---------- released ----------|--- held ---|
                                                    ^ longest end that begins some stop
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Finds the first stop string and keeps it out of the text.

    `matched` is the stop found, or None; once it is set, nothing may be pushed.  `seen` counts the
    characters pushed or skipped, `released` those returned: after a match, where the text ends.
    """

    __slots__ = ("_held", "_include_stop", "_matchers", "matched", "released", "seen")

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """include_stop: the text ends with the stop instead of before it."""
        self._matchers = [_Matcher(stop) for stop in stops]
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None
        self.seen = 0
        self.released = 0

    def skip(self, piece: str) -> str:
        """Return a piece that is not searched.  Only before the first `push`."""
        self.seen += len(piece)
        self.released += len(piece)
        return piece

    def push(self, piece: str) -> str:
        """Return the text that is certain now: up to the stop if it is complete."""
        assert self.matched is None, f"text after the stop {self.matched!r}"
        text = self._held + piece
        self.seen += len(piece)
        found = self._first_match(piece)
        if found is None:
            keep = 0 if self._include_stop else max(matcher.depth for matcher in self._matchers)
            return self._release(text, len(text) - keep)
        stop, end = found
        self.matched = stop
        end += len(self._held)
        released = self._release(text, end if self._include_stop else end - len(stop))
        self._held = ""
        return released

    def flush(self) -> str:
        """End the text: return what was held back, no stop having completed."""
        return self._release(self._held, len(self._held))

    def _first_match(self, piece: str) -> tuple[str, int] | None:
        """Return the stop that ends first, and where in `piece`; advances every matcher."""
        ends = [(end, -len(m.stop), m.stop) for m in self._matchers if (end := m.advance(piece))]
        if not ends:
            return None
        end, _, stop = min(ends)
        return stop, end

    def _release(self, text: str, length: int) -> str:
        self._held = text[length:]
        self.released += length
        return text[:length]


class _Matcher:
    """Knuth-Morris-Pratt for one stop: each character is looked at once, amortised."""

    __slots__ = ("_borders", "depth", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self._borders = _borders(stop)
        self.depth = 0  # how many characters of the stop the text ends with

    def advance(self, piece: str) -> int | None:
        """Return the end of the first occurrence that ends in `piece`, if one does."""
        stop, borders, depth = self.stop, self._borders, self.depth
        at = 0
        while at < len(piece):
            if not depth and (at := piece.find(stop[0], at)) < 0:
                break
            while depth and piece[at] != stop[depth]:
                depth = borders[depth - 1]
            depth += piece[at] == stop[depth]
            at += 1
            if depth == len(stop):
                return at
        self.depth = depth
        return None


def _borders(text: str) -> list[int]:
    """Return, for each prefix, the length of its longest proper prefix that also ends it."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        length += text[index] == text[length]
        borders[index] = length
    return borders
