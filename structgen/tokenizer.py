"""Text <-> token ids, and the bytes that each id stands for.

Wraps `tokenizers.Tokenizer` as a Hugging Face folder describes it; front end and engine each load
their own.  Immutable after load, so any thread may use it.

Three rules hold everywhere:
- A request's text never becomes a control token: what spells one is encoded as plain text.
- The text of an answer is the concatenation of its tokens' bytes, decoded as UTF-8.
- Ids are [0, size); the model may have more rows, which stand for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec
import tokenizers

from structgen.chat_template import FIELD, ChatTemplate
from structgen.errors import ConfigError, InvalidRequest

T = TypeVar("T")

# One private character stands for each special token that a message spells while the template
# runs: a single character survives whatever a template does with text (trim, slice, upper).
PRIVATE_USE = range(0xF0000, 0xFFFFE)


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class Tokenizer:
    """A tokenizer with a byte-level or SentencePiece-style decoder.

    size: ids are [0, size).  eos_ids: the model's stop set, the most usual one first.
    special_ids: control tokens; they add nothing to the text.
    """

    def __init__(
        self,
        text: str,
        *,
        settings: _Settings,
        model_eos_ids: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> None:
        """text: of tokenizer.json.  `Tokenizer.load` reads all four from a folder."""
        head = _decode(text, _TokenizerFile, "tokenizer.json")
        self._kind = _decoder_kind(head)
        self._aware = _build(text, settings)
        self._plain = _plain_twin(self._aware)
        self._vocabulary: dict[str, int] = self._plain.get_vocab(with_added_tokens=True)
        self.size = max(self._vocabulary.values()) + 1
        self.eos_ids = self._stop_set(model_eos_ids, settings)
        added = self._plain.get_added_tokens_decoder()
        self._added: dict[int, str] = {id: token.content for id, token in added.items()}
        self._special = {id: token.content for id, token in added.items() if token.special}
        self.special_ids = frozenset(self._special)
        self._unknown_id = head.model.unk_id
        if head.model.unk_token is not None:
            self._unknown_id = self.id_of(head.model.unk_token)
        self._bos = self._bos_ids(settings)
        self._template = (
            None if chat_template is None else ChatTemplate(chat_template, settings.variables())
        )

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and what belongs to it.

        Raises ConfigError: a file is missing or malformed, the decoder is of another kind, or no
        end-of-text token is named.
        """
        settings = _read(folder / "tokenizer_config.json", _Settings) or _Settings()
        generation = _read(folder / "generation_config.json", _ModelFile) or _ModelFile()
        model = _read(folder / "config.json", _ModelFile) or _ModelFile()
        template = folder / "chat_template.jinja"
        return cls(
            _read_text(folder / "tokenizer.json"),
            settings=settings,
            model_eos_ids=[*generation.eos_ids(), *model.eos_ids()],
            chat_template=_read_text(template) if template.exists() else settings.template(),
        )

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        """Return the ids of `text`.

        special: recognise text that spells a special token; else it is encoded as plain text.
        add_bos: begin as the model's prompts begin (nothing, for many models).
        Raises InvalidRequest: the text cannot be encoded without a control token.
        """
        encode = self._encode_aware if special else self._encode_plain
        ids = encode(text, "input.text")
        return [*self._bos, *ids] if add_bos else ids

    def encode_chat(
        self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the ids of the messages in the model's chat template.

        Raises InvalidRequest: there is no template, or it refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template", field=FIELD)
        hidden = self._hide_special(messages)
        rendered = self._template.render(
            [
                {
                    "role": self._hide(message.role, hidden),
                    "content": self._hide(message.content, hidden),
                }
                for message in messages
            ],
            add_generation_prompt=add_generation_prompt,
        )
        if not hidden:
            return self._encode_aware(rendered, FIELD)
        return self._encode_hidden(rendered, hidden)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        shown = {} if skip_special else self._special
        parts = (shown[id].encode() if id in shown else self.token_bytes[id] for id in ids)
        return b"".join(parts).decode("utf-8", "replace")

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes each id adds to the text; b"" for special tokens and unused ids."""
        table = [b""] * self.size
        of_token = _BYTES_OF[self._kind]
        for token, id in self._vocabulary.items():
            table[id] = of_token(token)
        for id, content in self._added.items():
            table[id] = content.encode()
        for id in self.special_ids:
            table[id] = b""
        return table

    def id_of(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it."""
        return self._vocabulary.get(token)

    def special_id_of(self, text: str) -> int | None:
        """Return the id of the control token that is spelt like this, the lowest of several."""
        return min((id for id, content in self._special.items() if content == text), default=None)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        texts = set(self._special.values()) - {""}
        longest_first = sorted(texts, key=lambda text: (-len(text), text))
        if not longest_first:
            return None
        return re.compile("|".join(re.escape(text) for text in longest_first))

    def _encode_aware(self, text: str, field: str) -> list[int]:
        return _ids_of(self._aware, text, field)

    def _encode_plain(self, text: str, field: str) -> list[int]:
        ids = _ids_of(self._plain, text, field)
        # A vocabulary may hold a control token as an ordinary piece (Unigram does).
        control = (self.special_ids - {self._unknown_id}).intersection(ids)
        if control:
            token = self._special[min(control)]
            raise InvalidRequest(
                f"the text spells the control token {token!r}, which this model's tokenizer "
                "cannot encode as plain text",
                field=field,
            )
        return ids

    def _hide_special(self, messages: Sequence[ChatMessage]) -> dict[str, str]:
        """Return special token text -> private character, for those that the messages spell."""
        text = "\0".join(part for message in messages for part in (message.role, message.content))
        if self._special_pattern is None or not (found := self._special_pattern.findall(text)):
            return {}
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in text)
        return dict(zip(dict.fromkeys(found), free, strict=False))

    def _hide(self, text: str, hidden: Mapping[str, str]) -> str:
        if not hidden or self._special_pattern is None:
            return text
        return self._special_pattern.sub(lambda match: hidden[match.group()], text)

    def _encode_hidden(self, rendered: str, hidden: Mapping[str, str]) -> list[int]:
        """Encode a rendered template: its own special tokens as such, hidden ones as plain text."""
        assert self._special_pattern is not None
        back = str.maketrans({mark: text for text, mark in hidden.items()})
        ids: list[int] = []
        start = 0
        for match in self._special_pattern.finditer(rendered):
            ids += self._encode_plain(rendered[start : match.start()].translate(back), FIELD)
            ids.append(self._vocabulary[match.group()])
            start = match.end()
        return ids + self._encode_plain(rendered[start:].translate(back), FIELD)

    def _stop_set(self, model_eos_ids: Sequence[int], settings: _Settings) -> tuple[int, ...]:
        own = self.id_of(settings.eos) if settings.eos is not None else None
        candidates = [*model_eos_ids, *([] if own is None else [own])]
        stops = tuple(dict.fromkeys(id for id in candidates if 0 <= id < self.size))
        if not stops:
            raise ConfigError("the model names no end-of-text token that its tokenizer has")
        return stops

    def _bos_ids(self, settings: _Settings) -> list[int]:
        if settings.add_bos_token is not None:  # says it outright, whatever the post-processor does
            bos = self.id_of(settings.bos) if settings.bos is not None else None
            return [bos] if settings.add_bos_token and bos is not None else []
        encoding = self._plain.encode("a", add_special_tokens=True)
        return list(encoding.ids[: encoding.special_tokens_mask.index(0)])


