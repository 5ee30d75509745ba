"""How much of JSON Schema is served, and is it served rightly?

Each schema comes with instances, labelled.  It is prepared and compiled as a request's would be;
instances are spelt as structgen writes JSON and fed through the masks, token by token: accepted
means that every token was allowed and the text may end there.  A valid instance counts as accepted
in its own key order or the schema's (`order_only`: in another alone), an invalid one in any.
`auto` takes the first backend that enforces all of a schema; `NAME/raw` gives a library the schema
as it is.  Of the official suite, schemas are of the draft that their folder is called after, and
format.json is left out: it wants formats not to be asserted.  One JSON line per configuration;
compile and fill times are those of this vocabulary (of bytes, unless a tokenizer is given).

    python benchmarks/conformance.py
    python benchmarks/conformance.py --tokenizer FOLDER --configurations auto xgrammar/raw
    python benchmarks/conformance.py --cases JSON-Schema-Test-Suite/tests/draft2020-12
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import msgspec
from _children import Ending, Limits, run
from _common import DATA, Value, in_ms, percentile, print_line, print_machine

from structgen.constraints import JsonSchema
from structgen.errors import ConstraintError, StructgenError
from structgen.grammar import bitmask, build_backend
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    GrammarError,
    Matcher,
    Vocabulary,
)
from structgen.grammar.schema import LLGUIDANCE, OUTLINES, XGRAMMAR, prepare
from structgen.tokenizer import Tokenizer

DIALECTS = {dialect.name: dialect for dialect in (LLGUIDANCE, XGRAMMAR, OUTLINES)}
CONFIGURATIONS = ("auto", *DIALECTS)

# Texts fed in search of an order of keys, for a valid instance and an invalid one.
MAX_TRIES = (1_000, 100)

Json = object
Part = tuple[str, Json]


class Instance(msgspec.Struct):
    data: Json
    valid: bool


class Case(msgspec.Struct):
    schema: Json
    tests: list[Instance]
    id: str = ""


class Verdict(msgspec.Struct):
    """How an instance fared with keys in its own order, in the schema's, in any that was found.

    A valid one may have whole numbers written without a fraction instead."""

    valid: bool
    own: bool
    ordered: bool
    somehow: bool


class Compiled(msgspec.Struct):
    """The first stage: the backend that took the schema, or what each refused it for."""

    backend: str | None
    refusals: list[str]
    prepare_s: float
    compile_s: float


class Matched(msgspec.Struct):
    """The second stage."""

    verdicts: list[Verdict]
    fill_s: list[float]


class Speller:
    """Spells texts in tokens: those of a tokenizer, or bytes."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        plain = [bytes([byte]) for byte in range(256)]
        self.vocabulary = Vocabulary(tokenizer.token_bytes if tokenizer else [*plain, b""])

    def spell(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return list(text.encode())
        return self._tokenizer.encode(text, add_bos=False)


class Configuration:
    """What serves a schema: some backends in turn, with the schema prepared for each or not."""

    def __init__(self, name: str, speller: Speller, backends: dict[str, GrammarBackend]) -> None:
        kind, _, raw = name.partition("/")
        self._raw = raw == "raw"
        self._backends = backends if kind == "auto" else {kind: backends[kind]}
        self._speller = speller

    def stages(self, case: Case) -> Generator[Compiled | Matched, None, None]:
        result, compiled = self._compile(case)
        yield result
        if compiled is not None and result.backend is not None:
            judge = Judge(self._backends[result.backend], compiled, self._speller)
            verdicts = [judge.verdict(test, case.schema) for test in case.tests]
            yield Matched(verdicts, judge.fill_s)

    def _compile(self, case: Case) -> tuple[Compiled, CompiledConstraint | None]:
        result = Compiled(None, [], 0.0, 0.0)
        for name, backend in self._backends.items():
            start = time.perf_counter()
            text = self._text(case, name, result)
            result.prepare_s += time.perf_counter() - start
            if text is None:
                continue
            start = time.perf_counter()
            try:
                compiled = backend.compile(JsonSchema(text))
            except ConstraintError as error:
                result.refusals.append(f"compile: {error.message[:80]}")
                continue
            result.compile_s = time.perf_counter() - start
            result.backend = name
            return result, compiled
        return result, None

    def _text(self, case: Case, name: str, result: Compiled) -> str | None:
        text = json.dumps(case.schema, ensure_ascii=False)
        if self._raw:
            return text
        try:
            prepared = prepare(text, DIALECTS[name])
        except StructgenError as error:
            result.refusals.append(f"prepare: {error.message[:80]}")
            return None
        if prepared.unenforced:
            keywords = sorted({report.keyword for report in prepared.unenforced})
            result.refusals.append("keywords: " + " ".join(keywords))
            return None
        return prepared.schema_text


class Judge:
    """Feeds texts through the masks of a compiled constraint."""

    def __init__(
        self, backend: GrammarBackend, compiled: CompiledConstraint, speller: Speller
    ) -> None:
        self.fill_s: list[float] = []
        self._backend = backend
        self._compiled = compiled
        self._speller = speller
        self._words = bitmask.allocate(1, speller.vocabulary.size)

    def verdict(self, test: Instance, schema: Json) -> Verdict:
        data = test.data
        own = self._accepts(_text(data))
        if test.valid and not own:
            data = _without_fractions(data)
            own = self._accepts(_text(data))
        in_order = own or self._accepts(_text(ordered(data, schema, schema)))
        self._left = MAX_TRIES[0 if test.valid else 1]
        start = self._compiled.new_matcher()
        somehow = in_order or self._finds_order(start, [("value", data)])
        return Verdict(test.valid, own, in_order, somehow)

    def _accepts(self, text: str) -> bool:
        matcher = self._compiled.new_matcher()
        return self._takes(matcher, text) and matcher.accepting

    def _takes(self, matcher: Matcher, text: str) -> bool:
        """Advance by a text, token by token; False: a mask did not allow it."""
        try:
            for token in self._speller.spell(text):
                start = time.perf_counter()
                self._backend.fill([matcher], self._words, [0])
                self.fill_s.append(time.perf_counter() - start)
                if not self._words[0, token >> 5] >> (token & 31) & 1:
                    return False
                matcher.accept(token)
        except GrammarError:
            return False
        return True

    def _finds_order(self, matcher: Matcher, todo: list[Part]) -> bool:
        """Whether what is left to write is taken with the keys of each object in some order."""
        while todo:
            kind, part = todo[-1]
            todo = todo[:-1]
            if kind == "text":
                self._left -= 1
                if self._left < 0 or not self._takes(matcher, str(part)):
                    return False
            elif kind == "value":
                todo = todo + _opened(part)
            elif isinstance(part, dict) and part:
                return any(
                    self._finds_order(matcher.fork(), todo + _next_field(part, name))
                    for name in part
                )
            else:
                todo = [*todo, ("text", "}")]
        return matcher.accepting


def _text(data: Json) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(", ", ": "))


