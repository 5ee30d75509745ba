"""The expressions of formats describe nothing that the validator refuses."""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from structgen.grammar.schema import formats, patterns
from structgen.grammar.schema.assertions import Length, Pattern


def validator(name: str) -> Any:
    schema = {"type": "string", "format": name}
    return jsonschema_rs.validator_for(schema, validate_formats=True)


@pytest.mark.parametrize("name", formats.EXPRESSIONS)
def test_what_an_expression_describes_is_valid(name: str) -> None:
    others = formats.assertions(name, ())[1:]
    valid = validator(name).is_valid
    examples = 6 if name.startswith("iri") else 40  # large classes are slow to draw from

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(text=st.from_regex(f"(?:{formats.EXPRESSIONS[name]})", fullmatch=True))
    def check(text: str) -> None:
        for other in others:
            match other:
                case Length(interval=interval):
                    assume(interval.high is None or len(text) <= interval.high)
                case Pattern(regex=regex):
                    assume(re.search(regex, text))
        assert valid(text), text

    check()


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
