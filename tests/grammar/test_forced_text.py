"""Forced text is told in pieces of a bounded size, however much there is of it."""

import time

import pytest
from feeding import byte_vocabulary

from structgen.constraints import Backend, Ebnf, JsonSchema
from structgen.grammar.choosing import Backends

DOUBLING = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30)) + '\nr30 ::= "a"'


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(byte_vocabulary())


def test_a_billion_forced_letters_behind_a_choice_do_not_hold_anyone_up(backends: Backends) -> None:
    grammar = Ebnf(f"root ::= [bc] r0\n{DOUBLING}", backend=Backend.XGRAMMAR)
    matcher = backends.compile(grammar).grammar.new_matcher()
    assert matcher.forced() == b""
    matcher.accept(ord("b"))
    began = time.thread_time()
    forced = matcher.forced()
    assert time.thread_time() - began < 1
    assert 0 < len(forced) < 1000
    assert set(forced) == {ord("a")}


def test_a_billion_forced_items_do_not_either(backends: Backends) -> None:
    schema = '{"type":"array","minItems":1000000000,"items":{"const":1}}'
    matcher = backends.compile(JsonSchema(schema, backend=Backend.XGRAMMAR)).grammar.new_matcher()
    began = time.thread_time()
    forced = matcher.forced()
    assert time.thread_time() - began < 1
    assert forced.startswith(b"[1, 1, 1, ")
    assert len(forced) < 1000


def test_what_ends_is_told_to_its_end(backends: Backends) -> None:
    grammar = Ebnf('root ::= ("wine" | "wind") "fall"?', backend=Backend.XGRAMMAR)
    matcher = backends.compile(grammar).grammar.new_matcher()
    assert matcher.forced() == b"win"
    for letter in b"win":
        matcher.accept(letter)
    assert matcher.forced() == b""
    matcher.accept(ord("e"))
    assert matcher.forced() == b""  # it is complete
    matcher.accept(ord("f"))
    assert matcher.forced() == b"all"
