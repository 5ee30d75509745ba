"""All that crosses from the engine to the model and back.

Plain data without tensors, so that a plan can be sent to any rank.  The engine's loop thread writes
these, the device thread reads them; nothing is changed after it was handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from structgen.logprobs import TokenLogprobs
from structgen.params import SamplingParams


class NewRow(msgspec.Struct, frozen=True, array_like=True):
    """A request the model has not seen, or one resumed after preemption.

    The seed is resolved: the same (seed, sample, position) draws the same noise on any machine.
    history: the tokens before the first that will be computed (a prefix hit), if penalties need
    them, else empty.  The first num_prompt tokens of the sequence are its prompt.
    """

    id: str
    params: SamplingParams
    seed: int
    sample: int = 0
    num_prompt: int = 0
    history: list[int] = []


class PlanRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokens [start, start + len(token_ids)) of one request, computed in this step.

    `new_block_ids` are appended to the row's block table before the forward.  `num_logits` is 0
    while debt remains after this step, else the number of last positions to sample at: one more
    than there are drafts, guesses that end token_ids.
    `targets`: where prompt logprobs are wanted, the tokens that follow the first of token_ids.
    """

    id: str
    start: int
    token_ids: list[int]
    new_block_ids: list[int]
    num_logits: int
    targets: list[int] = []

    @property
    def num_drafts(self) -> int:
        """How many of token_ids, the last ones, are guesses."""
        return self.num_logits - 1 if self.num_logits else 0

    @property
    def drafts(self) -> list[int]:
        return self.token_ids[1 - self.num_logits :] if self.num_logits > 1 else []


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step.  `removed` rows are dropped first, `added` rows created next, then `rows` run."""

    step: int
    added: list[NewRow]
    rows: list[PlanRow]
    removed: list[str]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


class TokenBitmask(msgspec.Struct, frozen=True):
    """Which tokens may be sampled, for those logits rows that have a restriction.

    words: int32 [M, ceil(V / 32)]; bit (t & 31) of word (t >> 5) set = token t allowed.
    logit_index: int32 [M], the logits row that each mask row belongs to, ascending.
    Owned by the grammar manager, valid until the next fill.
    """

    words: npt.NDArray[np.int32]
    logit_index: npt.NDArray[np.int32]


class RowOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one plan row produced: sampled ids (none where num_logits was 0), or why it failed.

    logprobs: one per sampled id, if asked for.  prompt_logprobs: one per target of the row.
    """

    token_ids: list[int]
    error: str = ""
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []


class StepOutput(msgspec.Struct, frozen=True, array_like=True):
    """Per plan row, in plan order.

    Seconds on the device thread: the forward, the sampling, and `wait_s` in between, idle because
    the mask was not ready.
    """

    rows: list[RowOutput]
    forward_s: float = 0.0
    sample_s: float = 0.0
    wait_s: float = 0.0


class Executor(Protocol):
    """Where plans are run.  Called from the engine's loop thread only, the two in turn."""

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        """Launch the forward of a plan and return at once.

        when_done: called when the forward has ended, on any thread, however it ended.
        """

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        """Join the launched forward, sample its logits under the mask.

        Raises whatever the forward or the sampling raised; the executor is then unusable.
        """

    def close(self) -> None: ...
