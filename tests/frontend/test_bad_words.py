"""Bad words are banned as they are spelt inside a text, by tokenizers of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS, write_folder
from tokenizers import decoders, models, normalizers

from structgen.errors import InvalidRequest
from structgen.frontend.bad_words import bad_sequences
from structgen.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return load(request.param, tmp_path_factory.mktemp("tokenizer"))


def load(kind: str, folder: Path) -> Tokenizer:
    make, eos = KINDS[kind]
    return Tokenizer.load(write_folder(folder, make(), eos_token=eos))


def spelt(tokenizer: Tokenizer, sequences: list[list[int]]) -> list[str]:
    return [b"".join(tokenizer.token_bytes[id] for id in ids).decode() for ids in sequences]


def ends_with(ids: list[int], sequences: list[list[int]]) -> bool:
    return any(ids[-len(sequence) :] == sequence for sequence in sequences)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=st.text("dogthe é日😀{\".'", min_size=1, max_size=8).filter(str.strip))
def test_a_word_is_bad_as_it_is_and_after_a_space(tokenizer, word):
    bare = word.lstrip()
    assert spelt(tokenizer, bad_sequences([word], [], tokenizer)) == [bare, f" {bare}"]


@pytest.mark.parametrize("word", ["dog", "quick", "care", "Anna", "日", "the lazy dog"])
@pytest.mark.parametrize("before", ["", "\n", "a ", "a\n", "(", "the quick "])
def test_a_word_is_recognised_wherever_it_stands(tokenizer, word, before):
    ids = tokenizer.encode(before + word, add_bos=False)
    assert ends_with(ids, bad_sequences([word], [], tokenizer))


def test_a_word_of_two_tokens_may_be_one_token_after_a_space(tmp_path):
    """Whichever form the model takes, it takes what is banned."""
    tokenizer = load("byte-level", tmp_path)
    sequences = bad_sequences(["dog"], [], tokenizer)
    assert [len(ids) for ids in sequences] == [2, 1]
    assert sequences[1] == tokenizer.encode(" dog")


def test_a_leading_space_of_a_word_says_nothing(tokenizer):
    assert bad_sequences([" dog", "dog"], [], tokenizer) == bad_sequences(["dog"], [], tokenizer)


def test_ids_are_sequences_of_one_and_nothing_comes_twice(tokenizer):
    assert bad_sequences([], [5, 4, 5], tokenizer) == [[5], [4]]
    [*_, last] = bad_sequences(["dog"], [], tokenizer)
    assert bad_sequences(["dog"], [last[0]], tokenizer).count(last) == 1


def test_a_word_that_the_tokenizer_rewrites_is_banned_as_it_writes_it(tmp_path: Path):
    library = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "</s>": 2}, merges=[]))
    library.normalizer = normalizers.Lowercase()
    library.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer.load(write_folder(tmp_path / "m", library, eos_token="</s>"))
    assert bad_sequences(["AB"], [], tokenizer) == [[0, 1]]


def test_a_word_that_cannot_be_encoded_is_refused_by_its_place(tokenizer):
    with pytest.raises(InvalidRequest, match="Unicode") as caught:
        bad_sequences(["fine", "a\ud800"], [], tokenizer)
    assert caught.value.field == "input.sampling.bad_words[1]"
