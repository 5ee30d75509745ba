import random

import pytest

from structgen.engine.kv import KVManager


def test_a_full_prefix_is_shared_but_never_the_last_token() -> None:
    kv = KVManager(16, 4)
    for length in (3, 4, 5, 8, 9):
        tokens = list(range(length))
        assert kv.admit(f"a{length}", tokens) is not None
        kv.computed(f"a{length}", tokens, 0, length)
        cached = kv.admit(f"b{length}", tokens)
        assert cached == (length - 1) // 4 * 4
        kv.check()
        kv.forget(f"a{length}")
        kv.forget(f"b{length}")
    assert kv.num_free == 16


def test_equal_blocks_after_different_prefixes_are_not_shared() -> None:
    kv = KVManager(16, 4)
    first, second = [1, 1, 1, 1, 5, 5, 5, 5, 9], [2, 2, 2, 2, 5, 5, 5, 5, 9]
    kv.admit("a", first)
    kv.computed("a", first, 0, 9)
    assert kv.admit("b", second) == 0


def test_blocks_that_are_not_computed_cannot_be_hit() -> None:
    kv = KVManager(16, 4)
    tokens = list(range(9))
    kv.admit("a", tokens)
    kv.computed("a", tokens, 0, 5)
    assert kv.admit("b", tokens) == 4


def test_a_released_block_is_revived_by_its_content() -> None:
    kv = KVManager(4, 4)
    tokens = list(range(9))
    kv.admit("a", tokens)
    kv.computed("a", tokens, 0, 9)
    kv.forget("a")
    assert kv.num_free == 4
    assert kv.admit("b", tokens) == 8
    kv.check()


def test_the_tail_of_a_prefix_is_evicted_first() -> None:
    kv = KVManager(4, 4)
    tokens = list(range(13))
    kv.admit("a", tokens)
    kv.computed("a", tokens, 0, 13)
    kv.forget("a")
    kv.admit("other", [99] * 8)  # takes the unhashed block and the last hashed one
    kv.forget("other")
    assert kv.admit("b", tokens) == 8


def test_two_managers_have_different_roots() -> None:
    """Collisions cannot be prepared in advance: the root is secret and per process."""
    one, two = KVManager(4, 4), KVManager(4, 4)
    assert one._hash_blocks("a", [1, 2, 3, 4], 1) != two._hash_blocks("a", [1, 2, 3, 4], 1)


def test_a_failed_admission_changes_nothing() -> None:
    kv = KVManager(4, 4)
    kv.admit("a", list(range(9)))
    assert kv.admit("b", [7] * 9) is None
    assert kv.num_free == 1
    kv.check()


@pytest.mark.parametrize("seed", range(5))
def test_random_walk_keeps_the_pool_whole(seed: int) -> None:
    rng = random.Random(seed)
    kv = KVManager(24, 4)
    alive: dict[str, tuple[list[int], int]] = {}
    for step in range(600):
        name = f"r{step}"
        if rng.random() < 0.5 or not alive:
            tokens = [rng.randrange(2) for _ in range(rng.randint(1, 20))]
            cached = kv.admit(name, tokens)
            if cached is not None:
                alive[name] = tokens, cached
        else:
            name = rng.choice(list(alive))
            tokens, computed = alive[name]
            action = rng.random()
            if action < 0.4:
                after = rng.randint(computed, len(tokens))
                kv.computed(name, tokens, computed, after)
                alive[name] = tokens, after
            elif action < 0.7 and kv.grow(name, len(tokens) + 3):
                alive[name] = tokens + [rng.randrange(2) for _ in range(3)], computed
            else:
                kv.forget(name)
                del alive[name]
        kv.check()
    for name in alive:
        kv.forget(name)
    assert kv.num_free == 24
