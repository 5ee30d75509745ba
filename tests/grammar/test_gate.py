"""A gate before a constraint: free text until a marker, then the constraint and nothing else."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from structgen.constraints import Constraint, JsonSchema, Regex
from structgen.errors import InvalidRequest
from structgen.grammar import BACKENDS, bitmask, build_backend
from structgen.grammar.base import GrammarBackend, GrammarError, Matcher, Vocabulary
from structgen.grammar.gate import GatedMatcher, Gates, fill
from structgen.grammar.pieces import Pieces
from structgen.marker import Marker

CONTROL = b""
BYTES = [bytes([byte]) for byte in range(256)]
PIECES = [
    b"</",
    b"think",
    b">",
    b"</think>",
    b"</think>\n",
    b">1",
    b"nk>1",
    b"a</think>",
    b"12",
    b"<<",
]
PIECES += [b"a</think>b", b"</think></think>", b"k>", b"hink>", b"nk></"]
VOCABULARY = Vocabulary([CONTROL, CONTROL, *BYTES, *PIECES])
IDS = {text: token for token, text in enumerate(VOCABULARY.token_bytes)}
MARKER = Marker(b"</think>")
DIGITS = Regex("[0-9]{2,3}")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> GrammarBackend:
    return build_backend(str(request.param), VOCABULARY)


def gated(
    backend: GrammarBackend, marker: Marker = MARKER, constraint: Constraint = DIGITS
) -> GatedMatcher:
    inner = backend.compile(constraint).new_matcher()
    return GatedMatcher(Gates(Pieces(VOCABULARY)).get(marker), inner)


def allowed(backend: GrammarBackend, matcher: Matcher) -> set[int]:
    words = np.full((1, bitmask.num_words(VOCABULARY.size)), -1, dtype=np.int32)
    fill(backend, [matcher], words, [0])
    return set(bitmask.unpack(words[0], VOCABULARY.size))


def accept(matcher: Matcher, *pieces: bytes) -> None:
    for piece in pieces:
        matcher.accept(IDS[piece])


@pytest.mark.parametrize(
    "spelling", [[b"</think>"], [b"</", b"think", b">"], [b"<", b"/", b"think", b">"]]
)
def test_the_constraint_begins_right_behind_the_marker(
    backend: GrammarBackend, spelling: list[bytes]
) -> None:
    matcher = gated(backend)
    accept(matcher, b"x", b"1", b"<<", *spelling)
    assert {VOCABULARY.token_bytes[token] for token in allowed(backend, matcher)} == {
        *(b"%d" % digit for digit in range(10)),
        b"12",
    }
    accept(matcher, b"12")
    assert matcher.accepting


def test_before_the_marker_all_is_free_but_what_reaches_beyond_it(backend: GrammarBackend) -> None:
    everything = set(range(VOCABULARY.size))
    beyond = {b"</think>\n", b"a</think>b", b"</think></think>"}
    matcher = gated(backend)
    assert allowed(backend, matcher) == everything - {IDS[text] for text in beyond}
    accept(matcher, b"x", b"</", b"think")
    assert allowed(backend, matcher) == everything - {IDS[text] for text in beyond | {b">1"}}
    assert not matcher.accepting


def test_masks_are_those_of_the_definition() -> None:
    """A token may follow unless the text so far, with it, holds the marker before its end."""
    rng = random.Random(0)
    gates = Gates(Pieces(VOCABULARY))
    for text in (b"</think>", b"aa", b"abab", b"k"):
        gate = gates.get(Marker(text))
        for _ in range(40):
            seen = bytes(rng.choices(text, k=rng.randint(0, 9)))
            if text in seen:
                continue
            state, _ = Marker(text).after(0, 0, seen)
            expected = {
                token
                for token, piece in enumerate(VOCABULARY.token_bytes)
                if text not in (seen + piece)[:-1] or not piece
            }
            assert set(bitmask.unpack(gate.mask(state), VOCABULARY.size)) == expected, (text, seen)
            for token in set(range(VOCABULARY.size)) - expected:
                with pytest.raises(GrammarError, match="reaches beyond the marker"):
                    gate.after(state, token)


def test_a_marker_that_is_a_control_token_is_that_token_alone(backend: GrammarBackend) -> None:
    matcher = gated(backend, Marker(b"</think>", token=1))
    accept(matcher, b"</think>", b"</think>\n")
    assert allowed(backend, matcher) == set(range(VOCABULARY.size))
    assert matcher.lead_in == [1]
    matcher.accept(1)
    assert b"x" not in {VOCABULARY.token_bytes[token] for token in allowed(backend, matcher)}
    accept(matcher, b"1", b"2")
    assert matcher.accepting


def test_a_control_token_inside_a_marker_adds_no_text(backend: GrammarBackend) -> None:
    matcher = gated(backend)
    accept(matcher, b"</")
    matcher.accept(0)
    accept(matcher, b"think", b">", b"1", b"2")
    assert matcher.accepting


def test_what_leads_in_spells_the_rest_of_the_marker(backend: GrammarBackend) -> None:
    matcher = gated(backend)
    accept(matcher, b"x", b"<", b"/")
    assert [VOCABULARY.token_bytes[token] for token in matcher.lead_in] == [b"think", b">"]
    for token in matcher.lead_in:
        assert token in allowed(backend, matcher)
        matcher.accept(token)
    assert matcher.lead_in == []
    assert matcher.num_free == 5


def test_rollback_goes_through_the_gate_and_a_fork_goes_its_own_way(
    backend: GrammarBackend,
) -> None:
    matcher = gated(backend)
    pieces = [b"x", b"</", b"think", b">", b"1", b"2"]
    masks = []
    for piece in pieces:
        masks.append(allowed(backend, matcher))
        accept(matcher, piece)
    assert matcher.accepting
    fork = matcher.fork()
    for count in range(1, len(pieces) + 1):
        again = fork.fork()
        again.rollback(count)
        assert allowed(backend, again) == masks[-count], count
        assert not again.accepting
        accept(again, *pieces[-count:])
        assert again.accepting
    fork.rollback(2)
    assert matcher.accepting
    assert not fork.accepting


def test_nothing_is_forced_in_front_of_the_gate(backend: GrammarBackend) -> None:
    matcher = gated(backend, constraint=Regex("12[0-9]"))
    assert matcher.forced() == b""
    accept(matcher, b"</think>")
    assert matcher.forced() == matcher.inner.forced()


def test_a_batch_holds_matchers_before_behind_and_without_a_gate(backend: GrammarBackend) -> None:
    closed, opened = gated(backend), gated(backend)
    plain = backend.compile(DIGITS).new_matcher()
    accept(opened, b"</think>", b"1")
    words = bitmask.allocate(4, VOCABULARY.size)
    fill(backend, [opened, closed, plain], words, [2, 0, 3])
    for matcher, row in ((opened, 2), (closed, 0), (plain, 3)):
        assert set(bitmask.unpack(words[row], VOCABULARY.size)) == allowed(backend, matcher)
    assert not words[1].any()


def test_json_behind_a_gate_has_nothing_to_do_with_the_text_before(backend: GrammarBackend) -> None:
    schema = JsonSchema('{"type": "string", "maxLength": 5}')
    matcher = gated(backend, constraint=schema)
    accept(matcher, b'"', b"\\", b"\n", b"\xff", b"</think>")
    assert allowed(backend, matcher) == {IDS[b'"']}


def test_a_marker_that_no_tokens_spell_is_refused() -> None:
    gates = Gates(Pieces(Vocabulary([CONTROL, b"a"])))
    with pytest.raises(InvalidRequest, match="no tokens of this model spell the marker 'ab'"):
        gates.get(Marker(b"ab"))


def test_gates_are_kept_but_only_so_many_and_are_quick_to_make() -> None:
    words = [CONTROL, *BYTES, *(b"w%d>" % number for number in range(50_000))]
    gates = Gates(Pieces(Vocabulary(words)))
    first = gates.get(Marker(b"</think>"))
    assert gates.get(Marker(b"</think>")) is first
    assert gates.get(Marker(b"</think>", token=0)) is not first
    started = time.thread_time()
    for number in range(40):
        gate = gates.get(Marker(b"</%d>" % number))
        gate.mask(0)
        gate.mask(3)
    assert time.thread_time() - started < 40 * 0.05
    assert gates.get(Marker(b"</think>")) is not first
