"""AsyncLLM: answers as asynchronous streams, over one engine that is restarted when it dies.

All state belongs to the event loop that `start` ran on.  One task receives from the engine, turns
outputs into pieces and hands each to its stream:

    engine ──receive──► output task ──process──► Stream ──next──► generate() ──► caller
       ▲                                                              │
       └───────────── EngineRequest, Abort (closed or cancelled) ─────┘

A complete answer under a JSON constraint is judged in a thread before its last piece goes out.

Invariants: a request is in `_streams` from admission until its last word was taken or its caller
left, and in the output processor while the engine has it; leaving early sends exactly one Abort.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from structgen import logs, trace
from structgen.config import EngineConfig
from structgen.constraints import Constraint, ConstraintId
from structgen.errors import (
    DuplicateRequest,
    EngineDead,
    InternalError,
    LimitExceeded,
    StructgenError,
)
from structgen.frontend.checks import Checks, ConstraintCheck
from structgen.frontend.inputs import (
    GenerationInput,
    InputProcessor,
    new_request_id,
    num_chars,
)
from structgen.frontend.known import KnownConstraints
from structgen.frontend.outputs import Batch, OutputProcessor, RequestOutput
from structgen.frontend.stream import Stream
from structgen.frontend.verdict import Judge, Texts
from structgen.frontend.verify import Verifiable
from structgen.messages import Abort, Check, EngineOutput, EngineRequest, ModelInfo
from structgen.tokenizer import Tokenizer
from structgen.trace import Trace

if TYPE_CHECKING:
    from structgen.engine.client import EngineClient

log = logs.get(__name__)

INLINE_CHARS = 2048  # about a millisecond to encode; more goes to a thread

MAX_BACKOFF_S = 30.0
SHUTTING_DOWN = "the server is shutting down"


class AsyncLLM:
    """An engine and the requests that run in it.

    `on_state` is called with `ready` whenever that changes.  After `max_restarts` restarts in a row
    without a served request the engine is given up: `wait_closed` raises.
    """

    def __init__(
        self,
        config: EngineConfig,
        client: EngineClient | None = None,
        *,
        load_tokenizer: Callable[[Path], Tokenizer] = Tokenizer.load,
        on_state: Callable[[bool], None] | None = None,
        max_restarts: int = 5,
        backoff_s: float = 0.5,
    ) -> None:
        """client: default is an engine process of its own.  backoff_s doubles with each restart.

        Raises ConfigError: the trace cannot be written.
        """
        self.config = config
        self.on_state = on_state
        self._trace = trace.begin(config.trace, "front end")
        self._client = client if client is not None else _process_client(config, self._trace)
        self._load_tokenizer = load_tokenizer
        self._max_restarts = max_restarts
        self._backoff_s = backoff_s
        self._num_restarts = 0
        self._running = False
        self._closing = False
        self._closed = False
        self._told_ready = False
        self._loaded: _Loaded | None = None
        self._streams: dict[str, Stream] = {}
        self._checks = Checks()
        self._known = KnownConstraints()
        self._idle = asyncio.Event()
        self._idle.set()
        self._serials = itertools.count()
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="structgen-encode")
        self._judge = Judge()
        self._verifier = ThreadPoolExecutor(1, thread_name_prefix="structgen-verify")
        self._output_task: asyncio.Task[None] | None = None

    # ---- life

    async def start(self) -> None:
        """Start the engine and wait until it answers.

        Raises ConfigError: it cannot start with this configuration.  EngineDead: it died.
        """
        assert self._output_task is None, "started twice"
        folder = await self._client.start()
        # Side by side: the engine has seconds of work to do.
        tokenizer = asyncio.create_task(asyncio.to_thread(self._load_tokenizer, folder))
        model = await self._client.ready()
        await self._open_for(model, await tokenizer)
        self._output_task = asyncio.create_task(self._supervise(), name="structgen-outputs")

    async def drain(self, grace_s: float) -> None:
        """Refuse new requests, give the running ones `grace_s` to finish, abort the rest.

        Those aborted fail with EngineDead, so that a caller does not take a part for an answer and
        knows that another server may be asked.
        """
        self._closing = True
        self._tell_state()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("grace period over", aborted=len(self._streams))
            self._abort_all(EngineDead, SHUTTING_DOWN)

    async def close(self) -> None:
        """Fail what is open and stop the engine.  Idempotent."""
        self._closing = self._closed = True
        if self._output_task is not None:
            self._output_task.cancel()
            await asyncio.wait([self._output_task])
            if not self._output_task.cancelled():
                self._output_task.exception()  # logged when it happened; now it counts as seen
        self._abort_all(EngineDead, SHUTTING_DOWN)
        self._set_running(False)
        await self._client.close()
        self._trace.close()
        self._encoder.shutdown(wait=False)
        self._verifier.shutdown(wait=False)

    async def wait_closed(self) -> None:
        """Return once closed.  Raises StructgenError: the engine was given up."""
        assert self._output_task is not None, "not started"
        await asyncio.wait([self._output_task])
        if not self._output_task.cancelled():
            self._output_task.result()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def ready(self) -> bool:
        """Whether a new request would be taken (queue limits aside)."""
        return self._running and not self._closing

    @property
    def model(self) -> ModelInfo:
        return self._require_loaded().model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._require_loaded().tokenizer

    @property
    def num_open(self) -> int:
        """Requests admitted whose last word was not taken yet, and checks not answered."""
        return len(self._streams) + len(self._checks)

    # ---- requests

    async def generate(self, input: GenerationInput) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answers in pieces; the last one of each has `finish`.

        What a slow caller has not taken is joined into one piece for each answer.  Closing the
        generator or cancelling the task that waits for it aborts the request; a caller that may
        leave the loop early should hold it in `contextlib.aclosing`.

        Raises InvalidRequest, DuplicateRequest, LimitExceeded: not admitted.  EngineDead: the
        engine died or the server is draining.  NotFound: constraint_id is unknown.  Else what
        ended this request.
        """
        input = self._known.resolve(input)
        stream = self._admit(input)
        constraint, texts = input.params.constraint, Texts()
        try:
            sent = await self._submit(stream, input)
            while not stream.ended:
                piece = await stream.next()
                if piece.constraint is not None and sent is not None:
                    self._known.add(piece.constraint.key, sent)
                if isinstance(constraint, Verifiable) and (text := texts.whole(piece)) is not None:
                    piece = await self._verify(piece, text, constraint)
                if stream.ended:
                    self._release(stream)  # the caller need not come back after the last piece
                yield piece
        finally:
            self._release(stream)

    async def check(
        self, constraint: Constraint | ConstraintId, text: str | None = None
    ) -> ConstraintCheck:
        """Compile a constraint, which keeps it for requests to come; judge a text by it if given.

        Cancelling the task that waits drops the check.

        Raises ConstraintError, Unsupported: the constraint cannot be used, as `generate` would say.
        InvalidRequest: the text cannot be judged.  NotFound, LimitExceeded, EngineDead: as there.
        """
        if isinstance(constraint, ConstraintId):
            constraint = self._known.get(constraint.id)
        self._require_room()
        check = Check(self._checks.new_id(), constraint, text)
        self._checks.open(check.id)
        self._idle.clear()
        try:
            self._client.send(check)
            answer = await self._checks.wait(check.id)
        finally:
            if self._checks.discard(check.id):
                self._abort(Abort([check.id]))
            self._note_idle()
        self._known.add(answer.constraint.key, constraint)
        return answer

    def _require_room(self) -> None:
        if not self.ready:
            raise EngineDead(SHUTTING_DOWN if self._closing else "the engine is not running")
        if self.num_open >= self.config.max_waiting:
            raise LimitExceeded(
                f"the server holds at most {self.config.max_waiting} requests (max_waiting)"
            )

    def _note_idle(self) -> None:
        if not self.num_open:
            self._idle.set()

    def _admit(self, input: GenerationInput) -> Stream:
        """Reserve the request id, before anything is awaited."""
        self._require_room()
        if input.request_id in self._streams:
            raise DuplicateRequest(
                f"request_id {input.request_id!r} is in use by a live request",
                field="input.request_id",
            )
        request_id = input.request_id or new_request_id()
        stream = Stream(request_id, next(self._serials), input.params.n)
        self._streams[request_id] = stream
        self._idle.clear()
        return stream

    async def _submit(self, stream: Stream, input: GenerationInput) -> Constraint | None:
        """Send a request and return its constraint as the engine is to enforce it."""
        request = await self._encode(input)
        if stream.failed:  # the engine died, or the grace period ended, while we encoded
            return None
        request = msgspec.structs.replace(request, id=stream.engine_id)
        self._client.send(request)
        self._require_loaded().outputs.add(request, stream.request_id)
        return request.params.constraint

    async def _encode(self, input: GenerationInput) -> EngineRequest:
        process = self._require_loaded().inputs.process
        if num_chars(input) <= INLINE_CHARS:
            return process(input)
        return await asyncio.get_running_loop().run_in_executor(self._encoder, process, input)

    async def _verify(
        self, piece: RequestOutput, text: str, constraint: Verifiable
    ) -> RequestOutput:
        if self._closed:  # a caller may take what it has left behind at any time
            return piece
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._verifier, self._judge.judge, piece, text, constraint
        )

    def _release(self, stream: Stream) -> None:
        """Forget a request; the engine must too if it still has it.  Idempotent."""
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
        self._note_idle()
        if self._require_loaded().outputs.discard(stream.engine_id):
            self._abort(Abort([stream.engine_id]))

    def _abort_all(self, kind: type[StructgenError], message: str) -> None:
        """Fail every open request and have the engine forget them."""
        for stream in self._streams.values():
            stream.fail(kind(message))
        self._checks.fail_all(kind, message)
        if self._loaded is not None and (engine_ids := self._loaded.outputs.clear()):
            self._abort(Abort(engine_ids))

    def _abort(self, abort: Abort) -> None:
        if self._running:
            with contextlib.suppress(EngineDead):  # then it has forgotten them already
                self._client.send(abort)

    # ---- the output task

    async def _supervise(self) -> None:
        """Receive, and restart the engine when it dies.  Raises: given up, or a bug of ours."""
        try:
            while True:
                try:
                    await self._receive()
                except EngineDead as error:
                    self._lose_engine(error)
                    await self._restart()
        except Exception as error:
            log.error("giving up", exc_info=True)
            # Nothing will be received any more, so nobody may wait.
            self._abort_all(InternalError, f"the front end failed: {error}")
            self._set_running(False)
            raise

    async def _receive(self) -> None:
        loaded = self._require_loaded()
        while True:
            message = await self._client.receive()
            self._take(loaded, message.outputs)
            for checked in message.checked:
                self._checks.land(checked)
            await asyncio.sleep(0)  # receive() need not suspend; the callers must get their turn

    def _take(self, loaded: _Loaded, outputs: list[EngineOutput]) -> None:
        with self._trace.span("outputs", outputs=len(outputs)):
            batch = loaded.outputs.process(outputs)
            self._hand_out(batch)
        if batch.abort is not None:
            self._abort(batch.abort)

    def _hand_out(self, batch: Batch) -> None:
        for piece in batch.outputs:
            self._streams[piece.request_id].put(piece)
            if piece.finish is not None:
                self._num_restarts = 0
        for request_id, error in batch.failures:
            self._streams[request_id].fail(error)

    def _lose_engine(self, error: EngineDead) -> None:
        log.error("engine died", reason=error.message, open=len(self._streams))
        self._set_running(False)
        self._abort_all(EngineDead, error.message)

    async def _restart(self) -> None:
        """Start the engine again, waiting longer each time.  Raises StructgenError: given up."""
        while self._num_restarts < self._max_restarts:
            await asyncio.sleep(min(self._backoff_s * 2**self._num_restarts, MAX_BACKOFF_S))
            self._num_restarts += 1
            try:
                await self._client.start()
                model = await self._client.ready()
            except EngineDead as error:
                log.error("engine did not restart", reason=error.message, tries=self._num_restarts)
                continue
            await self._open_for(model, self.tokenizer)
            log.info("engine restarted", tries=self._num_restarts)
            return
        raise EngineDead(f"the engine died again after {self._num_restarts} restarts")

    # ---- state

    async def _open_for(self, model: ModelInfo, tokenizer: Tokenizer) -> None:
        # In a thread: a large vocabulary's byte table takes a while to build.
        self._loaded = await asyncio.to_thread(_Loaded, model, tokenizer)
        self._set_running(True)

    def _set_running(self, running: bool) -> None:
        self._running = running
        self._tell_state()

    def _tell_state(self) -> None:
        if self.ready != self._told_ready:
            self._told_ready = self.ready
            if self.on_state is not None:
                self.on_state(self.ready)

    def _require_loaded(self) -> _Loaded:
        assert self._loaded is not None, "not started"
        return self._loaded


class _Loaded:
    """What belongs to one run of the engine."""

    __slots__ = ("inputs", "model", "outputs", "tokenizer")

    def __init__(self, model: ModelInfo, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.inputs = InputProcessor(tokenizer, model)
        self.outputs = OutputProcessor(tokenizer.token_bytes)


def _process_client(config: EngineConfig, trace: Trace) -> EngineClient:
    from structgen.engine.client import ProcessClient

    return ProcessClient(config, trace)
