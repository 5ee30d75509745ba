"""EBNF grammars: what is refused and where, and that every library gets the same language."""

from __future__ import annotations

import random
import time

import pytest
import xgrammar
from feeding import Judge, byte_vocabulary
from recognising import recognises, sample

from structgen.constraints import Ebnf
from structgen.errors import BeyondBackend, ConstraintError, ConstraintTooLarge
from structgen.grammar.ebnf import Grammar, load, to_gbnf, to_regex
from structgen.grammar.ecma_regex import Style

BYTES = byte_vocabulary()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: there is no rule 'root' to start from"),
        ('top ::= "a"', "1:1: there is no rule 'root' to start from"),
        ('root ::= "a" b', "1:14: the rule 'b' is not defined"),
        ('# two\r\nroot ::= "é" ( b )', "2:16: the rule 'b' is not defined"),
        ('root ::= "a"\n\nroot ::= "b"', "3:1: the rule 'root' is defined twice"),
        ('root ::= root "a" | "b"', "1:1: the rule 'root' is left-recursive: root -> root"),
        (
            'root ::= x\nx ::= y "b"\ny ::= "a" | x "c"',
            "2:1: the rule 'x' is left-recursive: x -> y -> x",
        ),
        (
            'root ::= ("" | x){2} root "c" | "a"\nx ::= "b"*',
            "1:1: the rule 'root' is left-recursive: root -> root",
        ),
        ('root ::= "a"? root | "b"', "1:1: the rule 'root' is left-recursive"),
        ("root ::= root", "1:1: the rule 'root' has no text: it can never end"),
        ('root ::= "a" root', "1:1: the rule 'root' has no text: it can never end"),
        (
            'root ::= "a" | b\nb ::= "(" c ")"\nc ::= [x-z] b',
            "2:1: the rule 'b' has no text: it can never end",
        ),
        ("root ::= [z-a]", "1:11: the range z-a is out of order"),
        ("root ::= [^\\x00-\\U0010FFFF]", "1:10: a class without any character"),
        ("root ::= []", "1:10: a class without any character"),
        ("root ::= [a\n]", "1:10: a class without its closing ]"),
        ('root ::= "a', '1:10: a text without its closing "'),
        ('root ::= "a\nb"', '1:10: a text without its closing "'),
        ('root ::= "ab\\q"', "1:13: \\q is no escape"),
        ('root ::= "\\u12"', "1:11: \\u is no escape"),
        ("root ::= [\\d]", "1:11: \\d is no escape"),
        ('root ::= "\\ud83d!"', "1:11: \\ud83d is no character"),
        ('root ::= "\\U00110000"', "1:11: \\U00110000 is no character"),
        ('root ::= ("a" | ("b")', "1:10: a ( without its closing )"),
        ('root ::= "a")', "1:13: a ) without its opening ("),
        ('root ::= "a" |', '1:15: expected an element before the end; "" is the empty text'),
        ('root ::= ( | "a")', "1:12: expected an element before '|'"),
        ("root ::=", "1:9: expected an element before the end"),
        ('root ::= "a"+*', "1:14: nothing for * to repeat"),
        ("root ::= *", "1:10: nothing for * to repeat"),
        ('root ::= "a"{3,2}', "1:13: the bounds 3 and 2 are out of order"),
        ('root ::= "a"{,2}', "1:14: expected a number, got ','"),
        ('root ::= "a"{2;}', "1:15: unexpected ';'"),
        ('root ::= "a"{2 3}', "1:16: expected a repetition, as in {2,5}, got '3'"),
        ('root ::= "a" b ::= "c"', "1:14: the rule 'b' must begin on its own line"),
        ('?start: "a" | "b"', "1:7: unexpected ':'"),
        ('start = "a"', "1:7: unexpected '='"),
        ('"a" ::= "b"', "1:1: expected a rule, as in name ::= ..., got '\"a\"'"),
        ("root ::= 'a'", '1:10: unexpected "\'"'),
        ('root ::= "a" (= "b")', "1:14: a lookahead (= is not supported"),
        (
            'root ::= TagDispatch(("a", b))\nb ::= "b"',
            "1:10: the macro TagDispatch is not supported",
        ),
        ("root ::= Token (1)", "1:10: the macro Token is not supported"),
        ('root[max_tokens=3] ::= "a"', "1:5: attributes of a rule are not supported"),
        ("root ::= %json {}", "1:10: unexpected '%'"),
        ("root ::= <|im_end|>", "1:10: unexpected '<'"),
        ("\ufeffroot ::= [a]", "1:1: unexpected '\\ufeff'"),
        ("root ::= \0", "1:10: unexpected '\\x00'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConstraintError) as refusal:
        load(text, "root")
    assert refusal.value.message.startswith(f"grammar {message}")
    assert refusal.value.field == "input.constraint.grammar.text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
            "the nesting of groups must be at most",
        ),
        ("root ::= " + "(" * 60_000, "the nesting of groups must be at most"),
        (
            "\n".join(f"r{i} ::= r{i + 1}" for i in range(50_000)),
            "1:1: the size in bytes must be at most 262144, got",
        ),
        (
            "\n".join(f'r{i} ::= "a"' for i in range(6_000)),
            "the number of rules must be at most 5000",
        ),
        ('root ::= "a"{1000000}', "1:14: a repetition must be at most 100000, got 1000000"),
        ('root ::= "a"{' + "9" * 10_000 + "}", "1:14: a repetition must be at most 100000"),
        (
            'root ::= "b" | ("x" | tower{1,1000}){1,1000}\ntower ::= "a"{5} [bc]{2,90}',
            "1:1: the repetitions within each other in 'root', multiplied, must be at most "
            "10000000, got 90000000",
        ),
    ],
    ids=["groups", "unclosed", "bytes", "rules", "repetition", "digits", "tower"],
)
def test_what_is_too_large_is_refused_at_once(text: str, message: str) -> None:
    started = time.thread_time()
    with pytest.raises(ConstraintTooLarge) as refusal:
        load(text, "root")
    assert message in refusal.value.message
    assert refusal.value.field == "input.constraint.grammar.text"
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    ("text", "accepts"),
    [
        (
            "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(4_000))
            + '\nr4000 ::= "b"\nroot ::= r3990',
            "aaaaaaaaaab",
        ),
        (
            "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(41))
            + '\nr41 ::= "a" | "b" r0\nroot ::= r38',
            "aaaaaaaa",
        ),
        ('root ::= (("")*)* (([a]?)*)+ "b"', "aab"),
        ("root ::= (([a-z]{1,100}){1,100}){0,2} | ([a]{2,3}){4}", "aaaaaaaaaa"),
        ("root ::= " + " | ".join(f'"{n}"' for n in range(9_000)), "8999"),
    ],
    ids=["chain", "powers", "empty loops", "tower", "options"],
)
def test_what_is_only_strange_compiles_quickly(text: str, accepts: str) -> None:
    started = time.thread_time()
    judge = Judge(Ebnf(text), BYTES)
    assert judge.obeys(accepts)
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    ("text", "accepts", "rejects"),
    [
        ('root ::= a # first\na ::= "x"', "x", "#"),
        ('root\n::=\n  "x"\n  | # or\n  "y"\nunused ::= root "z"', "y", "z"),
        ('root ::= ("a" | "b"){ 2 , }', "abab", "a"),
        ('root ::= "a"{2}', "aa", "a"),
        ('root ::= ("ab"){0} "c"', "c", "abc"),
        ('root ::= () "c" ""', "c", ""),
        (r'root ::= "\x41\x4142\u00e9\U0001F600\ud83d\ude00\n\"\\"', 'AA42é😀😀\n"\\', "A"),
        (r"root ::= [\x00-\x1f\]\\^a-c-]+", "\0\x1f]\\^b-", "d"),
        (r"root ::= [^a-c\n]*", "d日\0", "a"),
        (r"root ::= .+", "a\n😀", ""),
        ('root ::= the-rule.of_1 -x\nthe-rule.of_1 ::= "a"\n-x ::= "b"', "ab", "a"),
        ('root ::= true\ntrue ::= Regex\nRegex ::= "a"', "a", "b"),
        ('root ::= ws "x" ws\nws ::= ([ \\t\\n] ws)?', "\n\nx ", "xx"),
        ('root ::= even | ""\neven ::= "a" odd\nodd ::= "a" even | "a"', "aaaa", "aaa"),
        ('root ::= ([a]{2,3}){2,3} "b"', "aaaaaaab", "aaab"),
        ('root ::= ([a]{5}){1,2} "b"', "aaaaaaaaaab", "aaaaaab"),
        ('root ::= ([a]{2,3}){0,2} "b"', "b", "ab"),
    ],
)
@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "outlines_core"])
def test_a_regular_grammar_is_the_same_on_every_backend(
    backend: str, text: str, accepts: str, rejects: str
) -> None:
    if backend == "outlines_core" and "\0" in accepts:
        pytest.skip("outlines-core has a use of its own for NUL")
    judge = Judge(Ebnf(text), BYTES, backend)
    assert judge.obeys(accepts)
    assert not judge.obeys(rejects)


