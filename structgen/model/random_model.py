"""Tiny models with random weights and a real tokenizer: for tests and benchmarks.

The same name gives the same files, bit for bit, on any machine with the same torch.  The model has
more vocabulary rows than its tokenizer has ids, as padded real models do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import msgspec
import tokenizers
import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from structgen.errors import ConfigError
from structgen.model.load import quiet

Value = int | float | bool | str | None

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NUM_TRAINED = 512  # ids of the default tokenizer: special tokens, bytes, merges
NUM_PADDING = 64  # model rows beyond the tokenizer
MAX_TOKEN_CHARS = 18

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# What the merges are learnt from: prose and JSON, so that both have tokens of several characters.
TRAINING_TEXT = """
The quick brown fox jumps over the lazy dog. In the morning the station was quiet; nobody had seen
the stranger leave, and the letter on the table was still warm from the lamp. There is a time to
read and a time to write, said the old man, and there are things that should be written down.
Order number 20391 was shipped to Ms. Anna Keller in Hamburg on the 3rd of March, with two items
at 19.99 each and a total of 39.98 euro. Please send the invoice to the address of the company.
{"name": "Anna Keller", "age": 34, "city": "Hamburg", "tags": ["reader", "writer"], "active": true}
{"order": {"id": 20391, "items": [{"title": "lamp", "price": 19.99}, {"title": "table", "price":
120.5}], "total": 139.99, "paid": false, "note": null, "address": {"street": "Long Road 7"}}}
[{"type": "string"}, {"type": "number", "value": -1.5e3}, {"type": "array", "items": []}]
"""
JSON_TOKENS = ('":', '",', '"}', '{"', '["', '"]', '":"', '","', '"},', '"}]', '":{"', '":["', "}}")

_SMALL: dict[str, Value] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    # Weights of the usual 0.02 give a model this small nearly equal logits, and one answer.
    "initializer_range": 0.2,
    # Tied to its input, a model this small repeats its last token for ever.
    "tie_word_embeddings": False,
}
# A window shorter than the tests' prompts, or it would not be seen.
ARCHITECTURES: dict[str, dict[str, Value]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 32},
    "gemma": {},
    "gemma2": {"sliding_window": 32, "query_pre_attn_scalar": 16},
    "gemma3_text": {
        "sliding_window": 32,
        "query_pre_attn_scalar": 16,
        "sliding_window_pattern": 2,  # of its usual six, three layers would see no other kind
    },
}


def parse(name: str) -> tuple[str, dict[str, Value]]:
    """Split "llama?seed=1&vocab_size=4096" into the architecture and its options.

    Raises ConfigError: an unknown architecture, or an option without a value.
    """
    architecture, _, query = name.partition("?")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"random model must be one of {', '.join(ARCHITECTURES)}, got {architecture!r}"
        )
    options: dict[str, Value] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"random model options are key=value joined by &, got {part!r}")
        options[key] = _parse_value(value)
    return architecture, options


def write(folder: Path, architecture: str, options: Mapping[str, Value]) -> None:
    """Write config, weights and tokenizer of a random model into an existing folder.

    options: fields of the architecture's config, and `seed`.
    Raises ConfigError: an option that the config does not have, or a value it does not take.
    """
    chosen = dict(options)
    seed = chosen.pop("seed", 0)
    rows = chosen.pop("vocab_size", NUM_TRAINED + NUM_PADDING)
    if not isinstance(seed, int) or not isinstance(rows, int):
        raise ConfigError(f"seed and vocab_size must be integers, got {seed!r} and {rows!r}")
    tokenizer = build_tokenizer(rows - NUM_PADDING)
    config = _config(architecture, chosen, tokenizer, rows)
    _write_weights(folder, config, seed)
    _write_tokenizer(folder, tokenizer)


def build_tokenizer(size: int) -> tokenizers.Tokenizer:
    """Build a byte-level BPE of exactly `size` ids, special tokens first.

    Beyond NUM_TRAINED ids, merges of random neighbours fill the vocabulary up.
    Raises ConfigError: fewer ids than bytes and special tokens.
    """
    smallest = 256 + len(SPECIAL_TOKENS)
    if size < smallest:
        raise ConfigError(
            f"vocab_size of a random model must be at least {smallest + NUM_PADDING}, "
            f"got {size + NUM_PADDING}"
        )
    trained = _assemble(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=min(size, NUM_TRAINED),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(TRAINING_TEXT.splitlines(), trainer)
    return trained if size <= NUM_TRAINED else _filled(trained, size)


def _filled(trained: tokenizers.Tokenizer, size: int) -> tokenizers.Tokenizer:
    model = msgspec.json.decode(trained.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    merges: list[tuple[str, str]] = [(left, right) for left, right in model["merges"]]
    pieces = [token for token in vocabulary if token not in SPECIAL_TOKENS]
    inner = [piece for piece in pieces if piece.isascii() and piece.isalpha()]
    for left, right in _new_merges(pieces, inner, size - len(vocabulary), vocabulary):
        vocabulary[left + right] = len(vocabulary)
        merges.append((left, right))
    tokenizer = _assemble(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _new_merges(
    pieces: list[str], inner: list[str], count: int, taken: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Draw `count` merges of distinct new tokens: JSON punctuation, then words of many lengths."""
    draw = random.Random(0)
    punctuation = [(token[:-1], token[-1]) for token in JSON_TOKENS]
    lefts = [piece for piece in pieces if piece.isascii() or piece.startswith("Ġ")]
    seen = set(taken)
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        left, right = (
            punctuation.pop(0) if punctuation else (draw.choice(lefts), draw.choice(inner))
        )
        token = left + right
        # Most tokens of a real vocabulary are short, some are long.
        longest = draw.randint(3, draw.randint(3, MAX_TOKEN_CHARS))
        if token in seen or left not in seen or len(token) > longest:
            continue
        seen.add(token)
        merges.append((left, right))
        lefts.append(token)
    return merges


def _assemble(model: models.Model) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _config(
    architecture: str,
    options: Mapping[str, Value],
    tokenizer: tokenizers.Tokenizer,
    rows: int,
) -> PreTrainedConfig:
    known = AutoConfig.for_model(architecture).to_dict()
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(f"random model {architecture} has no option {unknown[0]!r}")
    ids = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS]
    values = {
        **_SMALL,
        **ARCHITECTURES[architecture],
        "bos_token_id": ids[0],
        "pad_token_id": ids[0],
        "eos_token_id": [ids[2], ids[0]],
        **options,
        "vocab_size": rows,
        "dtype": "float32",
    }
    try:
        return AutoConfig.for_model(architecture, **values)
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise ConfigError(f"random model {architecture}: {error}") from None


def _write_weights(folder: Path, config: PreTrainedConfig, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    with quiet():
        model.save_pretrained(folder)


def _write_tokenizer(folder: Path, tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(settings))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _parse_value(text: str) -> Value:
    try:
        value: Value = msgspec.json.decode(text, type=int | float | bool | None)
    except msgspec.DecodeError:
        return text
    return value
