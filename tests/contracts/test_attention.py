"""What every attention backend must do; the reference is `torch_cpu`, and SDPA for both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from structgen.errors import ConfigError
from structgen.model.attention import AttentionBackend, AttentionMetadata, get_backend
from structgen.model.attention.numba_cpu import NumbaCpuAttention
from structgen.model.attention.numba_vectors import Kind
from structgen.model.compiled.compiler import features
from structgen.model.kv_cache import KVCache, LayerShape

CPU = torch.device("cpu")

# A backend for another device is one more parameter, with that device and the gpu mark.
BACKENDS = [
    pytest.param(("torch_cpu", CPU), id="torch_cpu"),
    pytest.param(("numba_cpu", CPU), id="numba_cpu"),
]

# (tokens in the cache, new tokens): decode rows, a first chunk, a later chunk, drafts, one token.
MIXED = [(40, 1), (0, 23), (30, 17), (64, 4), (0, 1), (15, 1), (16, 16), (300, 1), (255, 33)]


@dataclass(frozen=True)
class Case:
    lengths: tuple[tuple[int, int], ...] = tuple(MIXED)
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    kv_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32
    seed: int = 0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    name, device = request.param
    return get_backend(name, device, threads=2)


CASES = {
    "plain": Case(),
    "one token in all": Case(lengths=((0, 1),)),
    "decode only": Case(lengths=tuple((n, 1) for n in range(1, 70, 3))),
    "prefill only": Case(lengths=((0, 100),)),
    "many rows": Case(lengths=tuple((n % 37, 1 + n % 3) for n in range(200))),
    "no grouping": Case(num_heads=3, num_kv_heads=3),
    "three query heads a group": Case(num_heads=9, num_kv_heads=3, head_dim=64),
    "seven query heads a group": Case(num_heads=14, num_kv_heads=2, head_dim=64),
    "eight query heads a group": Case(num_heads=8, num_kv_heads=1),
    "more query heads than a tile of rows": Case(num_heads=71, num_kv_heads=1),
    "head_dim 8": Case(head_dim=8),
    "head_dim 80": Case(head_dim=80),
    "head_dim 256": Case(head_dim=256),
    "block_size 1": Case(block_size=1),
    "block_size 3": Case(block_size=3),
    "block_size 32": Case(block_size=32),
    "block_size 256": Case(block_size=256),
    "window 1": Case(window=1),
    "window 7": Case(window=7),
    "window 16": Case(window=16),
    "window longer than all": Case(window=4096),
    "window across tiles": Case(lengths=((600, 1), (500, 90)), window=280),
    "softcap": Case(softcap=2.0),
    "softcap and window": Case(softcap=5.0, window=20),
    "long": Case(lengths=((1500, 1), (1000, 40))),
    "bfloat16 cache": Case(kv_dtype=torch.bfloat16),
    "float16 cache": Case(kv_dtype=torch.float16),
    "bfloat16 model, float32 cache": Case(dtype=torch.bfloat16),
    "bfloat16 model and cache": Case(dtype=torch.bfloat16, kv_dtype=torch.bfloat16),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_mixed_batch_equals_sdpa_of_each_sequence_alone(
    backend: AttentionBackend, case: Case
) -> None:
    batch = Batch(case, backend)
    expected = batch.expected().to(case.dtype)
    torch.testing.assert_close(batch.forward(), expected, atol=_tolerance(case), rtol=0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_result_equals_the_reference(backend: AttentionBackend, case: Case) -> None:
    reference = Batch(case, get_backend("torch_cpu", CPU, threads=1))
    torch.testing.assert_close(
        Batch(case, backend).forward(), reference.forward(), atol=_tolerance(case), rtol=0
    )


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [1, 16])
def test_exactly_the_slots_of_the_new_tokens_are_written(
    backend: AttentionBackend, kv_dtype: torch.dtype, block_size: int
) -> None:
    """The layout is the backend's own, so count: each new token changes its 2 * Hk * D numbers."""
    case = Case(kv_dtype=kv_dtype, block_size=block_size)
    batch = Batch(case, backend)
    layer = batch.cache.layers[0]
    layer.fill_(77)
    batch.forward()
    changed = layer.float() != 77
    assert changed.sum() == 2 * case.num_kv_heads * case.head_dim * len(batch.q)
    stored = torch.cat([batch.k, batch.v]).to(kv_dtype).float()
    torch.testing.assert_close(
        layer.float()[changed].sort().values, stored.flatten().sort().values, atol=0, rtol=0
    )


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [3, 16])
def test_what_lies_in_blocks_of_others_has_no_influence(
    backend: AttentionBackend, kv_dtype: torch.dtype, block_size: int
) -> None:
    """Not even if it is no number: free blocks keep what their last owner left."""
    case = Case(
        lengths=((20, 1), (0, 9), (40, 7)), window=30, kv_dtype=kv_dtype, block_size=block_size
    )
    batch = Batch(case, backend)
    expected = batch.forward()
    kept = batch.cache.layers[0].clone()
    batch.cache.layers[0].fill_(torch.nan)
    batch.fill()
    batch.forward()
    again = batch.forward()
    torch.testing.assert_close(again, expected, atol=0, rtol=0)
    owned = ~batch.cache.layers[0].isnan()
    torch.testing.assert_close(batch.cache.layers[0][owned], kept[owned], atol=0, rtol=0)


