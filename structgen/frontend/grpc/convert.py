"""GenerationInput on the wire <-> GenerationInput of the front end.

Presence decides, never a value: an unset field leaves the default to SamplingParams, a set one is
passed on and checked there.  What the contract names but this server does not offer is refused
here, by path; nothing that a client sets is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, assert_never

from google.protobuf.duration_pb2 import Duration

from structgen.constraints import (
    Backend,
    Choice,
    Constraint,
    ConstraintId,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Whitespace,
)
from structgen.errors import ConstraintError, InvalidRequest
from structgen.frontend.grpc._pb import constraint_pb2, constraint_service_pb2, generation_pb2
from structgen.frontend.inputs import GenerationInput
from structgen.params import JumpForward, SamplingParams
from structgen.tokenizer import ChatMessage

# What SamplingParams and the wire call alike, by the message that holds it.  Presence decides.
SCALARS: Mapping[str, Sequence[str]] = {
    "sampling": (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "n",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "drafts",
    ),
    "stopping": ("max_tokens", "min_tokens"),
    "response": ("logprobs", "prompt_logprobs"),
}
FLAGS: Mapping[str, Sequence[str]] = {
    "stopping": ("include_stop", "ignore_eos"),
    "response": ("constraint_mass",),
}
LISTS: Mapping[str, Sequence[str]] = {
    "sampling": ("allowed_token_ids", "bad_words", "bad_token_ids"),
    "stopping": ("stop", "stop_token_ids"),
}

OPTIONS = "input.constraint.options"
COMPILE_OPTIONS = ("backend", "unsupported", "whitespace")  # those that make another constraint
CheckRequest = (
    constraint_service_pb2.CheckConstraintRequest | constraint_service_pb2.CheckTextRequest
)
Value = TypeVar("Value")

_WHITESPACES = {
    constraint_pb2.WHITESPACE_UNSPECIFIED: Whitespace.COMPACT,
    constraint_pb2.WHITESPACE_COMPACT: Whitespace.COMPACT,
    constraint_pb2.WHITESPACE_FLEXIBLE: Whitespace.FLEXIBLE,
}
_BACKENDS = {
    constraint_pb2.BACKEND_UNSPECIFIED: Backend.AUTO,
    constraint_pb2.BACKEND_AUTO: Backend.AUTO,
    constraint_pb2.BACKEND_XGRAMMAR: Backend.XGRAMMAR,
    constraint_pb2.BACKEND_LLGUIDANCE: Backend.LLGUIDANCE,
    constraint_pb2.BACKEND_OUTLINES_CORE: Backend.OUTLINES_CORE,
}
_BACKENDS_BACK = {backend: number for number, backend in _BACKENDS.items()}
_BEST_EFFORTS = {
    constraint_pb2.UNSUPPORTED_POLICY_UNSPECIFIED: False,
    constraint_pb2.UNSUPPORTED_POLICY_REJECT: False,
    constraint_pb2.UNSUPPORTED_POLICY_BEST_EFFORT: True,
}
_JUMPS = {
    constraint_pb2.JUMP_FORWARD_UNSPECIFIED: JumpForward.COMMIT,
    constraint_pb2.JUMP_FORWARD_OFF: JumpForward.OFF,
    constraint_pb2.JUMP_FORWARD_COMMIT: JumpForward.COMMIT,
    constraint_pb2.JUMP_FORWARD_DRAFT: JumpForward.DRAFT,
}
_JUMPS_BACK = {jump: number for number, jump in _JUMPS.items()}
_CLOSES = {
    constraint_pb2.TRUNCATION_UNSPECIFIED: True,
    constraint_pb2.TRUNCATION_CLOSE: True,
    constraint_pb2.TRUNCATION_MARK: False,
}


# ---- wire -> front end


def from_wire(message: generation_pb2.GenerationInput) -> GenerationInput:
    """Parse a request.

    Raises InvalidRequest, ConstraintError: a value is missing or outside its range.
    """
    constraint = _constraint(message.constraint) if message.HasField("constraint") else None
    return GenerationInput(
        request_id=message.request_id,
        prompt=_prompt(message),
        params=_params(message, None if isinstance(constraint, ConstraintId) else constraint),
        priority=message.priority,
        special_tokens=message.special_tokens,
        constraint_id=constraint.id if isinstance(constraint, ConstraintId) else "",
    )


def constraint_from_wire(message: CheckRequest) -> Constraint | ConstraintId:
    """Parse the constraint of a check.  Raises as `from_wire`, with its paths."""
    return _constraint(message.constraint)


def chat_messages(chat: generation_pb2.Chat) -> list[ChatMessage]:
    return [ChatMessage(message.role, message.content) for message in chat.messages]


def _prompt(message: generation_pb2.GenerationInput) -> str | list[int] | list[ChatMessage]:
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "token_ids":
            return list(message.token_ids.ids)
        case "chat":
            return chat_messages(message.chat)
        case _:
            raise InvalidRequest(
                "prompt must be one of text, token_ids and chat, got none", field="input.prompt"
            )


def _params(
    message: generation_pb2.GenerationInput, constraint: Constraint | None
) -> SamplingParams:
    values: dict[str, Any] = {}
    for holder, name in _fields(SCALARS, message):
        if holder.HasField(name):
            values[name] = getattr(holder, name)
    for holder, name in _fields(FLAGS, message):
        values[name] = getattr(holder, name)
    for holder, name in _fields(LISTS, message):
        values[name] = tuple(getattr(holder, name))
    return SamplingParams(
        **values,
        logit_bias=tuple(sorted(message.sampling.logit_bias.items())),
        time_limit_s=_seconds(message.time_limit) if message.HasField("time_limit") else None,
        constraint=constraint,
        close_within_budget=_option(message.constraint.options, "truncation", _CLOSES),
        jump_forward=_option(message.constraint.options, "jump_forward", _JUMPS),
        constraint_after=message.constraint.options.after,
    )


def _fields(
    table: Mapping[str, Sequence[str]], message: generation_pb2.GenerationInput
) -> Iterator[tuple[Any, str]]:
    """Yield each field of a table: the message that holds it, and its name."""
    for path, names in table.items():
        for name in names:
            yield getattr(message, path), name


def _seconds(duration: Duration) -> float:
    if abs(duration.nanos) >= 10**9 or duration.seconds * duration.nanos < 0:
        raise InvalidRequest(
            f"time_limit is not a Duration: {duration.seconds} s and {duration.nanos} ns",
            field="input.time_limit",
        )
    return duration.seconds + duration.nanos / 1e9


def _constraint(message: constraint_pb2.Constraint) -> Constraint | ConstraintId:
    kind = message.WhichOneof("kind")
    if kind == "constraint_id":
        return _constraint_id(message)
    whitespace = _whitespace(message.options, kind)
    best_effort = _best_effort(message.options, kind)
    backend = _option(message.options, "backend", _BACKENDS)
    match kind:
        case "json_schema":
            return JsonSchema(message.json_schema, whitespace, best_effort, backend=backend)
        case "json_object":
            _require_true(message.json_object)
            return JsonObject(whitespace, backend=backend)
        case "regex":
            return Regex(message.regex, backend=backend)
        case "grammar":
            return _grammar(message.grammar, backend)
        case "structural_tag":
            return StructuralTag(message.structural_tag, backend=backend)
        case "choice":
            return Choice(tuple(message.choice.options), backend=backend)
        case _:
            raise ConstraintError(
                "constraint must have a kind, such as json_schema or regex, got none",
                field="input.constraint.kind",
            )


def _grammar(message: constraint_pb2.Grammar, backend: Backend) -> Ebnf | Lark:
    match message.syntax:
        case constraint_pb2.Grammar.SYNTAX_UNSPECIFIED | constraint_pb2.Grammar.SYNTAX_EBNF:
            return Ebnf(message.text, message.root_rule or "root", backend=backend)
        case constraint_pb2.Grammar.SYNTAX_LARK:
            return Lark(message.text, message.root_rule or "start", backend=backend)
        case number:
            raise ConstraintError(
                f"syntax has no value {number}", field="input.constraint.grammar.syntax"
            )


def _constraint_id(message: constraint_pb2.Constraint) -> ConstraintId:
    """Refuse what the id stands for already; how a request ends and jumps is its own."""
    for option in COMPILE_OPTIONS:
        if getattr(message.options, option):
            raise _inapplicable(option, "constraint_id: it is part of what the id stands for")
    if not message.constraint_id:
        raise ConstraintError(
            "constraint_id must not be empty", field="input.constraint.constraint_id"
        )
    return ConstraintId(message.constraint_id)


def _require_true(json_object: bool) -> None:
    if not json_object:
        raise ConstraintError(
            "json_object must be true; leave the constraint out for free text",
            field="input.constraint.json_object",
        )


def _whitespace(options: constraint_pb2.ConstraintOptions, kind: str | None) -> Whitespace:
    if options.whitespace and kind not in ("json_schema", "json_object"):
        raise _inapplicable("whitespace", kind)
    return _option(options, "whitespace", _WHITESPACES)


def _best_effort(options: constraint_pb2.ConstraintOptions, kind: str | None) -> bool:
    best_effort = _option(options, "unsupported", _BEST_EFFORTS)
    if best_effort and kind != "json_schema":
        raise _inapplicable("unsupported BEST_EFFORT", kind)
    return best_effort


def _option(
    options: constraint_pb2.ConstraintOptions, name: str, meanings: Mapping[Any, Value]
) -> Value:
    number = getattr(options, name)
    if number not in meanings:
        raise ConstraintError(f"{name} has no value {number}", field=f"{OPTIONS}.{name}")
    return meanings[number]


def _inapplicable(option: str, kind: str | None) -> ConstraintError:
    field = f"{OPTIONS}.{option.partition(' ')[0]}"
    return ConstraintError(f"{option} does not apply to {kind}", field=field)


# ---- front end -> wire


def to_wire(given: GenerationInput) -> generation_pb2.GenerationInput:
    """Build a request; what is at its default stays unset.

    Raises InvalidRequest: a number or a text cannot be put on the wire at all.
    """
    try:
        return _to_wire(given)
    except (OverflowError, ValueError) as error:  # out of range, or a lone surrogate
        raise InvalidRequest(f"the request cannot be sent: {error}", field="input") from None


def constraint_to_wire(constraint: Constraint | ConstraintId) -> constraint_pb2.Constraint:
    """Build a constraint.  Raises InvalidRequest: a text cannot be put on the wire at all."""
    message = constraint_pb2.Constraint()
    try:
        _put_constraint(constraint, message)
    except ValueError as error:  # a lone surrogate
        raise InvalidRequest(
            f"the constraint cannot be sent: {error}", field="input.constraint"
        ) from None
    return message


def _to_wire(given: GenerationInput) -> generation_pb2.GenerationInput:
    message = generation_pb2.GenerationInput(
        request_id=given.request_id, special_tokens=given.special_tokens
    )
    if given.priority:
        message.priority = given.priority
    _put_prompt(given.prompt, message)
    _put_params(given.params, message)
    if given.constraint_id:
        _put_constraint(ConstraintId(given.constraint_id), message.constraint)
    elif given.params.constraint is not None:
        _put_constraint(given.params.constraint, message.constraint)
    if message.HasField("constraint") and not given.params.close_within_budget:
        message.constraint.options.truncation = constraint_pb2.TRUNCATION_MARK
    if message.HasField("constraint") and given.params.jump_forward is not JumpForward.COMMIT:
        message.constraint.options.jump_forward = _JUMPS_BACK[given.params.jump_forward]
    if given.params.constraint_after:
        message.constraint.options.after = given.params.constraint_after
    return message


def _put_prompt(
    prompt: str | Sequence[int] | Sequence[ChatMessage], message: generation_pb2.GenerationInput
) -> None:
    if isinstance(prompt, str):
        message.text = prompt
        return
    message.token_ids.SetInParent()  # an empty list is still a list, for the server to refuse
    for part in prompt:
        if isinstance(part, ChatMessage):
            message.chat.messages.add(role=part.role, content=part.content)
        else:
            message.token_ids.ids.append(part)


def _put_params(params: SamplingParams, message: generation_pb2.GenerationInput) -> None:
    defaults = SamplingParams()
    for table in (SCALARS, FLAGS):
        for holder, name in _fields(table, message):
            value = getattr(params, name)
            if value != getattr(defaults, name):
                setattr(holder, name, value)
    for holder, name in _fields(LISTS, message):
        getattr(holder, name).extend(getattr(params, name))
    message.sampling.logit_bias.update(dict(params.logit_bias))
    if params.time_limit_s is not None:
        message.time_limit.FromNanoseconds(round(params.time_limit_s * 1e9))


def _put_constraint(
    constraint: Constraint | ConstraintId, message: constraint_pb2.Constraint
) -> None:
    if isinstance(constraint, ConstraintId):
        message.constraint_id = constraint.id
        return
    if constraint.backend is not Backend.AUTO:
        message.options.backend = _BACKENDS_BACK[constraint.backend]
    match constraint:
        case JsonSchema():
            message.json_schema = constraint.schema
            _put_whitespace(constraint.whitespace, message)
            if constraint.best_effort:
                message.options.unsupported = constraint_pb2.UNSUPPORTED_POLICY_BEST_EFFORT
        case JsonObject():
            message.json_object = True
            _put_whitespace(constraint.whitespace, message)
        case Regex():
            message.regex = constraint.pattern
        case Ebnf():
            message.grammar.text = constraint.text
            message.grammar.root_rule = constraint.root
        case Lark():
            message.grammar.syntax = constraint_pb2.Grammar.SYNTAX_LARK
            message.grammar.text = constraint.text
            message.grammar.root_rule = constraint.start
        case StructuralTag():
            message.structural_tag = constraint.structural_tag
        case Choice():
            message.choice.options.extend(constraint.options)
        case _:
            assert_never(constraint)


def _put_whitespace(whitespace: Whitespace, message: constraint_pb2.Constraint) -> None:
    if whitespace is Whitespace.FLEXIBLE:
        message.options.whitespace = constraint_pb2.WHITESPACE_FLEXIBLE
