"""What a server is told at start.  Frozen; flags, environment and a YAML file all build it.

Precedence: flag, then environment (STRUCTGEN_<NAME>), then YAML file, then default.  Nothing else
in structgen reads the environment.  What depends on the model or the machine is derived by
`resolve`, which returns a new object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from structgen.errors import ConfigError

ENV_PREFIX = "STRUCTGEN_"

T = TypeVar("T", bound=msgspec.Struct)
Positive = Annotated[int, Meta(ge=1)]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The engine process: model, memory, scheduling, constraints."""

    model: Annotated[
        str, Meta(description="alias, Hugging Face folder, GGUF file, hub id, or random:ARCH")
    ] = "smollm2-135m"
    dtype: Annotated[
        str, Meta(description="weights: auto, float32, bfloat16, float16 (auto: what the CPU has)")
    ] = "auto"
    # Who names a dtype gets it; who does not wants what is fast and answers as well.
    quantization: Annotated[
        str,
        Meta(
            description="weights of products: auto, none, int8 (auto: int8 if dtype is auto too, "
            "and the CPU is fast at it)"
        ),
    ] = "auto"
    keep_packed: Annotated[
        bool, Meta(description="keep packed weights on disk, for the next start")
    ] = True
    kv_dtype: Annotated[str, Meta(description="KV cache: auto (as weights), float32, bfloat16")] = (
        "auto"
    )
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:N")] = "auto"
    attention: Annotated[
        str, Meta(description="attention backend: auto, numba_cpu, torch_cpu, flash_attn, triton")
    ] = "auto"
    threads: Annotated[
        Positive | None, Meta(description="threads of the forward (default: one a core)")
    ] = None
    # 16 tokens: the prefix cache's grain; a smaller block wastes less, a larger one hashes less.
    block_size: Annotated[int, Meta(ge=1, le=256, description="tokens in a KV block")] = 16
    # 512 MiB holds 23 000 tokens of the default model, more than a small CPU can keep busy.
    kv_cache_memory: Annotated[
        int, Meta(ge=1 << 16, description="bytes of KV cache; see num_blocks")
    ] = 512 << 20
    num_blocks: Annotated[
        Positive | None, Meta(description="KV blocks, instead of kv_cache_memory")
    ] = None
    max_model_len: Annotated[
        Positive | None, Meta(description="context limit, at most the model's")
    ] = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="requests in one step")] = 256
    # A step of 512 tokens is about half a second of a small CPU: what a decoding neighbour waits.
    max_num_batched_tokens: Annotated[int, Meta(ge=1, description="token budget of one step")] = 512
    max_waiting: Annotated[
        int, Meta(ge=1, description="requests in the server before new ones are refused")
    ] = 4096
    prefix_caching: Annotated[bool, Meta(description="reuse KV blocks of equal prefixes")] = True
    drafts: Annotated[
        bool, Meta(description="guess tokens from prompt and earlier answers, verified at once")
    ] = True
    overlap: Annotated[
        bool, Meta(description="fill bitmasks during the forward (off only to measure)")
    ] = True
    # Two, so that one which takes all of its time does not hold up the others; they get of the CPU
    # what the forward leaves, and more of them would only share that.
    compile_threads: Annotated[
        int, Meta(ge=1, le=64, description="short compiles at a time; long ones beside")
    ] = 2
    # A constraint is a stranger's program, so it is tried where it can be killed.
    isolate_compile: Annotated[
        bool, Meta(description="compile in processes of their own, under limits")
    ] = True
    # Of 1,500 real schemas, the slowest took the library that AUTO prefers 0.1 s.
    compile_time_s: Annotated[
        float,
        Meta(gt=0, description="seconds of a processor that a compile may take"),
    ] = 2.0
    compile_memory_bytes: Annotated[
        int, Meta(ge=16 << 20, description="bytes of memory that compiling a constraint may take")
    ] = 256 << 20
    compile_queue: Annotated[
        int,
        Meta(ge=1, description="constraints that may wait to be compiled, and texts to be judged"),
    ] = 256
    compile_cache_bytes: Annotated[
        int, Meta(ge=0, description="bytes of compiled constraints kept")
    ] = 128 << 20
    compile_cache_entries: Annotated[
        int, Meta(ge=1, description="number of compiled constraints kept")
    ] = 1024
    # Each takes some 100 us of a processor: this is a tenth of one.
    max_outputs_per_s: Annotated[
        int, Meta(ge=0, description="pieces of running answers a second, of all together (0: any)")
    ] = 1000
    check: Annotated[
        bool, Meta(description="assert the expensive invariants after every step (tests)")
    ] = False
    trace: Annotated[
        str | None,
        Meta(description="file to write what each step does to, for ui.perfetto.dev"),
    ] = None
    log_level: Annotated[str, Meta(description="DEBUG, INFO, WARNING or ERROR")] = "INFO"

    @property
    def seconds_per_output(self) -> float:
        """How long what is new of running answers may be held back, for each of them."""
        return 1.0 / self.max_outputs_per_s if self.max_outputs_per_s else 0.0

    def resolve(self, *, context_length: int, bytes_per_token: int) -> ResolvedConfig:
        """Derive what depends on the loaded model.

        context_length: the model's positions.  bytes_per_token: K and V of all layers.
        Raises ConfigError: the context limit exceeds the model's, or no block fits.
        """
        limit = self.max_model_len if self.max_model_len is not None else context_length
        if limit > context_length:
            raise ConfigError(
                f"max_model_len must be at most the model's {context_length} positions, got {limit}"
            )
        num_blocks = self.num_blocks
        if num_blocks is None:
            num_blocks = self.kv_cache_memory // (bytes_per_token * self.block_size)
        if num_blocks < 1:
            raise ConfigError(
                f"kv_cache_memory must hold one block of {bytes_per_token * self.block_size} "
                f"bytes, got {self.kv_cache_memory}"
            )
        return ResolvedConfig(
            block_size=self.block_size,
            num_blocks=num_blocks,
            context_length=limit,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefix_caching=self.prefix_caching,
            check=self.check,
        )


class ResolvedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler needs to know, with every number final."""

    block_size: int
    num_blocks: int
    context_length: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True
    check: bool = False


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The gRPC front end."""

    host: Annotated[str, Meta(description="address to bind")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port to bind; 0 picks one")] = 50051
    # Twice the largest constraint plus a context of text; a larger message is a mistake.
    max_message_bytes: Annotated[
        int, Meta(ge=1024, description="largest message accepted or sent")
    ] = 16 << 20
    grace_s: Annotated[
        float, Meta(ge=0, description="seconds that running requests get to finish on SIGTERM")
    ] = 30.0
    max_batch_items: Annotated[int, Meta(ge=1, description="items of one BatchGenerate")] = 1024
    engine_restarts: Annotated[
        int, Meta(ge=0, description="engine restarts in a row before giving up")
    ] = 5


def load(cls: type[T], flags: Mapping[str, Any], file: Path | None = None) -> T:
    """Build a config from flags (None = not given), the environment and a YAML file.

    Raises ConfigError: an unknown name in the file, or a value of the wrong type or range.
    """
    values = _from_file(cls, file) if file else {}
    values |= {
        name: os.environ[variable]
        for name in cls.__struct_fields__
        if (variable := ENV_PREFIX + name.upper()) in os.environ
    }
    values |= {
        name: value
        for name, value in flags.items()
        if value is not None and name in cls.__struct_fields__
    }
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration: {error}") from None


def describe(cls: type[msgspec.Struct]) -> dict[str, tuple[Any, Any, str]]:
    """Return name -> (type, default, description) of a config's options, for `--help`."""
    hints = get_type_hints(cls, include_extras=True)
    fields = msgspec.structs.fields(cls)
    return {
        field.name: (
            hints[field.name].__origin__,
            field.default,
            hints[field.name].__metadata__[0].description,
        )
        for field in fields
    }


def let_threads_sleep() -> None:
    """Have OpenMP's threads sleep soon when they wait; call before torch is imported.

    By default they spin for about a millisecond, and a spinning thread keeps the one it waits for
    off the core as soon as anything else wants to run: with busy processes beside it, a decode
    step on two cores took 0.5 s instead of 0.14.  Ten thousand turns, some 30 us, cost nothing
    measurable on a quiet machine; not spinning at all cost 30 % of a step of 32 rows.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def home() -> Path:
    """Where models are kept: STRUCTGEN_HOME, else the user's cache folder."""
    if chosen := os.environ.get(ENV_PREFIX + "HOME"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structgen"


def _from_file(cls: type[msgspec.Struct], file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file} must hold a mapping of option names to values")
    known = {*EngineConfig.__struct_fields__, *ServerConfig.__struct_fields__}
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{file}: unknown option {unknown[0]!r}")
    return {name: value for name, value in values.items() if name in cls.__struct_fields__}
