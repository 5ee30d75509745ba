"""What a constraint spells out is measured before a library does."""

import pytest

from structgen.constraints import JsonObject, Regex
from structgen.errors import ConstraintTooLarge
from structgen.grammar.schema.regex import parse
from structgen.grammar.sizes import repetitions, require_size


@pytest.mark.parametrize(
    ("pattern", "times"),
    [
        ("abc", 1),
        ("a{3}b{1,5}", 5),
        ("(?:a{3}b{1,5}){2,}", 10),
        ("(?:(?:a{1,10}|b){1,10}c*){0,10}", 1000),
        ("(?:a{0})*", 1),
        ("", 1),
    ],
)
def test_repetitions_within_each_other_multiply(pattern: str, times: int) -> None:
    assert repetitions(parse(pattern)) == times


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("(?:(?:[a-z]{1,1000}){1,1000}){1,1000}", "at most 10000000, got 1000000000"),
        ("a" * 65_537, "at most 65536, got 65537"),
    ],
)
def test_a_regex_beyond_a_limit_is_refused(pattern: str, limit: str) -> None:
    with pytest.raises(ConstraintTooLarge, match=limit) as refusal:
        require_size(Regex(pattern))
    assert refusal.value.field == "input.constraint.regex"


def test_what_is_within_them_or_cannot_be_read_is_not() -> None:
    for constraint in (Regex("(?:[a-z]{1,1000}){1,1000}"), Regex("a{1,0}("), JsonObject()):
        require_size(constraint)
