"""Which tokens a request may use at all: its allowed ids, its bad words and ids.

A bad word is a sequence of ids of which only the last is banned, and only where the others were
just answered.  Everything that does not change from token to token is packed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from structgen.grammar import bitmask


class TokenFilter:
    """allowed: ids that may be used, empty for all.  sequences: ids that may not follow in turn."""

    __slots__ = ("_allowed", "_bad", "_longer")

    def __init__(
        self, allowed: Sequence[int], sequences: Sequence[Sequence[int]], vocab_size: int
    ) -> None:
        self._allowed = bitmask.pack(allowed, vocab_size) if allowed else None
        self._bad = bitmask.TokenSet(ids[0] for ids in sequences if len(ids) == 1)
        # By length, so that the end of the answer is cut out once for all of a length.
        self._longer: dict[int, dict[tuple[int, ...], set[int]]] = {}
        for ids in sequences:
            if len(ids) > 1:
                heads = self._longer.setdefault(len(ids) - 1, {})
                heads.setdefault(tuple(ids[:-1]), set()).add(ids[-1])

    def apply(self, row: bitmask.Words, tokens: Sequence[int], num_prompt: int) -> None:
        """Ban in a mask row what may not follow `tokens`, of which num_prompt are the prompt's."""
        if self._allowed is not None:
            row &= self._allowed
        self._bad.ban(row)
        for length, heads in self._longer.items():
            if len(tokens) - num_prompt >= length:
                lasts = heads.get(tuple(tokens[-length:]))
                if lasts:
                    bitmask.TokenSet(lasts).ban(row)

    @property
    def names(self) -> list[str]:
        """The options that make up this filter, as the public contract calls them."""
        return ["allowed_token_ids"] * (self._allowed is not None) + ["bad words and token ids"] * (
            bool(self._longer) or not self._bad.is_empty
        )
