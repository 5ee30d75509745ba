"""Which models get packed weights, and of which type."""

import importlib.util

import pytest
import torch

from structgen.config import EngineConfig
from structgen.errors import ConfigError
from structgen.model.forward import packed_dtype
from structgen.model.fused.forward import FusedForward
from structgen.model.load import load_model
from structgen.model.runner import ModelRunner
from structgen.model.sources import resolve
from structgen.tokenizer import Tokenizer


def model(name: str = "llama", dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    loaded, _ = load_model(resolve(f"random:{name}"), dtype=dtype, device=torch.device("cpu"))
    return loaded


@pytest.fixture
def has_int8_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})


@pytest.mark.usefixtures("has_int8_products")
def test_auto_is_int8_unless_a_dtype_was_named() -> None:
    assert packed_dtype("auto", "auto", model()) == torch.int8
    assert packed_dtype("auto", "float32", model()) == torch.float32
    assert packed_dtype("none", "auto", model(dtype=torch.bfloat16)) == torch.bfloat16


def test_auto_is_no_int8_on_a_cpu_that_is_slow_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": False})
    assert packed_dtype("auto", "auto", model()) == torch.float32
    assert packed_dtype("int8", "auto", model()) == torch.int8


@pytest.mark.usefixtures("has_int8_products")
@pytest.mark.parametrize("name", ["gemma", "gemma2", "llama?intermediate_size=80"])
def test_a_model_that_is_not_known_to_the_letter_runs_as_it_is(name: str) -> None:
    assert packed_dtype("auto", "auto", model(name)) is None
    assert packed_dtype("int8", "auto", model(name)) == torch.int8


def test_int8_is_refused_where_no_layer_can_be() -> None:
    odd = model("gemma?hidden_size=80&intermediate_size=80&head_dim=10")
    with pytest.raises(ConfigError, match=r"multiple of 64 inputs; this is Gemma.*ForCausalLM"):
        packed_dtype("int8", "auto", odd)


def test_another_activation_is_not_taken_for_the_usual_one() -> None:
    llama = model()
    llama.config.hidden_act = "gelu"  # type: ignore[union-attr, assignment]
    assert packed_dtype("none", "auto", llama) is None


def test_a_class_that_derives_from_a_known_one_is_not_known() -> None:
    llama = model()
    llama.__class__ = type("Own", (type(llama),), {})
    assert packed_dtype("none", "auto", llama) is None


@pytest.mark.usefixtures("has_int8_products")
def test_without_numba_the_model_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert packed_dtype("auto", "auto", model()) is None


def test_half_floats_are_not_packed() -> None:
    assert packed_dtype("auto", "float16", model(dtype=torch.float16)) is None


def test_a_quantization_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of auto, none, int8, got 'int3'"):
        packed_dtype("int3", "auto", model())


def runner(quantization: str, model: str = "random:llama") -> ModelRunner:
    folder = resolve(model)
    tokenizer = Tokenizer.load(folder)
    config = EngineConfig(model=model, quantization=quantization, threads=1, num_blocks=4)
    return ModelRunner(config, folder, tokenizer.size, list(tokenizer.eos_ids))


@pytest.mark.parametrize(("asked", "told"), [("int8", "int8"), ("none", "none")])
def test_the_model_says_what_it_was_rounded_to(asked: str, told: str) -> None:
    assert runner(asked).info.quantization == told


@pytest.mark.parametrize(
    ("model", "told"), [("llama", ("int8", "bfloat16")), ("gemma", ("none", "float32"))]
)
def test_what_is_not_rounded_to_8_bits_is_what_the_cpu_computes_with(
    monkeypatch: pytest.MonkeyPatch, model: str, told: tuple[str, str]
) -> None:
    """Nothing is computed in bfloat16 beside int8; where there is no int8 it would be slow."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    info = runner("auto", f"random:{model}").info
    assert (info.quantization, info.dtype) == told
    assert info.kv_dtype == info.dtype


def test_packed_weights_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the rotation of a known class were another than it was."""
    rotate = FusedForward._rotary
    monkeypatch.setattr(FusedForward, "_rotary", lambda self, at: rotate(self, 2 * at))
    assert runner("int8").info.quantization == "none"
