"""Who may import whom.

        frontend ──► engine.client ──► messages, config, errors
                         │ (in the engine's process, or in-process)
                     engine ──► grammar ──► constraints, plan, messages, ...
                         └ engine.build only ──► model ──► plan, params, config, ...
        vocabulary (the files at the top): each other, and small libraries

Every import statement counts, also inside a function or under TYPE_CHECKING: the first costs
nothing at start, but makes a layer just as hard to take apart.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("frontend", "engine", "grammar", "model")
# What users import; nothing inside does.
FACADES = {"structgen", "structgen.__main__", "structgen.client"}

HEAVY = ("torch", "transformers", "xgrammar", "numba", "llvmlite")
NUMBA = (
    "structgen.model.attention.numba_cpu",
    "structgen.model.attention.numba_kernel",
    "structgen.model.attention.numba_panels",
    "structgen.model.attention.numba_store",
    "structgen.model.attention.numba_vectors",
    "structgen.model.compiled.chain",
    "structgen.model.compiled.compiler",
    "structgen.model.compiled.instructions",
    "structgen.model.compiled.threads",
    "structgen.model.compiled.vectors",
    "structgen.model.fused.operands",
    "structgen.model.fused.passes",
    "structgen.model.fused.tiles",
)
GRPC = ("structgen.frontend.grpc", "structgen.frontend.client")

# Third-party library -> the modules, or packages, that may import it.
OWNERS = {
    "xgrammar": ("structgen.grammar.xgrammar_backend",),
    "llguidance": ("structgen.grammar.llguidance_backend",),
    "outlines_core": ("structgen.grammar.outlines_backend",),
    "numba": NUMBA,
    "llvmlite": NUMBA,
    "flash_attn": ("structgen.model.attention.flash",),
    "triton": ("structgen.model.attention.triton",),
    "grpc": GRPC,
    "grpc_health": GRPC,
    "grpc_reflection": GRPC,
    "grpc_status": GRPC,
    "google": GRPC,
    "ray": ("structgen.frontend.ray_serve",),
    "jsonschema_rs": ("structgen.frontend.verify",),
    "zmq": ("structgen.engine.client", "structgen.engine.process"),
    "torch": ("structgen.model",),
    "transformers": ("structgen.model",),
    "safetensors": ("structgen.model",),
    "gguf": ("structgen.model",),
    "huggingface_hub": ("structgen.model",),
    "tokenizers": ("structgen.tokenizer", "structgen.model"),
    "jinja2": ("structgen.chat_template",),
    "yaml": ("structgen.config",),
}

# Modules beside config that name os.environ, and why that reads no option.
ENVIRONMENT = {
    "structgen.config": "reads it",
    "structgen.model.wheel": "hands it to the pip that it starts",
}


class Import(NamedTuple):
    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def within(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def layer(module: str) -> str:
    """Return the layer of one of our modules, or its own name for one of the vocabulary."""
    return module.split(".")[1] if module not in FACADES else module


@cache
def sources() -> dict[str, Path]:
    """Return our modules, by dotted name."""
    found = {}
    for path in sorted((ROOT / "structgen").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> list[Import]:
    return [
        found
        for module, path in sources().items()
        for found in imports_of(module, ast.parse(path.read_text()))
    ]


def imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(module, alias.name, node.lineno)
            case ast.ImportFrom():
                assert node.level == 0, f"{module}:{node.lineno}: imports here are absolute"
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    imported = inner if inner in sources() else str(node.module)
                    yield Import(module, imported, node.lineno)


def violations(importers: Iterable[str], imported: Iterable[str]) -> list[Import]:
    importers, imported = tuple(importers), tuple(imported)
    return [
        found
        for found in imports()
        if within(found.importer, importers) and within(found.imported, imported)
    ]


def of(*layers: str) -> list[str]:
    return [f"structgen.{name}" for name in layers]


def show(found: Iterable[Import]) -> list[str]:
    return [str(one) for one in found]


def test_imports_are_seen_wherever_they_stand() -> None:
    text = """
