"""Which library compiles a constraint: the one that was named, else the first that enforces it all.

Runs on the compile threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from weakref import WeakValueDictionary

import msgspec

from structgen.constraints import (
    Backend,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from structgen.errors import BeyondBackend, ConstraintError, Unsupported
from structgen.grammar import bitmask, build_backend
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    Native,
    Vocabulary,
    field_of,
)
from structgen.grammar.closing import Closer
from structgen.grammar.endings import patterns_of
from structgen.grammar.pace import require_pace
from structgen.grammar.schema import LLGUIDANCE, OUTLINES, XGRAMMAR, prepare
from structgen.grammar.sizes import require_size
from structgen.grammar.spelling import Spelling
from structgen.grammar.structural_tag import prepare_tag
from structgen.grammar.walk import Exit, Walk
from structgen.keywords import KeywordReport

# As measured: llguidance compiles in a hundredth of xgrammar's time and drops nothing in silence;
# xgrammar has what it lacks; outlines-core is slow and drops bounds.
ORDER = (Backend.LLGUIDANCE, Backend.XGRAMMAR, Backend.OUTLINES_CORE)
USUAL = ORDER[:2]  # the last one is hardly ever left to choose

DIALECTS = {
    Backend.LLGUIDANCE: LLGUIDANCE,
    Backend.XGRAMMAR: XGRAMMAR,
    Backend.OUTLINES_CORE: OUTLINES,
}

MAX_SHORTEST = 4096  # tokens that the shortest text of a constraint may have to be known
MAX_EXPLORING_S = 0.1  # for each of two looks
MAX_NAMED = 5  # keywords that a refusal lists


class Recipe(msgspec.Struct, frozen=True, array_like=True):
    """How a constraint is to be compiled: by which library, and what that is to be given.

    constraint: as the library is to enforce it, native: in its notation.  keywords: what becomes of
    those of the client's schema.  shortest: the tokens of the shortest text that was found, once it
    was looked for; at_least: how many every text has.
    """

    backend: str
    constraint: Constraint
    native: Native
    keywords: list[KeywordReport] = []
    shortest: list[int] | None = None
    at_least: int = 0


class Chosen(msgspec.Struct, frozen=True):
    """A compiled constraint, by whom, and how it came about.

    exit: what helps to end its texts in time; None: they are not ended.
    """

    backend: GrammarBackend
    grammar: CompiledConstraint
    recipe: Recipe
    exit: Exit | None = None

    @property
    def keywords(self) -> list[KeywordReport]:
        return self.recipe.keywords


class Backends:
    """The libraries over one vocabulary, each built when first wanted.  Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._built: dict[str, GrammarBackend] = {}
        # What is in use: one grammar for all constraints that come to the same recipe.
        self._compiled: WeakValueDictionary[tuple[str, Constraint], CompiledConstraint] = (
            WeakValueDictionary()
        )
        self._lock = threading.Lock()
        self._full = bitmask.full(vocabulary.size)

    @cached_property
    def closer(self) -> Closer:
        return Closer(self.vocabulary)

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.vocabulary)

    def get(self, name: str) -> GrammarBackend:
        with self._lock:
            backend = self._built.get(name)
            if backend is None:
                backend = self._built[name] = build_backend(name, self.vocabulary)
            return backend

    def warm_up(self) -> None:
        """Build what most requests need, so that none waits for it (0.5 s)."""
        for name in USUAL:
            self.get(name)
        _ = self.closer

    def compile(self, constraint: Constraint) -> Chosen:
        """Compile with the backend that was named, or with the first that enforces everything.

        Raises ConstraintError: the constraint is malformed, or nothing can enforce it, and why.
        ConstraintTooLarge: it is beyond a limit.  Unsupported: the named backend does not have this
        kind.
        """
        require_size(constraint)
        refusals: list[ConstraintError] = []
        for backend in self._candidates(constraint):
            try:
                chosen = self.build(_recipe(backend, constraint))
                self._require_pace(chosen)
                return chosen
            except ConstraintError as refusal:
                refusals.append(refusal)
        # The first candidate is the one that takes most: its reason says most, unless it is only
        # that this library cannot.
        raise next((one for one in refusals if not isinstance(one, BeyondBackend)), refusals[0])

    def build(self, recipe: Recipe) -> Chosen:
        """Compile as a recipe says.

        Raises ConstraintError: the library refuses it; not if that recipe has been compiled before.
        """
        backend = self.get(recipe.backend)
        key = (recipe.backend, recipe.constraint)
        with self._lock:
            grammar = self._compiled.get(key)
        if grammar is None:
            grammar = backend.compile_native(recipe.constraint, recipe.native)
            with self._lock:
                grammar = self._compiled.setdefault(key, grammar)
        is_json = isinstance(recipe.constraint, JsonSchema | JsonObject)
        patterns = patterns_of(recipe.constraint, grammar.outline)
        exit = Exit(patterns, is_json, recipe.shortest, recipe.at_least)
        return Chosen(backend, grammar, recipe, exit)

    def explored(self, chosen: Chosen) -> Chosen:
        """Return it with the shortest way through a text that is found (some milliseconds)."""
        if chosen.exit is None:
            return chosen
        shortest = self.closer.way_out(self._start(chosen, chosen.exit), MAX_SHORTEST)
        at_least = self.closer.at_least(self._start(chosen, chosen.exit))
        return msgspec.structs.replace(
            chosen,
            recipe=msgspec.structs.replace(chosen.recipe, shortest=shortest, at_least=at_least),
            exit=msgspec.structs.replace(chosen.exit, shortest=shortest, at_least=at_least),
        )

    def _start(self, chosen: Chosen, exit: Exit) -> Walk:
        matcher = chosen.grammar.new_matcher()
        return Walk(chosen.backend, matcher, exit, self._full, max_seconds=MAX_EXPLORING_S)

    def _require_pace(self, chosen: Chosen) -> None:
        constraint = chosen.recipe.constraint
        # The masks of schemas and choices are quick.
        if isinstance(constraint, Ebnf | Lark | Regex | StructuralTag):
            require_pace(chosen.backend, chosen.grammar, self.vocabulary, field_of(constraint))

    def _candidates(self, constraint: Constraint) -> Iterator[GrammarBackend]:
        named = constraint.backend is not Backend.AUTO
        found = False
        for name in (constraint.backend,) if named else ORDER:
            backend = self.get(name)
            if backend.supports(constraint):
                found = True
                yield backend
        if not found:
            raise Unsupported(
                f"{constraint.backend} does not offer constraints of this kind",
                field="input.constraint.options.backend" if named else field_of(constraint),
            )


