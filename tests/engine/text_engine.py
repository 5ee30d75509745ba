"""A stub engine over a small vocabulary of texts, with the front end's text side before it."""

from __future__ import annotations

import json

from stub_engine import VOCAB, Script, StubEngine, spell

from structgen.constraints import (
    Backend,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from structgen.errors import StructgenError
from structgen.frontend.outputs import OutputProcessor, RequestOutput, merge
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends
from structgen.messages import Abort, EngineOutput, EngineRequest

# What closes things first: the stub takes the lowest token that is allowed.
CHARACTERS = '"}],:{[ 0123456789.-abcdefgilmnrstu<>/'
WORDS = ['": ', '": "', '", "', ", ", '{"', '"}', '"]', "ab", "abc", "bc", "12", "true", "false"]
WORDS += ["null", "na", "name", "ta", "tag", "list", "</", "</t", '{"name', "t>"]
TEXTS = [*CHARACTERS, *WORDS]
VOCABULARY = Vocabulary(
    [*[text.encode() for text in TEXTS], *[b""] * (VOCAB - len(TEXTS))]  # the last is EOS
)

OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tag": {"enum": ["a", "ab", None, 1, 12]},
        "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "tag"],
    "additionalProperties": False,
}
CALLS = {
    "type": "triggered_tags",
    "triggers": ["<t"],
    "tags": [
        {
            "type": "tag",
            "begin": "<t>",
            "content": {"type": "regex", "pattern": "[ab]{1,4}"},
            "end": "</t>",
        }
    ],
}
CONSTRAINTS: list[Constraint] = [
    JsonSchema.of(OBJECT),
    JsonSchema(json.dumps(OBJECT), backend=Backend.XGRAMMAR),
    JsonSchema('{"enum": ["abcabcab", "abcabcba", "abcac"]}'),
    JsonObject(),
    Regex("(ab|cd)+[0-9]{1,3}"),
    Regex("abc[ab]{2,9}cba", backend=Backend.OUTLINES_CORE),
    Ebnf('root ::= "{" item ("," item)* "}"\nitem ::= "tag" [0-9]+ | root'),
    Ebnf('root ::= "abc" ("ab" | "ba")+ "c"', backend=Backend.XGRAMMAR),
    Lark('start: "name" pair+\npair: ":" /[a-c]{1,3}/ "."'),
    Choice(("true", "false", "null", "tablet", "table")),
    StructuralTag(json.dumps({"type": "structural_tag", "format": CALLS})),
]


def ids(text: str) -> list[int]:
    return spell(VOCABULARY, text)


def text_of(tokens: list[int]) -> str:
    return b"".join([VOCABULARY.token_bytes[token] for token in tokens]).decode()


class TextEngine(StubEngine):
    """What callers get: answers by name ("id/index" beyond the first), failures by request id."""

    def __init__(self, script: Script, **options: object) -> None:
        settings: dict[str, object] = {"jump": True, "backends": Backends(VOCABULARY)}
        super().__init__(script, **(settings | options))  # type: ignore[arg-type]
        self.requests: dict[str, EngineRequest] = {}
        self.pieces: dict[str, list[RequestOutput]] = {}
        self.failures: dict[str, StructgenError] = {}
        self.processor = OutputProcessor(VOCABULARY.token_bytes)

    @property
    def answers(self) -> dict[str, RequestOutput]:
        """Those that have ended."""
        ended = (name for name, pieces in self.pieces.items() if pieces[-1].finish is not None)
        return {name: merge(self.pieces[name]) for name in ended}

    def send(self, request: EngineRequest) -> None:
        self.requests[request.id] = request
        self.processor.add(request, request.id)
        super().send(request)

    def abort(self, request_id: str) -> None:
        """Leave, as a caller does."""
        if self.processor.discard(request_id):
            self.inbox.put(Abort([request_id]))

    def step(self) -> list[EngineOutput]:
        outputs = super().step()
        batch = self.processor.process(outputs)
        for piece in batch.outputs:
            name = f"{piece.request_id}/{piece.index}" if piece.index else piece.request_id
            before = self.pieces.setdefault(name, [])
            assert not before or before[-1].finish is None, f"{name}: a piece after the last"
            before.append(piece)
        for request_id, error in batch.failures:
            assert request_id not in self.failures, f"{request_id} failed twice"
            self.failures[request_id] = error
        if batch.abort is not None:
            self.inbox.put(batch.abort)
        return outputs

    def answer_all(self) -> None:
        """Step until nobody waits."""
        while len(self.processor):
            self.step()

    def settle(self) -> None:
        """Have the engine see all that was sent: it does nothing for nobody."""
        self.add(f"last {len(self.requests)}", [0], max_tokens=1)
        self.answer_all()
