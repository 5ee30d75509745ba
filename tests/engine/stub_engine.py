"""A scripted executor and a toy grammar: an engine without torch, for millisecond tests."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from structgen.config import ResolvedConfig
from structgen.constraints import Choice, Constraint
from structgen.engine.core import EngineCore, Inbound
from structgen.engine.drafts import Drafter, usual
from structgen.errors import ConstraintError
from structgen.grammar import bitmask
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    GrammarError,
    Matcher,
    Native,
    Vocabulary,
)
from structgen.grammar.choosing import Backends, Chosen, Recipe
from structgen.grammar.manager import GrammarManager
from structgen.grammar.pieces import Pieces
from structgen.logprobs import TokenLogprobs
from structgen.messages import Check, EngineOutput, EngineRequest
from structgen.params import SamplingParams
from structgen.plan import PlanRow, RowOutput, StepOutput, StepPlan, TokenBitmask

VOCAB = 64
EOS = 63

Script = Callable[[list[int]], int]


class StubExecutor:
    """Keeps each row's tokens as the model would see them, and lets a script choose the next.

    The script sees the whole sequence and proposes a token; a token that the mask bans is replaced
    by the lowest one that it allows.  Log probabilities, if asked for, are all -1.  Asserts what a
    real model relies on.
    """

    def __init__(self, script: Script, block_size: int) -> None:
        self._script = script
        self._block_size = block_size
        self.tokens: dict[str, list[int]] = {}
        self.blocks: dict[str, list[int]] = {}
        self.params: dict[str, SamplingParams] = {}
        self.plans: list[StepPlan] = []
        self.on_forward: Callable[[StepPlan], None] = lambda plan: None
        self.fail_ids: set[str] = set()
        self._kv: dict[tuple[int, int], int] = {}  # (block, offset) -> token whose KV it holds

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        self.plans.append(plan)
        for request_id in plan.removed:
            del self.tokens[request_id], self.blocks[request_id]
        for new in plan.added:
            assert new.id not in self.tokens
            self.tokens[new.id], self.blocks[new.id] = [], []
            self.params[new.id] = new.params
        for row in plan.rows:
            self._compute(row.id, row.start, row.token_ids, row.new_block_ids)
        self.on_forward(plan)
        if when_done is not None:
            when_done()

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        plan = self.plans[-1]
        assert (np.diff(mask.logit_index) > 0).all(), "mask rows out of order"
        outputs, index = [], 0
        masks = {int(i): words for words, i in zip(mask.words, mask.logit_index, strict=True)}
        for row in plan.rows:
            output = RowOutput([])
            if row.num_logits:
                output = self._sample_all(row, masks, index)
                index += row.num_logits
            prompt = [TokenLogprobs(target, -1.0, []) for target in row.targets]
            outputs.append(msgspec.structs.replace(output, prompt_logprobs=prompt))
        return StepOutput(outputs)

    def close(self) -> None:
        pass

    def _compute(self, request_id: str, start: int, ids: list[int], new_blocks: list[int]) -> None:
        blocks = self.blocks[request_id]
        blocks += new_blocks
        tokens = self.tokens[request_id]
        # What is not computed now must be in the cache already, written by whoever came before.
        tokens[:] = [
            self._kv[blocks[p // self._block_size], p % self._block_size] for p in range(start)
        ]
        for position, token in enumerate(ids, start):
            self._kv[blocks[position // self._block_size], position % self._block_size] = token
        tokens += ids

    def _sample_all(
        self, row: PlanRow, masks: dict[int, npt.NDArray[np.int32]], first: int
    ) -> RowOutput:
        if row.id in self.fail_ids:
            return RowOutput([], "injected")
        tokens = self.tokens[row.id]
        lengths = range(len(tokens) - row.num_drafts, len(tokens) + 1)
        sampled = [
            self._sample(tokens[:length], masks.get(first + place))
            for place, length in enumerate(lengths)
        ]
        if self.params[row.id].logprobs is None:
            return RowOutput(sampled)
        return RowOutput(sampled, logprobs=[TokenLogprobs(token, -1.0, []) for token in sampled])

    def _sample(self, tokens: list[int], words: npt.NDArray[np.int32] | None) -> int:
        token = self._script(tokens)
        if words is not None:
            allowed = bitmask.unpack(words, VOCAB)
            assert allowed, "empty mask row"
            token = token if token in allowed else allowed[0]
        return token


class ToyBackend(GrammarBackend):
    """Choices over a vocabulary in which token i is the character chr(32 + i); 63 is EOS."""

    name = "toy"

    def __init__(self) -> None:
        self.compiles = 0
        self.gate: Callable[[Constraint], None] = lambda constraint: None
        self.refuse: set[int] = set()

    def supports(self, constraint: Constraint) -> bool:
        return isinstance(constraint, Choice)

    def translate(self, constraint: Constraint) -> Native:
        return Native("")

    def compile_native(self, constraint: Constraint, native: Native) -> ToyCompiled:
        self.gate(constraint)
        self.compiles += 1
        assert isinstance(constraint, Choice)
        if "BAD" in constraint.options:
            raise ConstraintError("BAD is bad", field="input.constraint.choice")
        return ToyCompiled(constraint.options, self.refuse)

    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, ToyMatcher)
            words[row] = bitmask.pack(matcher.allowed(), VOCAB)


class ToyBackends(Backends):
    """The toy backend alone, whatever is asked for."""

    def __init__(self, backend: ToyBackend) -> None:
        super().__init__(Vocabulary([*[bytes([32 + token]) for token in range(EOS)], b""]))
        self._backend = backend

    def get(self, name: str) -> GrammarBackend:
        return self._backend

    def compile(self, constraint: Constraint) -> Chosen:
        return self.build(Recipe(self._backend.name, constraint, Native("")))


class ToyCompiled(CompiledConstraint):
    def __init__(self, options: tuple[str, ...], refuse: set[int]) -> None:
        self._options = options
        self._refuse = refuse

    @property
    def size_bytes(self) -> int:
        return 100 * len(self._options)

    def new_matcher(self) -> ToyMatcher:
        return ToyMatcher([self._options], self._refuse)


class ToyMatcher(Matcher):
    """left: what is left of the options, at the start and after each token."""

    def __init__(self, left: list[tuple[str, ...]], refuse: set[int]) -> None:
        self._left = left
        self._refuse = refuse

    def allowed(self) -> list[int]:
        return sorted({ord(option[0]) - 32 for option in self._left[-1] if option})

    def accept(self, token: int) -> None:
        if token not in self.allowed() or token in self._refuse:
            raise GrammarError(f"refused {token}")
        self._left.append(tuple(o[1:] for o in self._left[-1] if o and ord(o[0]) - 32 == token))

    def rollback(self, count: int) -> None:
        del self._left[len(self._left) - count :]

    def forced(self) -> bytes:
        same = itertools.takewhile(
            lambda column: len(set(column)) == 1, zip(*self._left[-1], strict=False)
        )
        return b"" if self.accepting else "".join(column[0] for column in same).encode()

    @property
    def accepting(self) -> bool:
        return "" in self._left[-1]

    def fork(self) -> ToyMatcher:
        return ToyMatcher(self._left.copy(), self._refuse)


def spell(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the longest tokens that fit, from the left."""
    spelt = Pieces(vocabulary).spell(text.encode())
    assert spelt is not None, f"no tokens spell {text!r}"
    return spelt


