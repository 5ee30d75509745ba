"""Packed weights on disk: found as they were, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from structgen.config import EngineConfig
from structgen.model import kept, load
from structgen.model.loaded import Loaded
from structgen.model.loaded import load as load_folder
from structgen.model.probe import probe_logits
from structgen.model.sources import resolve

CPU = torch.device("cpu")
INT8 = EngineConfig(model="random:llama", quantization="int8")
FLOAT32 = EngineConfig(model="random:llama", dtype="float32")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model, in a home of its own."""
    monkeypatch.setenv("STRUCTGEN_HOME", str(tmp_path))
    monkeypatch.setattr(kept, "_LEAST_PARAMETERS", 0)
    return resolve("random:llama")


def loaded(folder: Path, options: EngineConfig = INT8) -> Loaded:
    return load_folder(options, folder, CPU, 1)


def logits(model: Loaded) -> torch.Tensor:
    return probe_logits(model.forward, model.spec).clone()


def no_model(*_arguments: object, **_options: object) -> None:
    raise AssertionError("the model was read")


@pytest.mark.parametrize("options", [INT8, FLOAT32], ids=["int8", "float32"])
def test_what_is_kept_computes_the_same_in_every_bit(
    folder: Path, options: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(folder, options)
    monkeypatch.setattr(load, "load_model", no_model)
    second = loaded(folder, options)
    torch.testing.assert_close(logits(second), logits(first), atol=0, rtol=0)
    assert second.spec == first.spec
    assert (second.dtype, second.is_quantised) == (first.dtype, first.is_quantised)


def test_another_file_option_or_cpu_is_another_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {kept.place(INT8, folder), kept.place(FLOAT32, folder)}
    config = folder / "config.json"
    os.utime(config, ns=(0, config.stat().st_mtime_ns + 1))
    places.add(kept.place(INT8, folder))
    monkeypatch.setattr(kept.compiler, "cpu_name", lambda: "another")
    places.add(kept.place(INT8, folder))
    assert len(places) == 4


@pytest.mark.parametrize("name", ["about.json", "tensors.safetensors"])
def test_what_is_damaged_is_packed_anew(folder: Path, name: str) -> None:
    first = loaded(folder)
    file = kept.place(INT8, folder) / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    torch.testing.assert_close(logits(loaded(folder)), logits(first), atol=0, rtol=0)
    assert file.read_bytes() == whole


def test_where_nothing_can_be_written_a_model_is_loaded_all_the_same(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "packed").write_text("no folder")
    assert logits(loaded(folder)).isfinite().all()


def test_what_is_kept_where_nothing_can_be_written_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError

    loaded(folder)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(load, "load_model", no_model)
    assert logits(loaded(folder)).isfinite().all()


def test_the_few_that_were_used_last_are_kept(folder: Path) -> None:
    for index in range(kept.MOST_KEPT + 2):
        (folder / "note.txt").write_text("x" * index)
        loaded(folder)
        os.utime(kept.place(INT8, folder), ns=(0, index))
    (folder / "note.txt").write_text("")
    os.utime(folder / "note.txt", ns=(0, 0))
    loaded(folder)
    places = kept.place(INT8, folder).parent.iterdir()
    ages = sorted(one.stat().st_mtime_ns for one in places if not one.name.startswith("."))
    assert ages[:-1] == [3, 4, 5]


def test_nothing_is_kept_of_small_models_or_against_the_option(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(folder, msgspec.structs.replace(INT8, keep_packed=False))
    assert not kept.place(INT8, folder).exists()
    monkeypatch.setattr(kept, "_LEAST_PARAMETERS", 1 << 40)
    loaded(folder)
    assert not kept.place(INT8, folder).exists()


SCRIPT = """
import sys, torch
from pathlib import Path
from structgen.config import EngineConfig
from structgen.model.runner import ModelRunner

options = EngineConfig(model="random:llama", quantization="int8", threads=1)
ModelRunner(options, Path(sys.argv[1]), 64, [0])
print("transformers.modeling_utils" in sys.modules)
"""


def test_no_model_class_is_imported_for_what_is_kept(folder: Path) -> None:
    loaded(folder)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "False", done.stderr
