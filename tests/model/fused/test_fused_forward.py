"""Packed weights: what they compute, and that no row depends on the others."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from llvmlite.binding import get_host_cpu_features

from structgen.model.attention import get_backend
from structgen.model.attention.base import AttentionMetadata
from structgen.model.context import forward_context
from structgen.model.forward import EagerForward, Forward, pack_forward
from structgen.model.kv_cache import KVCache, LayerShape
from structgen.model.load import load_model
from structgen.model.sources import resolve

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 16, 4  # of each sequence
DTYPES = [torch.int8, torch.bfloat16, torch.float32]
KNOWN = ["llama", "mistral", "qwen2", "qwen3"]


class Batch:
    """Sequences side by side, with a forward and a cache of their own."""

    def __init__(
        self,
        forward: Forward,
        sequences: Sequence[Sequence[int]],
        attention: str = "numba_cpu",
    ) -> None:
        self._forward, self._sequences = forward, sequences
        self._backend = get_backend(attention, CPU, 1)
        self._done = [0] * len(sequences)
        self._cache = KVCache(
            [LayerShape(2, 16)] * 3,
            num_blocks=NUM_BLOCKS * len(sequences),
            block_size=BLOCK_SIZE,
            dtype=torch.float32,
            device=CPU,
            backend=self._backend,
        )

    def logits(self, count: int) -> list[torch.Tensor]:
        """Compute up to `count` more tokens of each sequence; returns [n, V] for each."""
        spans = [
            (start, min(start + count, len(sequence)))
            for start, sequence in zip(self._done, self._sequences, strict=True)
        ]
        self._done = [stop for _, stop in spans]
        lengths = [stop - start for start, stop in spans]
        ids = [
            token
            for sequence, span in zip(self._sequences, spans, strict=True)
            for token in sequence[slice(*span)]
        ]
        positions = torch.cat([torch.arange(*span) for span in spans])
        first = NUM_BLOCKS * BLOCK_SIZE * torch.arange(len(spans))
        meta = AttentionMetadata(
            cu_seqlens_q=torch.tensor([0, *lengths]).cumsum(0).int(),
            seq_lens=torch.tensor(self._done).int(),
            block_table=torch.arange(NUM_BLOCKS * len(spans)).int().view(-1, NUM_BLOCKS),
            slot_mapping=positions + first.repeat_interleave(torch.tensor(lengths)),
            max_q=max(lengths),
            max_k=max(self._done),
        )
        with torch.inference_mode(), forward_context(meta, self._backend, self._cache):
            found = self._forward(torch.tensor(ids), positions, torch.arange(len(ids)))
        return list(found.clone().split(lengths))


@cache
def forward(architecture: str, packed: torch.dtype | None, threads: int = 1) -> Forward:
    folder = resolve(f"random:{architecture}")
    model, spec = load_model(folder, dtype=torch.float32, device=CPU)
    if packed is None:
        return EagerForward(model)
    return pack_forward(model, packed, [layer.window for layer in spec.layers], threads)


def sequences(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 500, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("architecture", KNOWN)
def test_packed_float32_computes_what_the_model_does(architecture: str) -> None:
    prompts = sequences(50, 1, 7)
    ours = Batch(forward(architecture, torch.float32), prompts).logits(64)
    eager = Batch(forward(architecture, None), prompts).logits(64)
    for found, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_attention_that_is_not_compiled_serves_layer_by_layer() -> None:
    prompts = sequences(50, 1, 7)
    at_once = Batch(forward("llama", torch.float32), prompts).logits(20)
    by_layer = Batch(forward("llama", torch.float32), prompts, "torch_cpu").logits(20)
    for found, expected in zip(by_layer, at_once, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", KNOWN)
@pytest.mark.parametrize(("dtype", "least"), [(torch.bfloat16, 0.999), (torch.int8, 0.99)])
def test_packed_weights_of_few_bits_come_close(
    architecture: str, dtype: torch.dtype, least: float
) -> None:
    prompts = sequences(50, 1, 7)
    ours = torch.cat(Batch(forward(architecture, dtype), prompts).logits(64))
    eager = torch.cat(Batch(forward(architecture, None), prompts).logits(64))
    assert torch.cosine_similarity(ours, eager).mean() > least


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_is_the_same_in_every_bit_whatever_is_computed_along_with_it(
    dtype: torch.dtype,
) -> None:
    """Alone, beside 31 others, and in chunks, with one thread and with two."""
    prompts = sequences(*(1 + (7 * n) % 40 for n in range(32)))
    together = Batch(forward("llama", dtype, 2), prompts).logits(64)
    chunked = Batch(forward("llama", dtype, 1), [prompts[5]])
    pieces = [chunked.logits(count)[0] for count in (1, 3, 13, 64)]
    assert torch.equal(torch.cat(pieces), together[5])
    for index in (0, 11, 31):
        [alone] = Batch(forward("llama", dtype, 1), [prompts[index]]).logits(64)
        assert torch.equal(alone, together[index]), f"prompt {index}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_do_not_write_to_each_others_rows(dtype: torch.dtype) -> None:
    prompts = sequences(*[60] * 16)
    expected = torch.cat(Batch(forward("llama", dtype, 1), prompts).logits(64))
    for _ in range(10):
        assert torch.equal(
            torch.cat(Batch(forward("llama", dtype, 2), prompts).logits(64)), expected
        )


def test_what_is_not_finite_is_not_hidden() -> None:
    folder = resolve("random:llama")
    model, _ = load_model(folder, dtype=torch.float32, device=CPU)
    model.get_input_embeddings().weight[3, 5] = torch.nan  # type: ignore[operator]
    spoilt = pack_forward(model, torch.int8, [None] * 3, 1)
    bad, good = Batch(spoilt, [[3], [4]]).logits(1)
    assert bad.isnan().all()
    assert good.isfinite().all()


def test_packed_weights_leave_the_model() -> None:
    model, _ = load_model(resolve("random:llama"), dtype=torch.float32, device=CPU)
    pack_forward(model, torch.int8, [None] * 3, 1)
    [layer, *_] = model.get_submodule("model.layers").children()
    assert all(parameter.is_meta for parameter in layer.parameters())


SCRIPT = """
import sys, torch
from tests.model.fused.test_fused_forward import Batch, forward, sequences
for name in sys.argv[1:]:
    dtype = getattr(torch, name.removeprefix("torch."))
    [logits] = Batch(forward("llama", dtype), sequences(20)).logits(64)
    print(*logits[-1].tolist())
"""


# What llvm calls some CPUs; what another needs to have to play them; what is computed.
_AVX2 = "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2"
CPUS = {
    # The oldest of the kind has neither products of bytes nor of bfloat16.
    "generic": ("", DTYPES),
    "haswell": (_AVX2, [torch.int8]),
    "skylake-avx512": (_AVX2 + ",+avx512f,+avx512bw,+avx512dq,+avx512vl", [torch.int8]),
}


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_without_the_instructions_computes_the_same(name: str) -> None:
    features, dtypes = CPUS[name]
    has = {feature for feature, is_there in get_host_cpu_features().items() if is_there}
    if lacks := [one for one in features.split(",") if one and one[1:] not in has]:
        pytest.skip(f"this CPU cannot play {name}: it lacks {', '.join(lacks)}")
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, dtypes)],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for dtype, line in zip(dtypes, lines, strict=True):
        [logits] = Batch(forward("llama", dtype), sequences(20)).logits(64)
        found = torch.tensor([float(number) for number in line.split()])
        # Attention adds up in another order there, after which a number may round the other way.
        atol = 1e-4 if dtype == torch.float32 else 5e-2
        torch.testing.assert_close(found, logits[-1], rtol=1e-2, atol=atol)
