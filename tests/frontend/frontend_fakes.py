"""A toy vocabulary of bytes, and engines that say what they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from structgen.errors import EngineDead, InvalidRequest
from structgen.messages import (
    Abort,
    Check,
    Checked,
    EngineOutput,
    EngineRequest,
    FinishReason,
    ModelInfo,
    Outputs,
)
from structgen.tokenizer import ChatMessage

BYTES = [bytes([value]) for value in range(256)]
WORDS = [b"", b"five", b" six", b"DEF", b"HI", "€".encode(), "é".encode()[:1], b"\n\n", b"ab"]
EOS = 256
TOOL = 0
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

    def special_id_of(self, text: str) -> int | None:
        return {"<eos>": EOS, "<tool>": TOOL}.get(text)

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
        quantization="none",
        kv_dtype="float32",
        device="cpu",
        attention="none",
        block_size=16,
        num_blocks=4,
        threads=1,
    )


Script = Callable[[EngineRequest], list[EngineOutput]]


def echo(request: EngineRequest) -> list[EngineOutput]:
    """Answer with the prompt, an id a step and in each sample, then stop."""
    samples = range(request.params.n)
    return [
        *[EngineOutput(request.id, [id], index=i) for id in request.prompt_ids for i in samples],
        *[
            EngineOutput(request.id, [], FinishReason.STOP, stop_id=EOS, index=index)
            for index in samples
        ],
    ]


def completing(request: EngineRequest) -> list[EngineOutput]:
    """Echo the prompt, as what a constraint would have let through."""
    echoed = echo(request)
    return [
        EngineOutput(o.id, o.new_ids, FinishReason.CONSTRAINT_COMPLETE, index=o.index)
        if o.finish is not None
        else o
        for o in echoed
    ]


def silent(request: EngineRequest) -> list[EngineOutput]:
    return []


class Work:
    """What an engine has to say, by request; a request is over when all its samples are."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[EngineOutput]] = {}
        self._ended: dict[str, set[int]] = {}
        self._num_samples: dict[str, int] = {}

    def add(self, request: EngineRequest, outputs: list[EngineOutput]) -> None:
        self.outputs[request.id] = outputs
        self._ended[request.id] = set()
        self._num_samples[request.id] = request.params.n

    def abort(self, message: Abort) -> None:
        for id in message.ids:
            self.outputs.pop(id, None)
        for id, index in message.samples:
            if id in self.outputs:
                self.outputs[id] = [o for o in self.outputs[id] if o.index != index]
                self._end(id, index)

    def next(self, id: str) -> EngineOutput:
        output = self.outputs[id].pop(0)
        if output.finish is FinishReason.ERROR:
            del self.outputs[id]
        elif output.finish is not None:
            self._end(id, output.index)
        return output

    def _end(self, id: str, index: int) -> None:
        self._ended[id].add(index)
        if len(self._ended[id]) == self._num_samples[id]:
            del self.outputs[id]


class FakeEngineClient:
    """An asyncio engine client.  Each step reports one output of every request it has.

    `received` holds all that was sent; `die` is what a crash looks like; `failures` are raised by
    the next calls of `start`, in order.
    """

    def __init__(self, script: Script = echo, model: ModelInfo | None = None) -> None:
        self.script = script
        self.model = model if model is not None else model_info()
        self.received: list[EngineRequest | Check | Abort] = []
        self.answer_check: Callable[[Check], Checked | None] = lambda check: None
        self.failures: list[Exception] = []
        self.num_starts = 0
        self.closed = False
        self._running = False
        self._work = Work()
        self._checked: list[Checked] = []
        self._changed = asyncio.Event()

    @property
    def aborted(self) -> list[str]:
        return [id for message in self.received if isinstance(message, Abort) for id in message.ids]

    @property
    def requests(self) -> list[EngineRequest]:
        return [message for message in self.received if isinstance(message, EngineRequest)]

    @property
    def checks(self) -> list[Check]:
        return [message for message in self.received if isinstance(message, Check)]

    @property
    def open_ids(self) -> list[str]:
        return list(self._work.outputs)

    def waiting(self, id: str) -> int:
        """Return how many outputs of a request are still to be received."""
        return len(self._work.outputs[id])

    async def start(self) -> Path:
        self.num_starts += 1
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self._work = Work()
        self._changed.clear()
        self._running = True
        return Path(self.model.folder)

    async def ready(self) -> ModelInfo:
        return self.model

    def send(self, message: EngineRequest | Check | Abort) -> None:
        if not self._running:
            raise EngineDead("the engine is not running")
        self.received.append(message)
        if isinstance(message, EngineRequest):
            self._work.add(message, self.script(message))
        elif isinstance(message, Abort):
            self._work.abort(message)
        elif (answer := self.answer_check(message)) is not None:
            self.say_checked(answer)
        self._changed.set()

    def say_checked(self, checked: Checked) -> None:
        self._checked.append(checked)
        self._changed.set()

    def say(self, *outputs: EngineOutput) -> None:
        """Report these outputs next, whatever the script says."""
        for output in outputs:
            self._work.outputs.setdefault(output.id, []).append(output)
        self._changed.set()

    def die(self) -> None:
        self._running = False
        self._changed.set()

    async def receive(self) -> Outputs:
        while True:
            if not self._running:
                raise EngineDead("the engine process died")
            outputs, checked = self._step(), self._checked
            self._checked = []
            if outputs or checked:
                return Outputs(outputs, checked)
            self._changed.clear()
            await self._changed.wait()

    def _step(self) -> list[EngineOutput]:
        return [self._work.next(id) for id, outputs in list(self._work.outputs.items()) if outputs]

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
        self._work = Work()

    def send(self, message: EngineRequest | Abort) -> None:
        self.received.append(message)
        if isinstance(message, EngineRequest):
            self._work.add(message, self.script(message))
            self.most_open = max(self.most_open, len(self._work.outputs))
        else:
            self._work.abort(message)

    def step(self) -> list[EngineOutput]:
        # The last to come goes first, so that answers end out of order.
        work = self._work.outputs
        return [self._work.next(id) for id in reversed(list(work)) if work[id]]

    def close(self) -> None:
        self.closed = True
