"""What can be asked about a constraint, and the answers, as plain data.

A job runs a stranger's program, in a process that may be lost with it.  A new question is a struct
in `Job`, its answer one in `Result`, and a case in `_answer`.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from structgen.constraints import Constraint
from structgen.errors import ConstraintTooLarge, WireError, from_wire, to_wire
from structgen.grammar import judging
from structgen.grammar.base import field_of
from structgen.grammar.choosing import Backends, Recipe
from structgen.messages import TextVerdict


class _Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=True):
    pass


class Compile(_Message, frozen=True):
    """Find the library that enforces this, and compile it once to see that it can be."""

    constraint: Constraint


class Compilable(_Message, frozen=True):
    """The answer to Compile."""

    recipe: Recipe


class Judge(_Message, frozen=True):
    """Judge a text by the masks of a constraint that has compiled."""

    recipe: Recipe
    text: str


class Judgement(_Message, frozen=True):
    """The answer to Judge."""

    verdict: TextVerdict


class Refused(_Message, frozen=True):
    """The answer to any job: it cannot be done, and why."""

    error: WireError


Job = Compile | Judge
Result = Compilable | Judgement | Refused


def perform(job: Job, backends: Backends) -> Result:
    """Raises MemoryError: it takes more memory than there is."""
    try:
        return _answer(job, backends)
    except MemoryError:
        raise
    except RecursionError:
        error = ConstraintTooLarge("the constraint is nested too deeply", field=field_of_job(job))
        return Refused(to_wire(error))
    except Exception as failure:  # whatever a library throws is this constraint's misfortune
        return Refused(to_wire(failure))


def recipe_of(result: Result) -> Recipe:
    """Return the answer to Compile.  Raises the error that there is in its place."""
    if isinstance(result, Refused):
        raise from_wire(result.error)
    assert isinstance(result, Compilable), result
    return result.recipe


def verdict_of(result: Result) -> TextVerdict:
    """Return the answer to Judge.  Raises the error that there is in its place."""
    if isinstance(result, Refused):
        raise from_wire(result.error)
    assert isinstance(result, Judgement), result
    return result.verdict


def name_of(job: Job) -> str:
    """Return what a job does, as errors say it."""
    match job:
        case Compile():
            return "compiling the constraint"
        case Judge():
            return "judging the text"
        case _:
            assert_never(job)


def field_of_job(job: Job) -> str:
    """Return the path of the request field that an error in the job is about."""
    match job:
        case Compile(constraint):
            return field_of(constraint)
        case Judge():
            return judging.FIELD
        case _:
            assert_never(job)


def _answer(job: Job, backends: Backends) -> Result:
    match job:
        case Compile(constraint):
            return Compilable(backends.explored(backends.compile(constraint)).recipe)
        case Judge(recipe, text):
            chosen = backends.build(recipe)
            return Judgement(
                judging.judge(chosen.grammar, chosen.backend, backends.spelling, text.encode())
            )
        case _:
            assert_never(job)
