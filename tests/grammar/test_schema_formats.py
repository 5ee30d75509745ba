"""The expressions of formats describe nothing that the validator refuses."""

from __future__ import annotations

import re
from functools import partial
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from structgen.grammar.schema import formats, language, patterns
from structgen.grammar.schema.assertions import Assertion, Length, Pattern
from structgen.grammar.schema.regex import Alternation, Chars, Concat, Node, Repeat


def validator(name: str) -> Any:
    schema = {"type": "string", "format": name}
    return jsonschema_rs.validator_for(schema, validate_formats=True)


def drawn(node: Node, random: Random) -> str:
    """Draw a text that an expression matches; ends of ranges of characters come often."""
    match node:
        case Chars(ranges, _):
            low, high = random.choice(ranges)
            code = random.choice([low, high, random.randint(low, high)])
            return "a" if 0xD800 <= code < 0xE000 else chr(code)  # no half of a surrogate pair
        case Concat(items):
            return "".join(drawn(item, random) for item in items)
        case Alternation(options):
            return drawn(random.choice(options), random)
        case Repeat(item, low, high):
            most = low + 4 if high is None else high
            times = random.choice([low, most, random.randint(low, most)])
            return "".join(drawn(item, random) for _ in range(times))
    raise AssertionError(node)


@pytest.mark.parametrize("name", formats.EXPRESSIONS)
def test_what_an_expression_describes_is_valid(name: str) -> None:
    exact, *others = formats.assertions(name, ())
    assert isinstance(exact, Pattern)
    node, random = language.whole(exact.regex), Random(name)
    assert node is not None
    texts = {drawn(node, random) for _ in range(2000)}
    described = [text for text in texts if all(map(partial(obeys, text), others))]
    assert len(described) > 50
    assert [text for text in described if not validator(name).is_valid(text)] == []


@pytest.mark.parametrize("name", formats.SIMPLE)
def test_what_a_simple_expression_describes_is_valid_but_for_its_length(name: str) -> None:
    near, random = formats.simple(name, ()), Random(name)
    assert near is not None
    node = language.whole(near.regex)
    assert node is not None
    texts = {drawn(node, random) for _ in range(2000)}
    short = [text for text in texts if len(text) <= 63 and text.find("@") <= 64]
    assert len(short) > 50
    assert [text for text in short if not validator(name).is_valid(text)] == []


def obeys(text: str, assertion: Assertion) -> bool:
    match assertion:
        case Length(interval=interval):
            return interval.high is None or len(text) <= interval.high
        case Pattern(regex=regex):
            return re.search(regex, text) is not None
    raise AssertionError(assertion)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"]),
        ("time", ["23:59:59Z", "00:00:00.123+05:30"]),
        ("date-time", ["2024-02-29T12:00:00Z", "1985-04-12t23:20:50.52-08:00"]),
        ("duration", ["P1Y2M3DT4H5M6S", "PT1M", "P4W", "P1D"]),
        ("email", ["joe.bloggs@example.com", "a+b@x-y.co"]),
        ("hostname", ["example.com", "a", "x-1.y", "a" * 63 + ".de"]),
        ("ipv4", ["127.0.0.1", "255.255.255.255"]),
        ("ipv6", ["::", "::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426655440000"]),
        ("uri", ["https://a.b:80/c?d=e#f", "urn:a:b", "mailto:x@y.z", "http://[::1]/"]),
        ("uri-reference", ["../a?b", "#c", "", "http://x"]),
        ("iri", ["http://ƒøø.ßår/?∂éœ=πîx"]),
        ("uri-template", ["http://x/{a}/{?b,c*}", "{+path:3}"]),
        ("json-pointer", ["", "/a~1b/~0", "/"]),
        ("relative-json-pointer", ["0", "1/a", "2#"]),
        ("regex", ["^[a-zA-Z0-9_]{3,16}$", r"^(\d+|\w*)\.[^.-]+$", "(a(b(?:c)?)){2}|", "a{2,}"]),
    ],
)
def test_common_examples_are_described(name: str, texts: list[str]) -> None:
    for text in texts:
        assert validator(name).is_valid(text)
        assert patterns.found_in(f"^(?:{formats.EXPRESSIONS[name]})$", text), text


@pytest.mark.parametrize(
    "text", ["2023-02-29", "1900-02-29", "2024-04-31", "2022-13-01", "2022-03-00", "2022-1-1"]
)
def test_days_that_no_month_has_are_not_dates(text: str) -> None:
    assert not validator("date").is_valid(text)
    assert patterns.found_in(f"^(?:{formats.EXPRESSIONS['date']})$", text) is False


def test_all_formats_of_the_validator_are_known() -> None:
    for name in sorted(formats.KNOWN):
        assert not validator(name).is_valid("\x01 ((not~ any[ of\\them@"), name
