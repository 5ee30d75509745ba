"""Lark grammars: what is refused and where, and that every library gets the same language."""

from __future__ import annotations

import random

import pytest
from feeding import Judge, byte_vocabulary
from recognising import recognises, sample

from structgen.constraints import Lark
from structgen.errors import BeyondBackend, ConstraintError, ConstraintTooLarge
from structgen.grammar.ebnf import Grammar, to_regex
from structgen.grammar.ebnf.checks import check
from structgen.grammar.ecma_regex import Style
from structgen.grammar.lark import load
from structgen.grammar.lark.common import COMMON
from structgen.grammar.lark.ignoring import without_ignored
from structgen.grammar.lark.parser import parse

BYTES = byte_vocabulary()
REGULAR = ["xgrammar", "llguidance", "outlines_core"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('root: "a"', "1:1: there is no rule 'start' to start from"),
        ('start: "a" b', "1:12: the rule 'b' is not defined"),
        ("start: A\nA: B", "2:4: the rule 'B' is not defined"),
        ('start: "a"\n%ignore WS', "2:9: the terminal 'WS' is not defined"),
        ('start: "a"\nstart: "b"', "2:1: 'start' is defined twice"),
        ("start: start", "1:1: the rule 'start' has no text: it can never end"),
        ('start: "a" start', "1:1: the rule 'start' has no text: it can never end"),
        ("start: A\nA: A", "1:1: the rule 'start' has no text: it can never end"),
        ('start: A\nA: b\nb: "x"', "2:4: a terminal must not use the rule 'b'"),
        ('start: "x"\nb: "b"\n%ignore b', "3:9: a terminal must not use the rule 'b'"),
        ('start: A*\nA: "a"*\n%ignore " "', "2:1: a terminal that may be empty does not go with"),
        ('start: ("a"', "1:8: a ( without its closing )"),
        ('start: ["a")', "1:12: a ) without its opening ("),
        ('start: "a"]', "1:11: a ] without its opening ["),
        ('start: "a', '1:8: a text without its closing "'),
        ("start: /a", "1:8: a regex without its closing /"),
        ('start: "\\q"', "1:9: \\q is no escape"),
        ('start: "a"x', '1:8: the flag x of a text is not supported, only "..."i'),
        ("start: /a/m", "1:8: the flag m of a regex is not supported, only i and s"),
        ("start: /(?=a)a/", "1:8: regex: look-around is not supported"),
        ("start: /(a)\\1/", "1:8: regex: a back-reference is not supported"),
        ("start: /a\\b/", "1:8: regex: a word boundary is not supported"),
        ("start: /(/", "1:8: regex: missing )"),
        ("start: /b^a/", "1:8: regex: its anchors rule out every text"),
        ("start: /\\p{L}/i", "1:8: the flag i is not supported for a class of more than"),
        ('start: "z".."a"', "1:8: the range z..a is out of order"),
        ('start: "a".."bc"', '1:8: a range must be of two characters, as in "a".."z"'),
        ('start: "a"~3..2', "1:11: the bounds 3 and 2 are out of order"),
        ('start: "a"~b', "1:11: the complement ~ of a terminal is not supported"),
        ('start: "a"+*', "1:12: nothing for * to repeat"),
        ("start: *", "1:8: nothing for * to repeat"),
        ('start: "a" -> B', "1:12: expected -> name at the end of an alternative"),
        ('start: ("a" -> b)', "1:13: expected -> name at the end of an alternative"),
        ("Start: a", "1:1: a name must be in lower case (a rule) or in upper case (a terminal)"),
        ("start: aB", "1:8: a name must be in lower case (a rule) or in upper case (a terminal)"),
        ("start: 'a'", '1:8: unexpected "\'"'),
        ('root ::= "a"', "1:8: unexpected '='"),
        ('root = "a"', "1:6: unexpected '='"),
        ('"a": "b"', "1:1: expected a rule, as in name: ..., got '\"a\"'"),
        ('start: "a" b: "c"', "1:13: unexpected ':'"),
        ("start: INT\nINT.2: /[0-9]+/", "2:4: priorities are not supported, at 'INT'"),
        ('pair{x}: x x\nstart: pair{"a"}', "1:5: templates are not supported, at 'pair'"),
        ('start: pair{"a"}', "1:12: templates are not supported"),
        ('start[max_tokens=3]: "a"', "1:17: unexpected '='"),
        ('start[lazy]: "a"', "1:6: attributes of a rule are not supported, at 'start'"),
        ("start: A\n%declare A", "2:1: %declare is not supported"),
        ("%import .other.A\nstart: A", "1:1: %import is supported from common only"),
        ("%import common.NOPE\nstart: NOPE", "1:16: common has no 'NOPE'; it has DIGIT, HEXDIGIT"),
        ("%import common (INT WS)", "1:21: expected common.NAME or common (NAME, ...), got 'WS'"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "1:1: %llguidance is not supported"),
        ('start: %json {"type": "null"}', "1:8: %json is not supported here"),
        ('start: %regex {"substring_chars": "abc"}', "1:8: %regex is not supported here"),
        ("start: %lark { start: /x/ }", "1:8: %lark is not supported here"),
        ("start: <|im_end|>", "1:8: a special token <...> is not supported"),
        ("start: <[1-9]>", "1:8: a special token <...> is not supported"),
        ("start: @other", "1:8: a reference to another grammar, @name, is not supported"),
        ('start: A\nA: "a" & /a|b/', "2:8: the intersection & of terminals is not supported"),
    ],
)
def test_what_makes_no_sense_or_is_not_promised_is_refused_with_its_place(
    text: str, message: str
) -> None:
    with pytest.raises(ConstraintError) as refusal:
        load(text, "start")
    assert refusal.value.message.startswith(f"grammar {message}")
    assert refusal.value.field == "input.constraint.grammar.text"


