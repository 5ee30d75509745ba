"""What can be asked about a constraint, and the answers, as plain data.

A job runs a stranger's program, in a process that may be lost with it.  A new question is a struct
in `Job`, its answer one in `Result`, and a case in `_answer`.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from structgen.constraints import Constraint
from structgen.errors import ConstraintTooLarge, WireError, from_wire, to_wire
from structgen.grammar.base import field_of
from structgen.grammar.choosing import Backends, Recipe


class _Message(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, tag=True):
    pass


class Compile(_Message, frozen=True):
    """Find the library that enforces this, and compile it once to see that it can be."""

    constraint: Constraint


class Compilable(_Message, frozen=True):
    """The answer to Compile."""

    recipe: Recipe


class Refused(_Message, frozen=True):
    """The answer to any job: it cannot be done, and why."""

    error: WireError


Job = Compile
Result = Compilable | Refused


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
    """Return the recipe.  Raises the error that there is in its place."""
    match result:
        case Compilable(recipe):
            return recipe
        case Refused(error):
            raise from_wire(error)
        case _:
            assert_never(result)


def field_of_job(job: Job) -> str:
    """Return the path of the request field that an error in the job is about."""
    return field_of(job.constraint)


def _answer(job: Job, backends: Backends) -> Result:
    match job:
        case Compile(constraint):
            return Compilable(backends.explored(backends.compile(constraint)).recipe)
        case _:
            assert_never(job)
