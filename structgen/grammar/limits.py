"""How large a schema may be before a library sees it.

Every library is unbounded somewhere: these are the sizes up to which all of them were measured to
answer within seconds.  A schema beyond one is refused by name, and asking again does not help.
"""

from __future__ import annotations

from structgen.constraints import FIELD
from structgen.errors import ConstraintTooLarge

SCHEMA_FIELD = f"{FIELD}.json_schema"

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DEPTH = 64  # nested arrays and objects of the schema text
MAX_OPTIONAL_PROPERTIES = 400  # of one object
MAX_PATTERN_PROPERTIES = 100  # of one object
MAX_ENUM_VALUES = 10_000
MAX_ENUM_BYTES = 64 * 1024  # of one string
MAX_MULTIPLE = 10_000
MAX_PATTERN_CHARACTERS = 16 * 1024

# Of a regex.
MAX_REGEX_CHARACTERS = 64 * 1024
MAX_REGEX_REPETITIONS = 10_000_000  # those within each other multiplied

# Of an EBNF grammar.
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_GRAMMAR_RULES = 5_000
MAX_GRAMMAR_DEPTH = 100  # nested groups
MAX_GRAMMAR_REPETITION = 100_000
MAX_GRAMMAR_COPIES = 10_000_000  # of one part, by repetitions in each other
MAX_GRAMMAR_LEXEMES = 256 * 1024  # characters of a grammar that is written character by character
MAX_GRAMMAR_REGEX = 64 * 1024  # characters of a grammar that is written as one regex

# Of a structural tag.
MAX_TAG_BYTES = 256 * 1024
MAX_TAG_DEPTH = 32  # formats in each other
MAX_TAG_FORMATS = 2_000

# What rewriting may cost; beyond, a keyword is left as it is, or the schema is refused.
MAX_REFERENCE_DEPTH = 100
MAX_WORK = 150_000  # assertions taken up, some microseconds each
MAX_REWRITTEN_CHARACTERS = 1024 * 1024
MAX_BRANCHES = 256  # of one choice, once the keywords beside it are in every branch


def within(name: str, value: int | float, limit: int, pointer: str = "") -> None:
    """Raises ConstraintTooLarge: `value` is above `limit`."""
    if value > limit:
        place = f" at {pointer}" if pointer else ""
        raise ConstraintTooLarge(
            f"json_schema{place}: {name} must be at most {limit}, got {value}", field=SCHEMA_FIELD
        )
