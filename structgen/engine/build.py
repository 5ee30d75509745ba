"""Put an engine together: model, grammar backends, scheduler."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from structgen import logs
from structgen.config import EngineConfig, let_threads_sleep
from structgen.engine import drafts
from structgen.engine.core import EngineCore, Inbound
from structgen.engine.head_start import USUAL_S
from structgen.grammar.base import Vocabulary
from structgen.grammar.checks import Judged
from structgen.grammar.choosing import Backends
from structgen.grammar.compiler import Compiled
from structgen.grammar.isolation import MAX_ASIDE, IsolatedWorkshop
from structgen.grammar.manager import GrammarManager
from structgen.grammar.worker_process import Limits
from structgen.grammar.workers import TemplateProcess
from structgen.grammar.workshop import LocalWorkshop, TracedWorkshop, Workshop
from structgen.messages import ModelInfo
from structgen.tokenizer import Tokenizer
from structgen.trace import OFF, Trace

if TYPE_CHECKING:
    from structgen.model.executor import LocalExecutor

log = logs.get(__name__)


class FoundModel(NamedTuple):
    """A model that is there to be loaded."""

    folder: Path
    tokenizer: Tokenizer


def find_model(config: EngineConfig) -> FoundModel:
    """Fetch the model if need be, and load what is small.  Raises ConfigError: it cannot be had."""
    # Here and in _start_loading, nowhere else, the engine names the model side.
    from structgen.model import sources

    folder = sources.resolve(config.model, progress=True)
    return FoundModel(folder, Tokenizer.load(folder))


def fork_template(config: EngineConfig) -> TemplateProcess | None:
    """Import the grammar libraries, and split off the process that compiles, if there is to be one.

    No other thread may run yet.
    """
    let_threads_sleep()  # the libraries import torch
    return TemplateProcess.split_off() if config.isolate_compile else None


def spawn_template(config: EngineConfig) -> TemplateProcess | None:
    """Start the process that compiles, if there is to be one, whatever runs in this process."""
    return TemplateProcess.spawn() if config.isolate_compile else None


def build_core(
    config: EngineConfig,
    model: FoundModel,
    template: TemplateProcess | None,
    trace: Trace = OFF,
    *,
    seconds_per_output: float = 0.0,
) -> tuple[EngineCore, ModelInfo]:
    """Load a model and build the core around it.  template: where to compile, if not here.

    seconds_per_output: see EngineCore.

    Raises ConfigError: the model cannot be loaded, or the options do not fit it.
    """
    inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
    vocabulary = Vocabulary(model.tokenizer.token_bytes)
    with ExitStack() as undo:
        if template is not None:
            undo.callback(template.close)
            template.open(vocabulary, _limits(config))
        executor = _start_loading(config, model, trace)
        undo.callback(executor.close)
        # Three things go on now: the template builds the grammar libraries, the device thread the
        # model, and this thread the libraries as well.
        grammars = _build_grammars(config, vocabulary, model.tokenizer, template, inbox.put, trace)
        undo.callback(grammars.close)
        info = executor.runner.info
        if info.vocab_size < vocabulary.size:  # hardly ever does a model lack some of the tokens
            grammars.close()
            grammars = _build_grammars_of(
                config, model.tokenizer, info.vocab_size, inbox.put, trace
            )
        undo.pop_all()

    core = EngineCore(
        executor.runner.config,
        executor,
        grammars,
        inbox,
        eos_ids=frozenset(model.tokenizer.eos_ids),
        drafters=drafts.usual() if config.drafts else (),
        salt=f"{info.folder}\0{info.dtype}\0{info.quantization}\0{info.kv_dtype}".encode(),
        head_start_s=USUAL_S if info.threads >= len(os.sched_getaffinity(0)) else 0.0,
        seconds_per_output=seconds_per_output,
        overlap=config.overlap,
        trace=trace,
    )
    log.info(
        "engine ready",
        model=info.name,
        dtype=info.dtype,
        quantization=info.quantization,
        attention=info.attention,
        kv_tokens=info.num_blocks * info.block_size,
        threads=info.threads,
    )
    return core, info


def _start_loading(config: EngineConfig, model: FoundModel, trace: Trace) -> LocalExecutor:
    let_threads_sleep()
    from structgen.model.executor import LocalExecutor
    from structgen.model.runner import ModelRunner

    folder, tokenizer = model
    return LocalExecutor(
        lambda: ModelRunner(config, folder, tokenizer.size, list(tokenizer.eos_ids), trace)
    )


def _build_grammars_of(
    config: EngineConfig,
    tokenizer: Tokenizer,
    vocab_size: int,
    post: Callable[[Compiled | Judged], None],
    trace: Trace,
) -> GrammarManager:
    """Build them over the first of the tokens."""
    vocabulary = Vocabulary(tokenizer.token_bytes[:vocab_size])
    template = spawn_template(config)
    if template is not None:
        template.open(vocabulary, _limits(config))
    return _build_grammars(config, vocabulary, tokenizer, template, post, trace)


def _build_grammars(
    config: EngineConfig,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    template: TemplateProcess | None,
    post: Callable[[Compiled | Judged], None],
    trace: Trace,
) -> GrammarManager:
    """Build the libraries and what hangs on them.  template: opened."""
    backends = Backends(vocabulary)
    backends.warm_up()
    aside = MAX_ASIDE if template is not None else 0
    return GrammarManager(
        backends,
        vocabulary.size,
        post,
        threads=config.compile_threads + aside,
        cache_bytes=config.compile_cache_bytes,
        cache_entries=config.compile_cache_entries,
        queue_length=config.compile_queue,
        workshop=TracedWorkshop(_build_workshop(config, backends, template), trace),
        encode=partial(tokenizer.encode, add_bos=False),
    )


def _build_workshop(
    config: EngineConfig, backends: Backends, template: TemplateProcess | None
) -> Workshop:
    """Return one that is ready."""
    if template is None:
        return LocalWorkshop(backends)
    workers = config.compile_threads + 1  # that one judges texts, so that no compile waits for it
    workshop = IsolatedWorkshop(template, backends, _limits(config), num_workers=workers)
    workshop.warm_up()
    return workshop


def _limits(config: EngineConfig) -> Limits:
    return Limits(config.compile_time_s, config.compile_memory_bytes)
