"""The libraries, as measured: xgrammar 0.2.9, llguidance 1.9.1, outlines-core 0.2.14."""

from __future__ import annotations

from structgen.grammar import limits
from structgen.grammar.schema.dialect import Dialect, PatternProperties, Sizes
from structgen.grammar.schema.values import BY_NUMBER, ESCAPED

# Refuses what it does not enforce, by name.  Its bounds on properties count the named ones as if
# all were there.
LLGUIDANCE = Dialect(
    name="llguidance",
    combines=True,
    patterns_combine=True,
    not_in_patterns=BY_NUMBER,
    quotes_slip_in=True,
    intricate_patterns=True,
    unicode_properties=True,
    numbered_escapes=False,  # they are switched off: a name would have many spellings
    any_names=True,
    bounds=True,
    largest_multiple=limits.MAX_MULTIPLE,
    fractional_multiples=True,
    bounded_multiples=True,
    partial_tuples=True,
    sizes=Sizes.PLAIN,
    pattern_properties=PatternProperties.APART,
    forbidden_properties=True,
    recursion=True,
)

# Drops in silence: what stands beside anyOf, $ref, enum; all of several allOf; keywords without a
# type; lengths beside a pattern; multiples that are no whole numbers, above 1024, or in a range;
# what is said of a property whose name is not plain ASCII, where there may be others.  What a
# pattern matches stands in the string as it is, be it a quote.
XGRAMMAR = Dialect(
    name="xgrammar",
    combines=False,
    patterns_combine=False,
    not_in_patterns=ESCAPED,
    intricate_patterns=False,
    unicode_properties=False,
    # Others of its own take what is none: 31 June, seconds of 60 at any time, octets like 01.
    formats=frozenset(["duration", "uri", "uri-reference"]),
    numbered_escapes=True,
    any_names=False,
    bounds=True,
    largest_multiple=1024,
    fractional_multiples=False,
    bounded_multiples=False,
    partial_tuples=True,
    sizes=Sizes.ANY,
    pattern_properties=PatternProperties.ALONE,
    forbidden_properties=False,
    recursion=True,
)

# Drops in silence also the bounds of numbers and of the number of properties.
OUTLINES = Dialect(
    name="outlines_core",
    combines=False,
    patterns_combine=False,
    not_in_patterns=ESCAPED,
    intricate_patterns=True,
    unicode_properties=False,
    numbered_escapes=True,
    any_names=False,
    bounds=False,
    largest_multiple=0,
    fractional_multiples=False,
    bounded_multiples=False,
    partial_tuples=False,
    sizes=Sizes.NONE,
    pattern_properties=PatternProperties.NONE,
    forbidden_properties=False,
    recursion=False,
)
