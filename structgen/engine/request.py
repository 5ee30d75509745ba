"""One request inside the engine: its tokens and how many of them are computed.

Written only by the engine's loop thread.  Between steps, in half-open ranges over `tokens`:

    [0 ........ num_prompt)[num_prompt ........ len(tokens))
       prompt                 output, committed
    [0 .............. computed)[computed ...... len(tokens))
       in the KV cache            the debt

What other engines keep as states (prefill, decode, waiting for a grammar) is this one number.
"""

from __future__ import annotations

import time

from structgen.grammar.base import Matcher
from structgen.messages import ConstraintInfo, EngineRequest, FinishReason, RequestStats
from structgen.params import SamplingParams


class Request:
    """Tokens, debt and end of one request.

    stop_ids: every id that ends the answer.  limit: the length of `tokens` at which it must end,
    and limit_reason why.  compiling: the constraint is not ready, so no token can be sampled yet.
    """

    __slots__ = (
        "arrival",
        "cached_tokens",
        "compiling",
        "computed",
        "constraint_info",
        "deadline",
        "finish",
        "first_scheduled_at",
        "first_token_at",
        "forwards",
        "id",
        "limit",
        "limit_reason",
        "matcher",
        "min_length",
        "num_prompt",
        "order",
        "params",
        "preemptions",
        "seed",
        "stop_id",
        "stop_ids",
        "tokens",
    )

    def __init__(
        self,
        message: EngineRequest,
        *,
        sequence: int,
        seed: int,
        eos_ids: frozenset[int],
        capacity: int,
    ) -> None:
        params = message.params
        self.id = message.id
        self.params: SamplingParams = params
        self.tokens = list(message.prompt_ids)
        self.num_prompt = len(message.prompt_ids)
        self.computed = 0
        self.matcher: Matcher | None = None
        self.compiling = params.constraint is not None
        self.order = (message.priority, message.arrival, sequence)
        self.arrival = message.arrival
        self.seed = seed
        self.stop_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else eos_ids
        )
        self.limit, self.limit_reason = _limit(self.num_prompt, params.max_tokens, capacity)
        self.min_length = self.num_prompt + params.min_tokens
        self.deadline = None if params.time_limit_s is None else self.arrival + params.time_limit_s
        self.finish: FinishReason | None = None
        self.stop_id: int | None = None
        self.constraint_info: ConstraintInfo | None = None
        self.cached_tokens = 0
        self.forwards = 0
        self.preemptions = 0
        self.first_scheduled_at: float | None = None
        self.first_token_at: float | None = None

    @property
    def debt(self) -> int:
        """Tokens to compute before the next can be sampled; the last one waits for the grammar."""
        return len(self.tokens) - self.computed - (1 if self.compiling else 0)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def accepting(self) -> bool:
        """The constraint would accept the answer as it stands (False without a constraint)."""
        return self.matcher is not None and self.matcher.accepting

    def append(self, token: int) -> bool:
        """Commit one token and return whether it ended the request.

        A stop id ends it and does not become part of the answer.
        """
        if token in self.stop_ids:
            self.stop_id = token
            self.finish = FinishReason.STOP
            return True
        self.tokens.append(token)
        if len(self.tokens) >= self.limit:
            self.finish = self.limit_reason
        return self.finish is not None

    def stats(self) -> RequestStats:
        now = time.monotonic()
        scheduled = self.first_scheduled_at or now
        first_token = self.first_token_at or now
        return RequestStats(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            forwards=self.forwards,
            queue_s=scheduled - self.arrival,
            prefill_s=first_token - scheduled,
            decode_s=now - first_token,
            preemptions=self.preemptions,
            constraint=self.constraint_info,
        )


def _limit(num_prompt: int, max_tokens: int | None, capacity: int) -> tuple[int, FinishReason]:
    if max_tokens is not None and num_prompt + max_tokens <= capacity:
        return num_prompt + max_tokens, FinishReason.MAX_TOKENS
    return capacity, FinishReason.CONTEXT_LIMIT
