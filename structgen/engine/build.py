"""Put an engine together: model, grammar backends, scheduler."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from structgen import logs
from structgen.config import EngineConfig, let_threads_sleep
from structgen.engine.core import EngineCore, Inbound
from structgen.grammar import turns
from structgen.grammar.base import Vocabulary
from structgen.grammar.checks import Judged
from structgen.grammar.choosing import Backends
from structgen.grammar.compiler import Compiled
from structgen.grammar.isolation import IsolatedWorkshop
from structgen.grammar.manager import GrammarManager
from structgen.grammar.worker_process import Limits
from structgen.grammar.workers import TemplateProcess
from structgen.grammar.workshop import LocalWorkshop, TracedWorkshop, Workshop
from structgen.messages import ModelInfo
from structgen.tokenizer import Tokenizer
from structgen.trace import OFF, Trace

log = logs.get(__name__)


def build_core(config: EngineConfig, trace: Trace = OFF) -> tuple[EngineCore, ModelInfo]:
    """Load the model (fetching it first if need be) and build the core around it.

    Raises ConfigError: the model cannot be had, or the options do not fit it.
    """
    # The one place where the engine names the model side.
    from structgen.model import sources

    folder = sources.resolve(config.model, progress=True)
    tokenizer = Tokenizer.load(folder)

    with ExitStack() as undo:
        # It and this process import the same large libraries, side by side.
        template = TemplateProcess() if config.isolate_compile else None
        if template is not None:
            undo.callback(template.close)
        # torch is imported here, after what can be found wrong without it.
        let_threads_sleep()
        from structgen.model.executor import LocalExecutor
        from structgen.model.runner import ModelRunner

        executor = LocalExecutor(
            lambda: ModelRunner(config, folder, tokenizer.size, list(tokenizer.eos_ids), trace)
        )
        undo.callback(executor.close)
        info = executor.runner.info
        inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
        vocabulary = Vocabulary(tokenizer.token_bytes[: info.vocab_size])
        grammars = _build_grammars(config, vocabulary, tokenizer, template, inbox.put, trace)
        undo.pop_all()

    core = EngineCore(
        executor.runner.config,
        executor,
        grammars,
        inbox,
        eos_ids=frozenset(tokenizer.eos_ids),
        salt=f"{info.folder}\0{info.dtype}\0{info.quantization}\0{info.kv_dtype}".encode(),
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


def _build_grammars(
    config: EngineConfig,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    template: TemplateProcess | None,
    post: Callable[[Compiled | Judged], None],
    trace: Trace,
) -> GrammarManager:
    backends = Backends(vocabulary)
    aside = turns.MAX_JOBS if template is not None else 0
    return GrammarManager(
        backends,
        vocabulary.size,
        post,
        threads=config.compile_threads + aside,
        cache_bytes=config.compile_cache_bytes,
        cache_entries=config.compile_cache_entries,
        queue_length=config.compile_queue,
        workshop=TracedWorkshop(_build_workshop(config, vocabulary, backends, template), trace),
        encode=partial(tokenizer.encode, add_bos=False),
    )


def _build_workshop(
    config: EngineConfig,
    vocabulary: Vocabulary,
    backends: Backends,
    template: TemplateProcess | None,
) -> Workshop:
    """Return one that is ready, and so are the backends."""
    if template is None:
        backends.warm_up()
        return LocalWorkshop(backends)
    limits = Limits(config.compile_time_s, config.compile_memory_bytes)
    workers = config.compile_threads + 1  # that one judges texts, so that no compile waits for it
    workshop = IsolatedWorkshop(template, vocabulary, backends, limits, num_workers=workers)
    backends.warm_up()  # while the template does the same
    workshop.warm_up()
    return workshop
