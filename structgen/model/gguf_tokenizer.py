"""The tokenizer inside a GGUF file, as the files of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from structgen.errors import ConfigError
from structgen.model.gguf_file import GgufFile

# Control tokens that end a turn or a document in every model that has them.  Files name one
# end-of-text id; a chat model that runs past its turn would end the document instead.
END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>")

_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


class GgufTokenizer(msgspec.Struct, frozen=True):
    """tokens: by role ("bos", "eos", "unk", "pad"), as ids.  stop_ids: the stop set."""

    tokenizer: tokenizers.Tokenizer
    roles: dict[str, int]
    stop_ids: list[int]
    add_bos: bool
    chat_template: str | None

    def model_ids(self) -> dict[str, object]:
        """Return what config.json and generation_config.json say of special tokens."""
        named = {f"{role}_token_id": self.roles.get(role) for role in ("bos", "pad")}
        return {**named, "eos_token_id": self.stop_ids}

    def write(self, folder: Path) -> None:
        self.tokenizer.save(str(folder / "tokenizer.json"))
        settings: dict[str, object] = {
            f"{role}_token": self.tokenizer.id_to_token(id) for role, id in self.roles.items()
        }
        settings |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.add_bos,
            "clean_up_tokenization_spaces": False,
        }
        (folder / "tokenizer_config.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(settings))
        )
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")


def convert(file: GgufFile) -> GgufTokenizer:
    """Build the tokenizer.  Raises ConfigError: a kind that cannot be converted, by name."""
    kind = file.text("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise ConfigError(f"{file.path.name}: tokenizer {kind!r} cannot be converted")
    pieces = _pieces(file)
    tokenizer = _BUILDERS[kind](file, pieces)
    _add_tokens(file, tokenizer, pieces)
    roles = _roles(file, len(pieces))
    return GgufTokenizer(
        tokenizer=tokenizer,
        roles=roles,
        stop_ids=_stop_ids(file, roles, pieces),
        # SentencePiece models begin with BOS unless told otherwise, byte-level ones do not.
        add_bos=bool(file.integer("tokenizer.ggml.add_bos_token", int(kind == "llama"))),
        chat_template=(
            file.text("tokenizer.chat_template") if file.has("tokenizer.chat_template") else None
        ),
    )


def _pieces(file: GgufFile) -> list[str]:
    """Return the tokens without the fillers at the end that only pad the model's rows."""
    pieces = file.texts("tokenizer.ggml.tokens")
    types = _types(file)
    if len(types) != len(pieces):
        raise ConfigError(f"{file.path.name}: {len(pieces)} tokens with {len(types)} types")
    size = len(pieces)
    while size and types[size - 1] == TokenType.UNUSED:
        size -= 1
    return pieces[:size]


def _types(file: GgufFile) -> list[TokenType]:
    try:
        return [TokenType(int(number)) for number in file.numbers("tokenizer.ggml.token_type")]
    except ValueError as error:
        raise ConfigError(f"{file.path.name}: {error}") from None


def _add_tokens(file: GgufFile, tokenizer: tokenizers.Tokenizer, pieces: list[str]) -> None:
    """Flag control tokens as special and user-defined ones as indivisible; ids stay."""
    added = {
        TokenType.CONTROL: True,
        TokenType.UNKNOWN: True,
        TokenType.UNUSED: True,
        TokenType.USER_DEFINED: False,
    }
    tokenizer.add_tokens(
        [
            AddedToken(piece, special=added[kind], normalized=False)
            for piece, kind in zip(pieces, _types(file), strict=False)
            if kind in added
        ]
    )


def _roles(file: GgufFile, size: int) -> dict[str, int]:
    ids = {
        role: file.integer(key)
        for role, name in _ROLES.items()
        if file.has(key := f"tokenizer.ggml.{name}_token_id")
    }
    return {role: id for role, id in ids.items() if 0 <= id < size}


def _stop_ids(file: GgufFile, roles: dict[str, int], pieces: list[str]) -> list[int]:
    types = _types(file)
    turn = "tokenizer.ggml.eot_token_id"
    ids = [roles[role] for role in ("eos",) if role in roles]
    ids += [file.integer(turn)] if file.has(turn) else []
    ids += [
        id
        for id, piece in enumerate(pieces)
        if types[id] == TokenType.CONTROL and piece in END_TOKENS
    ]
    return list(dict.fromkeys(ids))


# ---- byte-level BPE


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _words(digits: str) -> str:
    """The split of the newer families, which differ in how they cut digits."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+"
        r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_apart() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


# By the name that tokenizer.ggml.pre gives to the way of cutting text into words.
_SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _digits_apart,
    "qwen2": lambda: _split(_words(r"\p{N}")),
    "llama-bpe": lambda: _split(_words(r"\p{N}{1,3}")),
}


def _byte_level(file: GgufFile, pieces: list[str]) -> tokenizers.Tokenizer:
    split = file.text("tokenizer.ggml.pre", "default")
    if split not in _SPLITS:
        raise ConfigError(f"{file.path.name}: pre-tokenizer {split!r} cannot be converted")
    merges = [merge.split(" ", 1) for merge in file.texts("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=[(left, right) for left, right in merges],
            ignore_merges=split == "llama-bpe",
        )
    )
    if split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


# ---- SentencePiece BPE


def _sentencepiece(file: GgufFile, pieces: list[str]) -> tokenizers.Tokenizer:
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    unknown = _roles(file, len(pieces)).get("unk")
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, file.numbers("tokenizer.ggml.scores")),
            unk_token=None if unknown is None else pieces[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = bool(file.integer("tokenizer.ggml.add_space_prefix", 1))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    pieces_to_text: list[decoders.Decoder] = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if has_prefix:
        spaces.insert(0, normalizers.Prepend("▁"))
        pieces_to_text.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spaces)
    tokenizer.decoder = decoders.Sequence(pieces_to_text)
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Recover the merges: every split of a piece into two pieces, the best score first."""
    splits = [
        (-scores[id], vocabulary[left], vocabulary[right], left, right)
        for piece, id in vocabulary.items()
        for left, right in _halves(piece)
        if left in vocabulary and right in vocabulary
    ]
    return [(left, right) for *_, left, right in sorted(splits)]


def _halves(piece: str) -> Iterator[tuple[str, str]]:
    return ((piece[:at], piece[at:]) for at in range(1, len(piece)))


_BUILDERS: dict[str, Callable[[GgufFile, list[str]], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}
