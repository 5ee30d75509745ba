"""Put an engine together: model, grammar backend, scheduler."""

from __future__ import annotations

import queue

from structgen import logs
from structgen.config import EngineConfig, let_threads_sleep
from structgen.engine.core import EngineCore, Inbound
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends
from structgen.grammar.manager import GrammarManager
from structgen.messages import ModelInfo
from structgen.tokenizer import Tokenizer

log = logs.get(__name__)


def build_core(config: EngineConfig) -> tuple[EngineCore, ModelInfo]:
    """Load the model (fetching it first if need be) and build the core around it.

    Raises ConfigError: the model cannot be had, or the options do not fit it.
    """
    # The one place where the engine names the model side.
    from structgen.model import sources

    folder = sources.resolve(config.model, progress=True)
    tokenizer = Tokenizer.load(folder)

    # torch is imported here, after what can be found wrong without it.
    let_threads_sleep()
    from structgen.model.executor import LocalExecutor
    from structgen.model.runner import ModelRunner

    executor = LocalExecutor(
        lambda: ModelRunner(config, folder, tokenizer.size, list(tokenizer.eos_ids))
    )
    info = executor.runner.info
    inbox: queue.SimpleQueue[Inbound] = queue.SimpleQueue()
    backends = Backends(Vocabulary(tokenizer.token_bytes[: info.vocab_size]))
    backends.warm_up()
    grammars = GrammarManager(
        backends,
        info.vocab_size,
        inbox.put,
        threads=config.compile_threads,
        cache_bytes=config.compile_cache_bytes,
        cache_entries=config.compile_cache_entries,
    )
    core = EngineCore(
        executor.runner.config,
        executor,
        grammars,
        inbox,
        eos_ids=frozenset(tokenizer.eos_ids),
        salt=f"{info.folder}\0{info.dtype}\0{info.kv_dtype}".encode(),
        overlap=config.overlap,
    )
    log.info(
        "engine ready",
        model=info.name,
        dtype=info.dtype,
        attention=info.attention,
        kv_tokens=info.num_blocks * info.block_size,
        threads=info.threads,
    )
    return core, info
