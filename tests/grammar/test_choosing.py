"""AUTO takes the first library that enforces the whole constraint; a named one takes it or not."""

import pytest
from feeding import byte_vocabulary

from structgen.constraints import (
    Backend,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from structgen.errors import BeyondBackend, ConstraintError, Unsupported
from structgen.grammar.base import Native, Vocabulary
from structgen.grammar.choosing import ORDER, Backends
from structgen.keywords import Treatment


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(byte_vocabulary())


@pytest.mark.parametrize(
    ("constraint", "name"),
    [
        (JsonSchema('{"type":"integer","multipleOf":3}'), "llguidance"),
        (JsonSchema('{"allOf":[{"type":"integer"},{"minimum":3}]}'), "llguidance"),
        (JsonObject(), "llguidance"),
        (Regex("[a-z]+"), "llguidance"),
        (Choice(("yes", "no")), "llguidance"),
        (Ebnf('root ::= "a"+'), "llguidance"),
        (Ebnf('root ::= "a" root "b" | "c"'), "llguidance"),
        (Lark('start: start "a" | "b"'), "llguidance"),
        (Lark('start: "a" start "b" | "c"'), "llguidance"),
        (
            StructuralTag('{"type":"structural_tag","format":{"type":"any_text"}}'),
            "xgrammar",
        ),
        (Ebnf('root ::= "a"+', backend=Backend.XGRAMMAR), "xgrammar"),
        (Choice(("yes", "no"), backend=Backend.XGRAMMAR), "xgrammar"),
        (Regex("[a-z]+", backend=Backend.OUTLINES_CORE), "outlines_core"),
    ],
)
def test_the_library_is_the_first_that_enforces_it_or_the_named_one(
    backends: Backends, constraint: Constraint, name: str
) -> None:
    assert backends.compile(constraint).backend.name == name


def test_what_nothing_enforces_is_refused_with_its_pointer(backends: Backends) -> None:
    schema = '{"properties":{"a":{"type":"array","uniqueItems":true}},"type":"object"}'
    with pytest.raises(ConstraintError, match="/properties/a/uniqueItems") as refusal:
        backends.compile(JsonSchema(schema))
    assert refusal.value.field == "input.constraint.json_schema"


def test_best_effort_goes_on_without_it_and_says_so(backends: Backends) -> None:
    chosen = backends.compile(JsonSchema('{"type":"array","uniqueItems":true}', best_effort=True))
    treatments = {report.pointer: report.treatment for report in chosen.keywords}
    assert treatments == {"/type": Treatment.ENFORCED, "/uniqueItems": Treatment.IGNORED}


def test_a_named_library_that_lacks_the_kind_is_not_replaced(backends: Backends) -> None:
    with pytest.raises(Unsupported) as refusal:
        backends.compile(JsonObject(backend=Backend.OUTLINES_CORE))
    assert refusal.value.field == "input.constraint.options.backend"


def test_a_malformed_constraint_is_refused_with_its_field(backends: Backends) -> None:
    for constraint, field in (
        (Regex("("), "input.constraint.regex"),
        (JsonSchema('{"type":"nosuch"}'), "input.constraint.json_schema"),
        (Ebnf("root ::= nosuch"), "input.constraint.grammar.text"),
    ):
        with pytest.raises(ConstraintError) as refusal:
            backends.compile(constraint)
        assert refusal.value.field == field


@pytest.mark.parametrize("library", ORDER)
def test_what_is_translated_into_no_grammar_is_refused(
    library: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4.11: it is never gone on with as if there were no constraint."""
    own = Backends(byte_vocabulary())
    monkeypatch.setattr(own.get(library), "translate", lambda constraint: Native('root ::= ((("'))
    schema = '{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"}}}'
    with pytest.raises(ConstraintError) as refusal:
        own.compile(JsonSchema(schema, backend=library))
    assert refusal.value.field == "input.constraint.json_schema"


def test_the_reason_is_not_that_one_library_takes_no_such_grammar() -> None:
    with pytest.raises(ConstraintError, match="spell") as refusal:
        Backends(Vocabulary([b"", b"a", b"b"])).compile(
            Ebnf('root ::= "c" root | "d"  root "e" | "f"')
        )
    assert "recursive" not in refusal.value.message


def test_a_named_library_says_that_it_takes_no_such_grammar(backends: Backends) -> None:
    grammar = 'root ::= "a" root "b" | "c"'
    with pytest.raises(BeyondBackend, match="1:14: the rule 'root' is recursive"):
        backends.compile(Ebnf(grammar, backend=Backend.OUTLINES_CORE))
