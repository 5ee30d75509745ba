"""An engine that answers from a table, for the tests of the harness that compares engines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "engines"))
from _wire import Answer, Job, serve


class Fake:
    def load(self, model: str, threads: int, settings: dict[str, Any]) -> dict[str, Any]:
        print("noise on stdout")
        if model == "broken":
            raise OSError("no such weights")
        self._settings = settings
        return {"versions": {"fake": "1"}, "dtype": f"{threads} bits"}

    def restart(self) -> None:
        self._settings = {}

    def run(self, job: Job) -> list[Answer]:
        if job.mode == "die":
            os._exit(3)
        text = json.dumps(self._settings)
        return [Answer(i, text, job.max_tokens, 0.1, 0.3) for i in range(len(job.items))]


if __name__ == "__main__":
    serve(Fake())
