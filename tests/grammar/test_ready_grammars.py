"""The ready grammars: each allows what its cases say, and nothing that they rule out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from feeding import Judge, byte_vocabulary, piece_vocabulary

from structgen.errors import BeyondBackend, InvalidRequest
from structgen.frontend.ready_grammars import files, folder, ready
from structgen.grammar import BACKENDS

FOLDER = folder()
CASES = ".cases.json"
# Every backend, and the kinds that it enforces all of.
TAKES = {
    "xgrammar": (".ebnf", ".json", ".lark", ".regex", ".tag"),
    "llguidance": (".ebnf", ".json", ".lark", ".regex"),
    # It drops the bounds of numbers, which all our schemas have.
    "outlines_core": (".ebnf", ".lark", ".regex"),
}
# Grammars that are not regular, and the only backend that takes no such.
RECURSIVE = {"arithmetic", "filter-query", "json", "json-lines", "sql-select"}
REGULAR_ONLY = "outlines_core"
# xgrammar spells strings of bounded length without any escape, llguidance all without this one.
GAPS = {"xgrammar": "\\", "llguidance": "\\u"}
GRAMMARS = list(files().values())


class Cases(msgspec.Struct, forbid_unknown_fields=True):
    """Whole texts; JSON as structgen writes it, with ", " and ": "."""

    accepts: list[str]
    rejects: list[str]


def cases(grammar: Path) -> Cases:
    return msgspec.json.decode((FOLDER / f"{grammar.stem}{CASES}").read_bytes(), type=Cases)


def is_known_gap(grammar: Path, text: str, backend: str) -> bool:
    """Whether a text that obeys is refused all the same."""
    return grammar.suffix == ".json" and backend in GAPS and GAPS[backend] in text


def test_every_grammar_has_cases_and_every_kind_is_known() -> None:
    assert len(GRAMMARS) >= 12
    others = {path for path in FOLDER.iterdir() if not path.name.endswith(CASES)} - set(GRAMMARS)
    assert not others, "of no known kind, or two of a name"
    assert sorted(path.name for path in FOLDER.glob(f"*{CASES}")) == sorted(
        f"{path.stem}{CASES}" for path in GRAMMARS
    )
    for path in GRAMMARS:
        assert cases(path).accepts, path.name
        assert cases(path).rejects, path.name


def test_every_backend_has_a_word_on_what_it_takes() -> None:
    assert set(TAKES) == set(BACKENDS)


@pytest.mark.parametrize("name", sorted(RECURSIVE))
def test_a_recursive_grammar_is_left_to_the_backends_for_such(name: str) -> None:
    with pytest.raises(BeyondBackend, match="recursive"):
        Judge(ready(name), byte_vocabulary(), REGULAR_ONLY)


@pytest.mark.parametrize("by", ["byte", "piece"])
@pytest.mark.parametrize(
    ("grammar", "backend"),
    [
        pytest.param(grammar, backend, id=f"{grammar.name}-{backend}")
        for grammar in GRAMMARS
        for backend, kinds in TAKES.items()
        if grammar.suffix in kinds and (grammar.stem not in RECURSIVE or backend != REGULAR_ONLY)
    ],
)
def test_a_ready_grammar_allows_what_its_cases_say(grammar: Path, backend: str, by: str) -> None:
    texts = cases(grammar)
    vocabulary = (
        byte_vocabulary() if by == "byte" else piece_vocabulary(texts.accepts + texts.rejects)
    )
    judge = Judge(ready(grammar.stem), vocabulary, backend)
    refused = [text for text in texts.accepts if not judge.obeys(text)]
    assert refused == [text for text in texts.accepts if is_known_gap(grammar, text, backend)]
    assert [text for text in texts.rejects if judge.obeys(text)] == []


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda path: path.stem)
def test_auto_takes_every_ready_grammar(grammar: Path) -> None:
    texts = cases(grammar)
    judge = Judge(ready(grammar.stem), byte_vocabulary())
    assert [text for text in texts.rejects if judge.obeys(text)] == []
    assert sum(map(judge.obeys, texts.accepts)) > 0


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"'nope'; there are arithmetic, .*, uuid"):
        ready("nope")
    with pytest.raises(InvalidRequest):
        ready("../pyproject")


def test_an_installed_package_has_its_grammars_inside(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "structgen"
    package.mkdir(parents=True)
    beside = package.parent / "grammars"
    assert folder(package) == beside
    (package / "grammars").mkdir()
    beside.mkdir()
    assert folder(package) == package / "grammars"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"grammars": "structgen/grammars"}
