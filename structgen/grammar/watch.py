"""What is held against a text besides its grammar: kept in step with a matcher, and as copyable."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from structgen.grammar.bitmask import Words

S = TypeVar("S")


class Watch(ABC):
    """Where one text is in something that it has to obey."""

    @abstractmethod
    def accept(self, token: int) -> None:
        """Raises GrammarError: it may not follow; the watch is where it was."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""

    @abstractmethod
    def fork(self) -> Watch: ...

    @abstractmethod
    def restrict(self, row: Words) -> None:
        """Take out of a mask row, int32 [W], the tokens that may not follow."""

    @property
    @abstractmethod
    def may_end(self) -> bool: ...


class StateWatch(Watch, Generic[S]):
    """A watch that is where it is by a state, which is immutable."""

    def __init__(self, start: S) -> None:
        self._states = [start]  # at the start and after each token

    @property
    def state(self) -> S:
        return self._states[-1]

    @abstractmethod
    def after(self, token: int) -> S:
        """Return the state after a token.  Raises GrammarError: it may not follow."""

    def accept(self, token: int) -> None:
        self._states.append(self.after(token))

    def rollback(self, count: int) -> None:
        del self._states[len(self._states) - count :]

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin._states = self._states.copy()
        return twin


class Watches(Watch):
    """Several at once; none: everything goes."""

    def __init__(self, parts: Sequence[Watch]) -> None:
        self._parts = list(parts)

    def accept(self, token: int) -> None:
        for done, part in enumerate(self._parts):
            try:
                part.accept(token)
            except Exception:
                for earlier in self._parts[:done]:
                    earlier.rollback(1)
                raise

    def rollback(self, count: int) -> None:
        for part in self._parts:
            part.rollback(count)

    def fork(self) -> Watches:
        return Watches([part.fork() for part in self._parts])

    def restrict(self, row: Words) -> None:
        for part in self._parts:
            part.restrict(row)

    @property
    def may_end(self) -> bool:
        return all(part.may_end for part in self._parts)