# ---- the decoder: which bytes a token stands for


def _byte_alphabet() -> dict[str, int]:
    """The printable character that a byte-level vocabulary writes for each byte, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:  # not written in the alphabet: the decoder takes such a token literally
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if match := _FALLBACK.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()


_BYTES_OF = {"byte-level": _byte_level_bytes, "sentencepiece": _sentencepiece_bytes}


# ---- the files of the folder


class _Decoder(msgspec.Struct):
    type: str
    decoders: list[_Decoder] = []


class _Model(msgspec.Struct):
    type: str = "BPE"  # files older than the field are BPE
    unk_token: str | None = None
    unk_id: int | None = None  # Unigram names it so


class _TokenizerFile(msgspec.Struct):
    model: _Model
    decoder: _Decoder | None = None


class _Token(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _Settings(msgspec.Struct):
    """tokenizer_config.json: what tokenizer.json does not say."""

    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    unk_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    add_bos_token: bool | None = None
    chat_template: str | list[_NamedTemplate] | None = None

    @property
    def bos(self) -> str | None:
        return _content(self.bos_token)

    @property
    def eos(self) -> str | None:
        return _content(self.eos_token)

    def template(self) -> str | None:
        if not isinstance(self.chat_template, list):
            return self.chat_template
        return {named.name: named.template for named in self.chat_template}.get("default")

    def variables(self) -> dict[str, str]:
        """What a template may print: the special tokens by their role."""
        named = {
            "bos_token": self.bos,
            "eos_token": self.eos,
            "unk_token": _content(self.unk_token),
            "pad_token": _content(self.pad_token),
        }
        return {name: token for name, token in named.items() if token is not None}


class _ModelFile(msgspec.Struct):
    """config.json or generation_config.json."""

    eos_token_id: int | list[int] | None = None

    def eos_ids(self) -> list[int]:
        if self.eos_token_id is None:
            return []
        return self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]


def _content(token: str | _Token | None) -> str | None:
    return token.content if isinstance(token, _Token) else token


def _build(text: str, settings: _Settings) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(f"tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Older folders name these only in their settings.
    named = [token for token in (settings.bos, settings.eos) if token is not None]
    tokenizer.add_special_tokens([t for t in named if tokenizer.token_to_id(t) is not None])
    return tokenizer


def _plain_twin(aware: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return one that takes the text of special tokens as plain text; the model is shared."""
    twin = tokenizers.Tokenizer(aware.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if (value := getattr(aware, part)) is not None:
            setattr(twin, part, value)
    added = aware.get_added_tokens_decoder()
    twin.add_tokens([added[id] for id in sorted(added)])
    assert twin.get_added_tokens_decoder().keys() == added.keys(), "added tokens changed their ids"
    twin.encode_special_tokens = True
    return twin


def _ids_of(tokenizer: tokenizers.Tokenizer, text: str, field: str) -> list[int]:
    try:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except TypeError:  # a lone surrogate, which no UTF-8 text holds
        raise InvalidRequest("the text is not valid Unicode", field=field) from None
    return ids


def _decoder_kind(head: _TokenizerFile) -> str:
    types = _decoder_types(head.decoder)
    if types == {"ByteLevel"} and head.model.type == "BPE":
        return "byte-level"
    pieces = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
    if types and types <= pieces and head.model.type in ("BPE", "Unigram"):
        return "sentencepiece"
    raise ConfigError(
        "the tokenizer must decode byte-level or as SentencePiece does, got model "
        f"{head.model.type} with decoder {' + '.join(sorted(types)) or 'none'}"
    )


def _decoder_types(decoder: _Decoder | None) -> set[str]:
    if decoder is None:
        return set()
    if decoder.type == "Sequence":
        return set[str]().union(*map(_decoder_types, decoder.decoders))
    return {decoder.type}


def _read(path: Path, type: type[T]) -> T | None:
    return _decode(_read_text(path), type, str(path)) if path.exists() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _decode(text: str, type: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(text, type=type)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name}: {error}") from None
