"""Grammars: from a constraint to the mask of the next token.

Backends by name, imported on first use, so that nothing pays for a library it does not call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from structgen.errors import ConfigError
from structgen.grammar.base import GrammarBackend, Vocabulary

BACKENDS = {
    "xgrammar": "structgen.grammar.xgrammar_backend:XGrammarBackend",
    "llguidance": "structgen.grammar.llguidance_backend:LLGuidanceBackend",
    "outlines_core": "structgen.grammar.outlines_backend:OutlinesBackend",
}


def build_backend(name: str, vocabulary: Vocabulary) -> GrammarBackend:
    """Build the backend of this name over a vocabulary (up to 0.5 s, plus importing its library).

    Raises ConfigError: there is no such backend, or it cannot work with this vocabulary.
    """
    return load_backend(name)(vocabulary)


def load_backend(name: str) -> Callable[[Vocabulary], GrammarBackend]:
    """Import the backend of this name, and with it its library (up to 5 s).

    Raises ConfigError: there is no such backend.
    """
    if name not in BACKENDS:
        raise ConfigError(f"grammar backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    module, _, cls = BACKENDS[name].partition(":")
    backend: Callable[[Vocabulary], GrammarBackend] = getattr(importlib.import_module(module), cls)
    return backend