def test_any_strides_do(backend: AttentionBackend) -> None:
    """transformers hands over tensors that are transposed in memory."""
    batch = Batch(Case(), backend)
    expected = batch.forward()
    for name in ("q", "k", "v"):
        tensor = getattr(batch, name)
        setattr(batch, name, tensor.transpose(0, 1).contiguous().transpose(0, 1))
    torch.testing.assert_close(batch.forward(), expected, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_query_key_and_value_may_be_views_of_one_tensor(
    backend: AttentionBackend, dtype: torch.dtype
) -> None:
    """As one multiplication by all three matrices leaves them."""
    batch = Batch(Case(dtype=dtype, kv_dtype=dtype), backend)
    expected = batch.forward()
    counts = [tensor.shape[1] for tensor in (batch.q, batch.k, batch.v)]
    batch.q, batch.k, batch.v = torch.cat([batch.q, batch.k, batch.v], dim=1).split(counts, dim=1)
    torch.testing.assert_close(batch.forward(), expected, atol=0, rtol=0)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_does_not_change_a_row(
    backend: AttentionBackend, kv_dtype: torch.dtype
) -> None:
    case = Case(kv_dtype=kv_dtype, lengths=((90, 1), (0, 40), (7, 1), (500, 200)))
    together = Batch(case, backend).forward()
    one_thread = Batch(case, get_backend(backend.name, CPU, threads=1)).forward()
    torch.testing.assert_close(together, one_thread, atol=0, rtol=0)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 280])
def test_the_neighbours_do_not_change_a_row(
    backend: AttentionBackend, kv_dtype: torch.dtype, window: int | None
) -> None:
    case = Case(lengths=((300, 1), (0, 40), (501, 70)), kv_dtype=kv_dtype, window=window)
    batch = Batch(case, backend)
    together = batch.forward().split([new for _, new in case.lengths])
    news = [
        tensor.split([new for _, new in case.lengths]) for tensor in (batch.q, batch.k, batch.v)
    ]
    for row, lengths in enumerate(case.lengths):
        meta = _metadata(batch.table[row : row + 1], [lengths], case.block_size)
        alone = batch.run(*(tensors[row] for tensors in news), meta)
        torch.testing.assert_close(alone, together[row], atol=0, rtol=0)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 280])
@pytest.mark.parametrize("chunk", [1, 23, 256])
def test_how_a_prompt_is_cut_into_chunks_does_not_change_a_row(
    kv_dtype: torch.dtype, window: int | None, chunk: int
) -> None:
    """A backend need not promise it; the default does."""
    case = Case(lengths=((0, 600),), kv_dtype=kv_dtype, window=window)
    batch = Batch(case, get_backend("numba_cpu", CPU, threads=2))
    whole = batch.forward()
    chunks = zip(*(tensor.split(chunk) for tensor in (batch.q, batch.k, batch.v)), strict=True)
    for index, (q, k, v) in enumerate(chunks):
        past = index * chunk
        meta = _metadata(batch.table, [(past, len(q))], case.block_size)
        expected = whole[past : past + len(q)]
        torch.testing.assert_close(batch.run(q, k, v, meta), expected, atol=0, rtol=0)


@pytest.mark.parametrize("lanes", [8, 16])
def test_machines_without_instructions_for_bfloat16_compute_in_float32(lanes: int) -> None:
    forced = NumbaCpuAttention(2, kind=lambda number: Kind(number, lanes))
    reference = get_backend("torch_cpu", CPU, threads=1)
    for name in ("plain", "head_dim 80", "block_size 3", "softcap and window", "long"):
        case = replace(CASES[name], kv_dtype=torch.bfloat16)
        torch.testing.assert_close(
            Batch(case, forced).forward(), Batch(case, reference).forward(), atol=5e-6, rtol=0
        )


@pytest.mark.skipif("avx512bf16" not in features(), reason="no instruction for bfloat16 here")
def test_the_instruction_for_bfloat16_comes_as_close() -> None:
    forced = NumbaCpuAttention(2, kind=lambda number: Kind(number, 16, number == "bfloat16"))
    for name in ("plain", "head_dim 80", "block_size 3", "softcap and window", "long"):
        case = replace(CASES[name], kv_dtype=torch.bfloat16)
        batch = Batch(case, forced)
        torch.testing.assert_close(batch.forward(), batch.expected(), atol=_tolerance(case), rtol=0)


def test_large_scores_stay_finite(backend: AttentionBackend) -> None:
    batch = Batch(Case(), backend)
    batch.q *= 1e4
    torch.testing.assert_close(batch.forward(), batch.expected(), atol=1e-3, rtol=1e-3)


