"""The command line: serve | generate | call | check | pull.

Answers go to stdout, everything else to stderr.  An error is one line and a non-zero exit; Ctrl-C
exits with 130.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from structgen import config, logs
from structgen.config import EngineConfig, ServerConfig
from structgen.errors import InvalidRequest, StructgenError
from structgen.frontend import options, report
from structgen.frontend.checks import ConstraintCheck
from structgen.frontend.outputs import RequestOutput, merge_answers

if TYPE_CHECKING:
    from structgen.frontend.llm import GenerationResult
    from structgen.tokenizer import Tokenizer

FAILED = 1
UNFINISHED = 3  # 2 is argparse's
INTERRUPTED = 130


class CallConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where `structgen call` finds its server."""

    address: Annotated[str, Meta(description="HOST:PORT of the server")] = "127.0.0.1:50051"
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="seconds after which the call is given up"),
    ] = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        status: int = given.command(given)
    except StructgenError as error:
        print(f"structgen: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("structgen: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="structgen", description="Generation whose answers obey their constraint."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command, add_options, summary in (
        ("serve", _serve, _add_serve, "Serve a model over gRPC."),
        ("generate", _generate, _add_generate, "Answer prompts without a server."),
        ("call", _call, _add_call, "Send one prompt to a server."),
        (
            "check",
            _check,
            _add_check,
            "Tell what can be made of a constraint, and of a text by it.",
        ),
        ("pull", _pull, _add_pull, "Fetch and convert a model, and print its folder."),
    ):
        sub = commands.add_parser(name, help=summary, description=summary)
        add_options(sub)
        sub.set_defaults(command=command)
    return parser


# ---- serve


def _add_serve(parser: ArgumentParser) -> None:
    options.add_config(parser, ServerConfig, "server")
    options.add_config(parser, EngineConfig, "engine")
    options.add_config_file(parser)
    parser.epilog = (
        "Prints `structgen ready on HOST:PORT` when it takes requests. SIGTERM or Ctrl-C lets the "
        "running ones finish first; a second one does not."
    )


def _serve(given: Namespace) -> int:
    from structgen.frontend.grpc.server import serve

    engine = config.load(EngineConfig, vars(given), given.config)
    server = config.load(ServerConfig, vars(given), given.config)
    logs.configure(engine.log_level)
    asyncio.run(serve(engine, server))
    return 0


# ---- generate


def _add_generate(parser: ArgumentParser) -> None:
    options.add_prompts(parser)
    options.add_params(parser)
    options.add_constraint(parser)
    options.add_constrained_answer(parser)
    options.add_config(parser, EngineConfig, "engine")
    options.add_config_file(parser)
    parser.epilog = (
        "Prints a JSON object a line, in the order of the prompts; with --n, one for each answer. "
        "Exits with 1 if any of them failed; its line has `error`."
    )


def _generate(given: Namespace) -> int:
    from structgen.frontend.llm import LLM

    engine = config.load(EngineConfig, vars(given), given.config)
    logs.configure(engine.log_level)
    prompts = options.prompts(given)
    params = options.params(given)
    with LLM(**msgspec.structs.asdict(engine)) as llm:
        results = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    for result in results:
        for sample in result.samples:
            _print_json(sample)
    return FAILED if any(result.error for result in results) else 0


# ---- call


def _add_call(parser: ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="default: all of stdin")
    parser.add_argument("--chat", action="store_true", help="send it as a user's message")
    parser.add_argument(
        "--json", action="store_true", help="print whole answers as JSON, one a line"
    )
    options.add_params(parser)
    parser.add_argument(
        "--no-drafts", dest="drafts", action="store_false", help="have no tokens guessed"
    )
    options.add_constraint(parser)
    options.add_constrained_answer(parser)
    options.add_config(parser, CallConfig, "connection")
    parser.epilog = (
        "Prints the text as it comes; with --n, one answer after the other when all are there. "
        "Exits with 3 if an answer ended before its constraint did."
    )


def _call(given: Namespace) -> int:
    from structgen.frontend.client import Client

    connection = config.load(CallConfig, vars(given))
    prompt = options.prompt(
        given.prompt if given.prompt is not None else sys.stdin.read(), chat=given.chat
    )
    params = options.params(given)
    alone = params.n == 1
    with (
        Client(connection.address) as client,
        closing(client.stream(prompt, params, timeout_s=connection.timeout_s)) as pieces,
    ):
        answers = merge_answers(_shown(pieces, silent=given.json or not alone))
    for answer in answers:
        if given.json:
            _print_json(answer)
        elif not alone:
            print(answer.text)
    return max([_judge(answer) for answer in answers])


def _shown(pieces: Iterator[RequestOutput], *, silent: bool) -> Iterator[RequestOutput]:
    for piece in pieces:
        if not silent:
            print(piece.text, end="" if piece.finish is None else "\n", flush=True)
        yield piece


def _judge(answer: RequestOutput) -> int:
    assert answer.finish is not None
    if answer.finish.constraint_status in ("not_constrained", "complete"):
        return 0
    reason = f"{answer.finish.constraint_status}, {answer.finish.reason} {answer.finish.detail}"
    print(f"structgen: the answer is {reason.rstrip()}", file=sys.stderr)
    return UNFINISHED


# ---- check


def _add_check(parser: ArgumentParser) -> None:
    options.add_constraint(parser)
    group = parser.add_argument_group("text to judge, at most one")
    texts = group.add_mutually_exclusive_group()
    texts.add_argument("--text", metavar="TEXT", help="this text")
    texts.add_argument(
        "--text-file",
        metavar="FILE",
        help="all of a file, - for stdin; a line end after the text is let pass",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="use the vocabulary of this model, or of a tokenizer's folder (default: bytes)",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.epilog = (
        "Works without a server, a model or its weights. Prints what enforces the constraint and "
        "what becomes of each keyword of a schema; of a text, whether it is accepted, or the first "
        "place that is not. Exits with 1 if the constraint or the text is refused, with 3 if the "
        "text is legal but unfinished."
    )


def _check(given: Namespace) -> int:
    logs.configure("WARNING")
    try:
        outcome, text = _checked(given)
    except StructgenError as error:
        if given.json:
            _print(report.refusal_to_json(error))
            return FAILED
        raise
    if given.json:
        _print(report.to_json(outcome, text))
    else:
        print("\n".join(report.lines(outcome, text)))
    verdict = outcome.verdict
    if verdict is None or verdict.accepted:
        return 0
    return UNFINISHED if verdict.is_prefix else FAILED


def _checked(given: Namespace) -> tuple[ConstraintCheck, bytes | None]:
    """Check what was given; returns the text as it was judged."""
    from structgen.frontend.check import check, vocabulary  # imports numpy

    constraint = options.constraint(given)
    if constraint is None:
        raise InvalidRequest("a constraint is needed, such as --schema FILE")
    over = vocabulary(_tokenizer(given.model).token_bytes if given.model else None)
    text = options.text(given)
    outcome = check(constraint, over, text)
    if given.text_file and text and _fails_at_line_end(outcome, text):
        text = text.rstrip(b"\r\n")
        outcome = check(constraint, over, text)
    return outcome, text


def _fails_at_line_end(outcome: ConstraintCheck, text: bytes) -> bool:
    """Whether nothing but the line end after the text is wrong with it."""
    offset = outcome.verdict.error_offset if outcome.verdict else None
    return offset is not None and text[offset:] in (b"\n", b"\r\n")


def _tokenizer(model: str) -> Tokenizer:
    from structgen.tokenizer import Tokenizer

    folder = Path(model).expanduser()
    if not (folder / "tokenizer.json").is_file():  # whose weights need not be there
        from structgen.model.sources import resolve

        folder = resolve(model, progress=sys.stderr.isatty())
    return Tokenizer.load(folder)


# ---- pull


def _add_pull(parser: ArgumentParser) -> None:
    model = EngineConfig().model
    parser.add_argument(
        "model", nargs="?", default=model, help=f"as --model of serve (default: {model})"
    )


def _pull(given: Namespace) -> int:
    from structgen.model.sources import resolve  # imports torch: only here, and only on demand

    print(resolve(given.model, progress=sys.stderr.isatty()))
    return 0


def _print(values: object) -> None:
    print(json.dumps(msgspec.to_builtins(values), ensure_ascii=False), flush=True)


def _print_json(answer: GenerationResult | RequestOutput) -> None:
    values = msgspec.structs.asdict(answer)
    if answer.constraint is not None:  # on the wire to the engine, and so to msgspec, arrays
        keywords = [msgspec.structs.asdict(report) for report in answer.constraint.keywords]
        values["constraint"] = msgspec.structs.asdict(answer.constraint) | {"keywords": keywords}
    values.pop("others", None)  # each has its own line
    if (error := values.get("error")) is not None:
        values["error"] = str(error)
    _print(values)
