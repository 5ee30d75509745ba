"""A toy vocabulary of bytes, and engines that say what they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from structgen.errors import EngineDead, InvalidRequest
from structgen.messages import Abort, EngineOutput, EngineRequest, FinishReason, ModelInfo
from structgen.tokenizer import ChatMessage

BYTES = [bytes([value]) for value in range(256)]
WORDS = [b"", b"five", b" six", b"DEF", b"HI", "€".encode(), "é".encode()[:1], b"\n\n", b"ab"]
EOS = 256
TOKEN_BYTES = BYTES + WORDS
WORD_IDS = {word: 256 + index for index, word in enumerate(WORDS)}


class ToyTokenizer:
    """One id for each byte; 256 ends the text; a few words above."""

    size = len(TOKEN_BYTES)
    eos_ids = (EOS,)
    special_ids = frozenset({EOS})
    token_bytes = TOKEN_BYTES

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        if special:
            head, marker, tail = text.partition("<eos>")
            return [*head.encode(), *([EOS] if marker else []), *tail.encode()]
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> list[int]:
        if any(message.role == "nobody" for message in messages):
            raise InvalidRequest("unknown role 'nobody'", field="input.chat")
        return list("".join(f"{m.role}:{m.content}\n" for m in messages).encode())


def model_info(context_length: int = 64, folder: str = "/nowhere") -> ModelInfo:
    return ModelInfo(
        name="toy",
        folder=folder,
        architecture="Toy",
        vocab_size=len(TOKEN_BYTES),
        context_length=context_length,
        eos_ids=[EOS],
        num_parameters=0,
        dtype="float32",
        kv_dtype="float32",
        device="cpu",
        attention="none",
        block_size=16,
        num_blocks=4,
        threads=1,
    )


Script = Callable[[EngineRequest], list[EngineOutput]]


def echo(request: EngineRequest) -> list[EngineOutput]:
    """Answer with the prompt, an id a step, then stop."""
    steps = [EngineOutput(request.id, [id]) for id in request.prompt_ids]
    return [*steps, EngineOutput(request.id, [], FinishReason.STOP, stop_id=EOS)]


def silent(request: EngineRequest) -> list[EngineOutput]:
    return []


class FakeEngineClient:
    """An asyncio engine client.  Each step reports one output of every request it has.

    `received` holds all that was sent; `die` is what a crash looks like; `failures` are raised by
    the next calls of `start`, in order.
    """

    def __init__(self, script: Script = echo, model: ModelInfo | None = None) -> None:
        self.script = script
        self.model = model if model is not None else model_info()
        self.received: list[EngineRequest | Abort] = []
        self.failures: list[Exception] = []
        self.num_starts = 0
        self.closed = False
        self._running = False
        self._work: dict[str, list[EngineOutput]] = {}
        self._changed = asyncio.Event()

    @property
    def aborted(self) -> list[str]:
        return [id for message in self.received if isinstance(message, Abort) for id in message.ids]

    @property
    def requests(self) -> list[EngineRequest]:
        return [message for message in self.received if isinstance(message, EngineRequest)]

    @property
    def open_ids(self) -> list[str]:
        return list(self._work)

    async def start(self) -> ModelInfo:
        self.num_starts += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self._work.clear()
        self._changed.clear()
        self._running = True
        return self.model

    def send(self, message: EngineRequest | Abort) -> None:
        if not self._running:
            raise EngineDead("the engine is not running")
        self.received.append(message)
        if isinstance(message, EngineRequest):
            self._work[message.id] = self.script(message)
        else:
            for id in message.ids:
                self._work.pop(id, None)
        self._changed.set()

    def say(self, *outputs: EngineOutput) -> None:
        """Report these outputs next, whatever the script says."""
        for output in outputs:
            self._work.setdefault(output.id, []).append(output)
        self._changed.set()

    def die(self) -> None:
        self._running = False
        self._changed.set()

    async def receive(self) -> list[EngineOutput]:
        while True:
            if not self._running:
                raise EngineDead("the engine process died")
            if step := self._step():
                return step
            self._changed.clear()
            await self._changed.wait()

    def _step(self) -> list[EngineOutput]:
        step = [outputs.pop(0) for outputs in self._work.values() if outputs]
        for output in step:
            if output.finish is not None:
                del self._work[output.id]
        return step

    async def close(self) -> None:
        self.closed = True
        self.die()


class FakeStepClient:
    """The same for the offline engine."""

    def __init__(self, script: Script = echo, model: ModelInfo | None = None) -> None:
        self.script = script
        self.model = model if model is not None else model_info()
        self.received: list[EngineRequest | Abort] = []
        self.most_open = 0
        self.closed = False
        self._work: dict[str, list[EngineOutput]] = {}

    def send(self, message: EngineRequest | Abort) -> None:
        self.received.append(message)
        if isinstance(message, EngineRequest):
            self._work[message.id] = self.script(message)
            self.most_open = max(self.most_open, len(self._work))
        else:
            for id in message.ids:
                self._work.pop(id, None)

    def step(self) -> list[EngineOutput]:
        # The last to come goes first, so that answers end out of order.
        step = [outputs.pop(0) for outputs in reversed(self._work.values()) if outputs]
        for output in step:
            if output.finish is not None or output.error is not None:
                self._work.pop(output.id)
        return step

    def close(self) -> None:
        self.closed = True
