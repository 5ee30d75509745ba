"""How long does attention take in one step?  One JSON line per case.

    python benchmarks/attention.py [--backend NAME] [--threads N] [--repeat N]

The shape is that of SmolLM2-135M (30 layers, 9 query heads, 3 KV heads of 64) with a bfloat16
cache.  `read_ms` is the time to read as many bytes as the step has to, in order, just before:
what no kernel can beat, on a machine in the state that it is in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable

import torch

from structgen.model.attention import AttentionBackend, AttentionMetadata, get_backend
from structgen.model.kv_cache import KVCache, LayerShape

NUM_LAYERS, NUM_HEADS, SHAPE, BLOCK_SIZE = 30, 9, LayerShape(3, 64), 16
CPU = torch.device("cpu")

# (tokens in the cache, new tokens) of each sequence
CASES = {
    "decode_1": [(256, 1)],
    "decode_8": [(256, 1)] * 8,
    "decode_32": [(256, 1)] * 32,
    "decode_32_long": [(2047, 1)] * 32,
    "prefill_512": [(0, 512)],
    "mixed": [(256, 1)] * 16 + [(128, 240)],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="numba_cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for case, lengths in CASES.items():
        print(json.dumps(measure(options.backend, case, lengths, options)), flush=True)


@torch.inference_mode()
def measure(
    name: str, case: str, lengths: list[tuple[int, int]], options: argparse.Namespace
) -> dict[str, object]:
    torch.manual_seed(0)
    backend = get_backend(name, CPU, options.threads)
    meta, num_blocks = metadata(lengths)
    cache = KVCache(
        [SHAPE] * NUM_LAYERS, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=torch.bfloat16,
        device=CPU, backend=backend,
    )  # fmt: skip
    for layer in cache.layers:
        layer.normal_()
    num_tokens = len(meta.slot_mapping)
    q = torch.randn(num_tokens, NUM_HEADS, SHAPE.head_dim)
    k, v = torch.randn(2, num_tokens, *SHAPE)
    as_many = torch.ones(cache.size_bytes // 4)

    times = timed(lambda: step(backend, q, k, v, cache, meta), options.repeat)
    read = timed(lambda: as_many.sum(), options.repeat)
    return {
        "case": case,
        "backend": name,
        "layers": NUM_LAYERS,
        "threads": options.threads,
        "p50_ms": quantile(times, 0.5),
        "p99_ms": quantile(times, 0.99),
        "min_ms": round(min(times), 2),
        "n": len(times),
        "cache_mb": round(cache.size_bytes / 1e6, 1),
        "read_ms": quantile(read, 0.5),
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__,
    }


def step(
    backend: AttentionBackend,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: KVCache,
    meta: AttentionMetadata,
) -> None:
    for layer in cache.layers:
        backend.forward(q, k, v, layer, meta, scale=0.125, window=None, softcap=None)


def metadata(lengths: list[tuple[int, int]]) -> tuple[AttentionMetadata, int]:
    """Return the metadata of such a step, in blocks of random order, and how many blocks it has."""
    ends = [past + new for past, new in lengths]
    used = [-(-end // BLOCK_SIZE) for end in ends]
    table = torch.zeros(len(ends), max(used), dtype=torch.int32)
    for row, blocks in zip(table, torch.randperm(sum(used)).split(used), strict=True):
        row[: len(blocks)] = blocks
    slots = [
        int(table[row, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
        for row, (past, new) in enumerate(lengths)
        for position in range(past, past + new)
    ]
    new = torch.tensor([new for _, new in lengths])
    meta = AttentionMetadata(
        cu_seqlens_q=torch.cat([torch.zeros(1), new.cumsum(0)]).int(),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.tensor(slots),
        max_q=int(new.max()),
        max_k=max(ends),
    )
    return meta, sum(used)


def timed(run: Callable[[], object], repeat: int) -> list[float]:
    """Return milliseconds of each run, after two to warm up."""
    times = []
    for _ in range(repeat + 2):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) * 1e3)
    return times[2:]


def quantile(times: list[float], at: float) -> float:
    return round(float(torch.tensor(times).quantile(at)), 2)


if __name__ == "__main__":
    main()