@pytest.mark.parametrize(
    "text",
    ["start: " + "(" * 60_000, 'start: "a"~1000000', 'start: ("x" a~1000)~1000\na: "b"~1000'],
    ids=["groups", "repetition", "tower"],
)
def test_what_is_too_large_is_refused(text: str) -> None:
    with pytest.raises(ConstraintTooLarge, match=r"grammar 1:\d+: .* must be at most"):
        load(text, "start")


@pytest.mark.parametrize(
    ("text", "accepts", "rejects"),
    [
        ('?start: "a" -> one\n  | "b"  // or\n  | # and\n  "c"', "c", "d"),
        ('!start: x ~ 2\nx: "a".."c"', "ab", "abc"),
        ('start: "a"~2..3 "b"{2} "c"{1,}', "aabbc", "abbc"),
        ('start: ["a" "b"] "c"', "c", "ac"),
        ("start:", "", "a"),
        ('start: | "a"', "", "b"),
        (r'start: "select"i " " /[^a-c]/i /k|é+/i', "SeLeCt DÉÉ", "select Aé"),
        (r"start: /a.b/s /./", "a\nbé", "a\nb\n"),
        (r'start: "\x41\u00e9\"\\" /\/"/', 'Aé"\\/"', "A"),
        ("start: A B\nA: /[a-z]+/\nB: /[a-z]+/", "ab", "a"),
        ('start: "if" NAME\nNAME: /[a-z]+/', "iffy", "if"),
        ('start: _LIST\n_LIST: INT ("," INT)*\n%import common.INT', "12,3", "12,"),
        (
            "start: (N | S)+\n%import common.NUMBER -> N\n%import common (ESCAPED_STRING, INT)\n"
            "S: ESCAPED_STRING",
            '1.5e3"a\\"b".5',
            '"a',
        ),
        ('start: list\nlist: list "," item | item\nitem: "a" | "b"', "a,b,a", "a,,b"),
        ('start: x\nx: y "a" | "b"\ny: x "c"', "bcaca", "bca c"),
        ('start: "a" "b"\n%ignore " "', "a  b", " ab"),
        ('start: "a" "b"\n%ignore " "', "ab", "ab "),
        (
            "start: WORD (WORD)*\n%import common.WORD\n%import common.WS\n%ignore WS\n"
            "%import common.C_COMMENT\n%ignore C_COMMENT",
            "ab /* c **/\n d",
            "ab /* c",
        ),
        ('start: a? ["x" b*]\na: b ""\nb: /b/\n%ignore /-+/', "b--x-b-b", "-x"),
        ('start: a? ["x" b*]\na: b ""\nb: /b/\n%ignore /-+/', "", "b-"),
    ],
)
@pytest.mark.parametrize("backend", REGULAR)
def test_a_regular_grammar_is_the_same_on_every_backend(
    backend: str, text: str, accepts: str, rejects: str
) -> None:
    judge = Judge(Lark(text), BYTES, backend)
    assert judge.obeys(accepts)
    assert not judge.obeys(rejects)


CALCULATOR = r"""
    // Left-recursive, as Lark's examples are.
    ?start: sum
          | NAME "=" sum    -> assign
    ?sum: product
        | sum "+" product   -> add
        | sum "-" product
    ?product: atom
        | product "*" atom
    ?atom: NUMBER
         | "-" atom
         | NAME
         | "(" sum ")"
    %import common.CNAME -> NAME
    %import common.NUMBER
    %import common.WS_INLINE
    %ignore WS_INLINE
"""


@pytest.mark.parametrize("backend", REGULAR[:2])
def test_a_recursive_grammar_is_followed(backend: str) -> None:
    judge = Judge(Lark(CALCULATOR), BYTES, backend)
    for text in ("1", "a = 1.5 + (b*-2 -  c)", "x=(((y)))", "1+2*3"):
        assert judge.obeys(text), text
    for text in ("", " 1", "1 ", "a = ", "(1", "1 2", "a = b = 1", "1 +* 2"):
        assert not judge.obeys(text), text


