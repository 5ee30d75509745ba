"""The ready grammars: each allows what its cases say, and nothing that they rule out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from feeding import Judge, byte_vocabulary, piece_vocabulary

from structgen.constraints import Constraint, Ebnf, JsonSchema, Regex
from structgen.grammar import BACKENDS

FOLDER = Path(__file__).parents[2] / "grammars"
CASES = ".cases.json"
KINDS: dict[str, Callable[[str], Constraint]] = {
    ".ebnf": Ebnf,
    ".json": JsonSchema,
    ".regex": lambda text: Regex(text.rstrip("\n")),
}
GRAMMARS = sorted(path for path in FOLDER.iterdir() if not path.name.endswith(CASES))


class Cases(msgspec.Struct, forbid_unknown_fields=True):
    """Whole texts; JSON as structgen writes it, with ", " and ": "."""

    accepts: list[str]
    rejects: list[str]


def cases(grammar: Path) -> Cases:
    return msgspec.json.decode((FOLDER / f"{grammar.stem}{CASES}").read_bytes(), type=Cases)


def is_known_gap(grammar: Path, text: str, backend: str) -> bool:
    """xgrammar spells a string of bounded length in characters that need no escape, and no other.

    The strings of all our schemas are bounded.
    """
    return backend == "xgrammar" and grammar.suffix == ".json" and "\\" in text


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by", ["byte", "piece"])
@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda path: path.name)
def test_a_ready_grammar_allows_what_its_cases_say(grammar: Path, by: str, backend: str) -> None:
    constraint = KINDS[grammar.suffix](grammar.read_text())
    texts = cases(grammar)
    vocabulary = (
        byte_vocabulary() if by == "byte" else piece_vocabulary(texts.accepts + texts.rejects)
    )
    judge = Judge(constraint, vocabulary, backend)
    refused = [text for text in texts.accepts if not judge.obeys(text)]
    assert refused == [text for text in texts.accepts if is_known_gap(grammar, text, backend)]
    assert [text for text in texts.rejects if judge.obeys(text)] == []
