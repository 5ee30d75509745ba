"""The metadata and tensors of a GGUF file, typed."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import gguf

from structgen.errors import ConfigError


class GgufFile:
    """An open file: `tensors` by name (memory-mapped), metadata by key.

    The getters raise ConfigError: a key is missing and has no default, or is of another type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ConfigError(f"{path} is not a readable GGUF file: {error}") from None
        self.tensors: dict[str, gguf.ReaderTensor] = {t.name: t for t in reader.tensors}
        self._fields: dict[str, gguf.ReaderField] = reader.fields
        self.architecture = self.text("general.architecture")

    def has(self, key: str) -> bool:
        return key in self._fields

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        return value if isinstance(value, str) else self._refuse(key, "a text")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        return value if isinstance(value, int) else self._refuse(key, "one integer")

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        return float(value) if isinstance(value, int | float) else self._refuse(key, "a number")

    def texts(self, key: str) -> list[str]:
        value = self._value(key, None)
        return value if isinstance(value, list) else self._refuse(key, "a list of texts")

    def numbers(self, key: str) -> list[float]:
        value = self._value(key, None)
        return value if isinstance(value, list) else self._refuse(key, "a list of numbers")

    def _value(self, key: str, default: object) -> object:
        if key in self._fields:
            value: object = self._fields[key].contents()
            return value
        if default is None:
            raise ConfigError(f"{self.path.name}: metadata {key!r} is missing")
        return default

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        raise ConfigError(f"{self.path.name}: metadata {key!r} must be {wanted}")
