"""Turn a GGUF file into a Hugging Face folder: weights, config, tokenizer, chat template.

Quantised weights are expanded to float32, which holds every value of the file exactly; what is
lost was lost when the file was made.  Architectures whose GGUF layout is Llama's up to names are
converted; others are refused by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tqdm import tqdm

from structgen.errors import ConfigError
from structgen.model import gguf_tokenizer
from structgen.model.gguf_file import GgufFile

Array = npt.NDArray[np.float32]

SHARD_BYTES = 2 << 30  # what is held in memory at once

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path, *, progress: bool = False) -> None:
    """Write the model of a GGUF file into an existing, empty folder.

    Raises ConfigError: the file is damaged, or holds what cannot be converted, by name.
    """
    file = GgufFile(source)
    config = _config(file)
    tokenizer = gguf_tokenizer.convert(file)
    tokenizer.write(folder)
    config |= tokenizer.model_ids()
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", tokenizer.model_ids())
    _write_weights(file, folder, progress)


def _config(file: GgufFile) -> dict[str, object]:
    name = file.architecture
    if name not in _CLASSES:
        raise ConfigError(
            f"{file.path.name}: architecture {name!r} cannot be converted; "
            f"can be: {', '.join(_CLASSES)}"
        )
    _refuse_unconverted(file)
    heads = file.integer(f"{name}.attention.head_count")
    hidden = file.integer(f"{name}.embedding_length")
    return {
        "architectures": [_CLASSES[name]],
        "model_type": name,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": file.integer(f"{name}.feed_forward_length"),
        "num_hidden_layers": file.integer(f"{name}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.integer(f"{name}.attention.head_count_kv", heads),
        "head_dim": file.integer(f"{name}.attention.key_length", hidden // heads),
        "max_position_embeddings": file.integer(f"{name}.context_length"),
        "rms_norm_eps": file.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.number(f"{name}.rope.freq_base", 10000.0),
        "attention_bias": name == "llama" and "blk.0.attn_q.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": int(file.tensors["token_embd.weight"].shape[1]),
        "dtype": "float32",
    }


def _refuse_unconverted(file: GgufFile) -> None:
    """Refuse what would load and then compute something else."""
    name = file.architecture
    scaling = file.text(f"{name}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in file.tensors:
        raise ConfigError(f"{file.path.name}: scaled rotary embeddings cannot be converted")
    if file.integer(f"{name}.expert_count", 0):
        raise ConfigError(f"{file.path.name}: a mixture of experts cannot be converted")
    if "token_embd.weight" not in file.tensors:
        raise ConfigError(f"{file.path.name}: there is no tensor token_embd.weight")


def _write_weights(file: GgufFile, folder: Path, progress: bool) -> None:
    """Write float32 shards and their index, holding one shard in memory."""
    shard: dict[str, Array] = {}
    shard_of: dict[str, str] = {}
    size_bytes = 0

    def flush() -> None:
        file_name = f"model-{len(set(shard_of.values())) + 1:05}.safetensors"
        save_file(shard, folder / file_name, metadata={"format": "pt"})
        # safetensors writes for the owner alone; the other files follow the umask.
        shutil.copymode(folder / "config.json", folder / file_name)
        shard_of.update(dict.fromkeys(shard, file_name))
        shard.clear()

    for name, weight in tqdm(
        _weights(file),
        total=len(file.tensors),
        desc="convert",
        unit="tensor",
        disable=not progress,
    ):
        shard[name] = weight
        size_bytes += weight.nbytes
        if sum(held.nbytes for held in shard.values()) >= SHARD_BYTES:
            flush()
    if shard:
        flush()
    _write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": size_bytes}, "weight_map": shard_of},
    )


def _weights(file: GgufFile) -> Iterator[tuple[str, Array]]:
    """Yield Hugging Face name and float32 value of every tensor."""
    heads = file.integer(f"{file.architecture}.attention.head_count")
    kv_heads = file.integer(f"{file.architecture}.attention.head_count_kv", heads)
    for tensor in file.tensors.values():
        value: Array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if file.architecture == "llama" and ".attn_q." in tensor.name:
            value = _unpermute(value, heads)
        elif file.architecture == "llama" and ".attn_k." in tensor.name:
            value = _unpermute(value, kv_heads)
        yield _hugging_face_name(file, tensor.name), np.ascontiguousarray(value)


def _unpermute(weight: Array, heads: int) -> Array:
    """Give each head its rotary halves back: GGUF interleaves them, (d, 2) for (2, d)."""
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _hugging_face_name(file: GgufFile, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    block, _, inner = stem.removeprefix("blk.").partition(".")
    if block.isdecimal() and inner in _INNER:
        return f"model.layers.{block}.{_INNER[inner]}.{kind}"
    raise ConfigError(f"{file.path.name}: tensor {name!r} cannot be converted")


def _write_json(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value)))
