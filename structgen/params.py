"""How one answer is drawn and when it stops.  Validated once, at construction, then trusted."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from structgen.constraints import Constraint
from structgen.errors import InvalidRequest

GREEDY_BELOW = 1e-5  # a lower temperature is greedy: dividing by it would only overflow

MAX_SAMPLES = 128
MAX_STOPS = 32
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 256
MAX_BAD_WORDS = 256
MAX_LOGPROBS = 64
MAX_BIASES = 4096
MAX_BIAS = 1e4  # far above any logit, far below what overflows float32
MAX_PENALTY = 100.0
MAX_MARKER_CHARS = 64

MARKER_FIELD = "input.constraint.options.after"


class JumpForward(StrEnum):
    """Forced text: sample it like any other, append it as the tokenizer would spell it, or guess
    that it is sampled so."""

    OFF = "off"
    COMMIT = "commit"
    DRAFT = "draft"


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True
):
    """Options of one request; every default means "off" or "as the model is".

    max_tokens None is what the context leaves.  top_k 0 or -1 is off.  seed None draws one at
    admission.  time_limit_s ends the answer with what there is, counted from arrival.
    logit_bias: (token id, added to its logit).  allowed_token_ids: only these; empty allows all.
    bad_words, bad_token_ids: never answered.  logprobs, prompt_logprobs: how many of the most
    likely tokens to report beside the one that is there; None reports nothing.
    close_within_budget: under a constraint, complete the text before a limit would cut it.
    jump_forward: what to do with text that the constraint leaves no choice about; log probabilities
    that are asked for turn COMMIT into DRAFT.
    constraint_after: the answer is free until this marker, such as "</think>", and the constraint
    begins right behind it; a marker that spells a control token is that token.
    drafts: guess tokens from prompt and earlier answers, and verify them; the answer is the same.

    Raises InvalidRequest: a value is outside its range, named with the limit.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    time_limit_s: float | None = None
    constraint: Constraint | None = None
    n: int = 1
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint_mass: bool = False
    close_within_budget: bool = True
    jump_forward: JumpForward = JumpForward.COMMIT
    constraint_after: str = ""
    drafts: bool = True

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether a token's logit depends on the tokens before it."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_sampling()
        self._check_logits()
        self._check_tokens()
        self._check_stops()
        self._check_report()
        self._check_marker()

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _within("stopping.max_tokens", self.max_tokens, 1, 2**31 - 1)
        _within("stopping.min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}",
                field="input.stopping.min_tokens",
            )
        if self.time_limit_s is not None:
            _finite("time_limit", self.time_limit_s)
            if self.time_limit_s <= 0:
                raise InvalidRequest(
                    f"time_limit must be above 0, got {self.time_limit_s} s",
                    field="input.time_limit",
                )

    def _check_sampling(self) -> None:
        _finite("sampling.temperature", self.temperature)
        _within("sampling.temperature", self.temperature, 0, math.inf)
        _within("sampling.top_k", self.top_k, -1, 2**31 - 1)
        _finite("sampling.top_p", self.top_p)
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(
                f"top_p must be in (0, 1], got {self.top_p}", field="input.sampling.top_p"
            )
        _finite("sampling.min_p", self.min_p)
        _within("sampling.min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _within("sampling.seed", self.seed, -(2**63), 2**64 - 1)
        _within("sampling.n", self.n, 1, MAX_SAMPLES)

    def _check_logits(self) -> None:
        _finite("sampling.repetition_penalty", self.repetition_penalty)
        if not 0 < self.repetition_penalty <= MAX_PENALTY:
            raise InvalidRequest(
                f"repetition_penalty must be in (0, {MAX_PENALTY}], got {self.repetition_penalty}",
                field="input.sampling.repetition_penalty",
            )
        for name in ("frequency_penalty", "presence_penalty"):
            _finite(f"sampling.{name}", getattr(self, name))
            _within(f"sampling.{name}", getattr(self, name), -MAX_PENALTY, MAX_PENALTY)
        _within("sampling.logit_bias", len(self.logit_bias), 0, MAX_BIASES, "number of biases")
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise InvalidRequest(
                "logit_bias must name each token id once", field="input.sampling.logit_bias"
            )
        for token, bias in self.logit_bias:
            _finite(f"sampling.logit_bias[{token}]", bias)
            _within(f"sampling.logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS)

    def _check_tokens(self) -> None:
        _within("sampling.bad_words", len(self.bad_words), 0, MAX_BAD_WORDS, "number of bad words")
        for index, word in enumerate(self.bad_words):
            path = f"sampling.bad_words[{index}]"
            _within(path, len(word.strip()), 1, MAX_STOP_CHARS, "bad word length")
        bad = set(self.bad_token_ids)
        for token in self.allowed_token_ids:
            if token not in bad:
                return
        if self.allowed_token_ids:
            raise InvalidRequest(
                "bad_token_ids leave none of the allowed_token_ids",
                field="input.sampling.allowed_token_ids",
            )

    def _check_report(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _within(f"response.{name}", value, 0, MAX_LOGPROBS)

    def _check_marker(self) -> None:
        if not self.constraint_after:
            return
        length = len(self.constraint_after)
        _within("constraint.options.after", length, 1, MAX_MARKER_CHARS, "length of the marker")
        try:
            self.constraint_after.encode()
        except UnicodeEncodeError:
            raise InvalidRequest("the marker holds a lone surrogate", field=MARKER_FIELD) from None

    def _check_stops(self) -> None:
        _within("stopping.stop", len(self.stop), 0, MAX_STOPS, "number of stop strings")
        for index, stop in enumerate(self.stop):
            _within(f"stopping.stop[{index}]", len(stop), 1, MAX_STOP_CHARS, "stop string length")
        _within(
            "stopping.stop_token_ids", len(self.stop_token_ids), 0, MAX_STOP_IDS, "number of ids"
        )
        if self.ignore_eos and self.constraint is not None:
            raise InvalidRequest(
                "ignore_eos cannot be combined with a constraint: its end is the constraint's end",
                field="input.stopping.ignore_eos",
            )


def _finite(path: str, value: float) -> None:
    if not math.isfinite(value):
        raise InvalidRequest(
            f"{path.rpartition('.')[2]} must be finite, got {value}", field=f"input.{path}"
        )


def _within(path: str, value: float, low: float, high: float, what: str = "") -> None:
    if not low <= value <= high:
        name = what or path.rpartition(".")[2]
        bound = f"in [{low}, {high}]" if high != math.inf else f"at least {low}"
        raise InvalidRequest(f"{name} must be {bound}, got {value}", field=f"input.{path}")
