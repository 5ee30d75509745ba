"""An AsyncLLM without an engine: the prompt says what happens."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import msgspec

from structgen.config import ServerConfig
from structgen.constraints import Constraint, ConstraintId, Regex
from structgen.errors import (
    ConstraintError,
    DuplicateRequest,
    EngineDead,
    LimitExceeded,
    NotFound,
)
from structgen.frontend.answer import ConstraintStatus, Finish
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.checks import ConstraintCheck
from structgen.frontend.grpc.server import Server
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.logprobs import PositionLogprobs, TokenLogprob
from structgen.frontend.outputs import RequestOutput
from structgen.frontend.usage import Timings, Usage
from structgen.keywords import KeywordReport, Treatment
from structgen.messages import ConstraintInfo, FinishReason, ModelInfo, TextVerdict
from structgen.tokenizer import ChatMessage

MODEL = ModelInfo(
    name="scripted",
    folder="/secret/place",
    architecture="ScriptForCausalLM",
    vocab_size=128,
    context_length=2048,
    eos_ids=[0],
    num_parameters=7,
    dtype="float32",
    quantization="none",
    kv_dtype="float32",
    device="cpu",
    attention="none",
    block_size=16,
    num_blocks=64,
    threads=1,
)


INFO = ConstraintInfo(
    "xgrammar", 0.25, False, "key", [KeywordReport("/title", "title", Treatment.ANNOTATION)]
)


class AsciiTokenizer:
    """One token for each ASCII character."""

    size = 128

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        return ([1] if special else []) + [ord(c) for c in text]

    def encode_chat(self, messages: Iterable[ChatMessage]) -> list[int]:
        return [ord(c) for message in messages for c in f"{message.role}:{message.content};"]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return "".join(chr(i) for i in ids if i or not skip_special)


class ScriptedLLM:
    """Answers by the prompt's text.

    "hang" gives nothing, "begin" gives one piece and then nothing, "flood" gives pieces without
    end; "full" raises an error of ours, "bug" one that is not, "lost" dies after a piece; "slow"
    ends when `finish` is set; "json" answers an object, "long N" N characters, "scored" reports log
    probabilities; anything else is three pieces, of each answer if n is above 1.
    """

    def __init__(self) -> None:
        self.ready = True
        self.model = MODEL
        self.tokenizer = AsciiTokenizer()
        self.on_state: Callable[[bool], None] | None = None
        self.inputs: list[GenerationInput] = []
        self.checks: list[tuple[Constraint | ConstraintId, str | None]] = []
        self.live: list[str] = []
        self.aborted: list[str] = []
        self.finish = asyncio.Event()
        self.given_up = asyncio.Event()
        self.closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(self, input: GenerationInput) -> AsyncGenerator[RequestOutput, None]:
        if not self.ready:
            raise EngineDead("the server is not ready")
        request_id = input.request_id or f"request-{len(self.inputs)}"
        if request_id in self.live:
            raise DuplicateRequest("live already", field="input.request_id")
        self.inputs.append(input)
        self.live.append(request_id)
        self._idle.clear()
        num_finished = 0
        ended = False
        try:
            async for piece in self._pieces(request_id, input):
                num_finished += piece.finish is not None
                ended = num_finished == input.params.n
                yield piece
        except Exception:
            ended = True
            raise
        finally:
            self.live.remove(request_id)
            if not self.live:
                self._idle.set()
            if not ended:
                self.aborted.append(request_id)

    async def check(
        self, constraint: Constraint | ConstraintId, text: str | None = None
    ) -> ConstraintCheck:
        """Judge by the text: "hang" is never judged; digits are accepted, and "+" before them."""
        if not self.ready:
            raise EngineDead("the server is not ready")
        self.checks.append((constraint, text))
        match constraint:
            case ConstraintId(id) if id != INFO.key:
                raise NotFound(f"no {id}", field="input.constraint.constraint_id")
            case Regex("bad"):
                raise ConstraintError("regex is bad", field="input.constraint.regex")
        if text == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                self.aborted.append("check")
        return ConstraintCheck(constraint=INFO, size_bytes=1234, verdict=_verdict(text))

    async def _pieces(
        self, request_id: str, input: GenerationInput
    ) -> AsyncIterator[RequestOutput]:
        constrained = input.params.constraint is not None
        match input.prompt:
            case "hang":
                await asyncio.Event().wait()
            case "begin":
                yield first_piece(request_id, "Hel", constrained)
                await asyncio.Event().wait()
            case "full":
                raise LimitExceeded("the queue holds 1 request")
            case "bug":
                raise RuntimeError("secret detail")
            case "lost":
                yield first_piece(request_id, "Hel", constrained)
                raise EngineDead("the engine died")
            case "slow":
                await self.finish.wait()
                yield last_piece(request_id, "slow", constrained)
            case "json":
                yield first_piece(request_id, '{"name": ', constrained)
                yield last_piece(request_id, '"Ada"}', constrained)
            case "flood":
                while True:
                    yield first_piece(request_id, "more ", constrained)
                    await asyncio.sleep(0)
            case "scored":
                yield msgspec.structs.replace(
                    first_piece(request_id, "Hel", constrained),
                    logprobs=[position(7, 0.5)],
                    prompt_logprobs=[None, position(5)],
                )
                yield RequestOutput(
                    request_id=request_id, text="", token_ids=[9], logprobs=[position(9)]
                )
                last = last_piece(request_id, "lo", constrained)
                yield msgspec.structs.replace(last, logprobs=[position(8)])
            case str() as text if text.startswith("long "):
                yield last_piece(request_id, "x" * int(text.split()[1]), constrained)
            case _:
                pieces = (
                    first_piece(request_id, "Hel", constrained),
                    RequestOutput(request_id=request_id, text="", token_ids=[9]),
                    last_piece(request_id, "lo", constrained),
                )
                for piece, index in itertools.product(pieces, range(input.params.n)):
                    yield msgspec.structs.replace(piece, index=index)

    async def start(self) -> None:
        self.set_ready(True)

    async def wait_closed(self) -> None:
        await self.given_up.wait()
        raise EngineDead("the engine was given up")

    async def close(self) -> None:
        self.closed = True
        self.set_ready(False)

    def set_ready(self, ready: bool) -> None:
        self.ready = ready
        if self.on_state is not None:
            self.on_state(ready)

    async def drain(self, grace_s: float) -> None:
        self.set_ready(False)
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            self.finish.set()


def _verdict(text: str | None) -> TextVerdict | None:
    if text is None:
        return None
    match = re.match(r"\+?[0-9]*", text)
    assert match is not None
    legal = match.group()
    may_end = legal.strip("+") != ""
    return TextVerdict(len(legal.encode()) if legal != text else None, may_end, ["0", "1"])


def first_piece(request_id: str, text: str, constrained: bool) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        text=text,
        token_ids=[7],
        usage=Usage(5, 3, 1, 1),
        timings=Timings(0.5, 0.25, 1.0, 0.0, 1.75),
        constraint=INFO if constrained else None,
    )


def position(token: int, mass: float | None = None) -> PositionLogprobs:
    """What was thought of one place: 255 was nearly as likely, and is half a character."""
    return PositionLogprobs(
        TokenLogprob(token, chr(token), bytes([token]), -0.5),
        [
            TokenLogprob(token, chr(token), bytes([token]), -0.5),
            TokenLogprob(255, "�", b"\xc3", -1),
        ],
        mass,
    )


def last_piece(request_id: str, text: str, constrained: bool) -> RequestOutput:
    status = ConstraintStatus.COMPLETE if constrained else ConstraintStatus.NOT_CONSTRAINED
    return RequestOutput(
        request_id=request_id,
        text=text,
        token_ids=[8],
        finish=Finish(
            reason=FinishReason.STOP, constraint_status=status, stop_id=0, verified=constrained
        ),
        usage=Usage(5, 3, 3, 2),
        timings=Timings(0.5, 0.25, 1.0, 2.0, 1.75),
        constraint=INFO if constrained else None,
    )


@asynccontextmanager
async def serving(llm: ScriptedLLM | AsyncLLM, **options: Any) -> AsyncIterator[tuple[Server, str]]:
    """Run a server around `llm`; yields it and its address."""
    server = Server(llm, ServerConfig(port=0, **options))  # type: ignore[arg-type]
    port = await server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.close()


@asynccontextmanager
async def connected(llm: ScriptedLLM | AsyncLLM, **options: Any) -> AsyncIterator[grpc.aio.Channel]:
    """Run a server around `llm`; yields a channel to it."""
    async with (
        serving(llm, **options) as (_, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield channel


@contextmanager
def serving_aside() -> Iterator[tuple[ScriptedLLM, str]]:
    """Run a server in a thread, for callers that block; yields its AsyncLLM and address."""
    started = threading.Event()
    place: list[tuple[ScriptedLLM, str]] = []
    end: list[Callable[[], object]] = []

    async def serve() -> None:
        llm, ended = ScriptedLLM(), asyncio.Event()
        loop = asyncio.get_running_loop()
        async with serving(llm) as (_, address):
            place.append((llm, address))
            end.append(lambda: loop.call_soon_threadsafe(ended.set))
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield place[0]
    finally:
        end[0]()
        thread.join(10)
