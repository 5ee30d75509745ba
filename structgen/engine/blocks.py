"""The pool of KV blocks, as integers: free list, reference counts, content hashes.

Loop thread only.  A block is in exactly one of two places:

    in use   ref > 0, listed in the tables of `ref` requests
    free     ref == 0, in the free list, least recently used first; may still carry a hash, and is
             then revived by `share` when the same content is wanted again

A hash is set only on a full block whose KV is computed; the first block to get a hash keeps it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref = [0] * num_blocks
        self._hash: list[bytes | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take the `count` least recently used free blocks and forget what they held.

        The caller has checked `num_free`.
        """
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free"
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref[block] = 1
            self._forget(block)
        return blocks

    def find(self, content: bytes) -> int | None:
        """Return the block that holds this content, leaving it as it is."""
        return self._by_hash.get(content)

    def is_free(self, block: int) -> bool:
        return self._ref[block] == 0

    def share(self, block: int) -> None:
        """Add a reference to a block found by its hash, reviving it if it was free."""
        if self._ref[block] == 0:
            del self._free[block]
        self._ref[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each; what falls to zero joins the free list in this order."""
        for block in blocks:
            assert self._ref[block] > 0, f"block {block} released twice"
            self._ref[block] -= 1
            if self._ref[block] == 0:
                self._free[block] = None
                if self._hash[block] is None:
                    # Nothing worth keeping: reuse it before any block that can still be hit.
                    self._free.move_to_end(block, last=False)

    def remember(self, block: int, content: bytes) -> None:
        """Record the content of a full, computed block, unless another block has it already."""
        if self._hash[block] is None and content not in self._by_hash:
            self._hash[block] = content
            self._by_hash[content] = block

    def reset_cache(self) -> None:
        """Forget all contents, so that no later request can hit them."""
        self._by_hash.clear()
        self._hash = [None] * self.num_blocks

    def check(self, tables: Iterable[list[int]]) -> None:
        """Assert that counts, free list and hashes agree with the block tables."""
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counts[block] += 1
        assert counts == self._ref, "reference counts differ from the tables"
        assert set(self._free) == {b for b, ref in enumerate(counts) if ref == 0}
        assert {b: h for h, b in self._by_hash.items()} == {
            b: h for b, h in enumerate(self._hash) if h is not None
        }

    def _forget(self, block: int) -> None:
        content = self._hash[block]
        if content is not None:
            self._hash[block] = None
            del self._by_hash[content]
