"""What every answer begins with is looked at when a constraint is compiled."""

from __future__ import annotations

import pytest
from feeding import byte_vocabulary

from structgen.constraints import Choice, Constraint, JsonSchema, Regex
from structgen.errors import ConstraintError
from structgen.grammar import build_backend
from structgen.grammar.base import Vocabulary

FORCED = [
    Regex("key=[0-9]"),
    Choice(("key=1", "key=2")),
    JsonSchema('{"type":"object","properties":{"key=":{"type":"integer"}},"required":["key="]}'),
]


def vocabulary_without(character: bytes) -> Vocabulary:
    texts = byte_vocabulary().token_bytes
    return Vocabulary([b"" if text == character else text for text in texts])


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("constraint", FORCED, ids=lambda one: type(one).__name__)
def test_text_that_all_answers_begin_with_and_no_token_spells_is_refused(
    name: str, constraint: Constraint
) -> None:
    backend = build_backend(name, vocabulary_without(b"="))
    with pytest.raises(ConstraintError, match="no text that this vocabulary can spell"):
        backend.compile(constraint)


@pytest.mark.parametrize("name", ["llguidance", "xgrammar", "outlines_core"])
@pytest.mark.parametrize("constraint", FORCED, ids=lambda one: type(one).__name__)
def test_a_matcher_is_at_the_start_of_the_text_all_the_same(
    name: str, constraint: Constraint
) -> None:
    matcher = build_backend(name, byte_vocabulary()).compile(constraint).new_matcher()
    text = '{"key=": 1}' if isinstance(constraint, JsonSchema) else "key=1"
    assert not matcher.accepting
    for byte in text.encode():
        matcher.accept(byte)
    assert matcher.accepting
