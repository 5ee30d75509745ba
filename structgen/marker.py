"""The marker behind which a constraint begins, looked for in the tokens of an answer.

It is a control token, or a text: then it may be split over tokens, and is found in their bytes
(Knuth, Morris and Pratt 1977).  A control token adds no text, so it may stand inside.
"""

from __future__ import annotations


class Marker:
    """Immutable; who looks for it keeps the state, which begins at 0.

    text: its bytes.  token: the control token that it is; None: it is a text.
    """

    __slots__ = ("_borders", "text", "token")

    def __init__(self, text: bytes, token: int | None = None) -> None:
        assert text, "a marker has a text"
        self.text = text
        self.token = token
        self._borders = _borders(text)

    @property
    def end(self) -> int:
        """The state in which all of it was found."""
        return len(self.text)

    def after(self, state: int, token: int, text: bytes) -> tuple[int, int]:
        """Return the state after a token with this text, and how many of its bytes were read.

        Those behind the marker's end are not.
        """
        if self.token is not None:
            return (self.end if token == self.token else 0), len(text)
        for count, byte in enumerate(text, 1):
            while state and self.text[state] != byte:
                state = self._borders[state - 1]
            state += self.text[state] == byte
            if state == self.end:
                return state, count
        return state, len(text)

    def begun(self, state: int) -> list[int]:
        """Return how many of its bytes may have been found in a state, the most first.

        A beginning of the marker may end with a shorter one.
        """
        found = []
        while state:
            found.append(state)
            state = self._borders[state - 1]
        return found


def _borders(text: bytes) -> list[int]:
    """Return, for each beginning of the text, the longest shorter one that it ends with."""
    borders = [0] * len(text)
    for position in range(1, len(text)):
        length = borders[position - 1]
        while length and text[length] != text[position]:
            length = borders[length - 1]
        borders[position] = length + (text[length] == text[position])
    return borders
