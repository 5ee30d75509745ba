"""Token ids -> text, as they come.

The text of an answer is the concatenation of its tokens' bytes, decoded as UTF-8 with U+FFFD for
what is not.  A token may end inside a character: those bytes wait for the next token, so no piece
holds a replacement character that the whole text lacks.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

_Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one answer.  Pieces of `push`, then `flush`, make up the whole text."""

    __slots__ = ("_decoder", "_token_bytes")

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """token_bytes: what each id adds to the text, b"" for special tokens.  Not copied."""
        self._token_bytes = token_bytes
        self._decoder = _Decoder("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the characters that `ids` complete."""
        return self._decoder.decode(b"".join([self._token_bytes[id] for id in ids]))

    def flush(self) -> str:
        """End the text: return what a decoder makes of the bytes of an unfinished character."""
        return self._decoder.decode(b"", True)
