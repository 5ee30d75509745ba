"""How large a schema is with its references written out.

A validator evaluates each reference where it stands: thirty definitions of two references each are
2**30 evaluations of one value, and a chain of thousands is as deep a recursion.  Neither can be
interrupted, so it is found out before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
IDS = ("$id", "id")
ANCHORS = ("$anchor", "$dynamicAnchor", *IDS)  # before draft 2019-09 an id "#name" was an anchor


def expanded_size(schema: object) -> int:
    """Return the number of objects, counted once for each path of references to them.

    A cycle counts once: its evaluations are bounded by the value.  Where the target of a reference
    is ambiguous all candidates count.  Raises RecursionError: nested too deeply.
    """
    return _Expansion(schema).size(schema)


class _Expansion:
    def __init__(self, root: object) -> None:
        self._sizes: dict[int, int] = {}  # by the object's identity; 1 while it is being counted
        self._resources: list[tuple[str, object]] = [("", root)]  # last part of the id, and what
        self._anchors: dict[str, list[object]] = {}
        self._find_names(root)

    def size(self, node: object) -> int:
        if isinstance(node, list):
            return sum(map(self.size, node))
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._sizes:
            self._sizes[id(node)] = 1
            self._sizes[id(node)] = (
                1 + sum(map(self.size, node.values())) + sum(map(self.size, self._targets_of(node)))
            )
        return self._sizes[id(node)]

    def _find_names(self, node: object) -> None:
        if isinstance(node, dict):
            for key in IDS:
                if isinstance(name := node.get(key), str):
                    self._resources.append((_last_part(name.partition("#")[0]), node))
            for key in ANCHORS:
                if isinstance(name := node.get(key), str):
                    self._anchors.setdefault(name.rpartition("#")[2], []).append(node)
        for child in _children(node):
            self._find_names(child)

    def _targets_of(self, node: dict[str, Any]) -> Iterator[object]:
        for key in REFERENCES:
            if isinstance(reference := node.get(key), str):
                yield from self._targets(reference)

    def _targets(self, reference: str) -> Iterator[object]:
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            yield from self._anchors.get(fragment, ())
            return
        for name, resource in self._resources:
            # Without a base it is the resource around the reference: any may be that.
            if not base or name == _last_part(base):
                yield _at(resource, fragment)


def _children(node: object) -> Iterator[object]:
    if isinstance(node, dict):
        yield from node.values()
    elif isinstance(node, list):
        yield from node


def _last_part(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


def _at(node: object, pointer: str) -> object:
    """Return what a JSON pointer points to, or None."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node
