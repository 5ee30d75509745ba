"""Structural tags: constrained passages inside free text, in xgrammar's JSON notation.

    {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["<call"], "tags": [
            {"type": "tag", "begin": "<call>", "end": "</call>",
             "content": {"type": "json_schema", "json_schema": {"type": "object"}}}]}}

The library is given JSON of our own making, of formats that are promised here and nothing else:
every schema is rewritten as for a whole answer, every grammar and regex is checked and written
anew.  What is not promised is refused by name, among it all that speaks of token ids: control
tokens are never part of the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import msgspec

from structgen.constraints import FIELD, Ebnf, Lark
from structgen.errors import ConstraintError, ConstraintTooLarge
from structgen.grammar import limits
from structgen.grammar.ebnf import Grammar, to_gbnf
from structgen.grammar.ebnf.tree import Rule
from structgen.grammar.notations import grammar_of
from structgen.grammar.schema import XGRAMMAR, prepare
from structgen.grammar.schema.language import whole
from structgen.grammar.schema.regex import RegexError, RegexUnsupported
from structgen.grammar.schema.regex import parse as parse_regex
from structgen.grammar.unique_names import leaves_names_open
from structgen.keywords import KeywordReport

TAG_FIELD = f"{FIELD}.structural_tag"
MAX_NAMED = 5  # keywords that a refusal lists

Members = dict[str, object]
WriteSchema = Callable[[str], str]  # a schema that is rewritten for xgrammar -> GBNF

_UNSUPPORTED = (
    *("token", "exclude_token", "any_tokens", "token_triggered_tags", "dispatch"),
    *("token_dispatch", "qwen_xml_parameter"),
)


class Prepared(msgspec.Struct, frozen=True):
    """text: what xgrammar is given.  keywords: of all schemas inside, by pointers into the tag.
    names_are_open: one of them allows objects with properties that it does not list."""

    text: str
    keywords: list[KeywordReport]
    names_are_open: bool


def prepare_tag(text: str, write_schema: WriteSchema) -> Prepared:
    """Check a structural tag and write it anew.

    Raises ConstraintError: it is malformed, or uses what is not promised; with a JSON pointer.
    ConstraintTooLarge: it is beyond a limit.
    """
    if len(text.encode()) > limits.MAX_TAG_BYTES:
        size = len(text.encode())
        raise _too_large("", "the size in bytes", size, limits.MAX_TAG_BYTES)
    reader = _Reader(write_schema)
    tag = _Node(json.loads(text), "", 0)
    if tag.text("type") != "structural_tag":
        raise _fault("/type", 'must be "structural_tag"')
    written = {"type": "structural_tag", "format": reader.format(tag.inner("format"))}
    tag.refuse_others()
    text = json.dumps(written, ensure_ascii=False)
    return Prepared(text, reader.keywords, reader.names_are_open)


class _Node:
    """An object of the tag.  Remembers which members were looked at."""

    def __init__(self, value: object, pointer: str, depth: int) -> None:
        if not isinstance(value, dict):
            raise _fault(pointer, f"must be an object, got {_kind(value)}")
        if depth > limits.MAX_TAG_DEPTH:
            raise _too_large(pointer, "the nesting", depth, limits.MAX_TAG_DEPTH)
        self.pointer = pointer
        self._members: Members = value
        self._depth = depth
        self._known = {"type"}

    def get(self, name: str, kind: type | tuple[type, ...], default: object = None) -> object:
        """Return a member.  Raises ConstraintError: it is missing, or of another kind."""
        self._known.add(name)
        value = self._members.get(name, default)
        if value is None:
            raise _fault(self.pointer, f"{name} is missing")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise _fault(self.at(name), f"has the wrong type, {_kind(value)}")
        return value

    def text(self, name: str, *, empty: bool = False) -> str:
        return _require_text(self.get(name, str), self.at(name), empty=empty)

    def flag(self, name: str) -> bool:
        return bool(self.get(name, bool, default=False))

    def number(self, name: str) -> int:
        number = self.get(name, int)
        assert isinstance(number, int)
        return number

    def texts(self, name: str, default: object = None) -> list[str]:
        items = self.get(name, list, default)
        assert isinstance(items, list)
        return [_require_text(item, f"{self.at(name)}/{index}") for index, item in enumerate(items)]

    def inner(self, name: str) -> _Node:
        return _Node(self.get(name, dict), self.at(name), self._depth + 1)

    def inners(self, name: str) -> list[_Node]:
        items = self.get(name, list)
        assert isinstance(items, list)
        if not items:
            raise _fault(self.at(name), "must not be empty")
        return [
            _Node(item, f"{self.at(name)}/{index}", self._depth + 1)
            for index, item in enumerate(items)
        ]

    def at(self, name: str) -> str:
        return f"{self.pointer}/{name}"

    def has(self, name: str, kind: type) -> bool:
        return isinstance(self._members.get(name), kind)

    def refuse_others(self) -> None:
        """Raises ConstraintError: there is a member that nobody looked at."""
        for name in self._members:
            if name not in self._known:
                raise _fault(self.pointer, f"{name} is not supported")


class _Reader:
    """keywords, names_are_open: of the schemas so far."""

    def __init__(self, write_schema: WriteSchema) -> None:
        self.keywords: list[KeywordReport] = []
        self.names_are_open = False
        self._write_schema = write_schema
        self._num_formats = 0
        self._readers: Mapping[str, Callable[[_Node], Members]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "any_text": self._any_text,
            "grammar": self._grammar,
            "regex": self._regex,
            "sequence": self._elements,
            "or": self._elements,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
            "optional": self._content,
            "plus": self._content,
            "star": self._content,
            "repeat": self._repeat,
        }

    def format(self, node: _Node) -> Members:
        self._num_formats += 1
        if self._num_formats > limits.MAX_TAG_FORMATS:
            what = "the number of formats"
            raise _too_large(node.pointer, what, self._num_formats, limits.MAX_TAG_FORMATS)
        name = node.text("type")
        reader = self._readers.get(name)
        if name in _UNSUPPORTED:
            raise _fault(node.pointer, f"the format {name} is not supported")
        if reader is None:
            raise _fault(
                node.at("type"),
                f"there is no format {name!r}; there are {', '.join(self._readers)}",
            )
        written = {"type": name} | reader(node)
        node.refuse_others()
        return written

    def _const_string(self, node: _Node) -> Members:
        return {"value": node.text("value")}

    def _any_text(self, node: _Node) -> Members:
        return {"excludes": node.texts("excludes", [])}

    def _json_schema(self, node: _Node) -> Members:
        if node.get("style", str, "json") != "json":
            raise _fault(node.at("style"), "only the style json is supported")
        pointer = node.at("json_schema")
        schema = json.dumps(node.get("json_schema", (dict, bool)), ensure_ascii=False)
        with _inside(pointer):
            prepared = prepare(schema, XGRAMMAR)
        if prepared.unenforced:
            places = [f"{pointer}{one.pointer} ({one.keyword})" for one in prepared.unenforced]
            raise _fault(", ".join(places[:MAX_NAMED]), "cannot be enforced")
        self.keywords += [
            msgspec.structs.replace(report, pointer=pointer + report.pointer)
            for report in prepared.reports
        ]
        self.names_are_open |= leaves_names_open(json.loads(prepared.schema_text))
        return {"type": "grammar", "grammar": self._write_schema(prepared.schema_text)}

    def _grammar(self, node: _Node) -> Members:
        text = node.text("grammar")
        notations: Mapping[object, Callable[[], Ebnf | Lark]] = {
            "ebnf": lambda: Ebnf(text),
            "lark": lambda: Lark(text),
        }
        syntax = node.get("syntax", str, "ebnf")
        if syntax not in notations:
            raise _fault(node.at("syntax"), f"must be ebnf or lark, got {syntax!r}")
        with _inside(node.at("grammar")):
            return {"grammar": to_gbnf(grammar_of(notations[syntax]()))}

    def _regex(self, node: _Node) -> Members:
        pattern, pointer = node.text("pattern"), node.at("pattern")
        if len(pattern) > limits.MAX_PATTERN_CHARACTERS:
            what = "the number of characters"
            raise _too_large(pointer, what, len(pattern), limits.MAX_PATTERN_CHARACTERS)
        try:
            parse_regex(pattern)  # for errors that count characters in this text, not in the next
            body = whole(f"^(?:{pattern})$")
        except RegexUnsupported as error:
            raise _fault(pointer, f"regex: {error} is not supported") from None
        except RegexError as error:
            raise _fault(pointer, f"regex: {error}") from None
        if body is None:
            raise _fault(pointer, "regex: its anchors rule out every text")
        with _inside(pointer):
            return {
                "type": "grammar",
                "grammar": to_gbnf(Grammar("", {"root": Rule("root", 0, body)}, "root")),
            }

    def _elements(self, node: _Node) -> Members:
        return {"elements": [self.format(inner) for inner in node.inners("elements")]}

    def _content(self, node: _Node) -> Members:
        return {"content": self.format(node.inner("content"))}

    def _repeat(self, node: _Node) -> Members:
        low, high = node.number("min"), node.number("max")
        if low < 0 or (high < low and high != -1):
            raise _fault(node.pointer, f"min and max are out of order: {low} and {high}")
        most = limits.MAX_GRAMMAR_REPETITION
        if max(low, high) > most:
            raise _too_large(node.pointer, "a repetition", max(low, high), most)
        return {"min": low, "max": high, **self._content(node)}

    def _tag(self, node: _Node) -> Members:
        end: str | list[str]
        if node.has("end", list):
            end = node.texts("end")
            if not end:
                raise _fault(node.at("end"), "must not be empty")
        else:
            end = node.text("end")
        return {
            "begin": node.text("begin"),
            "content": self.format(node.inner("content")),
            "end": end,
        }

    def _tags(self, node: _Node) -> list[Members]:
        tags = []
        for inner in node.inners("tags"):
            if inner.text("type") != "tag":
                raise _fault(inner.at("type"), 'must be "tag"')
            tags.append(self.format(inner))
        return tags

    def _triggered_tags(self, node: _Node) -> Members:
        triggers, tags = node.texts("triggers"), self._tags(node)
        excludes = node.texts("excludes", [])
        used = set()
        for index, tag in enumerate(tags):
            begin = str(tag["begin"])
            matching = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(matching) != 1:
                raise _fault(
                    f"{node.at('tags')}/{index}/begin",
                    f"must begin with exactly one of the triggers, but does with {len(matching)}",
                )
            used |= set(matching)
        for index, trigger in enumerate(triggers):
            if trigger not in used:
                raise _fault(f"{node.at('triggers')}/{index}", "no tag begins with this trigger")
            if any(trigger.startswith(text) for text in excludes):
                raise _fault(f"{node.at('triggers')}/{index}", "begins with an excluded text")
        return {"triggers": triggers, "tags": tags, "excludes": excludes, **_how_many(node)}

    def _tags_with_separator(self, node: _Node) -> Members:
        return {
            "tags": self._tags(node),
            "separator": node.text("separator", empty=True),
            **_how_many(node),
        }


class _inside:
    """Says of an error inside a part of the tag where that is."""

    def __init__(self, pointer: str) -> None:
        self._pointer = pointer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ConstraintError | ConstraintTooLarge):
            raise type(error)(
                f"structural_tag at {self._pointer}: {error.message}", field=TAG_FIELD
            ) from None


def _how_many(node: _Node) -> Members:
    return {name: node.flag(name) for name in ("at_least_one", "stop_after_first")}


def _require_text(value: object, pointer: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise _fault(pointer, f"must be a text, got {_kind(value)}")
    if not value and not empty:
        raise _fault(pointer, "must not be empty")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")


def _fault(pointer: str, what: str) -> ConstraintError:
    return ConstraintError(f"structural_tag at {pointer or '/'}: {what}", field=TAG_FIELD)


def _too_large(pointer: str, what: str, value: int, limit: int) -> ConstraintTooLarge:
    return ConstraintTooLarge(
        f"structural_tag at {pointer or '/'}: {what} must be at most {limit}, got {value}",
        field=TAG_FIELD,
    )
