"""Which request holds which KV blocks.  Loop thread only.

A block table covers the tokens [0, len(table) * block_size) of its request.  Full computed blocks
are hashed by content: a block's hash covers its tokens and, through its parent's hash, all before
them, so equal hashes mean equal prefixes.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Sequence

from structgen.engine.blocks import BlockPool


class KVManager:
    """Block tables by request id, prefix matching, allocation and release.

    `salt` separates caches whose KV differs for equal tokens (another model or KV dtype).
    """

    def __init__(self, num_blocks: int, block_size: int, *, salt: bytes = b"") -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._tables: dict[str, list[int]] = {}
        self._hashes: dict[str, list[bytes]] = {}
        # A secret root: without it, colliding prefixes could be prepared in advance.
        self._root = hashlib.blake2b(salt, digest_size=32, key=os.urandom(32)).digest()

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def table(self, request_id: str) -> list[int]:
        return self._tables.get(request_id, [])

    def admit(
        self, request_id: str, tokens: Sequence[int], *, use_cache: bool = True
    ) -> int | None:
        """Give a request blocks for all its tokens, sharing what the prefix cache has.

        Returns the number of tokens whose KV is there already (never the last token, whose logits
        are wanted), or None, with nothing changed, if the pool has no room.
        """
        assert request_id not in self._tables, f"{request_id} holds blocks already"
        shared = self._match(request_id, tokens) if use_cache else []
        new = self.blocks_for(len(tokens)) - len(shared)
        revived = sum(self.pool.is_free(block) for block in shared)
        if new + revived > self.pool.num_free:
            return None
        for block in shared:
            self.pool.share(block)
        self._tables[request_id] = shared + self.pool.take(new)
        return len(shared) * self.block_size

    def grow(self, request_id: str, num_tokens: int) -> bool:
        """Extend a table to cover `num_tokens`; False, with nothing changed, without room."""
        table = self._tables[request_id]
        missing = self.blocks_for(num_tokens) - len(table)
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        table += self.pool.take(missing)
        return True

    def computed(self, request_id: str, tokens: Sequence[int], before: int, after: int) -> None:
        """Hash the blocks that became full when tokens [before, after) were computed."""
        first, last = before // self.block_size, after // self.block_size
        if first == last:
            return
        hashes = self._hash_blocks(request_id, tokens, last)
        for index in range(first, last):
            self.pool.remember(self._tables[request_id][index], hashes[index])

    def release(self, request_id: str) -> None:
        """Give a request's blocks back; a request without any is left as it is."""
        # Reversed, so that the tail of a prefix is evicted before what it hangs on.
        self.pool.release(reversed(self._tables.pop(request_id, [])))

    def forget(self, request_id: str) -> None:
        """Release the blocks of a finished request and drop all that is known of it."""
        self.release(request_id)
        self._hashes.pop(request_id, None)

    def check(self) -> None:
        self.pool.check(self._tables.values())

    def _match(self, request_id: str, tokens: Sequence[int]) -> list[int]:
        shared: list[int] = []
        for content in self._hash_blocks(request_id, tokens, (len(tokens) - 1) // self.block_size):
            block = self.pool.find(content)
            if block is None:
                break
            shared.append(block)
        return shared

    def _hash_blocks(self, request_id: str, tokens: Sequence[int], count: int) -> list[bytes]:
        """Return the chained hashes of the first `count` full blocks, computing what is missing."""
        hashes = self._hashes.setdefault(request_id, [])
        size = self.block_size
        for index in range(len(hashes), count):
            parent = hashes[-1] if hashes else self._root
            content = array("q", tokens[index * size : (index + 1) * size]).tobytes()
            hashes.append(hashlib.blake2b(content, digest_size=32, key=parent).digest())
        return hashes[:count]
