"""Front end <-> engine: wire structs and their codec.

msgspec structs as arrays with defaults omitted.  The front end owns the request's text side, the
engine its tokens; an id is the only thing they share.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from structgen.constraints import Constraint
from structgen.errors import InvalidRequest, WireError
from structgen.keywords import KeywordReport
from structgen.logprobs import TokenLogprobs
from structgen.marker import Marker
from structgen.params import SamplingParams

# Of the text of a check: seconds of masks, and more than a context usually holds.
MAX_CHECKED_BYTES = 2**18
MAX_EXPECTED = 8  # texts that a verdict names


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-text id or one of stop_token_ids
    STOP_STRING = "stop_string"
    CONSTRAINT_COMPLETE = "constraint_complete"  # nothing may follow
    MAX_TOKENS = "max_tokens"
    CONTEXT_LIMIT = "context_limit"
    TIME_LIMIT = "time_limit"
    ABORTED = "aborted"
    DEAD_END = "dead_end"  # the masks together left no token
    ERROR = "error"


class _Message(
    msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False, tag=True
):
    pass


class EngineRequest(_Message, frozen=True):
    """A validated request.  arrival: seconds of `time.monotonic`, shared by both processes.

    bad_sequences: the bad words and bad ids of the params as token ids.  marker_id: the control
    token that the params' constraint_after is; None: it is a text.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float
    priority: int = 0
    bad_sequences: list[list[int]] = []
    marker_id: int | None = None

    def marker(self) -> Marker | None:
        """What the constraint waits for, if for anything."""
        text = self.params.constraint_after
        return Marker(text.encode(), self.marker_id) if text else None


class Abort(_Message, frozen=True):
    """Forget these requests or checks, or single samples of a request: (id, index).

    What is unknown is ignored, so a late abort is harmless.
    """

    ids: list[str]
    samples: list[tuple[str, int]] = []


class Check(_Message, frozen=True):
    """Compile a constraint, and judge a text by it if one is given; Abort drops it.

    Raises InvalidRequest: the text is too long.
    """

    id: str
    constraint: Constraint
    text: str | None = None

    def __post_init__(self) -> None:
        num_bytes = 0 if self.text is None else len(self.text.encode())
        if num_bytes > MAX_CHECKED_BYTES:
            raise InvalidRequest(
                f"text must have at most {MAX_CHECKED_BYTES} bytes, got {num_bytes}",
                field="input.text",
            )


class Shutdown(_Message, frozen=True):
    """Leave the loop after the current step."""


class ConstraintInfo(_Message, frozen=True):
    """Which backend enforces the constraint, how, and what compiling it cost."""

    backend: str
    compile_s: float
    cached: bool
    key: str
    keywords: list[KeywordReport] = []


class TextVerdict(_Message, frozen=True):
    """How a text fares under a constraint.

    error_offset: its first byte that cannot stand there; None if the text is legal so far.
    may_end: the constraint may end where the legal part does.  expected: what may stand after
    that part, MAX_EXPECTED texts at most, the most telling first.
    """

    error_offset: int | None = None
    may_end: bool = False
    expected: list[str] = []

    @property
    def accepted(self) -> bool:
        return self.error_offset is None and self.may_end

    @property
    def is_prefix(self) -> bool:
        """The text is legal so far, but not complete."""
        return self.error_offset is None and not self.may_end


class RequestStats(_Message, frozen=True):
    """Counters and times (seconds) of one request so far."""

    prompt_tokens: int
    cached_tokens: int = 0
    forwards: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    preemptions: int = 0
    constraint: ConstraintInfo | None = None


class EngineOutput(_Message, frozen=True):
    """New tokens of one sample of a request, and its end.  A request has params.n samples.

    `accepting`: the constraint would accept the text as it stands after the last of `new_ids`.
    `complete_at`: after how many of them it would too, where a stop string may end the text there.
    `stop_id`: the stop id that ended it; not part of new_ids.  `stats` comes with the first tokens
    and with the end; where a stop string may end it first, with every output, but for `constraint`.
    `detail` says which masks left nothing when the reason is DEAD_END.
    `logprobs` are those of new_ids; `prompt_logprobs` come whole with the first output of sample 0,
    None for the first token.  `closed`: the last of new_ids were chosen to complete the text before
    a limit cut it.
    """

    id: str
    new_ids: list[int]
    finish: FinishReason | None = None
    accepting: bool = False
    stop_id: int | None = None
    stats: RequestStats | None = None
    error: WireError | None = None
    detail: str = ""
    index: int = 0
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs | None] = []
    closed: bool = False
    complete_at: list[int] = []


class Checked(_Message, frozen=True):
    """The answer to a Check: `constraint` if it can be used, else `error`.

    size_bytes: about what is kept of the constraint.  verdict: on the text; if that cannot be
    judged, there is an error.
    """

    id: str
    constraint: ConstraintInfo | None = None
    size_bytes: int = 0
    verdict: TextVerdict | None = None
    error: WireError | None = None


class Outputs(_Message, frozen=True):
    """All that one step has to say, sent as one message."""

    outputs: list[EngineOutput]
    checked: list[Checked] = []


class ModelInfo(_Message, frozen=True):
    """What the engine loaded.  `folder` holds the tokenizer; vocab_size is the tokenizer's."""

    name: str
    folder: str
    architecture: str
    vocab_size: int
    context_length: int
    eos_ids: list[int]
    num_parameters: int
    dtype: str
    quantization: str
    kv_dtype: str
    device: str
    attention: str
    block_size: int
    num_blocks: int
    threads: int


class Found(_Message, frozen=True):
    """The engine is going to load this model.  folder: where its tokenizer is."""

    folder: str


class Ready(_Message, frozen=True):
    """The engine answered a warm-up and takes requests."""

    model: ModelInfo


class Fatal(_Message, frozen=True):
    """The engine cannot start or cannot go on."""

    message: str
    traceback: str = ""


ToEngine = EngineRequest | Abort | Check | Shutdown
FromEngine = Outputs | Found | Ready | Fatal

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