@pytest.mark.parametrize("backend", ["outlines_core"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('root ::= "a" root "b" | "c"', "1:14: the rule 'root' is recursive"),
        ('root ::= x\nx ::= "a" y\ny ::= ("b" x)* "c"', "3:12: the rule 'x' is recursive"),
        (
            "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(41))
            + '\nr41 ::= "a"\nroot ::= r0',
            "as a regex it would have more than",
        ),
    ],
    ids=["direct", "indirect", "powers"],
)
def test_what_is_not_regular_is_left_to_other_backends(
    backend: str, text: str, message: str
) -> None:
    with pytest.raises(BeyondBackend, match=message) as refusal:
        Judge(Ebnf(text), BYTES, backend)
    assert refusal.value.field == "input.constraint.grammar.text"


def test_the_root_may_have_any_name() -> None:
    text = 'root ::= "b" top | "c"\ntop ::= "a" root'
    for backend in ("xgrammar", "llguidance"):
        judge = Judge(Ebnf(text, "top"), BYTES, backend)
        assert judge.obeys("abac")
        assert not judge.obeys("c")


def test_nothing_of_the_text_but_its_language_reaches_a_library() -> None:
    text = to_gbnf(load('root ::= Token.1 "Token(1)"\nToken.1 ::= [(]', "root"))
    assert text == 'root ::= rule1 "Token\\u00281\\u0029"\nrule1 ::= [\\u0028]'