def _without_fractions(data: Json) -> Json:
    """Return an equal value in which whole numbers are integers."""
    match data:
        case float() if data.is_integer():
            return int(data)
        case list():
            return [_without_fractions(item) for item in data]
        case dict():
            return {name: _without_fractions(value) for name, value in data.items()}
    return data


def _opened(value: Json) -> list[Part]:
    """Return the parts that a value is written in, last first."""
    if isinstance(value, dict) and value:
        return [("fields", value), ("text", "{")]
    if isinstance(value, list) and value:
        parts: list[Part] = [("text", "[")]
        for index, item in enumerate(value):
            parts += [("text", ", "), ("value", item)] if index else [("value", item)]
        return [("text", "]"), *reversed(parts)]
    return [("text", _text(value))]


def _next_field(fields: dict[str, Json], name: str) -> list[Part]:
    rest = {other: value for other, value in fields.items() if other != name}
    after: list[Part] = [("fields", rest), *([("text", ", ")] if rest else [])]
    return [*after, ("value", fields[name]), ("text", f"{_text(name)}: ")]


def ordered(data: Json, schema: Json, root: Json) -> Json:
    """Return an instance with keys in the order in which a schema names them, others last."""
    found = list(_applied(schema, root, set()))
    if isinstance(data, list):
        inner = [part for one in found for part in _held(one, "items", "prefixItems")]
        return [ordered(item, {"allOf": inner}, root) for item in data]
    if not isinstance(data, dict):
        return data
    order: dict[str, list[Json]] = {}
    for one in found:
        for name, part in _map(one, "properties").items():
            order.setdefault(name, []).append(part)
    others = [part for one in found for part in _held(one, "additionalProperties")]
    others += [part for one in found for part in _map(one, "patternProperties").values()]
    names = [name for name in order if name in data] + [name for name in data if name not in order]
    return {name: ordered(data[name], {"allOf": order.get(name, others)}, root) for name in names}


