"""Generation whose answers obey their constraint.

The names below are the public ones; each is imported when it is first used, so that importing
structgen costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structgen.constraints import (
        Choice,
        ConstraintId,
        Ebnf,
        JsonObject,
        JsonSchema,
        Lark,
        Regex,
        StructuralTag,
    )
    from structgen.errors import StructgenError
    from structgen.frontend.async_llm import AsyncLLM
    from structgen.frontend.inputs import GenerationInput
    from structgen.frontend.llm import LLM
    from structgen.params import SamplingParams
    from structgen.tokenizer import ChatMessage

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatMessage",
    "Choice",
    "ConstraintId",
    "Ebnf",
    "GenerationInput",
    "JsonObject",
    "JsonSchema",
    "Lark",
    "Regex",
    "SamplingParams",
    "StructgenError",
    "StructuralTag",
]

_MODULES = {
    "LLM": "structgen.frontend.llm",
    "AsyncLLM": "structgen.frontend.async_llm",
    "ChatMessage": "structgen.tokenizer",
    "Choice": "structgen.constraints",
    "ConstraintId": "structgen.constraints",
    "Ebnf": "structgen.constraints",
    "GenerationInput": "structgen.frontend.inputs",
    "JsonObject": "structgen.constraints",
    "JsonSchema": "structgen.constraints",
    "Lark": "structgen.constraints",
    "Regex": "structgen.constraints",
    "SamplingParams": "structgen.params",
    "StructgenError": "structgen.errors",
    "StructuralTag": "structgen.constraints",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