# Random grammars: the text is read by us, and by xgrammar; both hold to the dullest recogniser.

LETTERS = 'abc"\\é日😀\n-]^'


def random_grammar(rng: random.Random) -> str:
    """Return the text of one whose rules use later ones, and sometimes themselves at their end."""
    count = rng.randint(1, 4)
    names = ["root", *[f"r-{index}" for index in range(1, count)]]
    rules = []
    for index, name in enumerate(names):
        body = random_node(rng, names[index + 1 :], 3)
        if rng.random() < 0.3:
            way = f'"{random_text(rng, 1)}" {name}'
            if rng.random() < 0.5:
                way += f' "{random_text(rng, 1)}"'
            body += f" | {way}"
        rules.append(f"{name} ::= {body}")
    return rng.choice(["\n", "\n\n# more\n"]).join(rules)


def random_node(rng: random.Random, names: list[str], depth: int) -> str:
    kind = rng.randrange(8 if depth else 4)
    if kind == 0 and names:
        return rng.choice(names)
    if kind <= 2:
        return f'"{random_text(rng, rng.randint(0, 3))}"'
    if kind == 3:
        return random_class(rng)
    parts = [random_node(rng, names, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind == 4:
        return f"({' | '.join(parts)})"
    if kind == 5:
        return f"({' '.join(parts)})"
    return f"({parts[0]})" + rng.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{2, 3}"])


def random_text(rng: random.Random, length: int) -> str:
    return "".join(spelt(rng, rng.choice(LETTERS)) for _ in range(length))


def random_class(rng: random.Random) -> str:
    items = [spelt(rng, rng.choice(LETTERS)) for _ in range(rng.randint(1, 3))]
    return f"[{rng.choice(['', '^'])}{''.join(items)}{rng.choice(['', 'a-c', '一-龥'])}]"


def spelt(rng: random.Random, character: str) -> str:
    code = ord(character)
    ways = [f"\\U{code:08x}"] + ([f"\\u{code:04X}"] if code < 0x10000 else [])
    if character not in '"\\\n-]^':
        ways += [character] * 3
    return rng.choice(ways)


def mutated(rng: random.Random, text: str) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(["", rng.choice(LETTERS)]) + text[at + rng.randint(0, 2) :]


@pytest.mark.parametrize("seed", range(40))
def test_every_reading_of_a_random_grammar_agrees(seed: int) -> None:
    rng = random.Random(seed)
    text = random_grammar(rng)
    grammar = load(text, "root")
    texts = {sample(grammar, rng) or "" for _ in range(12)}
    texts |= {mutated(rng, text) for text in texts for _ in range(3)}
    # outlines-core has a use of its own for the first two characters.
    texts = {text for text in texts if not {"\0", "\1"} & set(text)}
    wanted = {text: recognises(grammar, text) for text in texts}
    assert {text: recognises(load(to_gbnf(grammar), "root"), text) for text in texts} == wanted
    assert {text: original_accepts(grammar.text, text) for text in texts} == wanted
    others = ["outlines_core"] if is_regular(grammar) else []
    for backend in ["xgrammar", "llguidance", *others]:
        judge = Judge(Ebnf(grammar.text), BYTES, backend)
        assert {text: judge.obeys(text) for text in texts} == wanted, backend


def is_regular(grammar: Grammar) -> bool:
    try:
        return bool(to_regex(grammar, Style.RUST))
    except BeyondBackend:
        return False


def test_the_random_grammars_are_of_both_kinds() -> None:
    found = {is_regular(load(random_grammar(random.Random(seed)), "root")) for seed in range(40)}
    assert found == {False, True}


def original_accepts(grammar: str, text: str) -> bool:
    """Whether xgrammar, given the text as the client wrote it, accepts."""
    info = xgrammar.TokenizerInfo(BYTES.token_bytes, xgrammar.VocabType.RAW, stop_token_ids=[])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(grammar))
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.is_completed()
