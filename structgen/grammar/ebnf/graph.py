"""Which names of a directed graph reach each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Graph = Mapping[str, Sequence[str]]  # a name -> those that it leads to, all of them keys


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components, each after those that it leads to."""
    search = _Search(graph)
    for name in graph:
        search.visit(name)
    return search.found


class _Search:
    """Tarjan's algorithm, without recursion.

    order: of the first visit.  lowest: the first visit of an open name that a name leads back to.
    open: names visited whose component is not known yet, in that order.
    """

    def __init__(self, graph: Graph) -> None:
        self.found: list[list[str]] = []
        self._graph = graph
        self._order: dict[str, int] = {}
        self._lowest: dict[str, int] = {}
        self._open: dict[str, None] = {}
        self._path: list[tuple[str, Iterator[str]]] = []

    def visit(self, name: str) -> None:
        if name not in self._order:
            self._enter(name)
        while self._path:
            name, rest = self._path[-1]
            after = next(rest, None)
            if after is None:
                self._leave()
            elif after not in self._order:
                self._enter(after)
            elif after in self._open:
                self._lowest[name] = min(self._lowest[name], self._order[after])

    def _enter(self, name: str) -> None:
        self._order[name] = self._lowest[name] = len(self._order)
        self._open[name] = None
        self._path.append((name, iter(self._graph[name])))

    def _leave(self) -> None:
        name, _ = self._path.pop()
        if self._path:
            before = self._path[-1][0]
            self._lowest[before] = min(self._lowest[before], self._lowest[name])
        if self._lowest[name] == self._order[name]:
            component = [self._open.popitem()[0]]
            while component[-1] != name:
                component.append(self._open.popitem()[0])
            self.found.append(component[::-1])
