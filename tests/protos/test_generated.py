"""The protos: the checked-in code is theirs, and they keep their promises to clients."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"
GENERATED = ROOT / "structgen" / "frontend" / "grpc" / "_pb"
BUF = shutil.which("buf", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")

needs_buf = pytest.mark.skipif(BUF is None, reason="buf is not installed (PyPI: buf-bin)")


def buf(*arguments: str) -> str:
    assert BUF is not None
    done = subprocess.run(
        [BUF, *arguments], cwd=PROTOS, capture_output=True, text=True, timeout=60, check=False
    )
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


def test_the_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """If this fails: `python protos/generate.py`."""
    pytest.importorskip("grpc_tools")
    command = [sys.executable, str(PROTOS / "generate.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in GENERATED.iterdir() if path.is_file()}
    assert sorted(fresh) == sorted(kept)
    assert [name for name in fresh if fresh[name] != kept[name]] == []


@needs_buf
def test_the_protos_are_lint_clean_and_formatted() -> None:
    assert buf("lint") == ""
    assert buf("format", "--diff", "--exit-code") == ""


@needs_buf
def test_the_protos_break_no_client() -> None:
    """Compares with the committed image of the last release."""
    assert buf("breaking", "--against", "structgen.v1.binpb") == ""
