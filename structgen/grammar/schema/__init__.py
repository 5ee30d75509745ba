"""JSON Schema, rewritten so that a grammar library enforces all of it, and reported keyword by
keyword: what is enforced, what is verified at the end, what says nothing, what is lost."""

from structgen.grammar.schema.dialect import Dialect
from structgen.grammar.schema.dialects import LLGUIDANCE, OUTLINES, XGRAMMAR
from structgen.grammar.schema.prepare import Prepared, prepare
from structgen.grammar.schema.report import KeywordReport, Treatment

__all__ = [
    "LLGUIDANCE",
    "OUTLINES",
    "XGRAMMAR",
    "Dialect",
    "KeywordReport",
    "Prepared",
    "Treatment",
    "prepare",
]
