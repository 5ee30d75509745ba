"""The function that transformers calls: what reaches the backend, and what is refused."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from structgen.errors import ConfigError, Unsupported
from structgen.model import attention
from structgen.model.attention import AttentionBackend, AttentionMetadata
from structgen.model.context import current, forward_context
from structgen.model.kv_cache import KVCache, LayerShape, bytes_per_token

CPU = torch.device("cpu")
BLOCK_SIZE = 4
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ARCHITECTURES = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "qwen3": {},
    "mistral": {"sliding_window": 6},
    "gemma": {},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 5, "query_pre_attn_scalar": 8},
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    attention.register()


def _model(model_type: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **(SMALL | options))
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def _backend() -> AttentionBackend:
    return attention.get_backend("torch_cpu", CPU, threads=1)


def _kv_cache(backend: AttentionBackend) -> KVCache:
    return KVCache(
        [LayerShape(2, 16)] * 4,
        num_blocks=20,
        block_size=BLOCK_SIZE,
        dtype=torch.float32,
        device=CPU,
        backend=backend,
    )


def _chunk(starts: list[int], ends: list[int]) -> AttentionMetadata:
    """Tokens [start, end) of two sequences whose blocks alternate."""
    table = torch.arange(20, dtype=torch.int32).view(10, 2).T.contiguous()
    lengths = torch.tensor(ends) - torch.tensor(starts)
    slots = [
        int(table[row, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE
        for row in range(2)
        for p in range(starts[row], ends[row])
    ]
    return AttentionMetadata(
        cu_seqlens_q=torch.cat([torch.zeros(1), lengths.cumsum(0)]).int(),
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.tensor(slots),
        max_q=int(lengths.max()),
        max_k=max(ends),
    )


@torch.inference_mode()
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_chunks_of_two_sequences_give_the_logits_of_each_alone(model_type: str) -> None:
    """Window, softcap and scale all reach the backend, or these would differ."""
    model = _model(model_type, **ARCHITECTURES[model_type])
    ids = [torch.randint(3, 64, (length,)) for length in (17, 12)]
    expected = [model(input_ids=row.unsqueeze(0)).logits[0] for row in ids]
    model.set_attn_implementation(attention.IMPLEMENTATION)
    backend = _backend()
    cache = _kv_cache(backend)
    parts: list[list[torch.Tensor]] = [[], []]
    for starts, ends in [([0, 0], [9, 1]), ([9, 1], [10, 11]), ([10, 11], [17, 12])]:
        flat = torch.cat([row[a:b] for row, a, b in zip(ids, starts, ends, strict=True)])
        positions = torch.cat([torch.arange(a, b) for a, b in zip(starts, ends, strict=True)])
        with forward_context(_chunk(starts, ends), backend, cache) as context:
            logits = model(
                input_ids=flat.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
            ).logits[0]
        assert context.layers_missed() == []
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        for part, piece in zip(parts, logits.split(lengths), strict=True):
            part.append(piece)
    for part, logits in zip(parts, expected, strict=True):
        torch.testing.assert_close(torch.cat(part), logits, atol=1e-4, rtol=1e-4)


class _Layer(torch.nn.Module):
    layer_idx = 0


def _attend(module: torch.nn.Module, **options: object) -> None:
    function = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[attention.IMPLEMENTATION]
    tensors = {
        "query": torch.zeros(1, 4, 2, 16),
        "key": torch.zeros(1, 2, 2, 16),
        "value": torch.zeros(1, 2, 2, 16),
        "attention_mask": None,
    }
    function(module, **(tensors | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"is_causal": False}, "non-causal"),
        ({"dropout": 0.1}, "dropout"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"attention_mask": torch.zeros(1, 1, 2, 2)}, "attention_mask"),
        ({"output_attentions": True}, "output_attentions"),
        ({"key": torch.zeros(1, 2, 9, 16), "value": torch.zeros(1, 2, 9, 16)}, "flat batch"),
        ({"value": torch.zeros(1, 2, 2, 8)}, "flat batch"),
        ({"query": torch.zeros(2, 4, 2, 16)}, "flat batch"),
    ],
)
def test_what_no_backend_does_is_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        _attend(_Layer(), **options)


def test_an_attention_module_of_an_encoder_is_refused() -> None:
    module = _Layer()
    module.is_causal = False
    with pytest.raises(Unsupported, match="non-causal"):
        _attend(module)


def test_a_module_that_does_not_know_its_layer_is_refused() -> None:
    with pytest.raises(Unsupported, match="layer_idx"):
        _attend(torch.nn.Identity())


@torch.inference_mode()
@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("llama4_text", {"attention_chunk_size": 8, "num_local_experts": 2}),
    ],
)
def test_a_mask_of_another_kind_is_refused(model_type: str, options: dict[str, object]) -> None:
    model = _model(model_type, **options)
    model.set_attn_implementation(attention.IMPLEMENTATION)
    backend = _backend()
    with (
        forward_context(_chunk([0, 0], [1, 1]), backend, _kv_cache(backend)),
        pytest.raises(Unsupported, match="mask of its own"),
    ):
        model(input_ids=torch.tensor([[3, 4]]), position_ids=torch.zeros(1, 2), use_cache=False)


def test_a_context_is_never_nested_and_ends_with_its_block() -> None:
    backend = _backend()
    cache = _kv_cache(backend)
    meta = _chunk([0, 0], [1, 1])
    with forward_context(meta, backend, cache) as context:
        assert current() is context
        assert context.layers_missed() == [0, 1, 2, 3]
        with (
            pytest.raises(AssertionError, match="set already"),
            forward_context(meta, backend, cache),
        ):
            pass
    with pytest.raises(AssertionError, match="outside"):
        current()


@pytest.mark.parametrize("name", ["flash_attn", "triton"])
def test_a_backend_that_is_not_there_yet_is_refused_at_start(name: str) -> None:
    with pytest.raises(ConfigError, match="not part of this version"):
        attention.get_backend(name, torch.device("cuda"), threads=1)


def test_a_backend_for_another_device_or_of_no_known_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="runs on cpu"):
        attention.get_backend("torch_cpu", torch.device("cuda"), threads=1)
    with pytest.raises(ConfigError, match="numba_cpu"):
        attention.get_backend("nonsense", CPU, threads=1)


def test_a_token_takes_its_keys_and_values_in_every_layer() -> None:
    shapes = [LayerShape(3, 64), LayerShape(1, 256)]
    assert bytes_per_token(shapes, torch.bfloat16) == 2 * 2 * (3 * 64 + 256)
    cache = KVCache(
        shapes, num_blocks=7, block_size=16, dtype=torch.bfloat16, device=CPU, backend=_backend()
    )
    assert cache.size_bytes == bytes_per_token(shapes, torch.bfloat16) * 7 * 16