import os, torch.nn
if TYPE_CHECKING:
    from structgen.engine import client
def late():
    from structgen.errors import ConfigError
"""
    found = [one.imported for one in imports_of("module", ast.parse(text))]
    assert found == ["os", "torch.nn", "structgen.engine.client", "structgen.errors"]


def test_the_model_knows_no_other_layer() -> None:
    assert show(violations(of("model"), of("engine", "grammar", "frontend"))) == []


def test_the_grammar_knows_no_other_layer() -> None:
    assert show(violations(of("grammar"), of("engine", "model", "frontend"))) == []


def test_the_engine_reaches_the_model_only_where_it_is_built() -> None:
    found = violations(of("engine"), [*of("model", "frontend"), *HEAVY])
    assert {one.importer for one in found} == {"structgen.engine.build"}
    assert {layer(one.imported) for one in found} == {"model"}


def test_the_front_end_reaches_the_engine_only_through_its_client() -> None:
    """Without an engine, `structgen pull` fetches models, and `structgen check` uses grammars."""
    found = violations(of("frontend"), of("engine", "grammar", "model"))
    others = [one for one in found if one.imported != "structgen.engine.client"]
    assert {(one.importer, ".".join(one.imported.split(".")[:2])) for one in others} == {
        ("structgen.frontend.cli", "structgen.model"),
        ("structgen.frontend.check", "structgen.grammar"),
    }
    models = [one.imported for one in others if one.importer == "structgen.frontend.cli"]
    assert set(models) == {"structgen.model.sources"}


def test_the_vocabulary_knows_no_layer() -> None:
    vocabulary = [name for name in sources() if name not in FACADES and layer(name) not in LAYERS]
    assert show(violations(vocabulary, of(*LAYERS))) == []


def test_nothing_inside_imports_what_is_for_users() -> None:
    found = [one for one in imports() if one.imported in FACADES and one.importer not in FACADES]
    assert show(found) == []


def test_no_two_parts_need_each_other() -> None:
    parts: dict[str, set[str]] = {}
    for one in imports():
        if one.importer not in FACADES and within(one.imported, ["structgen"]):
            needed = parts.setdefault(layer(one.importer), set())
            needed |= {layer(one.imported)} - {layer(one.importer)}
    TopologicalSorter(parts).prepare()  # raises CycleError, which names them


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_only_by_its_owner(library: str) -> None:
    found = violations(["structgen"], [library])
    assert show(one for one in found if not within(one.importer, OWNERS[library])) == []


@pytest.mark.parametrize(
    "kernel", ["structgen.model.attention.numba_kernel", "structgen.model.fused.passes"]
)
def test_a_kernel_on_disk_is_renewed_when_a_module_changes_that_it_is_made_of(kernel: str) -> None:
    """numba looks at the kernel's own file; the digest has to name all others."""
    needed, added = {kernel}, {kernel}
    while added:
        added = {one.imported for one in violations(added, NUMBA)} - needed
        needed |= added
    names = [
        {ast.unparse(argument) for argument in node.args}
        for node in ast.walk(ast.parse(sources()[kernel].read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "compiler.digest"
    ]
    assert names == [{module.rpartition(".")[2] for module in needed - {kernel}}]


def test_only_the_config_reads_the_environment() -> None:
    readers = {
        module
        for module, path in sources().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and ast.unparse(node) in ("os.environ", "environ", "os.getenv", "getenv")
    }
    assert readers == set(ENVIRONMENT)


@pytest.mark.parametrize(
    "module",
    [
        "structgen",
        "structgen.client",
        "structgen.frontend.cli",
        "structgen.frontend.grpc.server",
        "structgen.frontend.llm",
        "structgen.engine.client",
        "structgen.engine.core",
    ],
)
def test_importing_it_loads_no_heavy_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
