"""Constraints through xgrammar: schemas, any JSON object, regexes, GBNF grammars, choices.

Traps of xgrammar 0.2 that this file closes:

- control tokens whose text looks ordinary ("<|im_start|>") would be allowed inside strings, so the
  vocabulary is given as raw bytes, in which they have none;
- unless told otherwise it takes tokens spelt like "</s>" for stop tokens, whatever they are;
- surrogates, as UTF-8 and as escapes, pass as characters, and strings with a length bound or a
  pattern may hold raw control characters: a guard is ANDed into every mask;
- regexes are not quite ECMA's ("." takes line ends, an anchor inside is passed over, "\\x41B" is
  one character) and are translated;
- an empty language compiles: the first mask is looked at before the constraint is called usable.

Masks are made when compiling.  Made on demand (enable_dynamic_compilation), a compile takes a
hundredth of the time, but then a mask can cost the loop, and so every row, tens of milliseconds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xgrammar

from structgen.constraints import (
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Whitespace,
)
from structgen.errors import ConstraintError
from structgen.grammar import bitmask
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    GrammarError,
    Matcher,
    Native,
    Vocabulary,
    field_of,
)
from structgen.grammar.beginning import require_a_beginning
from structgen.grammar.ebnf import Grammar, to_gbnf
from structgen.grammar.ecma_regex import Style, translate
from structgen.grammar.embedded_names import EmbeddedNameWatch
from structgen.grammar.guard import TextGuard, TextWatch, json_automaton, utf8_automaton
from structgen.grammar.notations import grammar_of
from structgen.grammar.pace import Pace
from structgen.grammar.structural_tag import Prepared, prepare_tag
from structgen.grammar.tag_outline import outline
from structgen.grammar.unique_names import Names, NameWatch, names_are_open
from structgen.grammar.watch import Watch, Watches

# Of the grammars that it makes of schemas: what follows a string, the characters of a string with a
# length bound, and those without control characters.
_LOOKAHEAD = r" (=([ \n\r\t]* [,}\]:]))"
_BOUNDED_CHARACTER = r"[^\"\\\r\n]"
_PLAIN_CHARACTER = r"[^\0-\x1f\"\\\r\n]"
# Escapes that leave every character one spelling.
_ESCAPE = r'basic_escape ::= ["\\bfnrt] | "u00" ("0" [0-7bef] | "1" [0-9a-f])'

# FLEXIBLE: blanks between tokens, at most this many, so that an answer cannot pad for ever.
MAX_BLANKS = 2

# Of forced text: tokens that are looked at for what they all begin with, and tokens of it.
FEW_TOKENS = 64
MAX_FORCED_TOKENS = 64

_OUT_OF_MEMORY = "std::bad_alloc"  # comes as a RuntimeError


class XGrammarBackend(GrammarBackend):
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._texts = vocabulary.token_bytes
        info = xgrammar.TokenizerInfo(
            vocabulary.token_bytes, xgrammar.VocabType.RAW, stop_token_ids=[]
        )
        # One thread and no cache: the compiler of structgen has its own pool and its own bounds.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._text = TextGuard(vocabulary, utf8_automaton())
        self._json_text = TextGuard(vocabulary, json_automaton())
        self._names = Names(vocabulary)

    def supports(self, constraint: Constraint) -> bool:
        return True

    def translate(self, constraint: Constraint) -> Native:
        try:
            return Native(_text(constraint))
        except ValueError as error:
            raise ConstraintError(str(error), field=field_of(constraint)) from None

    def compile_native(self, constraint: Constraint, native: Native) -> XGrammarCompiled:
        try:
            grammar = self._compile(constraint, native.text)
        except (RuntimeError, ValueError) as error:
            if _OUT_OF_MEMORY in str(error):
                raise MemoryError from None
            raise ConstraintError(_reason(error), field=field_of(constraint)) from None
        tag = constraint.structural_tag if isinstance(constraint, StructuralTag) else None
        compiled = XGrammarCompiled(grammar, self._texts, self._watch(constraint), tag)
        require_a_beginning(self, compiled.new_matcher(), constraint, self._vocabulary)
        return compiled

    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        # One by one: its batch call gains nothing on one thread.
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, XGrammarMatcher)
            matcher.pace.require()
            began = time.thread_time()
            try:
                matcher.handle.fill_next_token_bitmask(words, row)
            except RuntimeError as error:
                raise GrammarError(_reason(error)) from None
            matcher.watch.restrict(words[row])
            matcher.pace.charge(time.thread_time() - began)

    def _watch(self, constraint: Constraint) -> Watch:
        if isinstance(constraint, StructuralTag):
            text = TextWatch(self._text)
            is_open = _prepared(constraint.structural_tag).names_are_open
            return Watches([text, EmbeddedNameWatch(self._names)]) if is_open else text
        if not isinstance(constraint, JsonSchema | JsonObject):
            return TextWatch(self._text)
        text = TextWatch(self._json_text)
        return Watches([text, NameWatch(self._names)]) if names_are_open(constraint) else text

    def _compile(self, constraint: Constraint, text: str) -> xgrammar.CompiledGrammar:
        match constraint:
            case JsonSchema(whitespace=whitespace) | JsonObject(whitespace=whitespace):
                return self._compile_schema(text, whitespace)
            case Regex():
                return self._compiler.compile_regex(text)
            case Ebnf() | Lark() | Choice():
                return self._compiler.compile_grammar(text)
            case StructuralTag():
                return self._compiler.compile_structural_tag(text)

    def _compile_schema(self, schema: str, whitespace: Whitespace) -> xgrammar.CompiledGrammar:
        flexible = whitespace is Whitespace.FLEXIBLE
        return self._compiler.compile_json_schema(
            schema,
            any_whitespace=flexible,
            max_whitespace_cnt=MAX_BLANKS if flexible else None,
            separators=None if flexible else (", ", ": "),
            strict_mode=False,  # an object is open unless the schema closes it
        )


def _text(constraint: Constraint) -> str:
    """Raises ValueError: it is not well-formed."""
    match constraint:
        case JsonSchema(schema=schema):
            return schema
        case JsonObject():
            return '{"type":"object"}'
        case Regex(pattern=pattern):
            return translate(pattern, Style.ECMA).text
        case Ebnf() | Lark():
            return to_gbnf(grammar_of(constraint))
        case StructuralTag(structural_tag=tag):
            return _prepared(tag).text
        case Choice(options=options):
            # GBNF string literals have JSON's escapes, but no surrogate pairs.
            rule = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
            return f"root ::= {rule}"


class XGrammarCompiled(CompiledConstraint):
    """watch: at the start of the text; never advanced, only copied.  tag: a structural tag."""

    def __init__(
        self,
        grammar: xgrammar.CompiledGrammar,
        texts: list[bytes],
        watch: Watch,
        tag: str | None = None,
    ) -> None:
        self._grammar = grammar
        self._texts = texts
        self._watch = watch
        self._tag = tag

    @property
    def outline(self) -> Grammar | None:
        if self._tag is None:
            return None
        return outline(json.loads(_prepared(self._tag).text)["format"])

    @property
    def size_bytes(self) -> int:
        return int(self._grammar.memory_size_bytes)

    def new_matcher(self) -> XGrammarMatcher:
        handle = xgrammar.GrammarMatcher(self._grammar)
        return XGrammarMatcher(handle, self._texts, self._watch.fork())


class XGrammarMatcher(Matcher):
    """texts: of the vocabulary's tokens."""

    def __init__(
        self,
        handle: xgrammar.GrammarMatcher,
        texts: list[bytes],
        watch: Watch,
        pace: Pace | None = None,
    ) -> None:
        self.handle = handle
        self._texts = texts
        self.watch = watch
        self.pace = pace or Pace()

    def accept(self, token: int) -> None:
        self.watch.accept(token)
        try:
            accepted = self.handle.accept_token(token)
        except RuntimeError as error:
            raise GrammarError(_reason(error)) from None
        if not accepted:
            raise GrammarError(f"xgrammar refused token {token}")

    def rollback(self, count: int) -> None:
        self.handle.rollback(count)
        self.watch.rollback(count)

    def forced(self) -> bytes:
        # Its own find_jump_forward_string knows no end: of 2**30 letters it writes all.
        if self.accepting:
            return b""
        found, matcher = b"", self
        begin, token = self._beginning()
        for _ in range(MAX_FORCED_TOKENS):
            if token is None:
                break
            matcher = self.fork() if matcher is self else matcher
            matcher.accept(token)
            found, begin, token = found + self._texts[token], b"", None
            if not matcher.accepting:
                begin, token = matcher._beginning()
        return found + begin

    def _beginning(self) -> tuple[bytes, int | None]:
        """Return what every token begins with that is allowed, if few are, and the longest of them
        that is no more than that.
        """
        words = bitmask.allocate(1, len(self._texts))
        try:
            self.handle.fill_next_token_bitmask(words, 0)
        except RuntimeError as error:
            raise GrammarError(_reason(error)) from None
        self.watch.restrict(words[0])
        if not 0 < int(bitmask.count(words)[0]) <= FEW_TOKENS:
            return b"", None
        texts = {t: self._texts[t] for t in bitmask.unpack(words[0], len(self._texts))}
        begin = _common_beginning([text for text in texts.values() if text])
        within = [token for token, text in texts.items() if text and begin.startswith(text)]
        return begin, max(within, key=lambda token: len(texts[token]), default=None)

    def fork(self) -> XGrammarMatcher:
        copy = self.handle.fork()
        return XGrammarMatcher(copy, self._texts, self.watch.fork(), self.pace.copy())

    @property
    def accepting(self) -> bool:
        return self.watch.may_end and bool(self.handle.is_completed())


