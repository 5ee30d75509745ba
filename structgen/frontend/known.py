"""Constraints that may be referred to by id: those that have compiled here lately.

The texts are kept, not what was compiled of them: that is the engine's, whose cache has bounds of
its own, and a new engine after a restart begins with none.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from structgen.constraints import Constraint
from structgen.errors import NotFound
from structgen.frontend.inputs import GenerationInput

FIELD = "input.constraint.constraint_id"
MAX_ENTRIES = 4096
MAX_BYTES = 64 << 20  # of their texts: four of the largest messages, or 4096 of 16 kB


class KnownConstraints:
    """Forgets what was not used for longest.  Used on one event loop."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: OrderedDict[str, tuple[Constraint, int]] = OrderedDict()  # and its size

    def __len__(self) -> int:
        return len(self._known)

    def add(self, id: str, constraint: Constraint) -> None:
        """Remember a constraint by the id that it was reported under."""
        if id in self._known:
            self._known.move_to_end(id)
            return
        size = len(msgspec.msgpack.encode(constraint))
        self._known[id] = (constraint, size)
        self._num_bytes += size
        while len(self._known) > self._max_entries or self._num_bytes > self._max_bytes:
            _, (_, size) = self._known.popitem(last=False)
            self._num_bytes -= size

    def get(self, id: str) -> Constraint:
        """Raises NotFound: there is none, or not any more."""
        if id not in self._known:
            raise NotFound(
                "constraint_id must be of a constraint that was compiled here lately, got "
                f"{id[:100]!r}",
                field=FIELD,
            )
        self._known.move_to_end(id)
        return self._known[id][0]

    def resolve(self, input: GenerationInput) -> GenerationInput:
        """Put the constraint that an id stands for where it would be.  Raises NotFound."""
        if not input.constraint_id:
            return input
        params = msgspec.structs.replace(input.params, constraint=self.get(input.constraint_id))
        return msgspec.structs.replace(input, params=params, constraint_id="")
