"""What the host does for a row in a step, beside the model: from the plan to the wire.

    python benchmarks/host.py
    python benchmarks/host.py --rows 256 --model smollm2-135m

A tiny random model is served; as many clients as rows stream answers, free and constrained, and
look at nothing but how many messages come.  A line per case, processor microseconds per row and
step (a row that takes part in a forward):

    loop       the engine's loop thread: schedule, commit, forced text, guesses, masks
    front      the front end's process: all that is listed behind, and gRPC
    total      both, and what the engine's output thread does: encode and send

then, by repeating them alone with what a step of free rows says:

    encode, decode     ZeroMQ messages
    outputs            detokenising, stop strings, usage
    protobuf           pieces to messages, serialised
    messages           what was sent to clients per row and step: below 1 where steps are joined
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import msgspec
from _common import Value, print_line, print_machine
from serve import START_TIMEOUT_S, server

from structgen import messages
from structgen.client import AsyncClient
from structgen.constraints import Regex
from structgen.frontend.grpc import results
from structgen.frontend.grpc._pb import generation_pb2, generation_service_pb2
from structgen.frontend.grpc.requests import Request
from structgen.frontend.outputs import OutputProcessor
from structgen.messages import EngineOutput, EngineRequest, Outputs
from structgen.params import SamplingParams

TINY = (
    "hidden_size=32&intermediate_size=64&num_hidden_layers=1&vocab_size=2048"
    "&max_position_embeddings=1024"
)
ROWS = (1, 32, 256)
TOKENS = 300  # of an answer
STREAM = "/structgen.v1.GenerationService/StreamGenerate"
# Objects, a line each, until max_tokens: some text is forced, and a random model cannot end early.
LINES = Regex(r'(\{"name": "[a-z]{1,12}", "age": [0-9]{1,3}\}\n)*')


class Load(msgspec.Struct):
    """What the clients of a case saw, all together."""

    messages: int = 0
    row_steps: int = 0
    tokens: int = 0

    def __add__(self, other: Load) -> Load:
        return Load(*(getattr(self, f) + getattr(other, f) for f in self.__struct_fields__))


# ---- clients


def request(constrained: bool, index: int, tokens: int) -> bytes:
    params = SamplingParams(
        seed=index,
        max_tokens=tokens,
        min_tokens=tokens if constrained else 0,
        ignore_eos=not constrained,
        constraint=LINES if constrained else None,
    )
    message: bytes = Request("word " * 4, params, None, {}).streaming().SerializeToString()
    return message


async def load(address: str, rows: int, *, constrained: bool, tokens: int) -> Load:
    """Stream `rows` answers at once."""
    async with grpc.aio.insecure_channel(address) as channel:
        stream = channel.unary_stream(STREAM)  # of bytes: nothing is parsed but the last message

        async def one(index: int) -> Load:
            last, count = b"", 0
            async for message in stream(request(constrained, index, tokens)):
                last, count = message, count + 1
            event = generation_service_pb2.StreamGenerateResponse.FromString(last)
            usage = event.finished.usage
            return Load(count, usage.forwards, usage.completion_tokens)

        return sum(await asyncio.gather(*map(one, range(rows))), start=Load())


# ---- processor time


def processor_s(pid: int, *, thread: bool = False) -> float:
    """Return the processor's seconds of a process so far, or of its main thread alone."""
    tasks = [Path(f"/proc/{pid}/task/{pid}")] if thread else Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def server_and_engine() -> tuple[int, int]:
    """Return the server that this process has started, and its engine."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            commands[int(process.name)] = (process / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        parents[int(process.name)] = int(stat[1])
    return next(
        (parents[pid], pid)
        for pid, command in commands.items()
        if "structgen.engine.process" in command and parents[parents[pid]] == os.getpid()
    )


# ---- stages alone


def stages(rows: int) -> dict[str, Value]:
    """Return what each takes of a step in which every row gets one token."""
    token_bytes = [b" word"] * 2048
    outputs = Outputs([EngineOutput(f"{row:032}#{row}", [row]) for row in range(rows)])
    data = messages.encode(outputs)
    processor = OutputProcessor(token_bytes)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    for output in outputs.outputs:
        processor.add(EngineRequest(output.id, [1], params, 0.0), output.id)
    pieces = processor.process(outputs.outputs).outputs
    options = generation_pb2.ResponseOptions()

    def protobuf() -> None:
        for piece in pieces:
            delta = results.to_delta(piece, options)
            assert delta is not None
            delta.SerializeToString()

    return {
        "encode_us": repeated(lambda: messages.encode(outputs), rows),
        "decode_us": repeated(lambda: messages.decode_from_engine(data), rows),
        "outputs_us": repeated(lambda: processor.process(outputs.outputs), rows),
        "protobuf_us": repeated(protobuf, rows),
    }


def repeated(stage: Callable[[], object], rows: int) -> float:
    """Return the microseconds that a stage takes per row, at its quickest."""
    best = float("inf")
    for _ in range(5):
        count, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < 0.05:
            stage()
            count += 1
        best = min(best, spent / count)
    return best * 1e6 / rows


# ---- cases


class Cost(msgspec.Struct):
    """Seconds of processors that a load took."""

    loop: float
    engine: float
    front: float


async def case(address: str, rows: int, *, constrained: bool) -> None:
    """Take the difference of long and short answers, so that what requests cost does not count."""
    front, engine = server_and_engine()
    costs: list[Cost] = []
    loads: list[Load] = []
    began = [time.perf_counter()]
    for tokens in (TOKENS // 4, TOKENS):
        before = Cost(processor_s(engine, thread=True), processor_s(engine), processor_s(front))
        loads.append(await load(address, rows, constrained=constrained, tokens=tokens))
        after = Cost(processor_s(engine, thread=True), processor_s(engine), processor_s(front))
        costs.append(
            Cost(*(getattr(after, f) - getattr(before, f) for f in Cost.__struct_fields__))
        )
        began.append(time.perf_counter())
    row_steps = loads[1].row_steps - loads[0].row_steps
    loop, front_s = (
        (getattr(costs[1], name) - getattr(costs[0], name)) * 1e6 / row_steps
        for name in ("loop", "front")
    )
    alone = stages(rows)
    print_line(
        "host",
        rows=rows,
        mode="constrained" if constrained else "free",
        row_steps=row_steps,
        step_ms=(began[2] - began[1]) * 1e3 * rows / loads[1].row_steps,
        tokens_s=loads[1].tokens / (began[2] - began[1]),
        total_us=loop + front_s + alone["encode_us"],
        loop_us=loop,
        front_us=front_s,
        messages=(loads[1].messages - loads[0].messages) / row_steps,
        **alone,
    )


async def benchmark(given: argparse.Namespace) -> None:
    print_machine("host", model=given.model, tokens=TOKENS)
    async with server(given) as address:
        async with AsyncClient(address) as client:
            await client.wait_ready(START_TIMEOUT_S)
        for rows in given.rows:
            for constrained in (False, True):
                await load(address, min(rows, 8), constrained=constrained, tokens=8)
                await case(address, rows, constrained=constrained)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the host does for a row in a step.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--model", default=f"random:llama?{TINY}")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), metavar="N")
    parser.add_argument("--target", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.threads, given.attention = 1, None
    if given.quick:
        given.rows, given.attention = [2], "torch_cpu"
    asyncio.run(benchmark(given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
