"""What the engine says of answers, and when.

To make an output, to turn it into a message and to send that takes processors some 100 us, however
many tokens are in it, and processors are wanted for the model.  So of what only goes on there are
at most so many a second (`max_outputs_per_s`): the more answers go on at a time, the longer what is
new of one is held back, and said with what comes next of it.  With 1 000 a second, a tenth of a
processor,

    answers                     1        8        32        256
    held back for at most       1 ms     8 ms     32 ms     256 ms

which is less than the steps of any but tiny models take on a CPU, and not a step longer.  The first
and the last output of an answer are never held back, nor is what may hold a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from structgen.engine.request import Request
from structgen.errors import StructgenError, to_wire
from structgen.messages import EngineOutput, FinishReason


class Telling:
    """Of one engine; loop thread only.

    What is held back is nowhere but in the requests: their tokens from `told` on.
    """

    def __init__(self, seconds_per_output: float, clock: Callable[[], float]) -> None:
        """seconds_per_output: 0 to hold nothing back."""
        self._seconds_per_output = seconds_per_output
        self._clock = clock
        self._due_at = 0.0
        self._outputs: list[EngineOutput] = []

    def __bool__(self) -> bool:
        """Whether there is anything that is not held back."""
        return bool(self._outputs)

    def tell(self, request: Request, detail: str = "") -> None:
        """Tell all of a request that was not told yet.  detail: of its end."""
        if request.begun and request.finish is None:
            self._outputs.append(_more(request))
            return
        begins, untold = not request.begun, request.take_untold()
        self._outputs.append(
            EngineOutput(
                request.message_id,
                untold.ids,
                finish=request.finish,
                accepting=request.accepting,
                stop_id=request.stop_id,
                stats=request.stats(),
                detail=detail,
                index=request.sample,
                logprobs=untold.logprobs,
                prompt_logprobs=request.prompt_logprobs if begins else [],
                closed=request.closed,
                complete_at=untold.complete_at,
            )
        )

    def fail(self, request: Request, error: StructgenError) -> None:
        """Tell how a request failed, and what there was of its answer, if that has begun."""
        if request.begun and request.told < len(request.tokens):
            self._outputs.append(_more(request))
        self._outputs.append(
            EngineOutput(
                request.message_id,
                [],
                finish=FinishReason.ERROR,
                stats=request.stats(),
                error=to_wire(error),
                index=request.sample,
            )
        )

    def refuse(self, message_id: str, error: StructgenError) -> None:
        """Tell why a request was not even begun."""
        self._outputs.append(
            EngineOutput(message_id, [], finish=FinishReason.ERROR, error=to_wire(error))
        )

    def take(self, requests: Iterable[Request], *, held_back: bool = False) -> list[EngineOutput]:
        """Return what goes out now.  held_back: with all that would be held back."""
        outputs, self._outputs = self._outputs, []
        if held_back or self._clock() >= self._due_at:
            outputs += [_more(one) for one in requests if one.told < len(one.tokens)]
            self._due_at = self._clock() + len(outputs) * self._seconds_per_output
        return outputs


def _more(request: Request) -> EngineOutput:
    """Return what there is to say of tokens between the first and the end."""
    untold = request.take_untold()
    stats = None
    if request.params.stop:
        # Stop strings are found by who reads this: any output may turn out to be the last.
        stats = msgspec.structs.replace(request.stats(), constraint=None)
    return EngineOutput(
        request.message_id,
        untold.ids,
        accepting=request.accepting,
        stats=stats,
        index=request.sample,
        logprobs=untold.logprobs,
        complete_at=untold.complete_at,
    )