def _recipe(backend: GrammarBackend, constraint: Constraint) -> Recipe:
    """Raises ConstraintError: the library cannot enforce it."""
    if isinstance(constraint, JsonSchema):
        return _schema_recipe(backend, constraint)
    if isinstance(constraint, StructuralTag):
        keywords = prepare_tag(constraint.structural_tag, lambda schema: schema).keywords
        tag = StructuralTag(constraint.structural_tag)
        return Recipe(backend.name, tag, backend.translate(tag), keywords)
    plain = msgspec.structs.replace(constraint, backend=Backend.AUTO)
    return Recipe(backend.name, plain, backend.translate(plain))


def _schema_recipe(backend: GrammarBackend, constraint: JsonSchema) -> Recipe:
    prepared = prepare(constraint.schema, DIALECTS[Backend(backend.name)])
    if prepared.unenforced and not constraint.best_effort:
        places = [f"{report.pointer} ({report.keyword})" for report in prepared.unenforced]
        more = f" and {len(places) - MAX_NAMED} more" if len(places) > MAX_NAMED else ""
        raise ConstraintError(
            f"json_schema cannot be enforced at {', '.join(places[:MAX_NAMED])}{more}",
            field=field_of(constraint),
        )
    rewritten = JsonSchema(prepared.schema_text, constraint.whitespace)
    return Recipe(backend.name, rewritten, backend.translate(rewritten), prepared.reports)
