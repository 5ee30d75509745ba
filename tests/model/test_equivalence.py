"""Greedy tokens equal transformers.generate, however the scheduler cuts the work up."""

import random
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from structgen.config import EngineConfig
from structgen.constraints import JsonSchema
from structgen.engine.client import InprocClient
from structgen.messages import Abort, EngineOutput, EngineRequest
from structgen.params import SamplingParams

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"]
NEW_TOKENS = 24


class Engine:
    """A float32 engine in this process, and the tokens it gave."""

    def __init__(self, model: str, **options: object) -> None:
        settings: dict[str, object] = {
            "dtype": "float32",
            "threads": 1,
            "num_blocks": 256,
            "check": True,
            "isolate_compile": False,
        }
        self.client = InprocClient(EngineConfig(model=model, **(settings | options)))  # type: ignore[arg-type]

    def send(self, request_id: str, prompt: list[int], **params: object) -> None:
        settings: dict[str, object] = {
            "temperature": 0.0,
            "max_tokens": NEW_TOKENS,
            "ignore_eos": "constraint" not in params,
        }
        request = SamplingParams(**(settings | params))  # type: ignore[arg-type]
        self.client.send(EngineRequest(request_id, prompt, request, time.monotonic()))

    def run(self, count: int, arrivals: Iterator[None] | None = None) -> dict[str, list[int]]:
        """Step until so many requests ended, calling for an arrival before each step."""
        tokens: dict[str, list[int]] = {}
        self.ends: dict[str, EngineOutput] = {}
        while len(self.ends) < count:
            if arrivals is not None:
                next(arrivals, None)
            for output in self.client.step():
                tokens.setdefault(output.id, []).extend(output.new_ids)
                if output.finish:
                    assert output.error is None, output.error
                    self.ends[output.id] = output
        return tokens

    def answers(self, prompts: list[list[int]], **params: object) -> list[list[int]]:
        for index, prompt in enumerate(prompts):
            self.send(f"r{index}", prompt, **params)
        tokens = self.run(len(prompts))
        return [tokens[f"r{index}"] for index in range(len(prompts))]


@cache
def engine(model: str, **options: object) -> Engine:
    return Engine(model, **options)


@cache
def reference(
    folder: str, vocab_size: int, prompt: tuple[int, ...], count: int = NEW_TOKENS
) -> list[int]:
    """What transformers.generate says, sampling only ids that the tokenizer knows."""
    model = _reference_model(folder)
    beyond = list(range(vocab_size, model.get_output_embeddings().weight.shape[0]))
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        suppress_tokens=beyond or None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@cache
def _reference_model(folder: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def random_prompts(
    count: int, vocab_size: int, longest: int = 70, seed: int = 0
) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(vocab_size) for _ in range(rng.choice([1, 2, 15, 16, 17, 33, longest]))]
        for _ in range(count)
    ]