def _applied(schema: Json, root: Json, seen: set[int]) -> Iterator[dict[str, Json]]:
    """Yield the schemas that may apply to the same value, in order of appearance."""
    if not isinstance(schema, dict) or id(schema) in seen:
        return
    seen.add(id(schema))
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        yield from _applied(_at(root, reference), root, seen)
    for keyword in schema:
        if keyword == "properties":
            yield schema
        for part in _held(schema, keyword) if keyword in _IN_PLACE else []:
            yield from _applied(part, root, seen)
    if "properties" not in schema:
        yield schema


_IN_PLACE = ("allOf", "anyOf", "oneOf", "then", "else", "if")


def _at(root: Json, reference: str) -> Json:
    for token in reference.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        try:
            root = root[int(name) if isinstance(root, list) else name]  # type: ignore[index]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return root


def _held(schema: dict[str, Json], *keywords: str) -> list[Json]:
    values = [schema[keyword] for keyword in keywords if keyword in schema]
    return [part for value in values for part in (value if isinstance(value, list) else [value])]


def _map(schema: dict[str, Json], keyword: str) -> dict[str, Json]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


class Tally:
    """What became of all cases under one configuration."""

    def __init__(self) -> None:
        self.endings: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.backends: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.compiled: list[Compiled] = []
        self.fill_s: list[float] = []
        self.notable: list[str] = []

    def add(self, case: Case, ending: Ending, results: list[Compiled | Matched]) -> None:
        self.counts["schemas"] += 1
        if ending is not Ending.DONE:
            stage = "match" if results else "compile"
            self.endings[f"{stage} {ending}"] += 1
            self.notable.append(f"{stage} {ending}: {case.id}")
        for result in results:
            if isinstance(result, Compiled):
                self._add_compiled(case, result)
            else:
                self.fill_s += result.fill_s
                for verdict in result.verdicts:
                    self._add_verdict(case, verdict)

    def _add_compiled(self, case: Case, result: Compiled) -> None:
        if result.backend is None:
            self.refused.update(_causes(result.refusals))
            self.notable.append(f"refused: {case.id}: {result.refusals}")
            return
        self.counts["served"] += 1
        self.backends[result.backend] += 1
        self.compiled.append(result)

    def _add_verdict(self, case: Case, verdict: Verdict) -> None:
        if not verdict.valid:
            self.counts["invalid"] += 1
            self.counts["invalid_accepted"] += verdict.somehow
            if verdict.somehow:
                self.notable.append(f"invalid accepted: {case.id}")
            return
        self.counts["valid"] += 1
        self.counts["valid_accepted"] += verdict.ordered
        self.counts["order_only"] += verdict.somehow and not verdict.ordered
        if not verdict.ordered:
            cause = "order only" if verdict.somehow else "rejected"
            self.notable.append(f"valid {cause}: {case.id}")

    def fields(self) -> dict[str, Value]:
        counts = self.counts
        judged = counts["valid"] - counts["order_only"]
        return {
            **{name: counts[name] for name in _COUNTS},
            "served_share": counts["served"] / max(1, counts["schemas"]),
            "valid_accepted_share": counts["valid_accepted"] / max(1, judged),
            "by_backend": dict(self.backends),
            "refused_by": dict(self.refused.most_common(20)),
            "endings": dict(self.endings),
            **_times(self.compiled, self.fill_s),
        }


