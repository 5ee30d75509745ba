"""Forced text comes in the tokens that the tokenizer would make of the whole."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from feeding import byte_vocabulary
from small_tokenizers import byte_level, llama_like, write_folder

from structgen import config
from structgen.constraints import Choice, Ebnf, JsonSchema, Regex
from structgen.grammar import BACKENDS, bitmask, build_backend
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.jump import Jumper
from structgen.grammar.pieces import Pieces
from structgen.grammar.walk import UNKNOWN, Walk
from structgen.tokenizer import Tokenizer

WORKLOAD = Path(__file__).parents[3] / "shared" / "data" / "extraction-workload.json"
FETCHED = list(config.home().glob("models/*/smollm2-135m"))

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["reader", "writer", "été"]}, "maxItems": 3},
        "owner": {
            "type": "object",
            "properties": {"dog": {"type": "boolean"}, "jumps": {"type": ["string", "null"]}},
            "required": ["dog", "jumps"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "owner"],
    "additionalProperties": False,
}
WORDS = ["Anna", "the quick", "über", "日本", '"so"', "a, b", "\\", "😀", "over: the", "34", ""]


def drawn(rng: random.Random) -> dict[str, object]:
    return {
        "name": " ".join(rng.choices(WORDS, k=rng.randrange(4))),
        "age": rng.randrange(151),
        "tags": rng.choices(["reader", "writer", "été"], k=rng.randrange(4)),
        "owner": {"dog": rng.random() < 0.5, "jumps": rng.choice([None, *WORDS])},
    }


class Bench:
    """A tokenizer, and a jumper over its vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary = Vocabulary(tokenizer.token_bytes)
        self.backends = Backends(vocabulary)
        self.jumper = Jumper(Pieces(vocabulary), self.encode)
        self.full = bitmask.full(vocabulary.size)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_bos=False)

    def text(self, tokens: list[int]) -> bytes:
        return b"".join([self.tokenizer.token_bytes[token] for token in tokens])

    def answer(self, chosen: Chosen, wanted: list[int]) -> tuple[list[int], int]:
        """Follow a model that wants these tokens; what comes out, and how many were jumped."""
        starts = {len(self.text(wanted[:i])): token for i, token in enumerate(wanted)}
        matcher = chosen.grammar.new_matcher()
        out: list[int] = []
        jumped = 0
        while (at := len(self.text(out))) < len(self.text(wanted)):
            run = self.jumper.run(Walk(chosen.backend, matcher, UNKNOWN, self.full, out))
            for token in run or [starts[at]]:
                matcher.accept(token)
                out.append(token)
            jumped += len(run)
        return out, jumped


@pytest.fixture(scope="module", params=[(byte_level, "<|endoftext|>"), (llama_like, "</s>")])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    build, eos = request.param
    folder = tmp_path_factory.mktemp(build.__name__)
    return Bench(Tokenizer.load(write_folder(folder / "tokenizer", build(), eos_token=eos)))


def test_answers_are_spelt_as_the_tokenizer_spells_them(bench: Bench) -> None:
    rng = random.Random(0)
    chosen = bench.backends.compile(JsonSchema.of(SCHEMA))
    differ = forced = total = 0
    for _ in range(200):
        text = json.dumps(drawn(rng), ensure_ascii=False)
        wanted = bench.encode(text)
        if bench.text(wanted) != text.encode():  # a blank that some tokenizers put before a text
            wanted = wanted[1:]
            if bench.text(wanted) != text.encode():
                continue
        out, jumped = bench.answer(chosen, wanted)
        assert bench.text(out) == text.encode()
        differ += out != wanted
        forced += jumped
        total += len(out)
    assert total
    assert differ <= 2, f"{differ} of 200"
    assert forced / total > 0.3


