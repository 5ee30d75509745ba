"""Channels that stand out cost int8 little, because their norms are balanced with the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgen.model.forward import EagerForward, Forward, pack_forward
from structgen.model.fused.balance import factors, sizes_of
from structgen.model.load import load_model
from structgen.model.sources import resolve
from tests.model.fused.test_fused_forward import Batch, sequences


def uneven_model() -> tuple[Any, list[int | None]]:
    """Return a model of which each norm makes a few channels large, and its windows."""
    model: Any
    model, spec = load_model(
        resolve("random:llama"), dtype=torch.float32, device=torch.device("cpu")
    )
    for layer in model.model.layers:
        layer.input_layernorm.weight[::16] *= 50
        layer.post_attention_layernorm.weight[::16] *= 50
        for linear in (
            *(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            *(layer.mlp.gate_proj, layer.mlp.up_proj),
        ):
            linear.weight[:, ::16] /= 50
    return model, [layer.window for layer in spec.layers]


@torch.inference_mode()
def test_what_stands_out_takes_no_precision_from_the_rest() -> None:
    prompts = sequences(50, 3)

    def logits(forward: Forward) -> torch.Tensor:
        return torch.cat(Batch(forward, prompts).logits(64))

    model, windows = uneven_model()
    with sizes_of(model) as sizes:
        expected = logits(EagerForward(model))
    balanced = logits(pack_forward(model, torch.int8, windows, 1, sizes))
    plain = logits(pack_forward(uneven_model()[0], torch.int8, windows, 1))
    assert (balanced - expected).norm() < 0.5 * (plain - expected).norm()


@torch.inference_mode()
def test_other_types_are_left_as_they_are() -> None:
    model, windows = uneven_model()
    with sizes_of(model) as sizes:
        Batch(EagerForward(model), [[1, 2, 3]]).logits(8)
    assert len(sizes) == 7  # two in each of three layers, and the last
    found = Batch(pack_forward(model, torch.float32, windows, 1, sizes), [[5, 6]]).logits(8)
    plain = Batch(pack_forward(uneven_model()[0], torch.float32, windows, 1), [[5, 6]]).logits(8)
    assert torch.equal(found[0], plain[0])


@pytest.mark.parametrize("odd", [0.0, torch.inf, torch.nan])
def test_a_channel_of_which_nothing_is_known_is_left(odd: float) -> None:
    size = torch.tensor([2.0, odd, 2.0])
    assert factors(size, torch.ones(4, 3)).tolist() == [1.0, 1.0, 1.0]
    assert factors(torch.full((3,), odd), torch.ones(4, 3)).tolist() == [1.0, 1.0, 1.0]


def test_no_weight_behind_a_channel() -> None:
    weight = torch.ones(4, 2)
    weight[:, 1] = 0
    assert factors(torch.tensor([1.0, 1.0]), weight).tolist() == [1.0, 1.0]
    assert factors(torch.tensor([1.0, 0.0]), weight).tolist() == [1.0, 1.0]


def test_factors_are_bounded() -> None:
    found = factors(torch.tensor([1.0, 1e30]), torch.ones(4, 2))
    assert found.tolist() == [1 / 16, 16]
