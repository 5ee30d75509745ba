"""The formats that the validator knows, as expressions that a mask can follow.

Each describes a subset of the format that leaves out only oddities (quoted local parts, leap
seconds, hyphens in third and fourth place of a host's label, look-ahead): what is generated is
valid.  The formats that are not here are annotations.
"""

from __future__ import annotations

from structgen.grammar.schema import patterns
from structgen.grammar.schema.assertions import Assertion, Format, Interval, Length, Pattern
from structgen.grammar.schema.report import Places
from structgen.grammar.schema.values import JsonValue

_YEAR = "[0-9]{4}"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:[Zz]|[+-]{_CLOCK})"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]|[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_HEX}:{_HEX}|{_IPV4})"
_IPV6 = "|".join(
    [
        f"(?:{_HEX}:){{6}}{_LAST}",
        f"::(?:{_HEX}:){{5}}{_LAST}",
        f"(?:{_HEX})?::(?:{_HEX}:){{4}}{_LAST}",
        f"(?:(?:{_HEX}:){{0,1}}{_HEX})?::(?:{_HEX}:){{3}}{_LAST}",
        f"(?:(?:{_HEX}:){{0,2}}{_HEX})?::(?:{_HEX}:){{2}}{_LAST}",
        f"(?:(?:{_HEX}:){{0,3}}{_HEX})?::{_HEX}:{_LAST}",
        f"(?:(?:{_HEX}:){{0,4}}{_HEX})?::{_LAST}",
        f"(?:(?:{_HEX}:){{0,5}}{_HEX})?::{_HEX}",
        f"(?:(?:{_HEX}:){{0,6}}{_HEX})?::",
    ]
)

_A = "[0-9A-Za-z]"
_H = "[0-9A-Za-z-]"
# Of one to 63 characters: one, two or three; four; more.
_LABEL = (
    f"(?:{_A}(?:{_H}?{_A})?|{_A}{_H}(?:{_A}{_A}|-{_A})|{_A}{_H}(?:{_A}{_H}|-{_A}){_H}{{0,58}}{_A})"
)
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_T = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]"
_EMAIL = rf"{_T}+(?:\.{_T}+)*@{_HOST}"


def _simple_ipv6() -> str:
    """Return the expression of addresses without dots in which each character tells which part it
    belongs to."""
    after = f"(?::|{_HEX})"  # seven groups, each with a colon
    for left in range(2, 8):
        after = f"(?::{_groups(left - 1)}|{_HEX}:{after})"
    return f"(?:::{_groups(7)}|{_HEX}:{after})"


def _groups(most: int) -> str:
    return f"(?:{_HEX}(?::{_HEX}){{0,{most - 1}}})?"


_SIMPLE_HOST = rf"{_A}(?:-?{_A})*(?:\.{_A}(?:-?{_A})*)*"
_SIMPLE_EMAIL = rf"{_T}(?:\.?{_T})*@{_SIMPLE_HOST}"

_UCS = (
    "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd\U00020000-\U0002fffd"
    "\U00030000-\U0003fffd"
)


def _uri(more: str) -> tuple[str, str]:
    """Return the expressions of an absolute one and of a relative reference; more: characters
    beside those of ASCII."""
    plain = f"0-9A-Za-z._~!$&'()*+,;={more}-"
    escape = "%[0-9A-Fa-f]{2}"
    char = f"(?:[:@{plain}]|{escape})"
    first = f"(?:[@{plain}]|{escape})"  # of a relative path: a colon would end a scheme
    host = rf"(?:\[(?:{_IPV6})\]|(?:[{plain}]|{escape})*)"
    authority = f"(?:(?:[:{plain}]|{escape})*@)?{host}(?::[0-9]*)?"
    after = f"(?:/{char}*)*"
    absolute = f"//{authority}{after}|/(?:{char}+{after})?"
    tail = rf"(?:\?(?:{char}|[/?])*)?(?:#(?:{char}|[/?])*)?"
    return (
        rf"[A-Za-z][0-9A-Za-z+.-]*:(?:{absolute}|{char}+{after})?{tail}",
        rf"(?:{absolute}|{first}+{after})?{tail}",
    )