def an_instance(schema: dict[str, Any], rng: random.Random) -> object:
    """Return one of the few kinds of schema that the workload is made of, drawn at random."""
    match schema:
        case {"enum": options}:
            return rng.choice(options)
        case {"type": "object"}:
            return {name: an_instance(each, rng) for name, each in schema["properties"].items()}
        case {"type": "array"}:
            count = rng.randrange(schema["maxItems"] + 1)
            return [an_instance(schema["items"], rng) for _ in range(count)]
        case {"type": "string"}:
            return " ".join(rng.choices(WORDS, k=rng.randrange(4)))[: schema["maxLength"]]
        case {"type": "integer"}:
            return rng.randrange(10 ** rng.randint(1, 6))
        case {"type": "number"}:
            return round(rng.random() * 1000, 2)
        case {"type": "boolean"}:
            return rng.random() < 0.5
    raise AssertionError(schema)


@pytest.mark.skipif(not WORKLOAD.is_file(), reason=f"there is no {WORKLOAD}")
@pytest.mark.skipif(not FETCHED, reason="structgen pull smollm2-135m first")
def test_1000_answers_of_the_workload_are_spelt_as_the_tokenizer_spells_them() -> None:
    bench, rng = Bench(Tokenizer.load(FETCHED[0])), random.Random(0)
    differ = 0
    for schema in json.loads(WORKLOAD.read_text())["schemas"].values():
        chosen = bench.backends.compile(JsonSchema.of(schema))
        for _ in range(250):
            wanted = bench.encode(json.dumps(an_instance(schema, rng), ensure_ascii=False))
            out, _ = bench.answer(chosen, wanted)
            assert bench.text(out) == bench.text(wanted)
            differ += out != wanted
    assert differ < 10, f"{differ} of 1000"


def bytes_jumper() -> Jumper:
    return Jumper(Pieces(byte_vocabulary()), lambda text: list(text.encode()))


def run_of(name: str, constraint: JsonSchema | Regex | Choice | Ebnf, text: bytes) -> bytes:
    vocabulary = byte_vocabulary()
    backend = build_backend(name, vocabulary)
    matcher = backend.compile(constraint).new_matcher()
    walk = Walk(backend, matcher, UNKNOWN, bitmask.full(vocabulary.size))
    walk.accept(*text)
    return bytes(bytes_jumper().run(walk))


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "outlines_core"])
@pytest.mark.parametrize(
    ("pattern", "begun", "forced"),
    [
        ("abc[0-9]+xyz", b"", b"abc"),
        ("abc[0-9]+xyz", b"ab", b"c"),
        ("abc[0-9]+xyz", b"abc", b""),
        ("abc[0-9]xyz", b"abc1", b"xyz"),
        ("ab(cd)?", b"", b"ab"),
        ("ab(cd)?", b"ab", b""),  # it may end here
        ("ab(cd)?", b"abc", b"d"),
        ("a(é|è)", b"", b"a"),  # half a character is not a text
        ("(abc|abd)e", b"", b"ab"),
    ],
)
def test_forced_is_what_every_continuation_begins_with(
    name: str, pattern: str, begun: bytes, forced: bytes
) -> None:
    assert run_of(name, Regex(pattern), begun) == forced


def test_a_library_that_does_not_tell_forces_nothing() -> None:
    assert run_of("outlines_core", Regex("abc"), b"") == b""


def test_a_token_that_a_longer_one_could_replace_is_left_to_the_model() -> None:
    pieces = [b'"name', b'": "', b'": ']
    vocabulary = Vocabulary([*[bytes([byte]) for byte in range(256)], b"", *pieces])
    full = bitmask.full(vocabulary.size)

    def encode(text: str) -> list[int]:
        assert text == '{"name": '
        return [ord("{"), 257, 259]

    def run(kinds: list[str]) -> list[bytes]:
        schema = {"type": "object", "properties": {"name": {"type": kinds}}, "required": ["name"]}
        chosen = Backends(vocabulary).compile(JsonSchema.of(schema))
        walk = Walk(chosen.backend, chosen.grammar.new_matcher(), UNKNOWN, full)
        tokens = Jumper(Pieces(vocabulary), encode).run(walk)
        return [vocabulary.token_bytes[token] for token in tokens]

    assert run(["boolean", "integer"]) == [b"{", b'"name', b'": ']
    assert run(["boolean", "string"]) == [b"{", b'"name']
