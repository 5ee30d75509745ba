"""Engines over one vocabulary, driven along given answers, so that a step can be repeated exactly.

`Scout` draws the answers once, without a model, from the masks alone.  `Player` then runs a real
model, mask and sampler, but answers with the drawn tokens: whatever the weights, rows stand where
real answers stand (keys, numbers, nested objects), and two runs do the very same mask work.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from _masks import MaskKind

from structgen.config import EngineConfig
from structgen.engine.core import EngineCore, Inbound
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends
from structgen.grammar.manager import GrammarManager
from structgen.messages import Abort, EngineRequest
from structgen.model import sources
from structgen.model.executor import LocalExecutor
from structgen.model.runner import ModelRunner
from structgen.params import JumpForward, SamplingParams
from structgen.plan import Executor, RowOutput, StepOutput, StepPlan, TokenBitmask
from structgen.tokenizer import Tokenizer

Words = npt.NDArray[np.int32]
Answers = Sequence[list[int]]

PROMPT = [1]  # one token: a request that takes the place of another costs no prefill
MAX_ROWS = 256
ANSWER_TOKENS = 32
WARM_STEPS = 3
OPENING = frozenset(b'",:[{')


class Times(msgspec.Struct):
    """Seconds of each measured step.  step: wall time of EngineCore.step, scheduling included."""

    forward: list[float] = []
    sample: list[float] = []
    mask: list[float] = []
    wait: list[float] = []
    step: list[float] = []

    def __add__(self, other: Times) -> Times:
        return Times(*(getattr(self, f) + getattr(other, f) for f in self.__struct_fields__))


class Scout:
    """Executor without a model: draws what the mask allows, with a liking for JSON's structure.

    Closing brackets and quotes that only end an answer are left to chance, so that answers last.
    """

    def __init__(self, token_bytes: Sequence[bytes], eos_ids: frozenset[int], seed: int) -> None:
        self.answers: dict[str, list[int]] = {}
        self._random = random.Random(seed)
        self._eos_ids = eos_ids
        self._structure = np.array(
            [
                token
                for token, text in enumerate(token_bytes)
                if text and OPENING & set(text) and not set(text) & set(b"]}")
            ]
        )
        self._vocab_size = len(token_bytes)
        self._plan: StepPlan

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        self._plan = plan

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        words = iter(mask.words)
        rows = []
        for row in self._plan.rows:
            drawn = [self._draw(next(words))] if row.num_logits else []
            self.answers.setdefault(row.id, []).extend(drawn)
            rows.append(RowOutput(drawn))
        return StepOutput(rows)

    def close(self) -> None:
        pass

    def _draw(self, words: Words) -> int:
        """Draw from the structure half of the time, if it is legal, else from anything."""
        some = np.array([self._random.randrange(self._vocab_size) for _ in range(64)])
        places = [self._structure, some] if self._random.random() < 0.5 else [some]
        for tokens in (*places, np.arange(self._vocab_size)):
            legal: list[int] = tokens[(words[tokens >> 5] >> (tokens & 31)) & 1 == 1].tolist()
            if choices := [token for token in legal if token not in self._eos_ids]:
                return self._random.choice(choices)
        raise AssertionError("the answer is over, and nobody noticed")


class Player:
    """Executor that runs another and replaces what it sampled by the answers of a scout.

    The number after the colon of a request's id says which answer.
    """

    def __init__(self, inner: Executor, answers: Callable[[], Answers]) -> None:
        self._inner = inner
        self._answers = answers
        self._plan: StepPlan

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        self._plan = plan
        self._inner.execute_model(plan, when_done)

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        result = self._inner.sample_tokens(mask)
        answers = self._answers()
        rows = []
        for row in self._plan.rows:
            place = row.start + len(row.token_ids) - len(PROMPT)
            answer = answers[int(row.id.partition(":")[2])]
            rows.append(RowOutput(answer[place : place + 1] if row.num_logits else []))
        return msgspec.structs.replace(result, rows=rows)

    def close(self) -> None:
        self._inner.close()


class Nothing:
    """Executor that computes nothing: what is left of a step is the engine and the masks."""

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        pass

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        return StepOutput([])

    def close(self) -> None:
        pass


class Rig:
    """The engines of one vocabulary: one a model, with one grammar manager between them.

    models: `--model` strings by name, all of the same tokenizer.  engines: by that name.
    masker: the engine without a model.
    """

    def __init__(self, models: Mapping[str, str], *, threads: int, attention: str) -> None:
        folders = [sources.resolve(model, progress=True) for model in models.values()]
        tokenizer = Tokenizer.load(folders[0])
        self._eos_ids = frozenset(tokenizer.eos_ids)
        config = _config(threads, attention)
        self._executors = [_executor(config, folder, tokenizer) for folder in folders]
        self.vocab_size = self._executors[0].runner.info.vocab_size
        self._token_bytes = tokenizer.token_bytes[: self.vocab_size]
        self._compiled: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self._grammars = GrammarManager(
            Backends(Vocabulary(self._token_bytes)),
            self.vocab_size,
            self._compiled.put,
            threads=1,
            cache_bytes=1 << 30,
            cache_entries=1024,
        )
        self._answers: Answers = []
        self._kind: MaskKind
        self._passes = 0
        self.engines = {
            name: self._core(Player(executor, lambda: self._answers))
            for name, executor in zip(models, self._executors, strict=True)
        }
        self.masker = self._core(Player(Nothing(), lambda: self._answers))

    def use(self, kind: MaskKind, *, num_answers: int = MAX_ROWS, seed: int = 0) -> None:
        """Draw the answers of the next measurements; compiles the constraints if need be."""
        self._kind = kind
        scout = Scout(self._token_bytes, self._eos_ids, seed)
        core = self._core(scout, self._compiled)
        for index in range(num_answers):
            core.inbox.put(self._request(f"scout:{index}", index, ANSWER_TOKENS))
        running = num_answers
        while running:
            running -= len(_finished(core))
        self._answers = [scout.answers[f"scout:{index}"] for index in range(num_answers)]

    def measure(self, core: EngineCore, rows: int, steps: int, *, overlap: bool) -> Times:
        """Run `steps` steps of `rows` rows each, all constrained, from the first answers on.

        A request that ends is followed by one with the next answer.
        """
        core.overlap = overlap
        self._passes += 1
        requests = self._requests()
        live: set[str] = set()
        times = Times()
        for step in range(WARM_STEPS + steps):
            while len(live) < rows:
                request = next(requests)
                core.inbox.put(request)
                live.add(request.id)
            began = time.perf_counter()
            live -= _finished(core)
            if step >= WARM_STEPS:
                _note(times, core, time.perf_counter() - began)
                assert core.last_step is not None
                assert core.last_step.rows == rows
        core.inbox.put(Abort(list(live)))
        return times

    def close(self) -> None:
        self._grammars.close()
        for executor in self._executors:
            executor.close()

    def _core(
        self, executor: Executor, inbox: queue.SimpleQueue[Inbound] | None = None
    ) -> EngineCore:
        config = _config(1, "auto").resolve(context_length=2048, bytes_per_token=1)
        return EngineCore(
            config,
            executor,
            self._grammars,
            inbox or queue.SimpleQueue(),
            eos_ids=self._eos_ids,
        )

    def _requests(self) -> Iterator[EngineRequest]:
        index = 0
        while True:
            answer = index % len(self._answers)
            yield self._request(
                f"{self._passes}.{index}:{answer}", answer, len(self._answers[answer])
            )
            index += 1

    def _request(self, request_id: str, answer: int, max_tokens: int) -> EngineRequest:
        constraints = self._kind.constraints
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            constraint=constraints[answer % len(constraints)],
            # One mask a row and step, of what was drawn: nothing appended, guessed or led out.
            jump_forward=JumpForward.OFF,
            drafts=False,
            close_within_budget=False,
        )
        return EngineRequest(request_id, PROMPT, params, time.monotonic())


def _executor(config: EngineConfig, folder: Path, tokenizer: Tokenizer) -> LocalExecutor:
    """Return an executor whose model is loaded: two at once would share torch's default dtype."""
    eos_ids = list(tokenizer.eos_ids)
    executor = LocalExecutor(lambda: ModelRunner(config, folder, tokenizer.size, eos_ids))
    _ = executor.runner
    return executor


def _config(threads: int, attention: str) -> EngineConfig:
    return EngineConfig(
        threads=threads,
        attention=attention,
        num_blocks=MAX_ROWS * 5,
        max_model_len=128,
        max_num_seqs=MAX_ROWS,
        prefix_caching=False,
    )


def _finished(core: EngineCore) -> set[str]:
    """Run a step and return who ended in it."""
    outputs = [output for output in core.step() if output.finish is not None]
    for output in outputs:
        assert output.error is None, output.error
    return {output.id for output in outputs}


def _note(times: Times, core: EngineCore, step_s: float) -> None:
    last = core.last_step
    assert last is not None
    times.forward.append(last.forward_s)
    times.sample.append(last.sample_s)
    times.mask.append(last.mask_s)
    times.wait.append(last.wait_s)
    times.step.append(step_s)