@pytest.mark.parametrize("backend", ["outlines_core"])
def test_what_is_not_regular_is_left_to_other_backends(backend: str) -> None:
    with pytest.raises(BeyondBackend, match=r"grammar \d+:\d+: the rule 'sum.*' is recursive"):
        Judge(Lark(CALCULATOR), BYTES, backend)


def test_a_unicode_property_is_left_to_the_backend_that_knows_it() -> None:
    grammar = Lark(r"start: /\p{Lu}+/")
    with pytest.raises(BeyondBackend, match="Unicode property"):
        Judge(grammar, BYTES, "xgrammar")
    judge = Judge(grammar, BYTES)
    assert judge.obeys("ÉA")
    assert not judge.obeys("é")


def test_the_start_may_have_any_name() -> None:
    judge = Judge(Lark('start: "b"\ntop: "a"', "top"), BYTES)
    assert judge.obeys("a")
    assert not judge.obeys("b")


@pytest.mark.parametrize(
    ("name", "accepts", "rejects"),
    [
        ("SIGNED_FLOAT", ["-1.5", "+.5e-3", "1e9", "2."], ["1", ".", "e9", "--1."]),
        ("NUMBER", ["1", "1.5", "3e7"], ["", "-1", "1e"]),
        ("ESCAPED_STRING", ['""', '"a\\"b"', '"\\\\"'], ['"', '"a', '"a"b"', '"\n"', '"\\"']),
        ("C_COMMENT", ["/**/", "/* * / **/", "/*a\n*/"], ["/*/", "/* */ */", "/*"]),
        ("CNAME", ["_a1", "A"], ["1a", ""]),
        ("NEWLINE", ["\n", "\r\n\n"], ["\r", ""]),
        ("WS", [" \t\f\r\n"], ["", "\v"]),
    ],
)
def test_a_common_terminal_is_what_its_name_says(
    name: str, accepts: list[str], rejects: list[str]
) -> None:
    judge = Judge(Lark(f"start: {name}\n%import common.{name}"), BYTES)
    assert [text for text in accepts if not judge.obeys(text)] == []
    assert [text for text in rejects if judge.obeys(text)] == []


@pytest.mark.parametrize("name", COMMON)
def test_every_common_terminal_is_there_and_is_never_empty(name: str) -> None:
    judge = Judge(Lark(f"start: {name}\n%import common.{name}"), BYTES)
    assert not judge.obeys("")


# Random grammars, of any recursion, with something ignored.


def random_lark(rng: random.Random) -> str:
    names = ["start", "x", "y"]
    rules = [f"{name}: {random_node(rng, names, 3)} | {random_node(rng, [], 1)}" for name in names]
    ignores = rng.choice(["", '%ignore " "', '%ignore /-+/\n%ignore " "', "%ignore A"])
    return "\n".join([*rules, 'A: "a" | "-"', "B: /[ab]+/", ignores])


def random_node(rng: random.Random, names: list[str], depth: int) -> str:
    kind = rng.randrange(7 if depth else 3)
    if kind == 0 and names:
        return rng.choice(names)
    if kind <= 2:
        return rng.choice(['"a"', '"b"', '"ab"', "A", "B", "/b|ba/", '"B"i', '""', '"a".."b"'])
    parts = [random_node(rng, names, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind == 3:
        return f"({' | '.join(parts)})"
    if kind == 4:
        return f"[{parts[0]}]"
    if kind == 5:
        return " ".join(parts)
    return f"({parts[0]}){rng.choice(['*', '+', '?', '~2', '~1..2'])}"


def is_regular(grammar: Grammar) -> bool:
    try:
        return bool(to_regex(grammar, Style.RUST))
    except BeyondBackend:
        return False


@pytest.mark.parametrize("seed", range(40))
def test_every_reading_of_a_random_grammar_agrees(seed: int) -> None:
    rng = random.Random(seed)
    found = parse(random_lark(rng), "start")
    check(found.grammar, left_recursion=True)
    spaced = without_ignored(found.grammar, found.ignored)
    texts = {sample(spaced, rng) or "" for _ in range(10)}
    texts |= {"".join(rng.choices("abAB -", k=rng.randint(0, 5))) for _ in range(12)}
    texts = {text for text in texts if len(text) < 30}
    wanted = {text: recognises(found.grammar, text, found.ignored) for text in texts}
    assert {text: recognises(spaced, text) for text in texts} == wanted
    for backend in REGULAR if is_regular(spaced) else REGULAR[:2]:
        judge = Judge(Lark(found.grammar.text), BYTES, backend)
        assert {text: judge.obeys(text) for text in texts} == wanted, backend


def test_the_random_grammars_are_of_all_kinds() -> None:
    texts = [random_lark(random.Random(seed)) for seed in range(40)]
    assert {is_regular(load(text, "start")) for text in texts} == {False, True}
    assert {"%ignore" in text for text in texts} == {False, True}
