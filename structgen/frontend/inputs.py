"""What a caller asks for -> EngineRequest.

Everything that needs the tokenizer or the model's limits is checked here, once; what comes after
trusts the request.  Each error names the field in the public contract, the value and the limit.
"""

from __future__ import annotations

import operator
import re
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TypeGuard

import msgspec

from structgen.errors import InvalidRequest
from structgen.frontend import bad_words
from structgen.frontend.choices import ChoiceFilter
from structgen.messages import EngineRequest, ModelInfo
from structgen.params import MARKER_FIELD, SamplingParams
from structgen.tokenizer import ChatMessage, Tokenizer

Prompt = str | list[int] | list[ChatMessage]

TEXT = "input.text"
TOKEN_IDS = "input.token_ids.ids"
CHAT = "input.chat"

MAX_REQUEST_ID_CHARS = 128
REQUEST_ID = re.compile("[!-~]*")  # printable ASCII without the space: ids go into logs

# Control tokens have no bytes in the token table, yet a prompt may spell them.
LONGEST_SPELLING = 64

# A bad word is encoded a few times, each at a price of its own beside that of its characters.
BAD_WORD_CHARS = 64


class GenerationInput(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a caller.

    request_id: "" has one made.  prompt: text, token ids, or chat messages for the model's
    template.  special_tokens: text that spells a control token is one; else it is plain text.
    constraint_id: of a constraint compiled before, in place of one in the params.
    """

    prompt: Prompt
    request_id: str = ""
    params: SamplingParams = SamplingParams()
    priority: int = 0
    special_tokens: bool = False
    constraint_id: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidRequest: there are two constraints."""
        if self.constraint_id and self.params.constraint is not None:
            raise InvalidRequest(
                "constraint must be given once: in params or by its id", field="input.constraint"
            )


def new_request_id() -> str:
    return uuid.uuid4().hex


def is_chat(prompt: Prompt) -> TypeGuard[list[ChatMessage]]:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], ChatMessage)


def num_chars(input: GenerationInput) -> int:
    """Return how much text there is to encode, about."""
    words = sum(BAD_WORD_CHARS + 2 * len(word) for word in input.params.bad_words)
    return _prompt_chars(input.prompt) + words


