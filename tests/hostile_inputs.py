"""Requests made to hurt: each by its name, made when asked for, since some are megabytes.

What a right answer to each is does not matter here, only that there is one, soon, and that nothing
else suffers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping

from structgen.frontend.grpc._pb import constraint_pb2, generation_pb2

Input = generation_pb2.GenerationInput
Wire = constraint_pb2.Constraint
Json = object

BACKENDS = {
    "xgrammar": constraint_pb2.BACKEND_XGRAMMAR,
    "llguidance": constraint_pb2.BACKEND_LLGUIDANCE,
    "outlines_core": constraint_pb2.BACKEND_OUTLINES_CORE,
}


def _request(constraint: Wire, **sampling: object) -> Input:
    return Input(text="Write.", constraint=constraint, sampling=sampling or None)  # type: ignore[arg-type]


def _schema(schema: Json, **options: object) -> Input:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return _request(Wire(json_schema=text, options=_options(**options)))


def _regex(pattern: str, **options: object) -> Input:
    return _request(Wire(regex=pattern, options=_options(**options)))


def _ebnf(text: str, **options: object) -> Input:
    grammar = constraint_pb2.Grammar(syntax=constraint_pb2.Grammar.SYNTAX_EBNF, text=text)
    return _request(Wire(grammar=grammar, options=_options(**options)))


def _lark(text: str) -> Input:
    grammar = constraint_pb2.Grammar(syntax=constraint_pb2.Grammar.SYNTAX_LARK, text=text)
    return _request(Wire(grammar=grammar))


def _choice(options: Iterable[str], **others: object) -> Input:
    choice = constraint_pb2.Choice(options=options)
    return _request(Wire(choice=choice, options=_options(**others)))


def _options(**options: object) -> constraint_pb2.ConstraintOptions:
    return constraint_pb2.ConstraintOptions(**options)  # type: ignore[arg-type]


BEST_EFFORT = {"unsupported": constraint_pb2.UNSUPPORTED_POLICY_BEST_EFFORT}
FLEXIBLE = {"whitespace": constraint_pb2.WHITESPACE_FLEXIBLE}


# ---- schemas


def _nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


def _any_of_tower(depth: int, branches: int) -> Json:
    definitions: dict[str, Json] = {"d0": {"type": "string"}} | {
        f"d{level}": {
            "anyOf": [
                {"type": "object", "properties": {f"k{branch}": {"$ref": f"#/$defs/d{level - 1}"}}}
                for branch in range(branches)
            ]
        }
        for level in range(1, depth)
    }
    return {"$defs": definitions, "$ref": f"#/$defs/d{depth - 1}"}


def _fan_out(depth: int) -> Json:
    definitions: dict[str, Json] = {"d0": {"type": "string"}}
    for level in range(1, depth):
        inner = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {
            "type": "object",
            "properties": {"a": inner, "b": inner},
            "required": ["a", "b"],
        }
    return {"$defs": definitions, "$ref": f"#/$defs/d{depth - 1}"}


def _all_of_fan_out(depth: int) -> Json:
    definitions: dict[str, Json] = {"d0": {"minLength": 1}}
    for level in range(1, depth):
        definitions[f"d{level}"] = {"allOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"$defs": definitions, "$ref": f"#/$defs/d{depth - 1}"}


def _reference_chain(length: int) -> Json:
    definitions: dict[str, Json] = {
        f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(length)
    }
    return {"$defs": definitions | {f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def _objects(count: int, schema: Json, **others: Json) -> Json:
    return {"type": "object", "properties": {f"p{i}": schema for i in range(count)}, **others}


def _wrong_types() -> Json:
    keywords = (  # noqa: SIM905
        "type enum const multipleOf minimum maximum minLength maxLength pattern format items "
        "prefixItems minItems maxItems uniqueItems contains properties patternProperties "
        "additionalProperties required propertyNames minProperties dependentRequired allOf anyOf "
        "oneOf not if then $ref $defs $id $anchor"
    ).split()
    wrong = [3.5, "x", None, [[]], {"x": 1}, True]
    rng = random.Random(0)
    return {keyword: rng.choice(wrong) for keyword in keywords}


def _conditions(count: int) -> Json:
    return {
        "type": "object",
        "properties": {f"p{i}": {"enum": ["a", "b"]} for i in range(count)},
        "allOf": [
            {
                "if": {"properties": {f"p{i}": {"const": "a"}}, "required": [f"p{i}"]},
                "then": {"required": [f"p{(i + 1) % count}"]},
                "else": {"not": {"required": [f"p{(i + 2) % count}"]}},
            }
            for i in range(count)
        ],
    }


SCHEMAS: Mapping[str, Callable[[], Input]] = {
    "schema nested 10,000 deep": lambda: _schema(_nested(10_000)),
    "schema nested 500 deep": lambda: _schema(_nested(500)),
    "schema nested 60 deep": lambda: _schema(_nested(60)),
    "text of 100,000 brackets": lambda: _schema("[" * 100_000),
    "enum of 5 MB": lambda: _schema({"enum": [f"{i:09}" * 10 for i in range(50_000)]}),
    "enum of 250 kB": lambda: _schema({"enum": [f"value {i:09}" for i in range(9_000)]}),
    "one enum string of 60 kB": lambda: _schema({"enum": ["x" * 60_000]}),
    "enum of random text": lambda: _schema({"enum": _texts(5_000, 20)}),
    "20,000 optional properties": lambda: _schema(_objects(20_000, {"type": "integer"})),
    "400 optional properties": lambda: _schema(_objects(400, {"type": "integer"})),
    "400 optional properties, flexible": lambda: _schema(
        _objects(400, {"type": "integer"}), **FLEXIBLE
    ),
    "400 optional properties by xgrammar": lambda: _schema(
        _objects(400, {"type": "integer"}), backend=BACKENDS["xgrammar"]
    ),
    "400 optional properties by outlines_core": lambda: _schema(
        _objects(400, {"type": "integer"}), backend=BACKENDS["outlines_core"]
    ),
    "60 optional properties and others": lambda: _schema(
        _objects(60, {"type": "string"}, additionalProperties={"type": "number"})
    ),
    "60 optional properties and others by xgrammar": lambda: _schema(
        _objects(60, {"type": "string"}, additionalProperties={"type": "number"}),
        backend=BACKENDS["xgrammar"],
    ),
    "2,000 required properties": lambda: _schema(
        _objects(2_000, {"type": "boolean"}, required=[f"p{i}" for i in range(2_000)])
    ),
    "300 properties of which at least 150": lambda: _schema(
        _objects(300, {}, minProperties=150, additionalProperties=False)
    ),
    "100 pattern properties": lambda: _schema(
        {"patternProperties": {f"^{'a' * i}[b-z]": {"minimum": i} for i in range(100)}}
    ),
    "anyOf nested 12 deep with 8 branches": lambda: _schema(_any_of_tower(12, 8)),
    "anyOf of 2,000 objects": lambda: _schema(
        {"anyOf": [_objects(3, {"const": i}, required=["p0"]) for i in range(2_000)]}
    ),
    "oneOf of 200 alike": lambda: _schema(
        {"oneOf": [{"type": "object", "required": [f"p{i}"]} for i in range(200)]}
    ),
    "allOf of 500 patterns": lambda: _schema(
        {"type": "string", "allOf": [{"pattern": f"[a-z]{{{i},}}x"} for i in range(500)]}
    ),
    "allOf of anyOfs": lambda: _schema(
        {
            "allOf": [
                {"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)
            ]
        }
    ),
    "2**30 references": lambda: _schema(_fan_out(30)),
    "2**30 references in allOf": lambda: _schema(_all_of_fan_out(30)),
    "chain of 2,000 references": lambda: _schema(_reference_chain(2_000)),
    "reference to itself": lambda: _schema({"$ref": "#"}),
    "references in a ring": lambda: _schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "endless object": lambda: _schema(
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    ),
    "remote reference": lambda: _schema({"$ref": "http://localhost:1/schema.json"}),
    "reference to a file": lambda: _schema({"$ref": "file:///etc/passwd"}),
    "reference nowhere": lambda: _schema({"$ref": "#/$defs/%ff~2/nosuch"}),
    "1,000 identifiers": lambda: _schema(
        {"$defs": {f"d{i}": {"$id": f"http://x/{i}", "$anchor": "a"} for i in range(1_000)}}
    ),
    "bounds of 1e9": lambda: _schema(
        {"type": "string", "minLength": 10**9, "maxLength": 10**9 + 1}
    ),
    "array of 1e9": lambda: _schema({"type": "array", "minItems": 10**9}),
    "at most 1e9 items": lambda: _schema({"type": "array", "maxItems": 10**9, "items": {}}),
    "strings of up to 100,000": lambda: _schema({"type": "string", "maxLength": 100_000}),
    "arrays of arrays of 1,000": lambda: _schema(
        {
            "type": "array",
            "minItems": 1_000,
            "maxItems": 1_000,
            "items": {
                "type": "array",
                "minItems": 1_000,
                "maxItems": 1_000,
                "items": {"type": "string", "minLength": 1_000},
            },
        }
    ),
    "1e9 items that are given": lambda: _schema(
        {"type": "array", "minItems": 10**9, "items": {"const": 1}}, backend=BACKENDS["xgrammar"]
    ),
    "integers of 400 digits": lambda: _schema(
        f'{{"type":"integer","minimum":{"1" * 400},"maximum":{"9" * 400}}}'
    ),
    "numbers of 5,000 digits": lambda: _schema(f'{{"const":{"7" * 5_000}}}'),
    "1e400": lambda: _schema('{"type":"number","minimum":1e400}'),
    "multipleOf 1000003": lambda: _schema({"type": "integer", "multipleOf": 1_000_003}),
    "multipleOf 9973": lambda: _schema({"type": "integer", "multipleOf": 9_973}),
    "multipleOf 1e-300": lambda: _schema({"type": "number", "multipleOf": 1e-300}),
    "multiples of many primes": lambda: _schema(
        {"type": "integer", "allOf": [{"multipleOf": p} for p in (7, 11, 13, 17, 19, 23, 29, 31)]}
    ),
    "contradictions": lambda: _schema(
        {"type": "object", "required": ["a"], "properties": {"a": False}, "maxProperties": 0}
    ),
    "the schema false": lambda: _schema("false"),
    "wrong types everywhere": lambda: _schema(_wrong_types()),
    "no type by that name": lambda: _schema({"type": "nosuch"}),
    "conditions in a ring": lambda: _schema(_conditions(30)),
    "not of not": lambda: _schema('{"not":' * 60 + '{"type":"null"}' + "}" * 60),
    "unevaluated everything": lambda: _schema(
        {"unevaluatedProperties": False, "allOf": [_objects(50, {})] * 50}
    ),
    "unique items of objects": lambda: _schema(
        {"type": "array", "uniqueItems": True, "maxItems": 50, "items": _objects(5, {})},
        **BEST_EFFORT,
    ),
    "unique items of 300 values": lambda: _schema(
        {"type": "array", "uniqueItems": True, "items": {"enum": list(range(300))}}
    ),
    "lone surrogates": lambda: _schema(r'{"const":"\ud83d"}'),
    "lone surrogate in a name": lambda: _schema(r'{"properties":{"\udc00":{}}}'),
    "NUL": lambda: _schema({"const": "a\0b"}),
    "names of control characters": lambda: _schema(
        _objects(0, {}, required=["\0", "\x1b[2J", "\u2028", '"', "\\"])
    ),
    "not JSON": lambda: _schema('{"type": "object",}'),
    "JSON twice": lambda: _schema('{"type":"object"}{"type":"object"}'),
    "the same key twice": lambda: _schema('{"type":"string","type":"integer"}'),
    "binary junk as a schema": lambda: _schema(_junk()),
    "options of a library": lambda: _schema(
        {"x-guidance": {"lenient": True, "whitespace_pattern": "[ ]*"}, "type": "array"}
    ),
    "a schema that closes its cage": lambda: _schema('{"type":"object"}}\nstart: "x"'),
    "200 unknown formats": lambda: _schema(
        {"allOf": [{"format": f"nosuch{i}"} for i in range(200)]}
    ),
    "patterns with lookaround": lambda: _schema({"type": "string", "pattern": r"^(?!a)(?<=b).*$"}),
    "patterns with backreferences": lambda: _schema({"type": "string", "pattern": r"^(a)\1$"}),
    "a pattern that backtracks": lambda: _schema({"type": "string", "pattern": "^(a+)+$"}),
    "a pattern of 16 kB": lambda: _schema({"type": "string", "pattern": "|".join(_texts(1500, 9))}),
    "100 long patterns": lambda: _schema(
        _objects(100, {"type": "string", "pattern": "^[a-z]{3,200}[0-9]{2,100}$"})
    ),
    "100 long patterns by xgrammar": lambda: _schema(
        _objects(100, {"type": "string", "pattern": "^[a-z]{3,200}[0-9]{2,100}$"}),
        backend=BACKENDS["xgrammar"],
    ),
    "a pattern that is none": lambda: _schema({"type": "string", "pattern": "["}),
    "pattern and length": lambda: _schema(
        {"type": "string", "pattern": "(a|b)*a(a|b){12}", "minLength": 5_000, "maxLength": 9_000}
    ),
}


# ---- regular expressions


def _texts(count: int, length: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices("abcdefghij", k=length)) for _ in range(count)]


def _junk() -> str:
    rng = random.Random(2)
    return "".join(chr(rng.randrange(1, 0xD800)) for _ in range(5_000))


EXPONENTIAL = "(?:a|b)*a(?:a|b){30}"

REGEXES: Mapping[str, Callable[[], Input]] = {
    "50,000 parentheses": lambda: _regex("(" * 50_000 + "a" + ")" * 50_000),
    "200 groups deep": lambda: _regex("(" * 200 + "a" + ")" * 200),
    "45 groups deep, each repeated": lambda: _regex("(?:" * 45 + "a" + "){1,3}" * 45),
    "tower of {1,1000}": lambda: _regex("(?:(?:(?:[a-z]{1,1000}){1,1000}){1,1000}){1,1000}"),
    "{1,1000} twice": lambda: _regex("(?:[a-z]{1,1000}){1,1000}"),
    **{
        f"{{1,1000}} twice by {name}": lambda number=number: _regex(  # type: ignore[misc]
            "(?:[a-z]{1,1000}){1,1000}", backend=number
        )
        for name, number in BACKENDS.items()
    },
    **{
        f"exponential automaton by {name}": lambda number=number: _regex(  # type: ignore[misc]
            EXPONENTIAL, backend=number
        )
        for name, number in BACKENDS.items()
    },
    "1e9 repetitions": lambda: _regex("a{1000000000}"),
    "repetitions out of order": lambda: _regex("a{9,3}"),
    "(a|b|ab)*{200}": lambda: _regex("(a|b|ab)*{200}"),
    "(a|b|ab){200} starred": lambda: _regex("((a|b|ab){200})*"),
    "(a*)* and so on": lambda: _regex("(((a*)*)*b?)*"),
    "(a|a)* 30 times": lambda: _regex("(?:(?:a|a)*){30}b"),
    "alternation of 20,000 words": lambda: _regex("|".join(_texts(20_000, 9))),
    "alternation of 1,500 words": lambda: _regex("|".join(_texts(1_500, 9))),
    "alternation of 1,500 words by outlines_core": lambda: _regex(
        "|".join(_texts(1_500, 9)), backend=BACKENDS["outlines_core"]
    ),
    "5 MB of a": lambda: _regex("a" * 5_000_000),
    "15,000 classes": lambda: _regex("[a-z]" * 3_000),
    "a class of 5,000 ranges": lambda: _regex(
        "[" + "".join(chr(0x4E00 + 2 * i) for i in range(5_000)) + "]{1,200}"
    ),
    "every character but one, often": lambda: _regex("[^x]{5000}"),
    "dots by xgrammar": lambda: _regex(".{10000}", backend=BACKENDS["xgrammar"]),
    "any text and then": lambda: _regex(".*a.*b.*c.*d.*e.*f.*g.*h.*i.*j.*k.*l.*m"),
    "intersections of suffixes": lambda: _regex("(.*a.{20})|(.*b.{20})|(.*c.{20})|(.*d.{20})"),
    "lookahead": lambda: _regex("(?=a)b"),
    "lookbehind": lambda: _regex("(?<!a)b"),
    "backreference": lambda: _regex(r"(a+)\1"),
    "named backreference": lambda: _regex(r"(?<x>a+)\k<x>"),
    "flags": lambda: _regex("(?i)a"),
    "word boundary": lambda: _regex(r"\ba"),
    "anchors inside": lambda: _regex("a$b^"),
    "the empty class": lambda: _regex("a[]b"),
    "properties": lambda: _regex(r"\p{L}{1,1000}"),
    "no property by that name": lambda: _regex(r"\p{Nosuch}"),
    "a character beyond Unicode": lambda: _regex(r"\u{110000}"),
    "a surrogate": lambda: _regex(r"\ud800"),
    "unclosed": lambda: _regex("(((a"),
    "a NUL character": lambda: _regex("a\0b"),
    "binary junk as a regex": lambda: _regex(_junk()),
    "nothing": lambda: _regex(""),
}


# ---- grammars


def _rules(count: int) -> str:
    chain = "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(count))
    return f'root ::= r0\n{chain}\nr{count} ::= "z"'


GRAMMARS: Mapping[str, Callable[[], Input]] = {
    "chain of 50,000 rules": lambda: _ebnf(_rules(50_000)),
    "chain of 4,000 rules": lambda: _ebnf(_rules(4_000)),
    "60,000 groups": lambda: _ebnf("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "90 groups, each optional": lambda: _ebnf("root ::= " + "(" * 90 + '"a"' + ")?" * 90),
    "tower of repetitions": lambda: _ebnf('root ::= ((("a"{1,1000}){1,1000}){1,1000}){1,1000}'),
    "{1,1000} twice in a grammar": lambda: _ebnf("root ::= ([a-z]{1,1000}){1,1000}"),
    "1e9 times": lambda: _ebnf('root ::= "a"{1000000000}'),
    "1e30 times": lambda: _ebnf(f'root ::= "a"{{{10**30}}}'),
    "left recursion": lambda: _ebnf('root ::= root "a" | "b"'),
    "hidden left recursion": lambda: _ebnf('root ::= e root "a" | "b"\ne ::= ""'),
    "a loop of nothing": lambda: _ebnf(
        'root ::= ("" | "a"?)* | root2\nroot2 ::= "" root3\nroot3 ::= ("")+'
    ),
    "empty language": lambda: _ebnf('root ::= "a" root'),
    "ambiguous everywhere": lambda: _ebnf('root ::= "a" | "a" root | "a" root root | "aa" root'),
    "ambiguous sums": lambda: _ebnf('root ::= "x" (("+" | "-") root)* | "(" root ")" | "x" root?'),
    "palindromes": lambda: _ebnf('root ::= "a" root "a" | "b" root "b" | [ab]?'),
    "doubling rules": lambda: _ebnf(
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30))
        + '\nr30 ::= "a"'
    ),
    "doubling alternatives": lambda: _ebnf(
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= "a" r{i + 1} | "b" r{i + 1} | r{i + 1}' for i in range(60))
        + '\nr60 ::= "z"'
    ),
    "letters without end, behind a choice": lambda: _ebnf(
        "root ::= [ab]? r0\n"
        + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30))
        + '\nr30 ::= "a"',
        backend=BACKENDS["xgrammar"],
    ),
    "20,000 alternatives": lambda: _ebnf(
        "root ::= " + " | ".join(f'"{text}"' for text in _texts(20_000, 9))
    ),
    "a literal of 200 kB": lambda: _ebnf(f'root ::= "{"x" * 200_000}"'),
    "a literal of 5 MB": lambda: _ebnf(f'root ::= "{"x" * 5_000_000}"'),
    "a large class, often": lambda: _ebnf("root ::= [^a]{1,50000}"),
    "a rule that is not there": lambda: _ebnf("root ::= nosuch"),
    "no root": lambda: _ebnf('r ::= "a"'),
    "unclosed string": lambda: _ebnf('root ::= "a'),
    "NUL in a string": lambda: _ebnf('root ::= "a\\0" "\0"'),
    "binary junk as a grammar": lambda: _ebnf(_junk()),
    "a grammar for a library without": lambda: _ebnf(
        'root ::= "(" root ")" | "x"', backend=BACKENDS["outlines_core"]
    ),
    "Lark: chain of 50,000 rules": lambda: _lark(
        "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(50_000)) + '\nr50000: "z"'
    ),
    "Lark: options of a library": lambda: _lark('%llguidance {"no_forcing": true}\nstart: "a"'),
    "Lark: a schema inside": lambda: _lark('start: %json {"type": "object"}'),
    "Lark: a file": lambda: _lark("%import .nosuch\nstart: nosuch"),
    "Lark: regexes that fight": lambda: _lark(
        "start: (A B)+\nA: /[a-z]{1,500}/\nB: /[a-y]{1,500}/"
    ),
    "Lark: binary junk": lambda: _lark(_junk()),
}


# ---- choices, and what is not about constraints

CHOICES: Mapping[str, Callable[[], Input]] = {
    "choice of 200,000": lambda: _choice(f"option {i}" for i in range(200_000)),
    "choice of 9,000": lambda: _choice(f"option {i}" for i in range(9_000)),
    **{
        f"choice of 9,000 by {name}": lambda number=number: _choice(  # type: ignore[misc]
            (f"option {i}" for i in range(9_000)), backend=number
        )
        for name, number in BACKENDS.items()
    },
    "choice of one text of 5 MB": lambda: _choice(["x" * 5_000_000]),
    "choice of one text of 100 kB": lambda: _choice(["x" * 100_000]),
    "choice of prefixes": lambda: _choice("a" * i for i in range(1, 700)),
    "choice of nothing": lambda: _choice([]),
    "choice of an empty text": lambda: _choice(["a", ""]),
    "choice of control characters": lambda: _choice(["\0", "\x1b", "\u202e", "<|im_end|>"]),
    "choice of junk": lambda: _choice([_junk(), _junk()[::-1]]),
}

ANY_JSON = Wire(json_object=True)

OTHERS: Mapping[str, Callable[[], Input]] = {
    "no kind": lambda: _request(Wire(options=_options(**BEST_EFFORT))),
    "bias beyond the vocabulary": lambda: _request(ANY_JSON, logit_bias={2**31: 1.0}),
    "bias of NaN": lambda: _request(ANY_JSON, logit_bias={5: float("nan")}),
    "bias for 60,000": lambda: _request(ANY_JSON, logit_bias=dict.fromkeys(range(60_000), 1.0)),
    "allowed: nothing the grammar wants": lambda: _request(ANY_JSON, allowed_token_ids=[7]),
    "5,000 bad words": lambda: _request(ANY_JSON, bad_words=_texts(5_000, 9)),
    "a million samples": lambda: _request(ANY_JSON, n=1_000_000),
    "temperature of NaN": lambda: _request(ANY_JSON, temperature=float("nan")),
    "top_k of -7": lambda: _request(ANY_JSON, top_k=-7),
}

HOSTILE: Mapping[str, Callable[[], Input]] = {
    **SCHEMAS,
    **REGEXES,
    **GRAMMARS,
    **CHOICES,
    **OTHERS,
}
