"""The shortest way to complete a text of a grammar is one, and no shorter one is."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time

import pytest
from recognising import recognises, sample
from test_lark import random_lark

from structgen.constraints import Ebnf, Lark
from structgen.frontend.ready_grammars import files, folder, ready
from structgen.grammar.ebnf import Grammar, load
from structgen.grammar.ebnf.completion import Completion
from structgen.grammar.lark import load as load_lark
from structgen.grammar.notations import grammar_of
from structgen.grammar.schema.automaton import TooLarge


@pytest.mark.parametrize(
    ("text", "begun", "ending"),
    [
        ('root ::= "a" [0-9]{3} ("b" | "cd")', "a1", "00b"),
        ('root ::= "a" [0-9]{3} ("b" | "cd")', "a111c", "d"),
        ('root ::= "a" [0-9]{3} ("b" | "cd")', "a111cd", ""),
        ('root ::= "a" [0-9]{3} ("b" | "cd")', "b", None),
        ('root ::= "(" root ")" | "x"', "(((", "x)))"),
        ('root ::= "(" root ")" | "x"', "((x)", ")"),
        ('root ::= name (", " name)* ";"\nname ::= [a-z]+', "ab, c", ";"),
        ('root ::= name (", " name)* ";"\nname ::= [a-z]+', "ab,", " a;"),
        ('root ::= ("a"? "b"?){2,4} "é"', "ab", "é"),
        ('root ::= (("a")*)* "b" "" [^a-z0-9A-Z]', "aa", "b_"),
    ],
)
def test_a_text_is_completed(text: str, begun: str, ending: str | None) -> None:
    completion = Completion(load(text, "root"))
    wanted = [] if ending is None else [ending]
    assert completion.endings(begun) == wanted
    assert completion.endings(begun) == wanted, "what it keeps changes nothing"


LEFT = 'start: list\nlist: list ", " item | item\nitem: "a" item "b" | "c"'


def test_plain_left_recursion_is_read() -> None:
    completion = Completion(load_lark(LEFT, "start"))
    assert completion.endings("c, aac") == ["bb"]
    assert completion.endings("c,") == [" c"]


def test_what_is_too_much_is_not_known() -> None:
    indirect = 'start: x\nx: y "a" | "b"\ny: x "c"'
    with pytest.raises(TooLarge):
        Completion(load_lark(indirect, "start")).endings("b")
    powers = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30)) + '\nr30 ::= "a"'
    with pytest.raises(TooLarge):
        Completion(load(powers, "r0")).endings("aaa")


def test_no_text_takes_long_however_ambiguous_it_is() -> None:
    grammar = load('root ::= ((("a" | "b"?)* "c"?){1,90} | ("a" "b"?){1,300}){1,300} "x"', "root")
    completion = Completion(grammar)
    text = ""
    for character in "abcabacabcab":
        text += character
        started = time.thread_time()
        with contextlib.suppress(TooLarge):
            completion.endings(text)
        assert time.thread_time() - started < 3  # unbounded, it would be hours


def check(grammar: Grammar, rng: random.Random, alphabet: str) -> int:
    """Check the endings of beginnings of random texts; return how many there were."""
    completion = Completion(grammar)
    found = 0
    for _ in range(12):
        text = sample(grammar, rng)
        if text is None or len(text) > 25:
            continue
        begun = text[: rng.randint(0, len(text))]
        try:
            endings = completion.endings(begun, 3)
        except TooLarge:
            continue
        found += 1
        assert endings, (grammar.text, begun)
        assert all(recognises(grammar, begun + ending) for ending in endings)
        ending = endings[0]
        assert len(ending) <= len(text) - len(begun)
        for length in range(min(len(ending), 3)):
            for other in itertools.product(alphabet, repeat=length):
                assert not recognises(grammar, begun + "".join(other)), (begun, ending, other)
    return found


def test_endings_of_random_grammars_are_right_and_shortest() -> None:
    found = 0
    for seed in range(40):
        rng = random.Random(seed)
        found += check(load_lark(random_lark(rng), "start"), rng, "abAB -")
    assert found > 100


@pytest.mark.parametrize(
    "name", [name for name, path in files().items() if path.suffix in (".ebnf", ".lark")]
)
def test_endings_of_ready_grammars_are_right(name: str) -> None:
    constraint = ready(name)
    assert isinstance(constraint, Ebnf | Lark)
    grammar = grammar_of(constraint)
    completion = Completion(grammar)
    cases = json.loads((folder() / f"{name}.cases.json").read_text())
    for text in cases["accepts"][:3]:
        for length in {0, len(text) // 3, len(text) // 2, len(text)}:
            [ending] = completion.endings(text[:length])
            assert len(ending) <= len(text) - length
            assert recognises(grammar, text[:length] + ending), (text[:length], ending)


def test_several_ways_on_have_an_ending_each() -> None:
    text = 'root ::= "a" ("b" [0-9]* "!" | [b-z]+ "end" | "b" "c"{9})'
    assert Completion(load(text, "root")).endings("ab", 9) == ["!", "end", "ccccccccc"]


def test_a_text_that_is_no_beginning_has_no_ending() -> None:
    completion = Completion(load('root ::= "[" root ("," root)* "]" | "1"', "root"))
    assert completion.endings("[1,,") == []
