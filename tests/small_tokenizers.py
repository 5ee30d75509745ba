"""Small real tokenizers, one of each kind, as Hugging Face folders hold them."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog, and the dog does not care at all",
    '{"name": "Anna", "age": 34, "tags": ["reader", "writer"]}',
    "<|im_end|> im end, im start, system user assistant",
]


def write_folder(
    folder: Path, tokenizer: tokenizers.Tokenizer, template: str | None = None, **settings: object
) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<tool>", "été"])
    return tokenizer


def llama_like() -> tokenizers.Tokenizer:
    """A BPE with byte fallback whose spaces are ▁, and BOS by post-processor, as Llama 2 has."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [piece for piece in learnt["vocab"] if piece not in pieces]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=[tuple(merge) for merge in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram_like() -> tokenizers.Tokenizer:
    """A Unigram with byte fallback whose words begin with ▁, as T5 and XLM-R have."""
    words = ["▁the", "▁dog", "▁quick", "ick", "the", "er", "▁re"]
    letters = sorted({letter for text in CORPUS for letter in text.replace(" ", "▁")})
    pieces = [
        *(("<unk>", 0.0), ("</s>", 0.0)),
        *((f"<0x{byte:02X}>", -20.0) for byte in range(256)),
        *((word, -3.0) for word in words),
        *((letter, -5.0) for letter in letters),
    ]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    return tokenizer


# How to make one, and the text of its end token.
KINDS = {
    "byte-level": (byte_level, "<|endoftext|>"),
    "byte-fallback": (llama_like, "</s>"),
    "unigram": (unigram_like, "</s>"),
}