def expected(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    info = engine.client.model
    return [reference(info.folder, info.vocab_size, tuple(prompt)) for prompt in prompts]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("attention", ["torch_cpu", "numba_cpu"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_equal_generate(architecture: str, attention: str) -> None:
    ours = engine(f"random:{architecture}", attention=attention)
    prompts = random_prompts(6, ours.client.model.vocab_size)
    assert ours.answers(prompts) == expected(ours, prompts)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("budget", [1, 16, 23, 4096])
def test_tokens_do_not_depend_on_the_token_budget(architecture: str, budget: int) -> None:
    ours = Engine(f"random:{architecture}", max_num_batched_tokens=budget)
    prompts = random_prompts(5, ours.client.model.vocab_size, longest=40)
    assert ours.answers(prompts) == expected(ours, prompts)


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_tokens_do_not_depend_on_preemption(block_size: int) -> None:
    ours = Engine("random:llama", num_blocks=160 // block_size, block_size=block_size)
    prompts = random_prompts(8, ours.client.model.vocab_size)
    assert ours.answers(prompts) == expected(ours, prompts)
    assert sum(end.stats.preemptions for end in ours.ends.values() if end.stats) > 0


@pytest.mark.parametrize("length", [15, 16, 17, 32, 70])
def test_tokens_do_not_depend_on_prefix_hits(length: int) -> None:
    ours = engine("random:qwen3")
    prompt = random_prompts(1, ours.client.model.vocab_size, seed=length)[0][:1] * length
    [want] = expected(ours, [prompt])
    assert ours.answers([prompt]) == [want]
    assert ours.answers([prompt, [*prompt, *want[:9]]])[0] == want
    stats = ours.ends["r0"].stats
    assert stats is not None
    assert stats.cached_tokens == (length - 1) // 16 * 16
    [tail] = [ours.ends["r1"].stats]
    assert tail is not None
    assert tail.cached_tokens == (length + 8) // 16 * 16


def test_64_mixed_requests_arriving_at_random_answer_as_if_alone() -> None:
    ours = Engine("random:llama", num_blocks=64, max_num_batched_tokens=48)
    vocab_size = ours.client.model.vocab_size
    rng = random.Random(1)
    prompts = random_prompts(64, vocab_size, seed=2)
    schema = JsonSchema('{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}')
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 0.9, "top_k": 40, "seed": 5},
        {"temperature": 1.1, "top_p": 0.9, "min_p": 0.01, "seed": 6},
        {"constraint": schema, "max_tokens": 40},
        {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"temperature": 0.8, "seed": 7, "logit_bias": ((9, 2.0),), "repetition_penalty": 0.8},
        {"allowed_token_ids": tuple(range(40, 90)), "logprobs": 3},
    ]

    def arrive() -> Iterator[None]:
        for index, prompt in enumerate(prompts):
            ours.send(f"r{index}", prompt, **kinds[index % len(kinds)])
            if index % 8 == 3:
                ours.send(f"aborted{index}", prompt, max_tokens=50)
                ours.client.send(Abort([f"aborted{index - 8}"]))
            for _ in range(rng.randrange(4)):
                yield
        ours.client.send(Abort([f"aborted{index}" for index in range(64)]))

    together = ours.run(64, arrive())
    together = {name: ids for name, ids in together.items() if name.startswith("r")}
    lonely = engine("random:llama", prefix_caching=False)
    for index in rng.sample(range(64), 24):
        [alone] = lonely.answers([prompts[index]], **kinds[index % len(kinds)])
        assert together[f"r{index}"] == alone, f"request {index}"
    assert ours.client.core.num_free_blocks == 64


@pytest.mark.parametrize("budget", [7, 512])
def test_prompt_logprobs_equal_the_reference_chunked_and_with_the_prefix_cached(
    budget: int,
) -> None:
    ours = Engine("random:llama", max_num_batched_tokens=budget)
    prompt = random_prompts(9, ours.client.model.vocab_size, seed=3)[-1][:1] + list(range(32))
    model = _reference_model(ours.client.model.folder)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, :, : ours.client.model.vocab_size]
    expected = logits.log_softmax(-1)
    for _ in range(2):
        ours.send("a", prompt, max_tokens=2, prompt_logprobs=2, logprobs=1)
        outputs = []
        while not outputs or outputs[-1].finish is None:
            outputs += ours.client.step()
        [none, *found] = outputs[0].prompt_logprobs
        assert none is None
        assert [logprob.token for logprob in found if logprob] == prompt[1:]
        for position, logprob in enumerate(found):
            assert logprob is not None
            row = expected[position]
            assert logprob.logprob == pytest.approx(float(row[prompt[position + 1]]), abs=1e-4)
            assert [token for token, _ in logprob.top] == row.topk(2).indices.tolist()
        assert outputs[0].logprobs[0].logprob == pytest.approx(float(expected[-1].max()), abs=1e-4)


def test_samples_of_one_request_differ_and_repeat() -> None:
    ours = engine("random:llama")
    first, second = [], []
    for answers in (first, second):
        ours.send("a", [5, 6, 7] * 9, n=4, temperature=1.0, seed=3)
        tokens: dict[int, list[int]] = {}
        ends = 0
        while ends < 4:
            for output in ours.client.step():
                tokens.setdefault(output.index, []).extend(output.new_ids)
                ends += output.finish is not None
        answers += [tokens[index] for index in range(4)]
    assert first == second
    assert len({tuple(answer) for answer in first}) == 4
    [alone] = ours.answers([[5, 6, 7] * 9], temperature=1.0, seed=3)
    assert alone == first[0]


def test_ids_beyond_the_tokenizer_are_never_sampled() -> None:
    ours = engine("random:llama")
    rows = _reference_model(ours.client.model.folder).get_output_embeddings().weight.shape[0]
    vocab_size = ours.client.model.vocab_size
    assert rows > vocab_size
    prompts = random_prompts(8, vocab_size)
    answers = ours.answers(prompts, temperature=5.0, max_tokens=60)
    assert max(max(answer) for answer in answers) < vocab_size


def test_a_seed_gives_the_same_text_with_serial_masks() -> None:
    prompts = random_prompts(3, 256)
    params = {"temperature": 1.0, "seed": 3}
    serial = Engine("random:llama", overlap=False)
    assert engine("random:llama").answers(prompts, **params) == serial.answers(prompts, **params)


@pytest.mark.slow
def test_the_default_model_equals_generate() -> None:
    """SmolLM2 in float32, chunked, with and without space, with prefix hits."""
    from structgen.config import home

    if not list(Path(home()).glob("models/*/smollm2-135m")):
        pytest.skip("the default model has not been fetched (structgen pull smollm2-135m)")
    ours = Engine("smollm2-135m", num_blocks=20, max_num_batched_tokens=24, threads=2)
    torch.set_num_threads(2)
    from structgen.tokenizer import ChatMessage, Tokenizer

    tokenizer = Tokenizer.load(Path(ours.client.model.folder))
    prompts = [
        tokenizer.encode_chat([ChatMessage("user", text)])
        for text in (
            "What is a block table?",
            "Count from one to ten.",
            "Write a haiku about rain.",
        )
    ]
    want = expected(ours, prompts)
    assert ours.answers(prompts) == want
    assert ours.answers(prompts) == want
