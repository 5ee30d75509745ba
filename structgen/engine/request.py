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
from typing import NamedTuple

from structgen.engine.confidence import Confidence
from structgen.engine.kv import Blocks
from structgen.engine.ngrams import Ngrams
from structgen.grammar.base import Matcher
from structgen.grammar.budget import Budget
from structgen.grammar.filters import TokenFilter
from structgen.logprobs import TokenLogprobs
from structgen.messages import ConstraintInfo, EngineRequest, FinishReason, RequestStats
from structgen.params import JumpForward, SamplingParams


class Untold(NamedTuple):
    """New tokens of an answer, as an EngineOutput has them."""

    ids: list[int]
    logprobs: list[TokenLogprobs]
    complete_at: list[int]


class Request:
    """Tokens, debt and end of one sample of a request.

    stop_ids: every id that ends the answer.  limit: the length of `tokens` at which it must end,
    and limit_reason why.  compiling: the constraint is not ready, so no token can be sampled yet.
    leader: the request's first sample, which computes the prompt for all; None for that one.
    told: the length of `tokens` that its client has been told of, with their log probabilities.
    complete_at: lengths of `tokens` from `told` on at which the constraint accepted the answer.
    known_blocks: how many of its blocks the model has been told of; None: it knows no such request.
    """

    __slots__ = (
        "accepted_tokens",
        "arrival",
        "bad_sequences",
        "blocks",
        "budget",
        "cached_tokens",
        "closed",
        "compiling",
        "complete_at",
        "computed",
        "confidence",
        "constraint_info",
        "deadline",
        "drafted_tokens",
        "drafts",
        "filter",
        "finish",
        "first_scheduled_at",
        "first_token_at",
        "forced_tokens",
        "forwards",
        "gone",
        "id",
        "known_blocks",
        "leader",
        "limit",
        "limit_reason",
        "marker",
        "matcher",
        "message_id",
        "min_length",
        "ngrams",
        "num_prompt",
        "order",
        "params",
        "penalised",
        "preemptions",
        "prompt_logprobs",
        "sample",
        "seed",
        "stop_id",
        "stop_ids",
        "tokens",
        "told",
        "untold_logprobs",
        "wants_prompt_logprobs",
    )

    def __init__(
        self,
        message: EngineRequest,
        *,
        sequence: int,
        seed: int,
        eos_ids: frozenset[int],
        capacity: int,
        sample: int = 0,
        leader: Request | None = None,
    ) -> None:
        params = message.params
        self.message_id = message.id
        # A caller cannot choose this for another request: ids have no control characters.
        self.id = message.id if leader is None else f"{message.id}\0{sample}"
        self.sample = sample
        self.leader = leader
        self.gone = False
        self.params: SamplingParams = params
        self.penalised = params.penalised
        self.tokens = list(message.prompt_ids)
        self.num_prompt = len(message.prompt_ids)
        self.computed = 0
        self.blocks = Blocks()
        self.known_blocks: int | None = None
        self.matcher: Matcher | None = None
        self.filter: TokenFilter | None = None
        self.budget: Budget | None = None
        self.closed = False  # completed because a limit came near
        self.marker = message.marker()
        self.bad_sequences = message.bad_sequences
        self.wants_prompt_logprobs = params.prompt_logprobs is not None and sample == 0
        self.prompt_logprobs: list[TokenLogprobs | None] = []
        self.compiling = params.constraint is not None
        self.order = (message.priority, message.arrival, sequence)
        self.arrival = message.arrival
        self.seed = seed
        self.stop_ids = frozenset() if params.ignore_eos else eos_ids
        if params.stop_token_ids:
            self.stop_ids |= frozenset(params.stop_token_ids)
        self.limit, self.limit_reason = _limit(self.num_prompt, params.max_tokens, capacity)
        self.min_length = self.num_prompt + params.min_tokens
        self.deadline = None if params.time_limit_s is None else self.arrival + params.time_limit_s
        self.finish: FinishReason | None = None
        self.stop_id: int | None = None
        self.constraint_info: ConstraintInfo | None = None
        self.cached_tokens = 0
        self.forwards = 0
        self.forced_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.drafts: list[int] = []  # guesses at what follows `tokens`, legal if they are right
        self.ngrams: Ngrams | None = None
        self.confidence = Confidence()
        self.preemptions = 0
        self.told = self.num_prompt
        self.untold_logprobs: list[TokenLogprobs] = []
        self.complete_at: list[int] = []
        self.first_scheduled_at: float | None = None
        self.first_token_at: float | None = None

    # Methods, not properties: asked once a token, where Python takes twice as long for a property.

    def debt(self) -> int:
        """Tokens to compute before the next can be sampled; the last one waits for the grammar."""
        uncomputed = len(self.tokens) - self.computed
        return uncomputed - 1 if self.compiling else uncomputed

    def is_urgent(self) -> bool:
        """Whether what comes next must be told at once: the first tokens, and all that may stop."""
        return self.told == self.num_prompt or bool(self.params.stop)

    def may_draft(self) -> bool:
        """Whether masks and logits of the next places can be known before their tokens are."""
        return (
            self.finish is None
            and self.filter is None
            and not self.compiling
            and not self.penalised
            and len(self.tokens) >= self.min_length
            and not (self.budget is not None and self.budget.following)
        )

    @property
    def waits_for_leader(self) -> bool:
        """Another sample is computing the prompt; its blocks will be shared."""
        leader = self.leader
        return leader is not None and not leader.gone and leader.computed < self.num_prompt - 1

    @property
    def begun(self) -> bool:
        """Whether anything was told of it yet."""
        return self.told > self.num_prompt

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def accepting(self) -> bool:
        """The constraint would accept the answer as it stands (False without a constraint)."""
        return self.matcher is not None and self.matcher.accepting

    @property
    def jumps(self) -> bool:
        """Forced text is appended rather than sampled."""
        return self.params.jump_forward is JumpForward.COMMIT and self.params.logprobs is None

    @property
    def guesses_forced(self) -> bool:
        """Forced text is sampled, but guessed to be spelt as usual."""
        return self.params.jump_forward is not JumpForward.OFF and not self.jumps

    @property
    def is_led_out(self) -> bool:
        """The text has just been completed along the only way that was left to it."""
        return self.budget is not None and self.budget.following and not self.budget.way

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

    def note_complete(self) -> None:
        """Keep in mind that the constraint accepts the answer as it stands, if it does.

        Only where a stop string, which others look for, may end it here.
        """
        if self.params.stop and self.accepting:
            self.complete_at.append(len(self.tokens))

    def take_untold(self) -> Untold:
        """Return what has not been told: from now on it has."""
        told, self.told = self.told, len(self.tokens)
        logprobs, complete_at = self.untold_logprobs, self.complete_at
        if logprobs:
            self.untold_logprobs = []
        if complete_at:
            self.complete_at = []
        return Untold(self.tokens[told:], logprobs, [at - told for at in complete_at])

    def stats(self) -> RequestStats:
        now = time.monotonic()
        scheduled = self.first_scheduled_at or now
        first_token = self.first_token_at or now
        return RequestStats(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            forwards=self.forwards,
            forced_tokens=self.forced_tokens,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
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
