"""Command line options: made from the configs and the params, and read back into them."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from structgen import config
from structgen.constraints import (
    Backend,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Whitespace,
)
from structgen.errors import InvalidRequest
from structgen.frontend import ready_grammars
from structgen.frontend.inputs import Prompt
from structgen.params import JumpForward, SamplingParams
from structgen.tokenizer import ChatMessage

# ---- configs


def add_config(parser: ArgumentParser, cls: type[msgspec.Struct], title: str) -> None:
    """Add an option for every field of a config; one that is not given is None.

    Values stay text: `config.load` converts and checks them, as it does the environment's.
    """
    group = parser.add_argument_group(
        f"{title} options", f"each also from the environment, as {config.ENV_PREFIX}NAME"
    )
    for name, (kind, default, description) in config.describe(cls).items():
        flag = f"--{name.replace('_', '-')}"
        help = description.replace("%", "%%")
        if default is not None:
            help += f" (default: {default})"
        if kind is bool:
            group.add_argument(flag, action=BooleanOptionalAction, default=None, help=help)
        else:
            group.add_argument(flag, metavar=_metavar(kind), help=help)


def add_config_file(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file with any of the options, by name"
    )


def _metavar(kind: Any) -> str:
    while get_args(kind):  # of `Annotated[int, ...] | None`, say
        kind = get_args(kind)[0]
    return {int: "N", float: "X"}.get(kind, "TEXT")


# ---- prompts


def add_prompts(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="prompts, one a line (default: stdin)"
    )
    parser.add_argument("--chat", action="store_true", help="take each as a user's message")
    parser.add_argument(
        "--jsonl",
        action="store_true",
        help='lines are JSON: "text", [token ids], or [{"role": ..., "content": ...}, ...]',
    )


def prompts(given: Namespace) -> list[Prompt]:
    """Read the prompts.  Raises InvalidRequest: no file, or a line that is no prompt."""
    lines = _read(given.file).splitlines() if given.file else sys.stdin.read().splitlines()
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    if given.jsonl:
        return [_json_prompt(number, line) for number, line in numbered]
    return [prompt(line, chat=given.chat) for _, line in numbered]


def prompt(text: str, *, chat: bool) -> Prompt:
    return [ChatMessage("user", text)] if chat else text


def _json_prompt(number: int, line: str) -> Prompt:
    try:
        return msgspec.json.decode(line, type=str | list[int | ChatMessage])  # type: ignore[return-value]
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"line {number} is not a prompt: {error}") from None


# ---- params


# Field of SamplingParams -> type and help.
SCALARS: Mapping[str, tuple[type[int] | type[float], str]] = {
    "max_tokens": (int, "most tokens to answer (default: what the context leaves)"),
    "min_tokens": (int, "fewest tokens to answer"),
    "temperature": (float, "0 takes the most likely token (default: 1)"),
    "top_k": (int, "only the N most likely tokens (default: all)"),
    "top_p": (float, "only the most likely tokens that together reach X (default: 1)"),
    "min_p": (float, "only tokens at least X times as likely as the likeliest (default: 0)"),
    "seed": (int, "makes the draw repeatable"),
    "n": (int, "number of answers (default: 1)"),
    "repetition_penalty": (float, "divides the logits of tokens seen before (default: 1)"),
    "frequency_penalty": (float, "subtracted each time a token was answered (default: 0)"),
    "presence_penalty": (float, "subtracted if a token was answered (default: 0)"),
    "time_limit_s": (float, "seconds after which the answer ends as it is"),
    "logprobs": (int, "report log probabilities: of each token and of the N most likely"),
    "prompt_logprobs": (int, "the same for the prompt"),
}
FLAGS = {
    "include_stop": "leave the stop text in the answer",
    "ignore_eos": "go on after the end of text",
    "constraint_mass": "report how likely the model found what was allowed, by token",
}


def bias(text: str) -> tuple[int, float]:
    id, _, value = text.partition("=")
    return int(id), float(value)


# Field of SamplingParams -> flag, what it takes, how that is read, and help.
LISTS: Mapping[str, tuple[str, str, Callable[[str], object], str]] = {
    "stop": ("--stop", "TEXT", str, "ends the answer"),
    "stop_token_ids": ("--stop-token-id", "ID", int, "ends the answer"),
    "bad_words": ("--bad-word", "TEXT", str, "is not answered, with or without a space before it"),
    "bad_token_ids": ("--bad-token-id", "ID", int, "is not answered"),
    "allowed_token_ids": ("--allowed-token-id", "ID", int, "only such ids are answered"),
    "logit_bias": ("--logit-bias", "ID=X", bias, "added to the logit of a token"),
}


def add_params(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("sampling options")
    for name, (kind, help) in SCALARS.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, metavar=_metavar(kind), help=help)
    for name, help in FLAGS.items():
        group.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=help)
    for name, (flag, metavar, read, help) in LISTS.items():
        group.add_argument(
            flag,
            dest=name,
            action="append",
            type=read,
            metavar=metavar,
            help=f"{help}; repeatable",
        )


def params(given: Namespace) -> SamplingParams:
    """Build the params, constraint included.  Raises InvalidRequest, ConstraintError."""
    values = {name: vars(given)[name] for name in (*SCALARS, *FLAGS, *LISTS)}
    values = {name: value for name, value in values.items() if value is not None}
    lists = {name: tuple(values[name]) for name in LISTS if name in values}
    wanted = constraint(given)
    if given.constraint_after and wanted is None:
        raise InvalidRequest("--constraint-after applies to a constraint, got none")
    return SamplingParams(
        **values | lists,
        constraint=wanted,
        close_within_budget=given.truncation == "close",
        jump_forward=JumpForward(given.jump_forward),
        constraint_after=given.constraint_after,
        drafts=given.drafts is not False,  # None: the engine's own option was not given
    )


# ---- constraints


def add_constraint(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("constraint, at most one")
    kinds = group.add_mutually_exclusive_group()
    kinds.add_argument("--schema", type=Path, metavar="FILE", help="a JSON schema")
    kinds.add_argument("--json-object", action="store_true", help="any JSON object")
    kinds.add_argument("--regex", metavar="PATTERN", help="must match the whole answer")
    kinds.add_argument("--ebnf", type=Path, metavar="FILE", help="a grammar with the rule `root`")
    kinds.add_argument("--lark", type=Path, metavar="FILE", help="a grammar with the rule `start`")
    kinds.add_argument(
        "--structural-tag",
        type=Path,
        metavar="FILE",
        help="JSON: constrained passages in free text",
    )
    kinds.add_argument(
        "--grammar",
        metavar="NAME",
        help=f"a ready one: {', '.join(ready_grammars.files())}",
    )
    kinds.add_argument("--choice", action="append", metavar="TEXT", help="repeat for each option")
    group.add_argument(
        "--whitespace",
        choices=[kind.value for kind in Whitespace],
        default=Whitespace.COMPACT.value,
        help="between the tokens of JSON (default: compact)",
    )
    group.add_argument(
        "--backend",
        choices=[backend.value for backend in Backend],
        default=Backend.AUTO.value,
        help="the library that enforces it (default: auto, the first that enforces all of it)",
    )
    group.add_argument(
        "--best-effort",
        action="store_true",
        help="go on without the keywords of the schema that nothing can enforce",
    )


def add_constrained_answer(parser: ArgumentParser) -> None:
    """Add what may be said of an answer under a constraint, not of the constraint itself."""
    group = parser.add_argument_group("options of a constrained answer")
    group.add_argument(
        "--jump-forward",
        choices=[kind.value for kind in JumpForward],
        default=JumpForward.COMMIT.value,
        help="text that the constraint leaves no choice about: append it (default), sample it, or "
        "sample it but guess that it comes",
    )
    group.add_argument(
        "--truncation",
        choices=["close", "mark"],
        default="close",
        help="when a limit comes near: complete the answer (default), or cut and mark it",
    )
    group.add_argument(
        "--constraint-after",
        metavar="TEXT",
        default="",
        help="leave the answer free until this marker, such as </think>",
    )


def constraint(given: Namespace) -> Constraint | None:
    """Build the constraint, if one is given.  Raises InvalidRequest, ConstraintError."""
    if given.best_effort and not given.schema:
        raise InvalidRequest("--best-effort applies to --schema only")
    whitespace, backend = Whitespace(given.whitespace), Backend(given.backend)
    if given.schema:
        return JsonSchema(_read(given.schema), whitespace, given.best_effort, backend=backend)
    if given.json_object:
        return JsonObject(whitespace, backend=backend)
    if given.regex is not None:
        return Regex(given.regex, backend=backend)
    if given.ebnf:
        return Ebnf(_read(given.ebnf), backend=backend)
    if given.lark:
        return Lark(_read(given.lark), backend=backend)
    if given.structural_tag:
        return StructuralTag(_read(given.structural_tag), backend=backend)
    if given.grammar:
        return ready_grammars.ready(given.grammar, backend)
    if given.choice:
        return Choice(tuple(given.choice), backend=backend)
    if backend is not Backend.AUTO:
        raise InvalidRequest("--backend applies to a constraint, got none")
    return None


def text(given: Namespace) -> bytes | None:
    """Return the text to judge, if one is given.  Raises InvalidRequest: it cannot be read."""
    if given.text is not None:
        # An argument that was not UTF-8 holds its bytes as surrogates.
        return str(given.text).encode(errors="surrogateescape")
    if given.text_file == "-":
        return sys.stdin.buffer.read()
    return None if given.text_file is None else _read_bytes(Path(given.text_file))


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error}") from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {file}: {error}") from None
