"""A request as the grammar side knows it."""

from __future__ import annotations

from typing import Protocol

from structgen.grammar.base import Matcher
from structgen.grammar.budget import Budget
from structgen.grammar.filters import TokenFilter
from structgen.marker import Marker
from structgen.messages import ConstraintInfo
from structgen.params import SamplingParams


class Constrained(Protocol):
    """Written by the grammar manager: the first five."""

    matcher: Matcher | None
    compiling: bool
    constraint_info: ConstraintInfo | None
    filter: TokenFilter | None
    budget: Budget | None
    id: str
    params: SamplingParams
    marker: Marker | None
    bad_sequences: list[list[int]]
    num_prompt: int
    stop_ids: frozenset[int]
    min_length: int
    limit: int
    tokens: list[int]

    @property
    def jumps(self) -> bool:
        """Whether it is to be given forced text unasked."""


def backend_of(request: Constrained) -> str:
    assert request.constraint_info is not None, f"{request.id} has no constraint"
    return request.constraint_info.backend


def matcher_of(request: Constrained) -> Matcher:
    assert request.matcher is not None, f"{request.id} has no matcher"
    return request.matcher
