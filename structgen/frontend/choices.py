"""Which options of a choice can be answered, as far as that is cheap to know.

A bad word is banned in the tokenizer's spelling; a constraint would make the model spell it
otherwise.  Where an option is a bad word that is known beforehand, and the option is left out.
One that merely has such a word inside stays.

An option can be answered if some usable tokens spell it, few enough for max_tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from structgen.constraints import Choice
from structgen.errors import InvalidRequest
from structgen.frontend import bad_words
from structgen.params import SamplingParams

MAX_LOOK_UPS = 2**17  # some 20 ms; a choice that would take more is not looked at


class ChoiceFilter:
    """Leaves out options, and refuses what leaves none.  Immutable, so any thread may use it."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._ids_of: dict[bytes, list[int]] = {}
        for id, spelling in enumerate(token_bytes):
            self._ids_of.setdefault(spelling, []).append(id)
        self._longest = max(map(len, token_bytes), default=0)

    def apply(self, params: SamplingParams) -> SamplingParams:
        """Return the params, their choice without the options that are bad words.

        Raises InvalidRequest: no option can be answered.
        """
        choice = params.constraint
        if not isinstance(choice, Choice):
            return params
        options = _without_bad_words(choice.options, params.bad_words)
        self._check_spelling([option.encode() for option in options], params)
        if len(options) == len(choice.options):
            return params
        narrowed = msgspec.structs.replace(choice, options=tuple(options))
        return msgspec.structs.replace(params, constraint=narrowed)

    def _check_spelling(self, texts: Sequence[bytes], params: SamplingParams) -> None:
        limit = params.max_tokens
        restricted = bool(params.allowed_token_ids or params.bad_token_ids)
        if not restricted and (limit is None or min(map(len, texts)) <= limit):
            return  # no token is shorter than a byte
        if sum(map(len, texts)) * self._longest > MAX_LOOK_UPS:
            return
        usable = _usable(params)
        lengths = [n for text in texts if (n := self._fewest_tokens(text, usable)) is not None]
        if not lengths and restricted:
            raise InvalidRequest(
                "allowed_token_ids and bad_token_ids must leave an option of the choice, got "
                f"none of {len(texts)}",
                field="input.sampling",
            )
        if lengths and limit is not None and min(lengths) > limit:
            raise InvalidRequest(
                f"max_tokens must be at least {min(lengths)}, what the shortest option of the "
                f"choice takes, got {limit}",
                field="input.stopping.max_tokens",
            )

    def _fewest_tokens(self, text: bytes, usable: Callable[[int], bool]) -> int | None:
        """Return how many usable tokens spell `text` at least; None if none do."""
        fewest: list[int | None] = [0] + [None] * len(text)  # by how many bytes are spelt
        for start, count in enumerate(fewest):
            if count is None:
                continue
            for end in self._ends(text, start, usable):
                known = fewest[end]
                fewest[end] = count + 1 if known is None else min(known, count + 1)
        return fewest[-1]

    def _ends(self, text: bytes, start: int, usable: Callable[[int], bool]) -> Iterator[int]:
        """Yield where the usable tokens end that may stand at `start`."""
        for end in range(start + 1, min(start + self._longest, len(text)) + 1):
            if any(map(usable, self._ids_of.get(text[start:end], ()))):
                yield end


def _usable(params: SamplingParams) -> Callable[[int], bool]:
    allowed, bad = frozenset(params.allowed_token_ids), frozenset(params.bad_token_ids)
    return lambda id: id not in bad and (not allowed or id in allowed)


def _without_bad_words(options: Sequence[str], words: Sequence[str]) -> list[str]:
    banned = {form for word in words for form in bad_words.forms(word)}
    left = [option for option in options if option not in banned]
    if not left:
        raise InvalidRequest(
            f"bad_words must leave an option of the choice, got all {len(options)}",
            field="input.sampling.bad_words",
        )
    return left
