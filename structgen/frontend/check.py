"""Checks without an engine: the grammar side alone, in this process.

The one place where the front end uses grammars itself: a constraint can be checked where there is
no model, and no weights are needed to judge a text.
"""

from __future__ import annotations

import time

from structgen.constraints import Backend, Constraint
from structgen.frontend.checks import ConstraintCheck
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import ORDER, Backends
from structgen.grammar.compiler import Compiled
from structgen.grammar.judging import judge

LIMIT_S = 60.0  # nobody else waits


def vocabulary(token_bytes: list[bytes] | None) -> Vocabulary:
    """Return that of a tokenizer, or of the bytes alone.

    Which it is makes no difference to verdicts, as long as it spells every text; it does to times
    and sizes, and to what outlines-core finds too large.
    """
    if token_bytes is not None:
        return Vocabulary(token_bytes)
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b""])  # one must stand for the end


def check(constraint: Constraint, vocabulary: Vocabulary, text: bytes | None) -> ConstraintCheck:
    """Compile a constraint, and judge a text by it if one is given.

    Raises ConstraintError, Unsupported: it cannot be used.  LimitExceeded: the text takes too long.
    """
    backends = Backends(vocabulary)
    compiled = _compile(backends, constraint)
    chosen, info = compiled.require(), compiled.info(constraint, cached=False)
    verdict = None
    if text is not None:
        verdict = judge(chosen.grammar, chosen.backend, backends.spelling, text, limit_s=LIMIT_S)
    return ConstraintCheck(constraint=info, size_bytes=chosen.grammar.size_bytes, verdict=verdict)


def _compile(backends: Backends, constraint: Constraint) -> Compiled:
    """Compile, and tell how long that takes once the library is there."""
    expected = ORDER[0] if constraint.backend is Backend.AUTO else constraint.backend
    backends.get(expected)
    compiled = _timed(backends, constraint)
    if compiled.require().backend.name != expected:  # then it was built, some seconds long
        del compiled  # or it would be found again
        compiled = _timed(backends, constraint)
    return compiled


def _timed(backends: Backends, constraint: Constraint) -> Compiled:
    began = time.perf_counter()
    chosen = backends.compile(constraint)
    return Compiled(constraint, chosen, seconds=time.perf_counter() - began)