_URI, _RELATIVE = _uri("")
_IRI, _IRI_RELATIVE = _uri(_UCS)
_POINTER = "(?:/(?:[^/~]|~[01])*)*"
_VARIABLE = r"(?:[0-9A-Za-z_]|%[0-9A-Fa-f]{2})+(?:\.(?:[0-9A-Za-z_]|%[0-9A-Fa-f]{2})+)*"
_SPEC = rf"{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[0-9A-Za-z._~:/?#\[\]@!$&()*+,;=-]|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&]?{_SPEC}(?:,{_SPEC})*\}})*"
)
_N = "[0-9]{1,9}"
_DURATION_TIME = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DURATION_DATE = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"


def _regex(depth: int) -> str:
    """Return the expression of expressions with groups nested so deep; what is counted in
    groups is counted low, or the validator finds it too large."""
    special = r"\^$.*+?()[\]{}|"
    escape = rf"\\[dDwWsSnrtfv/{special}]"
    span = "a-[b-z]|[a-y]-z|A-[B-Z]|[A-Y]-Z|0-[1-9]|[0-8]-9"
    inside = rf"(?:[^\\\[\]^&~-]|{span}|\\[dDwWsSnrtfv.*+?()/{{}}|\\^$\[\]-])"
    of_set = rf"\[\^?-?{inside}+-?\]"
    ordered = "|".join(f"{low},[{low}-9]|{low}[0-9],[{low + 1}-9][0-9]" for low in range(1, 9))
    ordered += "|0,[0-9]|[0-9],[1-9][0-9]|[1-9]?[0-9],(?:1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
    count = rf"\{{(?:[1-9]?[0-9],?|{ordered})\}}"
    single = rf"(?:[^\\{special}]|\.|{escape}|{of_set})(?:[*+?]\??|{count})?"
    group = rf"|\((?:\?:)?{_regex(depth - 1)}\)(?:[*+?]|\{{[0-3],?\}})?" if depth else ""
    return rf"(?:{single}|[|^$]{group})*"


EXPRESSIONS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": f"P(?:{_N}W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": f"{_URI}|{_RELATIVE}",
    "iri": _IRI,
    "iri-reference": f"{_IRI}|{_IRI_RELATIVE}",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "regex": _regex(depth=3),
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})",
}

KNOWN = frozenset(EXPRESSIONS)

# Simpler ones, of a subset too, but for the lengths of names.
SIMPLE: dict[str, str] = {
    "email": _SIMPLE_EMAIL,
    "idn-email": _SIMPLE_EMAIL,
    "hostname": _SIMPLE_HOST,
    "idn-hostname": _SIMPLE_HOST,
    "ipv6": _simple_ipv6(),
}

_MAX_TEXT = 2_000  # that an expression is tried on: automata are slow

# A host's name has at most 253 characters; an address with one, and 64 before the "@", 254.
_LONGEST = {"hostname": 253, "idn-hostname": 253, "email": 254, "idn-email": 254}


def assertions(name: str, places: Places) -> list[Assertion]:
    """Return what describes the texts of a known format."""
    found: list[Assertion] = [Pattern(regex=f"^(?:{EXPRESSIONS[name]})$", places=places)]
    if "email" in name:
        found.append(Pattern(regex="^[^@]{1,64}@", places=places))
    if name in _LONGEST:
        found.append(Length(interval=Interval(0, _LONGEST[name]), places=places))
    return found


def simple(name: str, places: Places) -> Pattern | None:
    """Return what nearly describes them, for libraries that take no more; to be verified."""
    regex = SIMPLE.get(name)
    return None if regex is None else Pattern(regex=f"^(?:{regex})$", places=places)


def describes(form: Format, value: JsonValue) -> bool:
    """Whether a value is known to have the format; one that is no string has every format."""
    if not isinstance(value, str):
        return True
    return all(_obeys(assertion, value) for assertion in assertions(form.name, form.places))


def _obeys(assertion: Assertion, text: str) -> bool:
    match assertion:
        case Pattern(regex=regex):
            return len(text) <= _MAX_TEXT and patterns.found_in(regex, text) is True
        case Length(interval=interval):
            return interval.high is None or len(text) <= interval.high
    raise AssertionError(assertion)
