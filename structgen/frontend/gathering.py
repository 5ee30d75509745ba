"""What several steps say of an answer in quick succession, joined into one output.

To turn an output into a message and send it takes a processor some 50 us, however many tokens are
in it, and the processor is wanted for the model.  So there are at most 2 000 a second: the more
answers go on at a time, the longer what only goes on with one is held back, and joined to what
comes next of it.

    answers                     1        8        32        256
    held back for at most       0.5 ms   4 ms     16 ms     128 ms

which is less than the steps of any but tiny models take.  The first and the last output of an
answer are never held back, nor is what may hold a stop string.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from structgen.messages import EngineOutput

SECONDS_PER_OUTPUT = 0.0005

Key = tuple[str, int]  # of an answer: request and sample


class Gathering:
    """Of one engine; used on one event loop.  due_at: when what is held back may go out."""

    def __init__(
        self,
        is_urgent: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """is_urgent: whether no output of a request, by its engine id, may be held back."""
        self._is_urgent = is_urgent
        self._clock = clock
        self._held: dict[Key, list[EngineOutput]] = {}
        self.due_at = 0.0

    def __bool__(self) -> bool:
        """Whether anything is held back."""
        return bool(self._held)

    def take(self, outputs: Iterable[EngineOutput]) -> list[EngineOutput]:
        """Take what a step said, if anything; return what goes out now: all of it if it is due."""
        held = self._held
        urgent: list[Key] = []
        for output in outputs:
            key = output.id, output.index
            if key in held:
                held[key].append(output)
            else:
                held[key] = [output]
            if output.stats is not None or output.error is not None or self._is_urgent(output.id):
                urgent.append(key)
        if self._clock() >= self.due_at:
            return self._release()
        return [joined(held.pop(key)) for key in urgent]

    def _release(self) -> list[EngineOutput]:
        """Return all that is held back."""
        outputs = [joined(parts) for parts in self._held.values()]
        self._held.clear()
        self.due_at = self._clock() + len(outputs) * SECONDS_PER_OUTPUT
        return outputs


def joined(parts: Sequence[EngineOutput]) -> EngineOutput:
    """Return successive outputs of one answer as one."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    return EngineOutput(
        last.id,
        [id for part in parts for id in part.new_ids],
        finish=last.finish,
        accepting=last.accepting,
        stop_id=last.stop_id,
        stats=last.stats or first.stats,
        error=last.error,
        detail=last.detail,
        index=last.index,
        logprobs=[logprobs for part in parts for logprobs in part.logprobs],
        prompt_logprobs=first.prompt_logprobs,
        closed=last.closed,
    )