def test_zeros_in_a_fresh_cache_need_no_memory(backend: AttentionBackend) -> None:
    cache = KVCache(
        [LayerShape(2, 16)], num_blocks=8, block_size=4, dtype=torch.float32, device=CPU,
        backend=backend,
    )  # fmt: skip
    assert cache.layers[0].shape == backend.kv_shape(8, 4, 2, 16)
    assert cache.size_bytes == 8 * 4 * 2 * 2 * 16 * 4
    assert not cache.layers[0].any()


def test_a_dtype_that_is_no_float_is_refused(backend: AttentionBackend) -> None:
    with pytest.raises(ConfigError, match="kv_dtype"):
        backend.prepare(torch.int8)


class Batch:
    """Random sequences in a random block table; the cache holds their past."""

    def __init__(self, case: Case, backend: AttentionBackend) -> None:
        self.case = case
        self.backend = backend
        torch.manual_seed(case.seed)
        ends = [past + new for past, new in case.lengths]
        used = [-(-end // case.block_size) for end in ends]
        blocks = torch.randperm(sum(used) + 5, dtype=torch.int32)
        # Entries behind a sequence's last block must never be read.
        self.table = torch.full((len(ends), max(used)), 2**30, dtype=torch.int32)
        for row, owned in zip(self.table, blocks[: sum(used)].split(used), strict=True):
            row[: len(owned)] = owned
        self.cache = KVCache(
            [LayerShape(case.num_kv_heads, case.head_dim)],
            num_blocks=len(blocks),
            block_size=case.block_size,
            dtype=case.kv_dtype,
            device=CPU,
            backend=backend,
        )
        shape = (case.num_kv_heads, case.head_dim)
        self.keys = [torch.randn(end, *shape).to(case.dtype) for end in ends]
        self.values = [torch.randn(end, *shape).to(case.dtype) for end in ends]
        self.q = torch.randn(sum(new for _, new in case.lengths), case.num_heads, case.head_dim).to(
            case.dtype
        )
        self.k, self.v = (
            torch.cat([t[past:] for t, (past, _) in zip(all_, case.lengths, strict=True)])
            for all_ in (self.keys, self.values)
        )
        self.fill()

    def fill(self) -> None:
        """Put the past of the sequences into the cache, through the backend itself."""
        past = [(row, length) for row, (length, _) in enumerate(self.case.lengths) if length]
        if not past:
            return
        rows = [row for row, _ in past]
        k, v = (torch.cat([t[row][:n] for row, n in past]) for t in (self.keys, self.values))
        q = torch.zeros(len(k), *self.q.shape[1:], dtype=self.case.dtype)
        meta = _metadata(self.table[rows], [(0, n) for _, n in past], self.case.block_size)
        self.run(q, k, v, meta)

    def forward(self) -> torch.Tensor:
        meta = _metadata(self.table, self.case.lengths, self.case.block_size)
        return self.run(self.q, self.k, self.v, meta)

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, meta: AttentionMetadata
    ) -> torch.Tensor:
        return self.backend.forward(
            q, k, v, self.cache.layers[0], meta,
            scale=self.case.head_dim**-0.5, window=self.case.window, softcap=self.case.softcap,
        )  # fmt: skip

    def expected(self) -> torch.Tensor:
        """Return float32 [N, H, D], by one call of SDPA (or plain softmax) for each sequence."""
        results = []
        queries = self.q.float().split([new for _, new in self.case.lengths])
        for q, k, v in zip(queries, self.keys, self.values, strict=True):
            stored = (t.to(self.case.kv_dtype).float() for t in (k, v))
            results.append(_sdpa(q, *stored, self.case.window, self.case.softcap))
        return torch.cat(results)


def _metadata(
    table: torch.Tensor, lengths: list[tuple[int, int]] | tuple[tuple[int, int], ...], size: int
) -> AttentionMetadata:
    slots = [
        int(table[row, position // size]) * size + position % size
        for row, (past, new) in enumerate(lengths)
        for position in range(past, past + new)
    ]
    new = torch.tensor([new for _, new in lengths])
    ends = [past + new for past, new in lengths]
    return AttentionMetadata(
        cu_seqlens_q=torch.cat([torch.zeros(1), new.cumsum(0)]).int(),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_table=table.contiguous(),
        slot_mapping=torch.tensor(slots),
        max_q=int(new.max()),
        max_k=max(ends),
    )


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None, softcap: float | None
) -> torch.Tensor:
    """q: [Nq, H, D], the last of T tokens.  k, v: [T, Hk, D].  Returns [Nq, H, D]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    num_queries, num_keys = q.shape[1], k.shape[1]
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
    if window is not None:
        seen = seen.triu(num_keys - num_queries - window + 1)
    if softcap is None:
        return scaled_dot_product_attention(q, k, v, seen).transpose(0, 1)
    scores = softcap * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / softcap)
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v).transpose(0, 1)


def _tolerance(case: Case) -> float:
    """The cache's rounding is part of what is expected; a bfloat16 result rounds once more.

    With a bfloat16 cache a backend may round what it multiplies with keys and values as well.
    """
    return 2e-2 if torch.bfloat16 in (case.dtype, case.kv_dtype) else 5e-6
