"""Constraints through outlines-core: regexes, choices, and schemas that it can write as a regex.

Everything becomes one automaton over tokens when compiling, so that accepting and filling are
look-ups; but a repetition is spelt out state by state, for every token that fits there.

Traps of outlines-core 0.2 that this file closes:

- alternatives are tried in order and the first match wins ("a|ab" loses "ab"), and an automaton is
  built that may also begin anywhere, which for strings is exponential in their length: every
  pattern is put between two markers, characters that no text has, so that a match neither begins
  nor ends early;
- classes are Unicode's; a pattern is translated before, and a schema's as well as its result;
- in schemas, property names go into the regex without JSON's escapes, and patterns without a group
  around them, blind to what JSON must escape: such names and patterns are refused;
- patterns let raw control characters through: a guard is ANDed into every mask;
- the size of an automaton is unbounded: what is spelt out too widely is refused.  An automaton that
  is exponential in its pattern ("(a|b)*a(a|b){30}") is not foreseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import outlines_core
from outlines_core.json_schema import build_regex_from_schema

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
from structgen.grammar.ebnf import to_regex
from structgen.grammar.ecma_regex import Style, Translation, escape, translate
from structgen.grammar.guard import TextGuard, TextWatch, json_automaton, utf8_automaton
from structgen.grammar.notations import grammar_of
from structgen.grammar.unique_names import Names, NameWatch, names_are_open
from structgen.grammar.watch import Watch, Watches

MAX_BLANKS = 2  # FLEXIBLE: blanks between tokens, so that an answer cannot pad for ever
BEGIN, END = MARKERS = "\x01\x00"  # no token of an answer has these characters

# Every token is tried in every state, at a hundred million in one or two seconds.  A class takes
# several states, one for each place inside its characters, and may be left by every token; a
# character takes one, and is left by the few that begin with it.
MAX_TRIALS = 2**27
_STATES_PER_CLASS = 8
_MOVES_PER_CHARACTER = 16
_BYTES_PER_MOVE = 12
_FORMATS = ("date", "uuid")  # those whose regex is right and needs no escape
_CACHED_MASK_BYTES = 2**24


class OutlinesBackend(GrammarBackend):
    name = "outlines_core"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocab_size = vocabulary.size
        ids: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.token_bytes):
            if text and not any(marker.encode() in text for marker in MARKERS):
                ids.setdefault(text, []).append(token)
        self._begin, self._end, stop = range(vocabulary.size, vocabulary.size + 3)
        ids |= {BEGIN.encode(): [self._begin], END.encode(): [self._end]}
        # Its own stop token is allowed after the end marker.
        self._vocabulary = vocabulary
        self._tokens = outlines_core.Vocabulary(stop, ids)
        self._text = TextGuard(vocabulary, utf8_automaton())
        self._json_text = TextGuard(vocabulary, json_automaton())
        self._names = Names(vocabulary)

    def supports(self, constraint: Constraint) -> bool:
        return not isinstance(constraint, JsonObject | StructuralTag)

    def translate(self, constraint: Constraint) -> Native:
        try:
            regex = _regex(constraint)
            self._require_small(regex)
        except (ValueError, TypeError) as error:
            raise ConstraintError(_reason(error), field=field_of(constraint)) from None
        begin, end = (escape(marker, Style.RUST) for marker in MARKERS)
        return Native(f"{begin}(?:{regex.text}){end}", regex.characters, regex.classes)

    def compile_native(self, constraint: Constraint, native: Native) -> OutlinesCompiled:
        try:
            index = outlines_core.Index(native.text, self._tokens)
            start = index.get_next_state(index.get_initial_state(), self._begin)
        except (ValueError, TypeError) as error:
            raise ConstraintError(_reason(error), field=field_of(constraint)) from None
        watch = self._watch(constraint)
        moves = native.classes * self._vocab_size + native.characters * _MOVES_PER_CHARACTER
        size_bytes = moves * _BYTES_PER_MOVE
        compiled = OutlinesCompiled(index, start, self._end, watch, self._vocab_size, size_bytes)
        require_a_beginning(self, compiled.new_matcher(), constraint, self._vocabulary)
        return compiled

    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, OutlinesMatcher)
            matcher.fill(words[row])

    def _watch(self, constraint: Constraint) -> Watch:
        if not isinstance(constraint, JsonSchema):
            return TextWatch(self._text)
        text = TextWatch(self._json_text)
        return Watches([text, NameWatch(self._names)]) if names_are_open(constraint) else text

    def _require_small(self, regex: Translation) -> None:
        """Raises ValueError: the automaton would take too long, or too much memory."""
        states = regex.characters + regex.classes * _STATES_PER_CLASS
        limit = MAX_TRIALS // self._vocab_size
        if states > limit:
            raise ValueError(
                "too large for outlines-core: spelt out it has about"
                f" {states} states, and over this vocabulary the limit is {limit}"
            )


class OutlinesCompiled(CompiledConstraint):
    """Owns the automaton and the masks of the states that were visited (loop thread only).

    start: the state where a text begins.  end: the token that leads from where it may end to a
    match.  watch: at the start of the text; never advanced, only copied.
    """

    def __init__(
        self,
        index: outlines_core.Index,
        start: int,
        end: int,
        watch: Watch,
        vocab_size: int,
        size_bytes: int,
    ) -> None:
        self.index = index
        self._watch = watch
        self._start = start
        self._end = end
        self._vocab_size = vocab_size
        self._size_bytes = size_bytes
        self._masks: dict[int, bitmask.Words] = {}

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def new_matcher(self) -> OutlinesMatcher:
        return OutlinesMatcher(self, [self._start], self._watch.fork())

    def mask(self, state: int) -> bitmask.Words:
        """Return int32 [W], the tokens that the automaton allows in a state."""
        words = self._masks.get(state)
        if words is None:
            if len(self._masks) * bitmask.num_words(self._vocab_size) * 4 > _CACHED_MASK_BYTES:
                self._masks.clear()
            allowed = np.array(self.index.get_allowed_tokens(state), dtype=np.int64)
            words = bitmask.pack(allowed[allowed < self._vocab_size], self._vocab_size)
            self._masks[state] = words
        return words

    def is_end(self, state: int) -> bool:
        """Whether the text may end in a state."""
        return self.index.get_next_state(state, self._end) is not None


class OutlinesMatcher(Matcher):
    """states: of the automaton, at the start and after each token."""

    def __init__(self, compiled: OutlinesCompiled, states: list[int], watch: Watch) -> None:
        self._compiled = compiled
        self._states = states
        self._watch = watch

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        row[:] = self._compiled.mask(self._states[-1])
        self._watch.restrict(row)

    def accept(self, token: int) -> None:
        self._watch.accept(token)
        after = self._compiled.index.get_next_state(self._states[-1], token)
        if after is None:
            raise GrammarError(f"outlines-core refused token {token}")
        self._states.append(after)

    def rollback(self, count: int) -> None:
        del self._states[len(self._states) - count :]
        self._watch.rollback(count)

    def fork(self) -> OutlinesMatcher:
        return OutlinesMatcher(self._compiled, self._states.copy(), self._watch.fork())

    @property
    def accepting(self) -> bool:
        return self._watch.may_end and self._compiled.is_end(self._states[-1])


def _regex(constraint: Constraint) -> Translation:
    """Return the pattern of the texts that obey a constraint.

    Raises ValueError: it cannot be written as one.
    """
    match constraint:
        case JsonSchema(schema=schema, whitespace=whitespace):
            return _schema_regex(json.loads(schema), whitespace)
        case Regex(pattern=pattern):
            return translate(pattern, Style.RUST, MARKERS)
        case Choice(options=options):
            text = "|".join(escape(option, Style.RUST) for option in options)
            return Translation(text, sum(map(len, options)), 0, plain=False)
        case Ebnf() | Lark():
            return to_regex(grammar_of(constraint), Style.RUST, MARKERS)
        case JsonObject() | StructuralTag():
            raise ValueError("outlines-core takes regexes, choices and some schemas")


def _schema_regex(schema: object, whitespace: Whitespace) -> Translation:
    text = json.dumps(_prepare(schema), ensure_ascii=False)
    if whitespace is Whitespace.FLEXIBLE:
        regex = build_regex_from_schema(text, f"[ ]{{0,{MAX_BLANKS}}}")
        return translate(regex, Style.RUST, MARKERS)
    # It has one pattern for all white space.  Ours differs by place: mark the places first.
    place = next(mark for mark in map(chr, range(0xE000, 0xF8FF)) if mark not in text)
    regex = build_regex_from_schema(text, place)
    for separator in ",:":
        # The last two forms: where the other place is beyond the end of a group.
        for marked in (f"{place}{separator}{place}", f"{place}{separator}", f"{separator}{place}"):
            regex = regex.replace(marked, f"{separator} ")
    return translate(regex.replace(place, ""), Style.RUST, MARKERS)


def _prepare(schema: object) -> object:
    """Return a schema with its patterns translated.

    Raises ValueError: a name or pattern in it would need JSON's escapes, or a format is not right.
    """
    if not isinstance(schema, dict):
        return schema
    return {key: _MEMBERS.get(key, _keep)(value) for key, value in schema.items()}


def _keep(value: object) -> object:
    return value


def _prepare_list(value: object) -> object:
    return [_prepare(item) for item in value] if isinstance(value, list) else _prepare(value)


def _prepare_map(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {_plain_name(name): _prepare(item) for name, item in value.items()}


def _plain_name(name: str) -> str:
    if json.dumps(name, ensure_ascii=False) != f'"{name}"':
        raise ValueError(f"outlines-core cannot escape the property name {name!r}")
    return name


def _prepare_pattern(value: object) -> object:
    if not isinstance(value, str):
        return value
    regex = translate(value, Style.ECMA)
    if not regex.plain:
        raise ValueError(
            f"the pattern {value!r} may match what JSON must escape, which outlines-core cannot"
        )
    return f"(?:{regex.text})"


def _prepare_format(value: object) -> object:
    if value not in _FORMATS:
        raise ValueError(f"outlines-core has no format {value!r} to rely on")
    return value


_MEMBERS: dict[str, Callable[[object], object]] = {
    "pattern": _prepare_pattern,
    "format": _prepare_format,
    "properties": _prepare_map,
    "$defs": _prepare_map,
    "definitions": _prepare_map,
    "required": lambda names: [_plain_name(name) for name in names],  # type: ignore[attr-defined]
    "items": _prepare_list,
    "prefixItems": _prepare_list,
    "additionalProperties": _prepare,
    "anyOf": _prepare_list,
    "oneOf": _prepare_list,
    "allOf": _prepare_list,
}


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
