"""What is shipped for a first try works, also with a model that knows nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DOCUMENTS = sorted(path.stem for path in (EXAMPLES / "documents").iterdir())


def test_every_document_has_its_schema() -> None:
    assert len(DOCUMENTS) == 3
    assert sorted(path.stem for path in (EXAMPLES / "schemas").iterdir()) == DOCUMENTS


def test_the_demo_extracts_every_document(tmp_path: Path) -> None:
    """Random weights never think of ending a string: the schemas alone bound the answers."""
    command = [sys.executable, "examples/demo.py", "--model", "random:llama", "--threads", "1"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"STRUCTGEN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\S+)\.txt$", done.stdout, re.MULTILINE) == DOCUMENTS
    assert "3 of 3 valid" in done.stdout
