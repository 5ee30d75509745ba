"""The validator of finished texts: what it accepts, refuses, and does not presume to judge."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from structgen.constraints import JsonObject, JsonSchema
from structgen.frontend import verify
from structgen.frontend.schema_size import expanded_size

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def judged(schema: object, text: str) -> bool | None:
    return verify.is_met(JsonSchema(json.dumps(schema)), text)


def tower(height: int, width: int = 2, ref: str = "#/$defs/{}") -> dict[str, object]:
    """A schema in which each definition refers to the next one `width` times."""
    defs: dict[str, object] = {
        str(level): {
            "$anchor": f"a{level}",
            "allOf": [{"$ref": ref.format(level + 1)} for _ in range(width)],
        }
        for level in range(height)
    }
    return {"$defs": defs | {str(height): {"$anchor": f"a{height}"}}, "$ref": ref.format(0)}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "object", "required": ["a"]}, '{"a": 1}', True),
        ({"type": "object", "required": ["a"]}, '{"b": 1}', False),
        (True, "[]", True),
        (False, "[]", False),
        ({"format": "date"}, '"2024-02-30"', False),
        ({"format": "email"}, '"a@b.example"', True),
        ({"$schema": DRAFT_4, "format": "uuid"}, '"x"', False),
        ({"$schema": DRAFT_4, "format": "uuid"}, "1", True),
        ({"format": "of the month"}, '"x"', True),
        ({"type": "integer"}, "1.0", True),
        ({"multipleOf": 0.01}, "0.07", True),
        ({"maximum": 5}, "1e400", False),
        ({"type": "number"}, "1e400", True),
        ({"enum": [0.1]}, "0.10", True),
        ({"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True}, "1", False),
        ({"$schema": DRAFT_7, "items": [{"type": "string"}]}, "[1]", False),
        ({"items": [{"type": "string"}]}, "[1]", False),
        ({"minimum": 1, "exclusiveMinimum": True}, "1", False),
        ({"items": [{"type": "string"}], "$ref": "#/$defs/a", "$defs": {"a": False}}, "[]", False),
        ({"$schema": DRAFT_7, "contentMediaType": "application/json"}, '"{:}"', True),
        ({"$schema": DRAFT_7, "contentEncoding": "base64", "maxLength": 1}, '"%%"', False),
        ({"$schema": DRAFT_4, "format": "json-pointer"}, '"x"', False),
        ({"$defs": {"a": {"$anchor": "x", "type": "null"}}, "$ref": "#x"}, "1", False),
        ({"items": {"$ref": "#"}, "type": "array"}, "[[[]]]", True),
    ],
)
def test_a_text_is_judged_by_the_draft_of_its_schema(
    schema: object, text: str, expected: bool
) -> None:
    assert judged(schema, text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1] 2",
        "NaN",
        "[-Infinity]",
        "'a'",
        "01",
        '"\x01"',
        '{"a": 1, "a": 1}',
        '[{"b": {"a": 1, "a": 2}}]',
        r'"\ud800"',
        r'{"\uDC00": 1}',
    ],
)
def test_what_is_not_strict_json_obeys_no_schema(text: str) -> None:
    assert judged(True, text) is False
    assert verify.is_met(JsonObject(), text) is False


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert judged({"const": "😀"}, r'"\ud83d\ude00"') is True


@pytest.mark.parametrize(("text", "expected"), [('{"a": [1.5]}', True), ("[]", False)])
def test_any_object_will_do_for_json_object(text: str, expected: bool) -> None:
    assert verify.is_met(JsonObject(), text) is expected


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "other.json"},
        {"$ref": "file:///etc/hostname"},
        {"$schema": "http://example.com/mine", "type": "string"},
        {"type": "nothing"},
        {"pattern": "(?<x"},
        {"$ref": "#/$defs/missing"},
    ],
)
def test_what_it_cannot_know_it_does_not_judge(schema: object) -> None:
    assert judged(schema, '"x"') is None


def test_nothing_is_ever_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema"
        assert judged({"$ref": url}, "1") is None
        assert judged({"$schema": url}, "1") is None
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("text", ["1" * 5000, "1e99999", "1e-99999999999999999999", "[" * 99_999])
def test_what_would_take_too_long_to_read_is_not_judged(text: str) -> None:
    assert judged({"type": "integer"}, text) is None


def test_a_pattern_that_backtracks_without_end_is_given_up() -> None:
    schema = {"pattern": "^(a|a)*(?=c)b$"}
    assert judged(schema, json.dumps("a" * 60)) is None
    assert judged({"items": {"anyOf": [schema, {"type": "null"}]}}, f'["{"a" * 60}"]') is None
    assert judged(schema, '"aad"') is False


@pytest.mark.parametrize("ref", ["#/$defs/{}", "#a{}"])
@pytest.mark.parametrize(("height", "width"), [(30, 2), (300, 2), (5000, 1)])
def test_references_that_multiply_or_chain_without_end_are_not_followed(
    height: int, width: int, ref: str
) -> None:
    assert judged(tower(height, width, ref), "1") is None


def test_the_size_of_a_schema_counts_a_target_for_each_reference_to_it() -> None:
    assert [expanded_size(tower(height)) for height in (0, 1, 2)] == [4, 13, 34]
    assert expanded_size({"items": {"$ref": "#"}}) == 3
    nested = {"$id": "http://host/x", "$defs": {"a/b": {"$id": "y", "items": [{}, {}]}}}
    alone = expanded_size(nested)
    for ref in ("#/$defs/a~1b", "#/$defs/a~1b/items/0", "y", "http://host/y", "#%2F$defs"):
        assert expanded_size(nested | {"$ref": ref}) > alone, ref
    for ref in ("#/$defs/c", "#/$defs/a~1b/items/2", "#z", "z"):
        assert expanded_size(nested | {"$ref": ref}) == alone, ref


def test_validators_are_kept_but_only_so_many() -> None:
    verify._cached_validator.cache_clear()
    for number in range(2 * verify.MAX_CACHED):
        assert judged({"const": number}, str(number)) is True
        assert judged({"const": number}, "-1") is False
    info = verify._cached_validator.cache_info()
    assert (info.hits, info.currsize) == (2 * verify.MAX_CACHED, verify.MAX_CACHED)
    assert judged({"title": "x" * verify.MAX_CACHED_CHARS, "type": "null"}, "null") is True
    assert verify._cached_validator.cache_info().misses == info.misses


def test_threads_may_judge_at_the_same_time() -> None:
    barrier = threading.Barrier(4)

    def judge(number: int) -> list[bool | None]:
        barrier.wait(10)
        return [judged({"maximum": limit}, str(limit + number % 2)) for limit in range(50)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(judge, range(4))) == [[True] * 50, [False] * 50] * 2
