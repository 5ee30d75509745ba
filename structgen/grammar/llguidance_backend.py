"""Constraints through llguidance: schemas, any JSON object, regexes, choices, grammars.

A grammar is given as one regular expression if it is regular, else character by character: its
lexer takes the longest terminal, so that a terminal which may end before the next one begins with
what could continue it would lose texts of the language.

Traps of llguidance 1.9 that this file closes:

- nothing raises: after an error a matcher stays in it, and its mask allows the end alone, so the
  error is asked for after every call;
- a token that is refused by consume_token breaks the matcher; try_consume_tokens leaves it alone;
- where the next bytes are forced, its mask has the token alone that its tokenizer would take for
  them, and asks Python for that: forcing is switched off, so that masks hold whatever is legal;
- it needs an end token of its own, which it allows wherever the text is complete;
- the byte FF marks control tokens in its vocabulary, so no text token may begin with it;
- a name that a schema leaves open may be an escaped spelling of one that it has a word on: the
  guard of JSON text leaves escapes by number to the characters that need them;
- of a string that the schema restricts, a line end may be written as an escape by number too, which
  the guard would cut off in its middle: such schemas have no escapes by number;
- the key "x-guidance" of a schema sets options: a client's is replaced by ours;
- regexes are in Rust's syntax, with Unicode's classes, and are translated;
- errors hold the grammar, and panics a stack trace.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence

import llguidance
import numpy as np
import numpy.typing as npt

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
from structgen.errors import BeyondBackend, ConfigError, ConstraintError
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
from structgen.grammar.ebnf import Grammar, to_lexemes, to_regex
from structgen.grammar.ecma_regex import Style, escape, translate
from structgen.grammar.guard import TextGuard, TextWatch, json_automaton
from structgen.grammar.notations import grammar_of
from structgen.grammar.pace import Pace
from structgen.grammar.schema import escapes
from structgen.grammar.schema.values import JsonValue
from structgen.grammar.unique_names import Names, NameWatch, names_are_open
from structgen.grammar.watch import Watch, Watches

MAX_BLANKS = 2  # FLEXIBLE: blanks between tokens, so that an answer cannot pad for ever

# The defaults, but for the states of a lexer: at 1-2 kB each, its 250,000 are half a gigabyte.
_LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)

# Its masks look into the tokens of a slice only where not all of them are allowed.  Those of a
# string are sliced by how long they are, since most schemas bound their strings: near the bound,
# short tokens are still allowed without a look, and masks take a third less than by its own slices.
_PLAIN_CHARACTER = r"[^\"\\\x00-\x1F\x7F]"
_SLICE_LENGTHS = (3, 5, 7, 9, 12, 16)

_NO_FORCING = '%llguidance {"no_forcing": true}\n'

# What compiled grammars were seen to take, by the bytes of their text.
_BYTES_FIXED = 32 * 1024
_BYTES_PER_BYTE = 64


class LLGuidanceBackend(GrammarBackend):
    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises ConfigError: no token is without text, so that none can stand for the end."""
        self._vocabulary = vocabulary
        wrapper = _TokenizerWrapper(vocabulary)
        self._tokenizer = llguidance.LLTokenizer(wrapper, slices=_slices())  # type: ignore[arg-type]
        self._end = wrapper.eos_token_id
        self._end_word = self._end >> 5
        self._end_mask = ~np.uint32(1 << (self._end & 31)).view(np.int32)
        self._json_text = TextGuard(vocabulary, json_automaton())
        self._names = Names(vocabulary)

    def supports(self, constraint: Constraint) -> bool:
        return not isinstance(constraint, StructuralTag)

    def translate(self, constraint: Constraint) -> Native:
        try:
            return Native(_grammar(constraint))
        except ValueError as error:
            raise ConstraintError(str(error), field=field_of(constraint)) from None

    def compile_native(self, constraint: Constraint, native: Native) -> LLGuidanceCompiled:
        handle = llguidance.LLMatcher(self._tokenizer, native.text, log_level=0, limits=_LIMITS)
        watch = self._watch(constraint)
        # With the matcher that all others are copied from: what it learns of its lexer, they know.
        start = LLGuidanceMatcher(handle, self._end, watch.fork())
        require_a_beginning(self, start, constraint, self._vocabulary)
        return LLGuidanceCompiled(handle, len(native.text), self._end, watch)

    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        assert words.flags.c_contiguous
        address, row_bytes = words.ctypes.data, words.strides[0]
        # One by one: its batch call hands the rows to a thread, and getting the interpreter back
        # from another busy thread takes milliseconds then.
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, LLGuidanceMatcher)
            matcher.pace.require()
            began = time.thread_time()
            matcher.handle.unsafe_compute_mask_ptr(address + row * row_bytes, row_bytes)
            _require_health(matcher.handle)
            words[row, self._end_word] &= self._end_mask
            matcher.watch.restrict(words[row])
            matcher.pace.charge(time.thread_time() - began)

    def _watch(self, constraint: Constraint) -> Watch:
        if not isinstance(constraint, JsonSchema | JsonObject):
            return Watches([])  # it keeps to well-formed UTF-8
        text = TextWatch(self._json_text)
        return Watches([text, NameWatch(self._names)]) if names_are_open(constraint) else text


class LLGuidanceCompiled(CompiledConstraint):
    """prototype, watch: at the start of the text; never advanced, only copied."""

    def __init__(
        self, prototype: llguidance.LLMatcher, grammar_bytes: int, end: int, watch: Watch
    ) -> None:
        self._prototype = prototype
        self._grammar_bytes = grammar_bytes
        self._end = end
        self._watch = watch

    @property
    def size_bytes(self) -> int:
        return _BYTES_FIXED + _BYTES_PER_BYTE * self._grammar_bytes

    def new_matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._prototype.deep_copy(), self._end, self._watch.fork())