class StubEngine:
    """A core over the two, and what it has said so far."""

    def __init__(
        self,
        script: Script,
        *,
        jump: bool = False,
        drafts: bool = True,
        drafters: Sequence[Drafter] | None = None,
        backends: Backends | None = None,
        executor: StubExecutor | None = None,
        eos: Sequence[int] = (EOS,),
        head_start_s: float = 0.0,
        seconds_per_output: float = 0.0,
        clock: Callable[[], float] = lambda: 0.0,
        **options: object,
    ) -> None:
        """jump: append what a constraint forces.  drafts: guess, with the usual drafters unless
        others are given.  backends: over VOCAB tokens, instead of the toy one.  executor: in place
        of one that follows the script.  eos: the model's stop ids.  clock: stands still, so that
        how much is guessed does not depend on how busy the machine is.
        """
        settings: dict[str, object] = {
            "block_size": 4,
            "num_blocks": 32,
            "context_length": 64,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 16,
            "check": True,
        }
        config = ResolvedConfig(**(settings | options))  # type: ignore[arg-type]
        self.executor = executor or StubExecutor(script, config.block_size)
        self.backend = ToyBackend()
        backends = backends or ToyBackends(self.backend)
        self.inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        self.grammars = GrammarManager(
            backends,
            VOCAB,
            self.inbox.put,
            threads=2,
            cache_bytes=10_000,
            cache_entries=8,
            queue_length=16,
            encode=partial(spell, backends.vocabulary) if jump else None,
        )
        self.core = EngineCore(
            config,
            self.executor,
            self.grammars,
            self.inbox,
            eos_ids=frozenset(eos),
            drafters=(drafters or usual()) if drafts else (),
            head_start_s=head_start_s,
            seconds_per_output=seconds_per_output,
            clock=clock,
        )
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, EngineOutput] = {}
        self.reported: dict[str, list[EngineOutput]] = {}
        self.num_blocks = config.num_blocks

    def add(
        self,
        request_id: str,
        prompt: list[int],
        priority: int = 0,
        bad: list[list[int]] | None = None,
        **params: object,
    ) -> None:
        settings = SamplingParams(**params)  # type: ignore[arg-type]
        self._sequence = getattr(self, "_sequence", 0) + 1
        arrival = float(self._sequence)
        self.send(EngineRequest(request_id, prompt, settings, arrival, priority, bad or []))

    def send(self, request: EngineRequest) -> None:
        self.inbox.put(request)
        self.tokens[request.id] = []

    def compile(self, constraint: Constraint) -> None:
        """Have a constraint ready, so that no request for it waits, or sees it become ready."""
        self.inbox.put(Check("compile", constraint))
        while not self.core.take_checked():
            self.step()

    def step(self) -> list[EngineOutput]:
        outputs = self.core.step()
        for output in outputs:
            # Samples beyond the first go under "id/index".
            name = output.id if output.index == 0 else f"{output.id}/{output.index}"
            assert name not in self.ends, f"{name}: output after its end"
            self.tokens.setdefault(name, []).extend(output.new_ids)
            self.reported.setdefault(name, []).append(output)
            if output.finish is not None:
                self.ends[name] = output
        return outputs

    def run(self, until: int, steps: int = 10_000) -> None:
        """Step until so many requests have ended."""
        for _ in range(steps):
            if len(self.ends) >= until:
                return
            self.step()
        raise AssertionError(f"{len(self.ends)} of {until} ended after {steps} steps")

    def assert_clean(self) -> None:
        """Nothing is left of any request."""
        assert len(self.core.scheduler) == 0
        assert self.grammars.num_waiting == 0
        assert self.core.num_free_blocks == self.num_blocks
        self.core.check()
