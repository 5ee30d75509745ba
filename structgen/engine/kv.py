"""Which request holds which KV blocks.  Loop thread only.

Full computed blocks are hashed by content: a block's hash covers its tokens and, through its
parent's hash, all before them, so equal hashes mean equal prefixes.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence

from structgen.engine.blocks import BlockPool


class Blocks:
    """The KV blocks that one request holds, if any.

    table: covers its tokens [0, len(table) * block_size).  shared: also with requests to come.
    hashes: of its first full blocks, as far as they were wanted; they stay known when the blocks
    are given back.
    """

    __slots__ = ("hashes", "shared", "table")

    def __init__(self, *, shared: bool = True) -> None:
        self.shared = shared
        self.table: list[int] = []
        self.hashes: list[bytes] = []


class KVManager:
    """Allocation and release, prefix matching.

    `salt` separates caches whose KV differs for equal tokens (another model or KV dtype).
    """

    def __init__(self, num_blocks: int, block_size: int, *, salt: bytes = b"") -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        # A secret root: without it, colliding prefixes could be prepared in advance.
        self._root = hashlib.blake2b(salt, digest_size=32, key=os.urandom(32)).digest()

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def admit(self, blocks: Blocks, tokens: Sequence[int], *, use_cache: bool = True) -> int | None:
        """Give a request blocks for all its tokens, sharing what the prefix cache has.

        Returns the number of tokens whose KV is there already (never the last token, whose logits
        are wanted), or None, with nothing changed, if the pool has no room.
        """
        assert not blocks.table, "the request holds blocks already"
        shared = self._match(blocks, tokens) if blocks.shared and use_cache else []
        new = self.blocks_for(len(tokens)) - len(shared)
        revived = sum(self.pool.is_free(block) for block in shared)
        if new + revived > self.pool.num_free:
            return None
        for block in shared:
            self.pool.share(block)
        blocks.table = shared + self.pool.take(new)
        return len(shared) * self.block_size

    def grow(self, blocks: Blocks, num_tokens: int) -> bool:
        """Extend a table to cover `num_tokens`; False, with nothing changed, without room."""
        uncovered = num_tokens - len(blocks.table) * self.block_size
        if uncovered <= 0:
            return True
        missing = self.blocks_for(uncovered)
        if missing > self.pool.num_free:
            return False
        blocks.table += self.pool.take(missing)
        return True

    def computed(self, blocks: Blocks, tokens: Sequence[int], before: int, after: int) -> None:
        """Hash the blocks that became full when tokens [before, after) were computed."""
        first, last = before // self.block_size, after // self.block_size
        if first == last or not blocks.shared:
            return
        self._hash_blocks(blocks, tokens, last)
        for index in range(first, last):
            self.pool.remember(blocks.table[index], blocks.hashes[index])

    def release(self, blocks: Blocks) -> None:
        """Take a request's blocks back; one without any is left as it is."""
        # Reversed, so that the tail of a prefix is evicted before what it hangs on.
        self.pool.release(reversed(blocks.table))
        blocks.table = []

    def check(self, holders: Iterable[Blocks]) -> None:
        """Assert that the pool agrees with what all requests hold."""
        self.pool.check(blocks.table for blocks in holders)

    def _match(self, blocks: Blocks, tokens: Sequence[int]) -> list[int]:
        shared: list[int] = []
        count = (len(tokens) - 1) // self.block_size
        self._hash_blocks(blocks, tokens, count)
        for content in blocks.hashes[:count]:
            block = self.pool.find(content)
            if block is None:
                break
            shared.append(block)
        return shared

    def _hash_blocks(self, blocks: Blocks, tokens: Sequence[int], count: int) -> None:
        """Compute what is missing of the chained hashes of the first `count` full blocks."""
        hashes, size = blocks.hashes, self.block_size
        for index in range(len(hashes), count):
            parent = hashes[-1] if hashes else self._root
            content = array("q", tokens[index * size : (index + 1) * size]).tobytes()
            hashes.append(hashlib.blake2b(content, digest_size=32, key=parent).digest())
