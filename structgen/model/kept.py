"""Packed weights that are kept on disk: a start that finds them reads no model, nor packs one anew.

    home()/packed/KEY/
        about.json            all but the tensors
        tensors.safetensors   those, by the names that about.json has for them

KEY stands for all that they come of: the files of the model, the options, the CPU, the libraries,
and the source of this package.  What is not as it was is thus never found, and the check that
packed weights compute what the model does (probe.py) holds for what is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from structgen import config, logs
from structgen.config import EngineConfig
from structgen.model.compiled import compiler
from structgen.model.fused.decoder import Decoder, Layer, Norm
from structgen.model.fused.weights import PackedLinear
from structgen.model.sources import key_of, publish
from structgen.model.spec import LayerSpec, ModelSpec

log = logs.get(__name__)

MOST_KEPT = 4  # the ones used last
_LEAST_PARAMETERS = 10_000_000  # of fewer, to pack anew takes no time

_ABOUT, _TENSORS = "about.json", "tensors.safetensors"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """packed: the type of the weights of products.  dtype: of what is not quantised."""

    decoder: Decoder
    spec: ModelSpec
    packed: torch.dtype
    dtype: torch.dtype


_CLASSES: dict[str, Any] = {
    one.__name__: one for one in (Kept, Decoder, Layer, Norm, PackedLinear, ModelSpec, LayerSpec)
}


def place(options: EngineConfig, folder: Path) -> Path:
    """Return where what is packed of a model's folder, under these options, is to be kept."""
    files = [
        (str(file.relative_to(folder)), file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    package = Path(__file__).parent
    source = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        source.update(file.read_bytes())
    return _home() / key_of(
        *(str(folder.resolve()), files, options.dtype, options.quantization),
        *(compiler.cpu_name(), sorted(compiler.features()), source.hexdigest()),
        *(metadata.version(name) for name in ("torch", "transformers")),
    )


def read(place: Path) -> Kept | None:
    """Return what is kept there, if it is whole."""
    if not place.is_dir():
        return None
    try:
        about = json.loads((place / _ABOUT).read_text())
        with safe_open(place / _TENSORS, "pt") as tensors:
            kept = _decoded(about, tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        log.warning("kept weights cannot be read, they are packed anew", error=error)
        shutil.rmtree(place, ignore_errors=True)
        return None
    with contextlib.suppress(OSError):  # it may be where nothing can be written
        os.utime(place)
    assert isinstance(kept, Kept)
    return kept


def write(place: Path, kept: Kept) -> None:
    """Keep packed weights, unless they are few, and drop what has not been used for long."""
    if kept.spec.num_parameters < _LEAST_PARAMETERS:
        return
    tensors: dict[str, torch.Tensor] = {}
    about = _encoded(kept, "", tensors)

    def build(folder: Path) -> None:
        (folder / _ABOUT).write_text(json.dumps(about))
        save_file(tensors, folder / _TENSORS)

    try:
        publish(place, build)
        _drop_old()
    except OSError as error:
        log.warning("packed weights cannot be kept", error=error)


def _drop_old() -> None:
    folders = [one for one in _home().iterdir() if one.is_dir() and not one.name.startswith(".")]
    folders.sort(key=lambda one: one.stat().st_mtime_ns, reverse=True)
    for folder in folders[MOST_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    return config.home() / "packed"


def _encoded(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON has it; its tensors go to `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple):
        return [_encoded(one, f"{name}.{index}", tensors) for index, one in enumerate(value)]
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        encoded = {
            field: _encoded(getattr(value, field), f"{name}.{field}".lstrip("."), tensors)
            for field in fields
        }
        return {"class": type(value).__name__, "fields": encoded}
    assert value is None or isinstance(value, str | int | float), f"{name} is {value!r}"
    return value


def _decoded(value: Any, tensors: Any) -> Any:
    """Return what _encoded was given.  tensors: an open file of them."""
    match value:
        case {"tensor": name}:
            # A copy: in the file they begin anywhere, and kernels read them by whole cache lines.
            return tensors.get_tensor(name).clone()
        case {"dtype": name}:
            return getattr(torch, name)
        case {"class": name, "fields": fields}:
            return _CLASSES[name](**{key: _decoded(one, tensors) for key, one in fields.items()})
        case list():
            return tuple(_decoded(one, tensors) for one in value)
    return value
