"""Vocabularies to match over, and the few steps that every test of a matcher takes."""

from __future__ import annotations

import random
from collections.abc import Iterable

from structgen.constraints import Constraint
from structgen.grammar import bitmask, build_backend
from structgen.grammar.base import CompiledConstraint, GrammarBackend, Matcher, Vocabulary

BYTES = [bytes([byte]) for byte in range(256)]
CONTROL = b""  # "<|im_start|>" and its like: text that no answer spells

TINY = Vocabulary([CONTROL, b"a", b"b", b"c", b"ab", b"bc", b"abc", b"cc", b"<eos>", CONTROL])
BYTE_LEVEL = Vocabulary([*BYTES, CONTROL])
# Control tokens first, a byte for what no piece spells, pieces of several characters, two ids with
# the same text, and, as in byte-pair vocabularies, pieces that begin or end inside a character.
PIECES = [
    *[
        "a",
        "b",
        "ab",
        "abc",
        " ",
        "  ",
        " a",
        "é",
        "ée",
        "日本",
        "日",
        "😀",
        '"',
        '{"',
        '": ',
        '": "',
    ],
    *[
        '"}',
        '"]',
        ", ",
        ", ",
        ',"',
        "[",
        "]",
        "{",
        "}",
        "{}",
        "12",
        "1",
        "-",
        "0",
        ".5",
        "e",
        "true",
    ],
    *[
        "null",
        "\\",
        '\\"',
        "\\u",
        "\\ud",
        "\\ud83d",
        "\\ude00",
        "\\u00",
        "\n",
        "\n\n",
        "\t",
        "\x00",
    ],
    *[
        "</s>",
        "<|endoftext|>",
        '"name',
        "name",
        'a"',
        "tag",
        ": ",
        "\\n",
        "\x7f",
        "_",
        "/",
        "\u2028",
    ],
]
HALVES = [b"\xe6", b"\xe6\x97", b"\x97\xa5", b"\xa5", b"a\xe6", b"\xf0\x9f", b"\x98\x80", b"\x80b"]
ILL = [b"\xc0\x80", b"\xed\xa0\x80", b"\xed\xa0", b"\xe0\x80", b"\xf4\x90", b"\xff\xfe", b"a\xff"]
SENTENCE_PIECES = Vocabulary(
    [CONTROL] * 3 + BYTES + [piece.encode() for piece in PIECES] + HALVES + ILL
)


def large_vocabulary() -> Vocabulary:
    """Return 151,936 tokens: the bytes, random words and pieces of JSON, and control tokens."""
    rng = random.Random(0)
    tokens = dict.fromkeys(BYTES + [piece.encode() for piece in PIECES if len(piece) > 1])
    letters = 'etaoinshrdlu ETAOIN0123456789.,:"{}[]_-éñ日'
    while len(tokens) < 151_643:
        word = "".join(rng.choices(letters, k=rng.randint(2, 7)))
        tokens[word.encode()] = None
    return Vocabulary([*tokens, *[CONTROL] * (151_936 - len(tokens))])


class Bench:
    """A backend over a vocabulary, with one mask row to look at."""

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.backend: GrammarBackend = build_backend(name, vocabulary)
        self.ids = {text: id for id, text in enumerate(vocabulary.token_bytes) if text}
        self._words = bitmask.allocate(1, vocabulary.size)

    def start(self, constraint: Constraint) -> Matcher:
        return self.compile(constraint).new_matcher()

    def compile(self, constraint: Constraint) -> CompiledConstraint:
        return self.backend.compile(constraint)

    def allowed(self, matcher: Matcher) -> set[int]:
        """Return the ids that the mask allows; the row is dirty before, as it may be."""
        self._words[:] = -1
        self.backend.fill([matcher], self._words, [0])
        return set(bitmask.unpack(self._words[0], self.vocabulary.size))

    def texts(self, matcher: Matcher) -> set[bytes]:
        return {self.vocabulary.token_bytes[token] for token in self.allowed(matcher)}

    def obeys(self, constraint: Constraint, text: str | bytes) -> bool:
        """Whether the masks allow a text byte by byte, to its end."""
        data = text.encode() if isinstance(text, str) else text
        matcher = self.start(constraint)
        return self.follow(matcher, (self.ids[data[i : i + 1]] for i in range(len(data))))

    def follow(self, matcher: Matcher, tokens: Iterable[int]) -> bool:
        """Accept tokens as far as masks allow; whether they did, and the text may end there."""
        for token in tokens:
            if token not in self.allowed(matcher):
                return False
            matcher.accept(token)
        return matcher.accepting