class LLGuidanceMatcher(Matcher):
    def __init__(
        self, handle: llguidance.LLMatcher, end: int, watch: Watch, pace: Pace | None = None
    ) -> None:
        self.handle = handle
        self.watch = watch
        self.pace = pace or Pace()
        self._end = end

    def accept(self, token: int) -> None:
        self.watch.accept(token)
        accepted = token != self._end and self.handle.try_consume_tokens([token]) == 1
        _require_health(self.handle)
        if not accepted:
            raise GrammarError(f"llguidance refused token {token}")

    @property
    def accepting(self) -> bool:
        return self.watch.may_end and self.handle.is_accepting()

    def rollback(self, count: int) -> None:
        self.handle.rollback(count)
        self.watch.rollback(count)
        _require_health(self.handle)

    def forced(self) -> bytes:
        return self.handle.compute_ff_bytes()

    def allows(self, tokens: Sequence[int]) -> bool:
        return self._is_valid(tokens) and self._watched(tokens) is not None

    def is_completed_by(self, tokens: Sequence[int]) -> bool:
        if not self._is_valid([*tokens, self._end]):
            return False
        watch = self._watched(tokens)
        return watch is not None and watch.may_end

    def fork(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(
            self.handle.deep_copy(), self._end, self.watch.fork(), self.pace.copy()
        )

    def _is_valid(self, tokens: Sequence[int]) -> bool:
        # A tenth of the time that accepting them takes.
        count: int = self.handle.validate_tokens([*tokens])
        _require_health(self.handle)
        return count == len(tokens)

    def _watched(self, tokens: Sequence[int]) -> Watch | None:
        """Return what the watch becomes; None: it does not let one of these tokens pass."""
        watch = self.watch.fork()
        try:
            for token in tokens:
                watch.accept(token)
        except GrammarError:
            return None
        return watch


class _TokenizerWrapper:
    """A vocabulary as llguidance wants to see one."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        # No well-formed text has the byte FF, so a token with it may as well have no text.
        self.tokens = [b"" if b"\xff" in text else text for text in vocabulary.token_bytes]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        if not self.special_token_ids:
            raise ConfigError("llguidance needs a vocabulary with a token that has no text")
        self.eos_token_id = self.special_token_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError("only forced tokens would need a tokenizer")


def _slices() -> list[str]:
    """Return expressions of tokens that have no slice yet, one after the other."""
    bounded = [f"{_PLAIN_CHARACTER}{{1,{length}}}" for length in _SLICE_LENGTHS]
    return [*bounded, f"{_PLAIN_CHARACTER}+"]


def _grammar(constraint: Constraint) -> str:
    """Return a grammar in llguidance's own notation.

    Raises ValueError: the constraint is nothing that it could be asked for.
    """
    match constraint:
        case JsonSchema(schema=schema, whitespace=whitespace):
            return _schema_grammar(json.loads(schema), whitespace)
        case JsonObject(whitespace=whitespace):
            return _schema_grammar({"type": "object"}, whitespace)
        case Regex(pattern=pattern):
            return _regex_grammar(translate(pattern, Style.RUST).text)
        case Choice(options=options):
            return _regex_grammar("|".join(escape(option, Style.RUST) for option in options))
        case StructuralTag():
            raise ValueError("llguidance does not take structural tags")
        case Ebnf() | Lark():
            return _context_free(grammar_of(constraint))


def _context_free(grammar: Grammar) -> str:
    try:
        return _regex_grammar(to_regex(grammar, Style.RUST).text)
    except BeyondBackend:
        return f"{_NO_FORCING}{to_lexemes(grammar)}"


def _regex_grammar(text: str) -> str:
    """text: as ecma_regex writes it, without a slash or a line end."""
    return f"{_NO_FORCING}start: /{text}/"


def _schema_grammar(schema: JsonValue, whitespace: Whitespace) -> str:
    if schema is False:
        raise ValueError("the schema false allows no value")
    members: dict[str, object] = dict(schema) if isinstance(schema, dict) else {}
    members["x-guidance"] = _options(whitespace, numbered_escapes=escapes.lead_on(schema))
    return f"{_NO_FORCING}start: %json {json.dumps(members, ensure_ascii=False)}"


def _options(whitespace: Whitespace, *, numbered_escapes: bool) -> dict[str, object]:
    strict = {
        "coerce_one_of": False,
        "lenient": False,
        "json_allowed_escapes": 'nrbtf\\"' + ("u" if numbered_escapes else ""),
    }
    if whitespace is Whitespace.COMPACT:
        return strict | {
            "item_separator": ", ",
            "key_separator": ": ",
            "whitespace_flexible": False,
        }
    return strict | {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": rf"[ ]{{1,{MAX_BLANKS}}}",
    }


def _require_health(handle: llguidance.LLMatcher) -> None:
    if handle.is_error():
        raise GrammarError(_reason(handle.get_error(), handle.stop_reason()))


def _reason(error: str, stop_reason: str) -> str:
    """Keep what a client can use of an error message."""
    text = re.split(r"\n?<(?:backtrace|non-verbose/|state|grammar)>|\n +\d+ \| ", error)[0]
    prefix = r"^(at \d+\(\d+\): )?(failed to compile JSON schema: |panic: )?"
    reason = re.sub(prefix, "", text.strip())
    if "NoExtensionBias" in (stop_reason, reason):
        return "the constraint matches no text that this vocabulary can spell"
    return reason or f"llguidance stopped: {stop_reason}"
