"""Constraints through xgrammar: schemas, any JSON object, regexes, GBNF grammars, choices.

Traps of xgrammar 0.2 that this file closes:

- control tokens whose text looks ordinary ("<|im_start|>") would be allowed inside strings, so the
  vocabulary is given as raw bytes, in which they have none;
- strings with a length bound, and patterns, may hold raw control characters, which JSON forbids:
  no token with one is allowed in a JSON answer (it is never needed: white space is blanks only);
- an empty language compiles: the first mask is looked at before the constraint is called usable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xgrammar

from structgen.constraints import (
    FIELD,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Regex,
    Whitespace,
)
from structgen.errors import ConstraintError
from structgen.grammar import bitmask
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    GrammarError,
    Matcher,
    Vocabulary,
)

# FLEXIBLE: blanks between tokens, at most this many, so that an answer cannot pad for ever.
MAX_BLANKS = 2


class XGrammarBackend(GrammarBackend):
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocab_size = vocabulary.size
        info = xgrammar.TokenizerInfo(vocabulary.token_bytes, xgrammar.VocabType.RAW)
        # One thread and no cache: the compiler of structgen has its own pool and its own bounds.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=1)
        self._json_text = bitmask.pack(
            (
                token
                for token, text in enumerate(vocabulary.token_bytes)
                if text and not any(byte < 0x20 for byte in text)
            ),
            vocabulary.size,
        )

    def supports(self, constraint: Constraint) -> bool:
        return True

    def compile(self, constraint: Constraint) -> XGrammarCompiled:
        try:
            grammar = self._compile(constraint)
        except (RuntimeError, ValueError) as error:
            raise ConstraintError(_reason(error), field=_field(constraint)) from None
        is_json = isinstance(constraint, JsonSchema | JsonObject)
        compiled = XGrammarCompiled(grammar, self._json_text if is_json else None)
        self._require_a_start(compiled, constraint)
        return compiled

    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        handles = []
        for matcher in matchers:
            assert isinstance(matcher, XGrammarMatcher)
            handles.append(matcher.handle)
        if len(handles) == 1:
            handles[0].fill_next_token_bitmask(words, rows[0])
        else:
            self._batch.batch_fill_next_token_bitmask(handles, words, list(rows))
        for matcher, row in zip(matchers, rows, strict=True):
            if matcher.allowed_text is not None:  # type: ignore[attr-defined]
                words[row] &= matcher.allowed_text  # type: ignore[attr-defined]

    def _compile(self, constraint: Constraint) -> xgrammar.CompiledGrammar:
        match constraint:
            case JsonSchema(schema=schema, whitespace=whitespace):
                return self._compile_schema(schema, whitespace)
            case JsonObject(whitespace=whitespace):
                return self._compile_schema('{"type":"object"}', whitespace)
            case Regex(pattern=pattern):
                return self._compiler.compile_regex(pattern)
            case Ebnf(text=text, root=root):
                return self._compiler.compile_grammar(text, root_rule_name=root)
            case Choice(options=options):
                # GBNF string literals have JSON's escapes, but no surrogate pairs.
                rule = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
                return self._compiler.compile_grammar(f"root ::= {rule}")

    def _compile_schema(self, schema: str, whitespace: Whitespace) -> xgrammar.CompiledGrammar:
        flexible = whitespace is Whitespace.FLEXIBLE
        return self._compiler.compile_json_schema(
            schema,
            any_whitespace=flexible,
            max_whitespace_cnt=MAX_BLANKS if flexible else None,
            separators=None if flexible else (", ", ": "),
            strict_mode=False,  # an object is open unless the schema closes it
        )

    def _require_a_start(self, compiled: XGrammarCompiled, constraint: Constraint) -> None:
        matcher = compiled.new_matcher()
        words = bitmask.allocate(1, self._vocab_size)
        self.fill([matcher], words, [0])
        if not words.any() and not matcher.accepting:
            raise ConstraintError(
                "the constraint matches no text that this vocabulary can spell",
                field=_field(constraint),
            )


class XGrammarCompiled(CompiledConstraint):
    """allowed_text: int32 [W] that is ANDed into every mask, or None."""

    def __init__(
        self, grammar: xgrammar.CompiledGrammar, allowed_text: npt.NDArray[np.int32] | None
    ) -> None:
        self._grammar = grammar
        self._allowed_text = allowed_text

    @property
    def size_bytes(self) -> int:
        return int(self._grammar.memory_size_bytes)

    def new_matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self._grammar, self._allowed_text)


class XGrammarMatcher(Matcher):
    def __init__(
        self, grammar: xgrammar.CompiledGrammar, allowed_text: npt.NDArray[np.int32] | None
    ) -> None:
        self.handle = xgrammar.GrammarMatcher(grammar)
        self.allowed_text = allowed_text

    def accept(self, token: int) -> None:
        try:
            accepted = self.handle.accept_token(token)
        except RuntimeError as error:
            raise GrammarError(_reason(error)) from None
        if not accepted:
            raise GrammarError(f"xgrammar refused token {token}")

    @property
    def accepting(self) -> bool:
        return bool(self.handle.is_completed())


def _reason(error: Exception) -> str:
    """Strip the time and source path that xgrammar puts in front of its messages."""
    return re.sub(r"^(\[[^\]]*\]\s*)?(\S+\.(cc|h):\d+:\s*)?", "", str(error).strip()).strip()


def _field(constraint: Constraint) -> str:
    match constraint:
        case JsonSchema():
            return f"{FIELD}.json_schema"
        case JsonObject():
            return f"{FIELD}.json_object"
        case Regex():
            return f"{FIELD}.regex"
        case Ebnf():
            return f"{FIELD}.grammar.text"
        case Choice():
            return f"{FIELD}.choice"
