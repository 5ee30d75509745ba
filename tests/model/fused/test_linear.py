"""Linear layers of int8, alone and in models that are not taken apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgen.model.forward import EagerForward, pack_forward
from structgen.model.fused.linear import Int8Linear, fits, quantise
from structgen.model.load import load_model
from structgen.model.sources import resolve
from tests.model.fused.test_fused_forward import Batch, sequences


def pair(bias: bool, threads: int = 1) -> tuple[torch.nn.Linear, torch.nn.Module]:
    """Return a linear layer and what stands in for it."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(128, 50, bias=bias).requires_grad_(False)
    model = torch.nn.Sequential(linear)
    quantise(model, threads)
    assert isinstance(model[0], Int8Linear)
    return linear, model[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (7,), (2, 3), (1, 40)])
def test_it_computes_what_the_layer_does(bias: bool, shape: tuple[int, ...]) -> None:
    linear, ours = pair(bias)
    x = torch.randn(*shape, 128)
    found, expected = ours(x), linear(x)
    assert found.shape == expected.shape
    assert (found - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_returns_what_it_was_given(dtype: torch.dtype) -> None:
    linear, ours = pair(bias=True)
    x = torch.randn(5, 128).to(dtype)
    found = ours(x)
    assert found.dtype == dtype
    assert (found.float() - linear(x.float())).norm() < 0.03 * linear(x.float()).norm()


def test_no_rows() -> None:
    _, ours = pair(bias=True)
    assert ours(torch.empty(0, 128)).shape == (0, 50)


def test_a_row_is_the_same_in_every_bit_beside_others_and_on_two_threads() -> None:
    _, one = pair(bias=True)
    _, two = pair(bias=True, threads=2)
    x = torch.randn(300, 128)
    together = one(x)
    assert torch.equal(two(x), together)
    assert torch.equal(one(x[:40].T.contiguous().T), together[:40])
    for row in (0, 17, 299):
        assert torch.equal(one(x[row]), together[row])


def test_what_does_not_fit_stays() -> None:
    class Own(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(65, 8), Own(64, 8), torch.nn.Linear(64, 8))
    assert [fits(layer) for layer in model] == [False, False, True]
    quantise(model.requires_grad_(False), 1)
    assert [isinstance(layer, Int8Linear) for layer in model] == [False, False, True]


@pytest.mark.parametrize("architecture", ["gemma", "gemma2", "gemma3_text"])
@torch.inference_mode()
def test_models_that_are_not_taken_apart(architecture: str) -> None:
    model: Any
    model, spec = load_model(
        resolve(f"random:{architecture}"), dtype=torch.float32, device=torch.device("cpu")
    )
    prompts = sequences(50, 1, 7)
    expected = torch.cat(Batch(EagerForward(model), prompts).logits(64))
    forward = pack_forward(model, torch.int8, [layer.window for layer in spec.layers], 1)
    found = torch.cat(Batch(forward, prompts).logits(64))
    assert not any(type(module) is torch.nn.Linear for module in model.modules())
    assert torch.cosine_similarity(found, expected).mean() > 0.99