_COUNTS = (
    "schemas served valid valid_accepted order_only invalid invalid_accepted".split()  # noqa: SIM905
)


def _causes(refusals: list[str]) -> Iterable[str]:
    """Return what a schema was refused for by the first backend asked, one by one."""
    kind, _, rest = refusals[0].partition(": ")
    return rest.split() if kind == "keywords" else [kind]


def _times(compiled: list[Compiled], fill_s: list[float]) -> dict[str, Value]:
    if not compiled or not fill_s:
        return {}
    return {
        **in_ms("prepare", [one.prepare_s for one in compiled]),
        **in_ms("compile", [one.compile_s for one in compiled]),
        "fill_us": percentile(fill_s, 50) * 1e6,
        "fill_p99_us": percentile(fill_s, 99) * 1e6,
        "fill_p999_us": percentile(fill_s, 99.9) * 1e6,
    }


def load(path: Path) -> list[Case]:
    """Read MaskBench-style JSON lines, gzipped or not, or a folder of the official suite."""
    if path.is_dir():
        files = [file for file in sorted(path.glob("*.json")) if file.name != "format.json"]
        return [case for file in files for case in _of_suite(file)]
    data = path.read_bytes()
    lines = gzip.decompress(data) if path.suffix == ".gz" else data
    return msgspec.json.Decoder(Case).decode_lines(lines)


# The suite's schemas of older drafts do not say which they are of.
OLDER_DRAFTS = {f"draft{n}": f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 6, 7)}


def _of_suite(file: Path) -> Iterator[Case]:
    draft = next((OLDER_DRAFTS[part] for part in file.parts if part in OLDER_DRAFTS), None)
    for index, case in enumerate(msgspec.json.decode(file.read_bytes(), type=list[Case])):
        schema = case.schema
        if draft and isinstance(schema, dict):
            schema = {"$schema": draft, **schema}
        yield Case(schema, case.tests, id=f"{file.stem} {index}")


def measure(configuration: Configuration, cases: list[Case], limits: Limits) -> Tally:
    tally = Tally()
    for case in cases:
        outcome = run(lambda case=case: configuration.stages(case), limits)  # type: ignore[misc]
        tally.add(case, outcome.ending, outcome.results)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, default=DATA / "maskbench-1000.jsonl.gz")
    parser.add_argument("--tokenizer", type=Path, help="folder of a tokenizer.json")
    parser.add_argument("--configurations", nargs="+", default=list(CONFIGURATIONS))
    parser.add_argument("--quick", action="store_true", help="only a few cases")
    parser.add_argument("--every", type=int, default=1, help="take every n-th case")
    parser.add_argument("--show", action="store_true", help="print what went wrong, case by case")
    options = parser.parse_args()
    cases = load(options.cases)[:: options.every][: 20 if options.quick else None]
    speller = Speller(Tokenizer.load(options.tokenizer) if options.tokenizer else None)
    backends = {name: build_backend(name, speller.vocabulary) for name in DIALECTS}
    print_machine("conformance", cases=len(cases), vocabulary=speller.vocabulary.size)
    for name in options.configurations:
        tally = measure(Configuration(name, speller, backends), cases, Limits())
        print_line("conformance", configuration=name, **tally.fields())
        for line in tally.notable if options.show else []:
            print_line("notable", configuration=name, what=line)


if __name__ == "__main__":
    main()
