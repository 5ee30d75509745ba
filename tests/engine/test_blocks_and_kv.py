import random

import pytest

from structgen.engine.kv import Blocks, KVManager


def test_a_full_prefix_is_shared_but_never_the_last_token() -> None:
    kv = KVManager(16, 4)
    for length in (3, 4, 5, 8, 9):
        tokens = list(range(length))
        first, second = Blocks(), Blocks()
        assert kv.admit(first, tokens) is not None
        kv.computed(first, tokens, 0, length)
        assert kv.admit(second, tokens) == (length - 1) // 4 * 4
        kv.check([first, second])
        kv.release(first)
        kv.release(second)
    assert kv.num_free == 16


def test_equal_blocks_after_different_prefixes_are_not_shared() -> None:
    kv = KVManager(16, 4)
    first, second = [1, 1, 1, 1, 5, 5, 5, 5, 9], [2, 2, 2, 2, 5, 5, 5, 5, 9]
    blocks = Blocks()
    kv.admit(blocks, first)
    kv.computed(blocks, first, 0, 9)
    assert kv.admit(Blocks(), second) == 0


def test_blocks_that_are_not_computed_cannot_be_hit() -> None:
    kv = KVManager(16, 4)
    tokens = list(range(9))
    blocks = Blocks()
    kv.admit(blocks, tokens)
    kv.computed(blocks, tokens, 0, 5)
    assert kv.admit(Blocks(), tokens) == 4


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_only_who_shares_gives_and_takes(first: bool, second: bool) -> None:
    kv = KVManager(16, 4)
    tokens = list(range(9))
    blocks = Blocks(shared=first)
    kv.admit(blocks, tokens)
    kv.computed(blocks, tokens, 0, 9)
    assert kv.admit(Blocks(shared=second), tokens) == (8 if first and second else 0)


def test_a_released_block_is_revived_by_its_content() -> None:
    kv = KVManager(4, 4)
    tokens = list(range(9))
    first, second = Blocks(), Blocks()
    kv.admit(first, tokens)
    kv.computed(first, tokens, 0, 9)
    kv.release(first)
    assert kv.num_free == 4
    assert kv.admit(second, tokens) == 8
    kv.check([second])


def test_the_tail_of_a_prefix_is_evicted_first() -> None:
    kv = KVManager(4, 4)
    tokens = list(range(13))
    first, other = Blocks(), Blocks()
    kv.admit(first, tokens)
    kv.computed(first, tokens, 0, 13)
    kv.release(first)
    kv.admit(other, [99] * 8)  # takes the unhashed block and the last hashed one
    kv.release(other)
    assert kv.admit(Blocks(), tokens) == 8


def test_two_managers_have_different_roots() -> None:
    """Collisions cannot be prepared in advance: the root is secret and per process."""
    one, two = Blocks(), Blocks()
    for blocks in (one, two):
        kv = KVManager(4, 4)
        kv.admit(blocks, [1, 2, 3, 4])
        kv.computed(blocks, [1, 2, 3, 4], 0, 4)
    assert len(one.hashes) == 1
    assert one.hashes != two.hashes


def test_a_failed_admission_changes_nothing() -> None:
    kv = KVManager(4, 4)
    first, second = Blocks(), Blocks()
    kv.admit(first, list(range(9)))
    assert kv.admit(second, [7] * 9) is None
    assert kv.num_free == 1
    kv.check([first, second])


@pytest.mark.parametrize("seed", range(5))
def test_random_walk_keeps_the_pool_whole(seed: int) -> None:
    rng = random.Random(seed)
    kv = KVManager(24, 4)
    alive: list[tuple[Blocks, list[int], int]] = []
    for _ in range(600):
        if rng.random() < 0.5 or not alive:
            blocks, tokens = Blocks(), [rng.randrange(2) for _ in range(rng.randint(1, 20))]
            cached = kv.admit(blocks, tokens)
            if cached is not None:
                alive.append((blocks, tokens, cached))
        else:
            blocks, tokens, computed = alive.pop(rng.randrange(len(alive)))
            action = rng.random()
            if action < 0.4:
                after = rng.randint(computed, len(tokens))
                kv.computed(blocks, tokens, computed, after)
                alive.append((blocks, tokens, after))
            elif action < 0.7 and kv.grow(blocks, len(tokens) + 3):
                tokens = tokens + [rng.randrange(2) for _ in range(3)]
                alive.append((blocks, tokens, computed))
            else:
                kv.release(blocks)
        kv.check(blocks for blocks, _, _ in alive)
    for blocks, _, _ in alive:
        kv.release(blocks)
    assert kv.num_free == 24
