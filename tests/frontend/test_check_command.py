"""`structgen check`, in this process: no server, no weights."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import small_tokenizers
from small_tokenizers import write_folder

from structgen.constraints import JsonSchema
from structgen.errors import ConstraintError
from structgen.frontend import cli, report
from structgen.frontend.report import place_at

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "who", "maxLength": 8},
        "tag": {"enum": ["é", "日本", None]},
    },
    "required": ["name", "tag"],
    "additionalProperties": False,
}
GOOD = '{"name": "Ada", "tag": "日本"}'


@pytest.fixture
def schema(tmp_path: Path) -> str:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return str(file)


def run(*arguments: str) -> int:
    return cli.main(["check", *arguments])


def test_a_usable_constraint_is_reported(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schema", schema) == 0
    out = capsys.readouterr().out
    assert out.startswith("usable: llguidance, compiled in ")
    assert f"id: {JsonSchema.of(SCHEMA).key()}\n" in out
    assert "enforced    /properties/tag/enum" in out
    assert "text" not in out


def test_an_unusable_one_is_an_error_that_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "nosuch"}')
    assert run("--schema", str(file), "--text", "1") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("structgen: error: ")
    assert "nosuch" in printed.err
    assert run("--schema", str(file), "--json") == 1
    refusal = json.loads(capsys.readouterr().out)
    assert refusal["usable"] is False
    assert refusal["error"]["field"] == "constraint.json_schema"


def test_a_text_is_accepted(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schema", schema, "--text", GOOD) == 0
    assert capsys.readouterr().out.endswith("text: accepted\n")


def test_the_first_offending_place_is_shown(
    schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--schema", schema, "--text", '{"name": "日本", "tag": nil}') == 1
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "text: refused at 1:24 (byte 27)",
        '  {"name": "日本", "tag": nil}',
        "                           ^",  # the two before take two columns each
        "  expected 'ull}'",
    ]


def test_an_unfinished_text_has_its_own_exit_status(
    schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--schema", schema, "--text", GOOD[:-1]) == 3
    out = capsys.readouterr().out
    assert "text: unfinished, legal as far as it goes (1:28)" in out
    assert out.endswith("  expected '}'\n")


def test_of_many_ways_to_go_on_some_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--regex", "[0-9]+", "--text", "1x") == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  expected for example '0', '1', ")
    assert last.endswith(" or the end of the text")


def test_what_stands_behind_a_complete_text_is_refused(
    schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--schema", schema, "--text", GOOD + "\n{") == 1
    out = capsys.readouterr().out
    assert "refused at 1:29" in out
    assert out.endswith("expected the end of the text\n")


def test_a_long_line_is_shown_around_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--regex", "a*\n[ab]*c", "--text", "a\n" + "b" * 100 + "?" + "a" * 100) == 1
    shown, caret = capsys.readouterr().out.splitlines()[-3:-1]
    assert shown == f"  ...{'b' * 60}?{'a' * 59}..."
    assert shown[len(caret) - 1] == "?"


def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--regex", "a\tb", "--text", "a\tc") == 1
    assert capsys.readouterr().out.splitlines()[-3:-1] == ["  a␉c", "    ^"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_may_end_with_a_line_end(schema: str, tmp_path: Path, end: str) -> None:
    file = tmp_path / "text.json"
    file.write_bytes((GOOD + end).encode())
    assert run("--schema", schema, "--text-file", str(file)) == 0
    file.write_bytes((GOOD + end + "\n\n").encode())
    assert run("--schema", schema, "--text-file", str(file)) == 1


def test_a_line_end_counts_where_the_constraint_has_one(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"a\n")
    assert run("--regex", "a\n", "--text-file", str(file)) == 0
    file.write_bytes(b"a")
    assert run("--regex", "a\n", "--text-file", str(file)) == 3


def test_a_text_comes_from_standard_input(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    assert run("--schema", schema, "--text-file", "-") == 0


def test_a_file_that_is_not_utf8_is_refused_where_it_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"\xc3\xa9a\xff")
    assert run("--regex", "[éa]*", "--text-file", str(file)) == 1
    assert "refused at 1:3 (byte 3)" in capsys.readouterr().out


def test_programs_get_json(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--schema", schema, "--text", "{\n}", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["usable"] is True
    assert answer["constraint"]["backend"] == "llguidance"
    assert answer["constraint"]["keywords"][0]["treatment"] == "enforced"
    assert answer["size_bytes"] > 0
    assert answer["text"] == {
        "accepted": False,
        "prefix": False,
        "error_offset": 1,
        "line": 1,
        "column": 2,
        "expected": ['"name": "'],
        "may_end": False,
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--json-object"], '{"a": 1}'),
        (["--regex", "[0-9]+"], "12"),
        (["--choice", "yes", "--choice", "no"], "no"),
        (["--regex", "[0-9]+", "--backend", "outlines_core"], "12"),
        (["--choice", "é", "--backend", "xgrammar"], "é"),
        (["--ebnf", "EBNF"], "((x))"),
        (["--lark", "LARK"], "((x))"),
        (["--json-object", "--whitespace", "flexible"], '{ "a":1}'),
    ],
)
def test_every_kind_of_constraint_is_checked(
    arguments: list[str], text: str, tmp_path: Path
) -> None:
    (tmp_path / "EBNF").write_text('root ::= "(" root ")" | "x"')
    (tmp_path / "LARK").write_text('start: "(" start ")" | "x"')
    given = [str(tmp_path / one) if one in ("EBNF", "LARK") else one for one in arguments]
    assert run(*given, "--text", text) == 0
    assert run(*given, "--text", "?") == 1


def test_a_vocabulary_may_be_a_model_s(tmp_path: Path, schema: str) -> None:
    make, end = small_tokenizers.KINDS["byte-level"]
    folder = write_folder(tmp_path / "model", make(), eos_token=end)
    assert run("--schema", schema, "--text", GOOD, "--model", str(folder)) == 0
    assert run("--schema", schema, "--text", GOOD[:-2], "--model", str(folder)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "x"], "a constraint is needed"),
        (["--regex", "a", "--text-file", "/nosuch"], "cannot read /nosuch"),
        (["--regex", "a", "--model", "no such model"], "model must be"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "offset", "place"),
    [
        ("", 0, (1, 1, "")),
        ("ab", 1, (1, 2, "ab")),
        ("ab", 2, (1, 3, "ab")),
        ("a\nbé日x\nc", 5, (2, 3, "bé日x")),
        ("a\nbé日x\nc", 6, (2, 3, "bé日x")),
        ("a\nb", 1, (1, 2, "a")),
        ("a\n", 2, (2, 1, "")),
    ],
)
def test_places_are_counted_in_lines_and_characters(
    text: str, offset: int, place: tuple[int, int, str]
) -> None:
    assert place_at(text.encode(), offset) == place


def test_a_refusal_names_the_field_as_the_service_does() -> None:
    error = ConstraintError("no", field="input.constraint.regex")
    assert report.refusal_to_json(error)["error"]["field"] == "constraint.regex"
