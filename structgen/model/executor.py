"""Runs plans on the one device thread, so that launching never blocks the engine's loop.

torch's inference mode, current stream and device belong to a thread; on a CPU the thread is also
what makes a forward non-blocking at all.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from structgen.model.runner import ModelRunner
from structgen.plan import StepOutput, StepPlan, TokenBitmask


class LocalExecutor:
    """Executor (plan.py) over a ModelRunner in this process."""

    def __init__(self, build: Callable[[], ModelRunner]) -> None:
        """Start building the runner on the device thread, where it will live."""
        self._device_thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._forward: Future[None] | None = None
        self._built = self._device_thread.submit(build)

    @property
    def runner(self) -> ModelRunner:
        """The runner, once it is built.  Raises what building it raised."""
        return self._built.result()

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        assert self._forward is None, "the last forward was not sampled from"
        self._forward = self._device_thread.submit(self.runner.execute_model, plan)
        if when_done is not None:
            self._forward.add_done_callback(lambda forward: when_done())

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        assert self._forward is not None, "no forward was launched"
        forward, self._forward = self._forward, None
        sampled = self._device_thread.submit(self._sample, forward, mask)
        return sampled.result()

    def close(self) -> None:
        self._device_thread.shutdown(wait=True, cancel_futures=True)

    def _sample(self, forward: Future[None], mask: TokenBitmask) -> StepOutput:
        forward.result()  # done, as this thread runs one thing after another; raises its error
        return self.runner.sample_tokens(mask)
