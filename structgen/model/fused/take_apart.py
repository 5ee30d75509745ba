"""Models taken apart: the packed weights of the classes that are known to the letter.

A class is known by its identity.  One that derives from it, or is like it but for a multiplier or
another norm, is not it, and runs as it is; what an option of the class may change is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from structgen.model.fused import balance, passes
from structgen.model.fused.balance import Sizes
from structgen.model.fused.decoder import Decoder, Layer, Norm
from structgen.model.fused.operands import LANES
from structgen.model.fused.weights import PackedLinear, interleaved, pack

_KNOWN = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def is_known(model: torch.nn.Module) -> bool:
    """Return whether a Decoder can say all that the model does."""
    return type(model) in _KNOWN and _has_known_options(model)


def _has_known_options(model: Any) -> bool:
    config, rotary = model.config, model.model.rotary_emb
    attention = model.model.layers[0].self_attn
    widths = (config.hidden_size, attention.q_proj.out_features, config.intermediate_size)
    return (
        config.hidden_act == "silu"
        and 2 * rotary.inv_freq.numel() == attention.head_dim  # not of a part of the head
        and attention.head_dim % LANES == 0
        and all(width % passes.GROUP == 0 for width in widths)
    )


def take_apart(
    model: Any, windows: Sequence[int | None], dtype: torch.dtype, sizes: Sizes
) -> Decoder:
    """Pack the weights of a known model as `dtype`, and take them from it, layer by layer.

    sizes: of norms that are balanced with the weights behind them, if these are int8.
    """
    attention = model.model.layers[0].self_attn
    last = model.lm_head
    norm, head = _normed(model.model.norm, last.weight, last.bias, dtype, sizes)
    return Decoder(
        embedding=model.model.embed_tokens.weight,
        layers=tuple(
            _layer(layer, window, dtype, sizes)
            for layer, window in zip(_emptied(model.model.layers), windows, strict=True)
        ),
        norm=norm,
        head=head,
        vocab_size=last.out_features,
        num_heads=attention.q_proj.out_features // attention.head_dim,
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        frequencies=model.model.rotary_emb.inv_freq.float(),
        rotary_scale=model.model.rotary_emb.attention_scaling,
    )


def _emptied(layers: torch.nn.ModuleList) -> Iterator[Any]:
    """Yield the layers, and take the weights from each when it has been used."""
    for layer in layers:
        yield layer
        layer.to("meta")


def _layer(layer: Any, window: int | None, dtype: torch.dtype, sizes: Sizes) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
    weight = torch.cat([linear.weight for linear in inputs])
    bias = torch.cat([_bias(linear) for linear in inputs])
    input_norm, qkv = _normed(layer.input_layernorm, weight, bias, dtype, sizes)
    weight = interleaved(mlp.gate_proj.weight, mlp.up_proj.weight)
    bias = interleaved(_bias(mlp.gate_proj), _bias(mlp.up_proj))
    mlp_norm, gate_up = _normed(layer.post_attention_layernorm, weight, bias, dtype, sizes)
    return Layer(
        input_norm=input_norm,
        qkv=qkv,
        query_norm=_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        output=pack(attention.o_proj.weight, attention.o_proj.bias, dtype),
        mlp_norm=mlp_norm,
        gate_up=gate_up,
        down=pack(mlp.down_proj.weight, mlp.down_proj.bias, dtype),
        scale=attention.scaling,
        window=window,
    )


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight.float(), norm.variance_epsilon)


def _normed(
    norm: Any, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, sizes: Sizes
) -> tuple[Norm, PackedLinear]:
    """Return a norm and what multiplies its results, balanced if that is to be int8."""
    plain = _norm(norm)
    if norm not in sizes or dtype != torch.int8:
        return plain, pack(weight, bias, dtype)
    factors = balance.factors(sizes[norm], weight)
    return Norm(plain.weight / factors, plain.epsilon), pack(weight, bias, dtype, factors)


def _bias(linear: torch.nn.Linear) -> torch.Tensor:
    if linear.bias is None:
        return linear.weight.new_zeros(linear.out_features)
    return linear.bias
