"""The command line: serve | generate | call | pull.

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
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from structgen import config, logs
from structgen.config import EngineConfig, ServerConfig
from structgen.errors import StructgenError
from structgen.frontend import options
from structgen.frontend.outputs import RequestOutput, merge_answers

if TYPE_CHECKING:
    from structgen.frontend.llm import GenerationResult

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
    options.add_constraint(parser)
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


def _print_json(answer: GenerationResult | RequestOutput) -> None:
    values = msgspec.structs.asdict(answer)
    if answer.constraint is not None:  # on the wire to the engine, and so to msgspec, arrays
        keywords = [msgspec.structs.asdict(report) for report in answer.constraint.keywords]
        values["constraint"] = msgspec.structs.asdict(answer.constraint) | {"keywords": keywords}
    values.pop("others", None)  # each has its own line
    if (error := values.get("error")) is not None:
        values["error"] = str(error)
    print(json.dumps(msgspec.to_builtins(values), ensure_ascii=False), flush=True)
