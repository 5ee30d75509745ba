"""The public surface: these names, no more and no fewer."""

from __future__ import annotations

import pytest

import structgen
import structgen.client

PUBLIC = [
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
CLIENT = ["AsyncClient", "Client", "Completion", "ConstraintCheck", "TextVerdict"]


def test_structgen_has_these_public_names() -> None:
    assert structgen.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(structgen))


def test_structgen_client_has_these_public_names() -> None:
    assert structgen.client.__all__ == CLIENT


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_class_of_that_name(name: str) -> None:
    assert getattr(structgen, name).__name__ == name


def test_any_other_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Engine'"):
        structgen.Engine  # noqa: B018
