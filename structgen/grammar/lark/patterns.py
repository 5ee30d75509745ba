"""Texts and regexes of a Lark grammar as nodes."""

from __future__ import annotations

from structgen.errors import ConstraintError
from structgen.grammar.ebnf.fault import malformed
from structgen.grammar.ebnf.tokens import unquoted
from structgen.grammar.ebnf.tree import Alternation, Chars, Concat, Literal, Node, Repeat
from structgen.grammar.lark.tokens import Token
from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges
from structgen.grammar.schema.language import whole
from structgen.grammar.schema.regex import RegexError, RegexUnsupported
from structgen.grammar.schema.regex import parse as parse_regex

MAX_FOLDED = 10_000  # characters of a set that is taken in upper and lower case


def text_node(token: Token, text: str) -> Node:
    """Return the node of a TEXT.  Raises ConstraintError: a bad escape or flag."""
    spelling, _, flags = token.spelling.rpartition('"')
    if flags not in ("", "i"):
        raise malformed(text, token.at, f'the flag {flags} of a text is not supported, only "..."i')
    literal = Literal(unquoted(text, token.at + 1, token.at + len(spelling)))
    return _folded(literal, text, token.at) if flags else literal


def regex_node(token: Token, text: str) -> Node:
    """Return the node of a REGEX.  Raises ConstraintError: it is none, or has another flag."""
    spelling, _, flags = token.spelling.rpartition("/")
    if strange := set(flags) - set("is"):
        raise malformed(
            text, token.at, f"the flag {min(strange)} of a regex is not supported, only i and s"
        )
    node = pattern_node(spelling[1:], text, token.at)
    if "s" in flags:
        node = _with_line_ends(node)
    return _folded(node, text, token.at) if "i" in flags else node


def pattern_node(pattern: str, text: str, at: int) -> Node:
    """Return the node of an ECMA-262 pattern that matches whole texts."""
    try:
        parse_regex(pattern)  # for errors that count characters in this text, not in the next
        node = whole(f"^(?:{pattern})$")
    except RegexUnsupported as error:
        raise malformed(text, at, f"regex: {error} is not supported") from None
    except RegexError as error:
        raise malformed(text, at, f"regex: {error}") from None
    if node is None:
        raise malformed(text, at, "regex: its anchors rule out every text")
    return node


def _with_line_ends(node: Node) -> Node:
    """Let . match every character (and, as it is not told apart, a class of the same ones)."""
    match node:
        case Chars(charset.DOT, _):
            return Chars(charset.EVERY)
        case Concat(items):
            return Concat(tuple(map(_with_line_ends, items)))
        case Alternation(options):
            return Alternation(tuple(map(_with_line_ends, options)))
        case Repeat(item, low, high):
            return Repeat(_with_line_ends(item), low, high)
    return node


def _folded(node: Node, text: str, at: int) -> Node:
    """Let every letter be in upper or lower case."""
    match node:
        case Literal(letters):
            sets = [Chars(_both_cases(charset.of(letter))) for letter in letters]
            return Concat(tuple(sets))
        case Chars(ranges, ""):
            return Chars(_folded_set(ranges, _refusal(text, at)))
        case Chars():
            raise _refusal(text, at)
        case Concat(items):
            return Concat(tuple(_folded(item, text, at) for item in items))
        case Alternation(options):
            return Alternation(tuple(_folded(option, text, at) for option in options))
        case Repeat(item, low, high):
            return Repeat(_folded(item, text, at), low, high)
    return node


def _folded_set(ranges: Ranges, refusal: ConstraintError) -> Ranges:
    """A set that is nearly everything was written as [^...]: what it leaves out is folded."""
    if _size(ranges) <= MAX_FOLDED:
        return _both_cases(ranges)
    left_out = charset.complement(ranges)
    if _size(left_out) <= MAX_FOLDED:
        return charset.complement(_both_cases(left_out))
    raise refusal


def _refusal(text: str, at: int) -> ConstraintError:
    return malformed(
        text, at, f"the flag i is not supported for a class of more than {MAX_FOLDED} characters"
    )


def _both_cases(ranges: Ranges) -> Ranges:
    letters = (chr(code) for low, high in ranges for code in range(low, high + 1))
    forms = (form for letter in letters for form in (letter, letter.lower(), letter.upper()))
    return charset.normal((ord(form), ord(form)) for form in forms if len(form) == 1)


def _size(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)
