"""The ready grammars: each allows what its cases say, and nothing that they rule out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from feeding import Judge, byte_vocabulary, piece_vocabulary

from structgen.constraints import Constraint, Ebnf, JsonSchema, Regex
from structgen.errors import BeyondBackend
from structgen.grammar import BACKENDS

FOLDER = Path(__file__).parents[2] / "grammars"
CASES = ".cases.json"
KINDS: dict[str, Callable[[str], Constraint]] = {
    ".ebnf": Ebnf,
    ".json": JsonSchema,
    ".regex": lambda text: Regex(text.rstrip("\n")),
}
# Every backend, and the kinds that it enforces all of.
TAKES = {
    "xgrammar": (".ebnf", ".json", ".regex"),
    "llguidance": (".ebnf", ".json", ".regex"),
    # It drops the bounds of numbers, which all our schemas have.
    "outlines_core": (".ebnf", ".regex"),
}
# Grammars that are not regular, and the only backend that takes such.
RECURSIVE = {"arithmetic", "sql-select"}
CONTEXT_FREE = "xgrammar"
# xgrammar spells strings of bounded length without any escape, llguidance all without this one.
GAPS = {"xgrammar": "\\", "llguidance": "\\u"}
GRAMMARS = sorted(path for path in FOLDER.iterdir() if not path.name.endswith(CASES))


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
    assert GRAMMARS
    assert {path.suffix for path in GRAMMARS} <= set(KINDS)
    assert len({path.stem for path in GRAMMARS}) == len(GRAMMARS), "two of a name share cases"
    assert sorted(path.name for path in FOLDER.glob(f"*{CASES}")) == sorted(
        f"{path.stem}{CASES}" for path in GRAMMARS
    )
    for path in GRAMMARS:
        assert cases(path).accepts, path.name
        assert cases(path).rejects, path.name


def test_every_backend_has_a_word_on_what_it_takes() -> None:
    assert set(TAKES) == set(BACKENDS)


@pytest.mark.parametrize("backend", sorted(set(TAKES) - {CONTEXT_FREE}))
@pytest.mark.parametrize("name", sorted(RECURSIVE))
def test_a_recursive_grammar_is_left_to_the_backend_for_such(name: str, backend: str) -> None:
    grammar = Ebnf((FOLDER / f"{name}.ebnf").read_text())
    with pytest.raises(BeyondBackend, match="recursive"):
        Judge(grammar, byte_vocabulary(), backend)


@pytest.mark.parametrize("by", ["byte", "piece"])
@pytest.mark.parametrize(
    ("grammar", "backend"),
    [
        pytest.param(grammar, backend, id=f"{grammar.name}-{backend}")
        for grammar in GRAMMARS
        for backend, kinds in TAKES.items()
        if grammar.suffix in kinds and (grammar.stem not in RECURSIVE or backend == CONTEXT_FREE)
    ],
)
def test_a_ready_grammar_allows_what_its_cases_say(grammar: Path, backend: str, by: str) -> None:
    texts = cases(grammar)
    vocabulary = (
        byte_vocabulary() if by == "byte" else piece_vocabulary(texts.accepts + texts.rejects)
    )
    judge = Judge(KINDS[grammar.suffix](grammar.read_text()), vocabulary, backend)
    refused = [text for text in texts.accepts if not judge.obeys(text)]
    assert refused == [text for text in texts.accepts if is_known_gap(grammar, text, backend)]
    assert [text for text in texts.rejects if judge.obeys(text)] == []