def _prompt_chars(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    if is_chat(prompt):
        return sum(len(message.role) + len(message.content) for message in prompt)
    return 0


class InputProcessor:
    """Encodes and checks requests.  Immutable, so any thread may use it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: ModelInfo,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: the one that the engine and the output processor read."""
        self._tokenizer = tokenizer
        self._vocab_size = model.vocab_size
        self._eos_ids = frozenset(model.eos_ids)
        self._context_length = model.context_length
        self._clock = clock
        self._choices = ChoiceFilter(tokenizer.token_bytes)
        longest = max(map(len, tokenizer.token_bytes), default=0)
        self._max_chars = model.context_length * max(longest, LONGEST_SPELLING)

    def process(self, input: GenerationInput) -> EngineRequest:
        """Return the request for the engine; its id is the caller's, or a new one.

        Raises InvalidRequest: the prompt is empty or leaves no room in the context, an id is
        outside the vocabulary, the request id is malformed, or nothing could be answered.
        """
        assert not input.constraint_id, "KnownConstraints.resolve comes before"
        arrival = self._clock()
        _check_request_id(input.request_id)
        self._check_token_ids(input.params)
        self._check_stop_ids(input.params)
        params = self._choices.apply(input.params)
        marker_id = self._marker_id(params)
        return EngineRequest(
            id=input.request_id or new_request_id(),
            prompt_ids=self._encode(input.prompt, input.special_tokens),
            params=params,
            arrival=arrival,
            priority=input.priority,
            bad_sequences=bad_words.bad_sequences(
                params.bad_words, params.bad_token_ids, self._tokenizer
            ),
            marker_id=marker_id,
        )

    def _check_token_ids(self, params: SamplingParams) -> None:
        self._check_set(params.stop_token_ids, "input.stopping.stop_token_ids")
        self._check_set(params.allowed_token_ids, "input.sampling.allowed_token_ids")
        self._check_set(params.bad_token_ids, "input.sampling.bad_token_ids")
        for id, _ in params.logit_bias:
            self._check_id(id, f"input.sampling.logit_bias[{id}]")

    def _check_stop_ids(self, params: SamplingParams) -> None:
        stop_ids = set(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self._eos_ids
        if stop_ids and stop_ids.issubset(params.bad_token_ids):
            raise InvalidRequest(
                "bad_token_ids must leave a token that ends the answer, got all of "
                f"{sorted(stop_ids)}",
                field="input.sampling.bad_token_ids",
            )

    def _marker_id(self, params: SamplingParams) -> int | None:
        """Return the control token that `constraint_after` is; None: it is a text, or not given."""
        if params.constraint_after and params.constraint is None:
            raise InvalidRequest(
                "constraint_after applies to a constraint, got none", field=MARKER_FIELD
            )
        id = self._tokenizer.special_id_of(params.constraint_after)
        if id is None:
            _check_marker_text(params)
            return None
        ends = id in self._eos_ids or id in params.stop_token_ids
        banned = params.allowed_token_ids and id not in params.allowed_token_ids
        if ends or banned or id in params.bad_token_ids:
            reason = "ends the answer" if ends else "is not allowed in the answer"
            raise InvalidRequest(
                f"constraint_after must be a marker that can come, but {params.constraint_after!r} "
                f"is the token {id}, which {reason}",
                field=MARKER_FIELD,
            )
        return id

    def _encode(self, prompt: Prompt, special: bool) -> list[int]:
        if isinstance(prompt, str):
            return self._encode_text(prompt, special)
        if is_chat(prompt):
            return self._encode_chat(prompt)
        return self._accept_ids(prompt)

    def _encode_text(self, text: str, special: bool) -> list[int]:
        self._check_text(text, TEXT)
        ids = self._tokenizer.encode(text, special=special)
        self._check_room(len(ids), TEXT)
        return ids

    def _encode_chat(self, messages: list[ChatMessage]) -> list[int]:
        self._check_room(len(messages), CHAT)  # a template makes at least a token of each
        self._check_text("".join([m.role + m.content for m in messages]), CHAT)
        ids = self._tokenizer.encode_chat(messages)
        self._check_room(len(ids), CHAT)
        return ids

    def _accept_ids(self, prompt: Sequence[object]) -> list[int]:
        self._check_room(len(prompt), TOKEN_IDS)
        try:
            ids = [operator.index(id) for id in prompt]  # type: ignore[arg-type]
        except TypeError:
            raise InvalidRequest(
                "a prompt must be a text, a list of token ids or a list of chat messages",
                field="input.prompt",
            ) from None
        self._check_ids(ids, TOKEN_IDS)
        return ids

    def _check_text(self, text: str, field: str) -> None:
        """Refuse what no encoding could make fit, before the time to encode it is spent."""
        # A character is at least a byte, and no token stands for more bytes than the longest.
        if len(text) > self._max_chars:
            raise InvalidRequest(
                f"prompt must fit the context of {self._context_length} tokens, so have at most "
                f"{self._max_chars} characters, got {len(text)}",
                field=field,
            )
        if not text:
            raise InvalidRequest("prompt must not be empty", field=field)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"prompt holds a lone surrogate at character {error.start}", field=field
            ) from None

    def _check_room(self, num_tokens: int, field: str) -> None:
        if num_tokens < 1:
            raise InvalidRequest("prompt must not be empty", field=field)
        if num_tokens + 1 > self._context_length:
            raise InvalidRequest(
                f"prompt must leave room for a token in the context of {self._context_length}, "
                f"got {num_tokens} tokens",
                field=field,
            )

    def _check_set(self, ids: Sequence[int], field: str) -> None:
        if len(ids) > self._vocab_size:
            raise InvalidRequest(
                f"there must be at most as many ids as the vocabulary has, {self._vocab_size}, "
                f"got {len(ids)}",
                field=field,
            )
        self._check_ids(ids, field)

    def _check_ids(self, ids: Sequence[int], field: str) -> None:
        if not ids or (min(ids) >= 0 and max(ids) < self._vocab_size):
            return
        for index, id in enumerate(ids):
            self._check_id(id, f"{field}[{index}]")

    def _check_id(self, id: int, field: str) -> None:
        if not 0 <= id < self._vocab_size:
            raise InvalidRequest(
                f"token ids must be in [0, {self._vocab_size}), got {id}", field=field
            )


def _check_marker_text(params: SamplingParams) -> None:
    """Raises InvalidRequest: the marker is a bad word, or a stop string ends the answer in it."""
    marker = params.constraint_after
    if not marker:
        return
    if marker.strip() in {word.strip() for word in params.bad_words}:
        raise InvalidRequest(
            f"constraint_after must be a marker that can come, but {marker!r} is a bad word",
            field=MARKER_FIELD,
        )
    for stop in params.stop:
        if stop in marker:
            raise InvalidRequest(
                f"constraint_after must be a marker behind which the answer goes on, but the stop "
                f"string {stop!r} in {marker!r} ends it",
                field=MARKER_FIELD,
            )


def _check_request_id(request_id: str) -> None:
    if len(request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            f"request_id must have at most {MAX_REQUEST_ID_CHARS} characters, "
            f"got {len(request_id)}",
            field="input.request_id",
        )
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidRequest(
            f"request_id must be printable ASCII without spaces, got {request_id!r}",
            field="input.request_id",
        )
