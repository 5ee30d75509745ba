"""What loads, what is refused by name, and what the spec says of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from structgen.errors import ConfigError
from structgen.model.attention import IMPLEMENTATION
from structgen.model.dtypes import resolve_dtype
from structgen.model.load import load_model, quiet
from structgen.model.sources import resolve
from structgen.model.spec import LayerSpec, ModelSpec

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> None:
    monkeypatch.setenv("STRUCTGEN_HOME", str(shared_home))


def spec_of(model: str, dtype: torch.dtype = torch.float32) -> ModelSpec:
    return load_model(resolve(model), dtype=dtype, device=CPU)[1]


def test_spec_measures_the_model() -> None:
    spec = spec_of("random:llama")
    assert spec.architecture == "LlamaForCausalLM"
    assert (spec.vocab_size, spec.context_length) == (576, 2048)
    assert spec.layers == (LayerSpec(num_kv_heads=2, head_dim=16, window=None),) * 3
    assert spec.num_parameters == 184_768
    assert spec.dtype == torch.float32


@pytest.mark.parametrize(
    ("model", "windows"),
    [
        ("random:qwen2", [None, None, None]),
        ("random:qwen3", [None, None, None]),
        ("random:mistral", [32, 32, 32]),
        ("random:mistral?sliding_window=null", [None, None, None]),
        ("random:gemma", [None, None, None]),
        ("random:gemma2", [32, None, 32]),
        ("random:gemma3_text", [32, None, 32]),
    ],
)
def test_spec_knows_each_layers_window(model: str, windows: list[int | None]) -> None:
    assert [layer.window for layer in spec_of(model).layers] == windows


def test_model_is_ready_for_inference() -> None:
    model, _ = load_model(resolve("random:llama"), dtype=torch.bfloat16, device=CPU)
    assert not model.training
    assert model.config._attn_implementation == IMPLEMENTATION
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.bfloat16, False)}


def test_tied_weights_count_once() -> None:
    tied, untied = spec_of("random:llama?tie_word_embeddings=true"), spec_of("random:llama")
    assert untied.num_parameters - tied.num_parameters == 576 * 64


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 64}


@pytest.mark.parametrize(
    ("architecture", "options", "message"),
    [
        ("bloom", {"n_layer": 2}, "BloomForCausalLM ignores the attention interface"),
        ("mamba", {}, "MambaForCausalLM keeps a state"),
        ("t5", {"num_layers": 2}, "T5Config is an encoder-decoder"),
        ("vit", {"image_size": 32}, "ViTConfig is not a causal model"),
        ("llama4_text", {"num_attention_heads": 2}, "'chunked_attention'"),
        ("mllama", {}, "MllamaForCausalLM has 40 layers|is not a causal model"),
        (
            "llama",
            {"num_attention_heads": 2, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rotary embeddings of kind 'dynamic'",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused_by_name(
    architecture: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with quiet():
        AutoConfig.for_model(architecture, **(SMALL | options)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_model(tmp_path, dtype=torch.float32, device=CPU)


def test_missing_weights_are_refused_not_invented(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(resolve("random:llama"), tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights: model\.layers\.1\.mlp\.up_proj"):
        load_model(folder, dtype=torch.float32, device=CPU)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(resolve("random:llama"), tmp_path / "m"))
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigError, match="cannot load the model"):
        load_model(folder, dtype=torch.float32, device=CPU)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read the model's config"):
        load_model(folder, dtype=torch.float32, device=CPU)


def test_folder_cannot_bring_its_own_code(tmp_path: Path) -> None:
    code = {"model_type": "stranger", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(code))
    (tmp_path / "evil.py").write_text("raise SystemExit")
    with pytest.raises(ConfigError, match="cannot read the model's config"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)


def test_dtype_is_what_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False})
    assert resolve_dtype("auto", CPU) == torch.float32
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert resolve_dtype("auto", CPU) == torch.bfloat16
    assert resolve_dtype("float16", CPU) == torch.float16
    with pytest.raises(ConfigError, match="dtype must be one of auto, float32"):
        resolve_dtype("int8", CPU)


def test_loading_is_silent_and_leaves_the_library_as_it_was(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_model(resolve("random:llama?seed=17"), dtype=torch.float32, device=CPU)
    after = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    assert after == before
    assert capfd.readouterr() == ("", "")
