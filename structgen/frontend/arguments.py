"""What Python callers may pass for a prompt and a constraint, made into what requests hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from structgen.constraints import Constraint, JsonSchema
from structgen.errors import InvalidRequest
from structgen.frontend.inputs import Prompt
from structgen.params import SamplingParams
from structgen.tokenizer import ChatMessage

AnyPrompt = str | Sequence[int] | Sequence[ChatMessage] | Sequence[Mapping[str, str]]
AnyConstraint = Constraint | Mapping[str, object] | type


def to_prompt(prompt: AnyPrompt) -> Prompt:
    """Make a prompt of a text, token ids, or messages.  Raises InvalidRequest: not a message."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) and isinstance(prompt[0], ChatMessage | Mapping):
        messages = cast(Sequence[ChatMessage | Mapping[str, str]], prompt)
        return [_message(message, index) for index, message in enumerate(messages)]
    return list(cast(Sequence[int], prompt))


def to_constraint(value: AnyConstraint) -> Constraint:
    """Make a constraint of a JSON schema as a mapping, or of a Pydantic model class.

    Raises InvalidRequest: it is none of these.
    """
    if isinstance(value, Constraint):
        return value
    try:
        return JsonSchema.of(dict(value) if isinstance(value, Mapping) else value)
    except TypeError:
        raise InvalidRequest(
            "constraint must be a Constraint, a JSON schema as a mapping, or a Pydantic model "
            f"class, got {value!r}",
            field="input.constraint",
        ) from None


def constrain(params: SamplingParams, constraint: AnyConstraint | None) -> SamplingParams:
    """Put a constraint given beside the params into them.  Raises InvalidRequest: given twice."""
    if constraint is None:
        return params
    if params.constraint is not None:
        raise InvalidRequest(
            "constraint must be given once: in params or beside them", field="input.constraint"
        )
    return msgspec.structs.replace(params, constraint=to_constraint(constraint))


def _message(message: ChatMessage | Mapping[str, str], index: int) -> ChatMessage:
    try:
        return msgspec.convert(message, ChatMessage, from_attributes=True)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"a chat message must have a role and a content, both text: {error}",
            field=f"input.chat.messages[{index}]",
        ) from None
