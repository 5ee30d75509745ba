"""A Hugging Face folder -> the unpatched model, attending through structgen, and its measures.

What cannot run on flat input is refused by class name, before any weight is read where that can be
told from the class; the runner's warm-up finds the rest (a layer that attends twice or never).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from structgen.errors import ConfigError
from structgen.model import attention
from structgen.model.spec import LayerSpec, ModelSpec

_LAYER_KINDS = ("full_attention", "sliding_attention")
# What transformers and its libraries raise over a folder that they cannot load.
_LOAD_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)


def load_model(
    folder: Path, *, dtype: torch.dtype, device: torch.device
) -> tuple[torch.nn.Module, ModelSpec]:
    """Load a folder for inference, ready to be called inside a forward context.

    Raises ConfigError: the folder is damaged or incomplete, or holds a model that cannot run on
    flat input through the attention interface.
    """
    attention.register()
    with quiet():
        config = _read_config(folder)
        _refuse_class(config)
        model = _read_model(folder, dtype)
    spec = _spec(model, folder.name, dtype)
    module: torch.nn.Module = model
    return module.eval().requires_grad_(False).to(device), spec


def _read_config(folder: Path) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise ConfigError(f"cannot read the model's config in {folder}: {error}") from None


def _read_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    model: PreTrainedModel
    report: dict[str, set[str]]
    load: Any = AutoModelForCausalLM.from_pretrained  # typed as if there were no report
    try:
        model, report = load(
            folder,
            dtype=dtype,
            attn_implementation=attention.IMPLEMENTATION,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,  # the older format runs code when it is read
            output_loading_info=True,
        )
    except _LOAD_ERRORS as error:
        raise ConfigError(f"cannot load the model in {folder}: {error}") from None
    # transformers fills what is missing with random numbers.
    if absent := sorted(report["missing_keys"]):
        raise ConfigError(f"the model in {folder} lacks {len(absent)} weights: {absent[0]}, ...")
    return model


def _refuse_class(config: PreTrainedConfig) -> None:
    """Build the model without weights and look at what it says of itself."""
    if config.is_encoder_decoder:
        raise ConfigError(f"{_architecture(config)} is an encoder-decoder, not a causal model")
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise ConfigError(f"{_architecture(config)} is not a causal model: {error}") from None
    name = type(model).__name__
    if model._is_stateful:
        raise ConfigError(f"{name} keeps a state that is not attention's keys and values")
    if not model._supports_attention_backend:
        raise ConfigError(f"{name} ignores the attention interface of transformers")
    text = config.get_text_config()
    _refuse_layers(name, model, text)
    _refuse_rotary(name, text)


def _refuse_layers(name: str, model: PreTrainedModel, config: PreTrainedConfig) -> None:
    attending = (m for m in model.modules() if "Attention" in type(m).__name__)
    indices = (getattr(module, "layer_idx", None) for module in attending)
    found = sorted(index for index in indices if isinstance(index, int))
    if found != list(range(config.num_hidden_layers)):
        raise ConfigError(
            f"{name} has {config.num_hidden_layers} layers with attention at {found}; "
            "supported is one self-attention in each"
        )
    if odd := sorted(set(_layer_kinds(config)) - set(_LAYER_KINDS)):
        raise ConfigError(f"{name} has layers of kind {odd[0]!r}, which are not supported")


def _refuse_rotary(name: str, config: PreTrainedConfig) -> None:
    """Refuse rotary embeddings that change with the longest sequence of a batch."""
    kinds = _rotary_kinds(getattr(config, "rope_parameters", None) or {})
    if varying := sorted(kind for kind in kinds if "dynamic" in kind or kind == "longrope"):
        raise ConfigError(
            f"{name} has rotary embeddings of kind {varying[0]!r}: an answer would depend on "
            "its neighbours' lengths"
        )


def _rotary_kinds(parameters: dict[str, object]) -> set[str]:
    """Return the kinds, given once for the model or once for each kind of layer."""
    kinds: set[str] = set()
    for key, value in parameters.items():
        if key == "rope_type":
            kinds.add(str(value))
        elif isinstance(value, dict):
            kinds |= _rotary_kinds(value)
    return kinds


def _spec(model: PreTrainedModel, name: str, dtype: torch.dtype) -> ModelSpec:
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    # Configs leave out what they do not vary.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return ModelSpec(
        name=name,
        architecture=type(model).__name__,
        vocab_size=model.get_output_embeddings().weight.shape[0],
        context_length=config.max_position_embeddings,
        layers=tuple(LayerSpec(kv_heads, head_dim, window) for window in _windows(config)),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=dtype,
    )


def _windows(config: PreTrainedConfig) -> list[int | None]:
    window = getattr(config, "sliding_window", None)
    return [window if kind == "sliding_attention" else None for kind in _layer_kinds(config)]


def _layer_kinds(config: PreTrainedConfig) -> list[str]:
    """Return each layer's kind; a config that does not list them has one kind of layer."""
    if kinds := getattr(config, "layer_types", None):
        return list(kinds)
    slides = getattr(config, "sliding_window", None) is not None
    slides = slides and getattr(config, "use_sliding_window", True)
    return [_LAYER_KINDS[slides]] * config.num_hidden_layers


def _architecture(config: PreTrainedConfig) -> str:
    return config.architectures[0] if config.architectures else type(config).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and warning; what matters is raised above."""
    verbosity = transformers_logging.get_verbosity()
    has_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if has_bars:
            transformers_logging.enable_progress_bar()