def _common_beginning(texts: Sequence[bytes]) -> bytes:
    low, high = min(texts, default=b""), max(texts, default=b"")
    differs = (place for place, pair in enumerate(zip(low, high, strict=False)) if len({*pair}) > 1)
    return low[: next(differs, len(low))]


@lru_cache(maxsize=8)  # asked for when it is compiled, and when its outline is wanted
def _prepared(tag: str) -> Prepared:
    """Return a structural tag for xgrammar.  Raises ConstraintError, ConstraintTooLarge."""
    return prepare_tag(tag, _schema_grammar)


def _schema_grammar(schema: str) -> str:
    """Return the grammar of a schema, for where the JSON guard cannot be.

    What that would keep out is written into it; and lookaheads are left out, which are right only
    for what is inside of other JSON.
    """
    grammar = xgrammar.Grammar.from_json_schema(
        schema, any_whitespace=False, separators=(", ", ": "), strict_mode=False
    )
    lines = [line.removesuffix(_LOOKAHEAD) for line in str(grammar).splitlines()]
    lines = [_ESCAPE if line.startswith("basic_escape ::= ") else line for line in lines]
    return "\n".join(lines).replace(_BOUNDED_CHARACTER, _PLAIN_CHARACTER)


def _reason(error: Exception) -> str:
    """Strip the time and source path that xgrammar puts in front of its messages."""
    return re.sub(r"^(\[[^\]]*\]\s*)?(\S+\.(cc|h):\d+:\s*)?", "", str(error).strip()).strip()
