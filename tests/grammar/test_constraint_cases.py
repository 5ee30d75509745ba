"""Constraints that hurt users of other systems, each with texts that it must allow or refuse.

They are compiled as a request's are: rewritten, by the first library that enforces all of them.
The cases lie beside the repository, in shared/data/constraint-cases.jsonl; without them, nothing
here runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from feeding import Judge, byte_vocabulary, piece_vocabulary

from structgen.constraints import Choice, Constraint, Ebnf, JsonSchema, Regex
from structgen.errors import ConstraintError, ConstraintTooLarge
from structgen.grammar.base import Vocabulary

FILE = Path(__file__).parents[3] / "shared" / "data" / "constraint-cases.jsonl"
KINDS: dict[str, Callable[..., Constraint]] = {
    "json_schema": JsonSchema,
    "regex": Regex,
    "ebnf": Ebnf,
    "choice": lambda options: Choice(tuple(options)),
}


class Case(msgspec.Struct):
    """compile: `ok` must compile and obey, `error` must be refused, `either` may be either."""

    id: str
    constraint_kind: Literal["json_schema", "regex", "ebnf", "choice"]
    constraint: str | list[str]
    accept: list[str]
    reject: list[str]
    compile: Literal["ok", "error", "either"]

    def texts(self, texts: list[str]) -> list[str]:
        """Return the texts as structgen writes them."""
        return [spaced(text) for text in texts] if self.constraint_kind == "json_schema" else texts


def spaced(text: str) -> str:
    """Put a blank after each comma and colon between the tokens of compact JSON, valid or not."""
    inside = escaped = False
    result = []
    for character in text:
        result.append(character)
        if character == '"' and not escaped:
            inside = not inside
        elif character in ",:" and not inside:
            result.append(" ")
        escaped = character == "\\" and not escaped
    return "".join(result)


def load() -> list[Case]:
    if not FILE.exists():
        return []
    return msgspec.json.Decoder(Case).decode_lines(FILE.read_bytes())


CASES = load()


def judge_of(case: Case, vocabulary: Vocabulary) -> Judge | ConstraintError | ConstraintTooLarge:
    try:
        return Judge(KINDS[case.constraint_kind](case.constraint), vocabulary)
    except (ConstraintError, ConstraintTooLarge) as error:
        return error


@pytest.mark.parametrize("by", ["byte", "piece"])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_a_constraint_is_obeyed_or_refused(case: Case, by: str) -> None:
    accept, reject = case.texts(case.accept), case.texts(case.reject)
    vocabulary = byte_vocabulary() if by == "byte" else piece_vocabulary(accept + reject)
    judge = judge_of(case, vocabulary)
    if not isinstance(judge, Judge):
        assert case.compile != "ok", f"refused: {judge}"
        return
    assert case.compile != "error", "compiled"
    assert [text for text in accept if not judge.obeys(text)] == []
    assert [text for text in reject if judge.obeys(text)] == []
