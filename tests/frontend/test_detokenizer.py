"""Text comes out whole: no split character, no replacement character that the text lacks."""

from __future__ import annotations

import pytest
import tokenizers
from frontend_fakes import TOKEN_BYTES, WORD_IDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import KINDS, write_folder

from structgen.frontend.bad_words import bad_sequences
from structgen.frontend.detokenizer import Detokenizer
from structgen.frontend.stops import StopScanner
from structgen.tokenizer import Tokenizer

ids = st.lists(st.integers(0, len(TOKEN_BYTES) - 1), max_size=40)
text_ids = st.text(max_size=12).map(lambda text: list(text.encode()))


def decode(token_ids: list[int]) -> str:
    return b"".join(TOKEN_BYTES[id] for id in token_ids).decode("utf-8", "replace")


def stream(token_ids: list[int], cuts: list[int]) -> list[str]:
    detokenizer = Detokenizer(TOKEN_BYTES)
    pieces = [detokenizer.push(part) for part in split(token_ids, cuts)]
    return [*pieces, detokenizer.flush()]


def split(items: list[int], sizes: list[int]) -> list[list[int]]:
    parts, at = [], 0
    for size in sizes:
        parts.append(items[at : at + size])
        at += size
    return [*parts, items[at:]]


@given(ids | text_ids, st.lists(st.integers(0, 5), max_size=10))
def test_pieces_make_up_the_text_of_a_one_shot_decode(token_ids, cuts):
    assert "".join(stream(token_ids, cuts)) == decode(token_ids)


@given(text_ids)
def test_valid_text_never_shows_a_replacement_character_on_the_way(token_ids):
    pieces = stream(token_ids, [1] * len(token_ids))
    assert "".join(pieces).count("�") == bytes(token_ids).decode().count("�")


def test_a_character_comes_with_the_token_that_completes_it():
    detokenizer = Detokenizer(TOKEN_BYTES)
    assert [detokenizer.push([id]) for id in "a€".encode()] == ["a", "", "", "€"]


def test_an_unfinished_character_is_replaced_only_at_the_end():
    detokenizer = Detokenizer(TOKEN_BYTES)
    assert detokenizer.push([WORD_IDS["é".encode()[:1]]]) == ""
    assert detokenizer.flush() == "�"


def test_special_tokens_add_nothing_and_leave_spaces_alone():
    assert "".join(stream([WORD_IDS[b" six"], 256, WORD_IDS[b" six"]], [1, 1])) == " six six"


@pytest.mark.parametrize("character", ["ď", "😀", "你", "👩‍👩‍👧‍👦", "🇩🇪"])
def test_a_character_in_single_bytes_shows_no_replacement(character):
    pieces = stream(list(f"a{character}b".encode()), [1] * 40)
    assert "".join(pieces) == f"a{character}b"
    assert "�" not in "".join(pieces)


# ---- real tokenizers


@pytest.fixture(scope="module", params=KINDS)
def real(request, tmp_path_factory) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """A tokenizer of ours and the library's own it was made of."""
    make, eos = KINDS[request.param]
    library = make()
    folder = write_folder(tmp_path_factory.mktemp("tokenizer"), library, eos_token=eos)
    return Tokenizer.load(folder), library


def stream_of(tokenizer: Tokenizer, token_ids: list[int], cuts: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer.token_bytes)
    pieces = [detokenizer.push(part) for part in split(token_ids, cuts)]
    return "".join([*pieces, detokenizer.flush()])


sizes = st.lists(st.integers(0, 4), max_size=12)
same_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_fixture
@given(data=st.data(), cuts=sizes)
def test_any_ids_stream_as_they_decode_at_once(real, data, cuts):
    """Special and added tokens, spaces and halves of characters included."""
    tokenizer, _ = real
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=30))
    assert stream_of(tokenizer, ids, cuts) == tokenizer.decode(ids)


@same_fixture
@given(
    text=st.text(st.sampled_from('the dog{"日é😀\n\tẞ') | st.characters(codec="utf-8")), cuts=sizes
)
def test_a_text_streams_as_the_library_decodes_it(real, text, cuts):
    """The library drops the space that a SentencePiece-style one puts before a text; we do not."""
    tokenizer, library = real
    ids = tokenizer.encode(text, add_bos=False)
    streamed = stream_of(tokenizer, ids, cuts)
    assert streamed in (library.decode(ids), f" {library.decode(ids)}")


def test_a_space_that_belongs_to_a_token_is_kept_first_and_inside(real):
    tokenizer, _ = real
    _, spaced = bad_sequences(["the dog"], [], tokenizer)
    assert len(spaced) > 1
    assert stream_of(tokenizer, spaced, [1] * len(spaced)) == " the dog"


# ---- stop strings


def scan(
    stops: list[str], pieces: list[str], include: bool = False
) -> tuple[list[str], str | None]:
    """Feed pieces until a stop is found; return what was released, and the stop."""
    scanner = StopScanner(stops, include)
    released = []
    for piece in pieces:
        released.append(scanner.push(piece))
        if scanner.matched is not None:
            return released, scanner.matched
    return [*released, scanner.flush()], None


def first_stop(stops: list[str], text: str) -> tuple[str, str] | None:
    """The dullest reference: the shortest beginning of the text that ends with a stop."""
    for end in range(len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[:end], max(found, key=len)
    return None


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.booleans(),
)
def test_the_first_stop_to_complete_ends_the_text_however_it_is_cut(stops, pieces, include):
    released, matched = scan(stops, pieces, include)
    expected = first_stop(stops, "".join(pieces))
    if expected is None:
        assert matched is None
        assert "".join(released) == "".join(pieces)
    else:
        text, stop = expected
        assert matched == stop
        assert "".join(released) == (text if include else text[: -len(stop)])


@given(
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.text("ab", max_size=4), max_size=8),
)
def test_no_more_is_held_back_than_may_become_a_stop(stops, pieces):
    scanner, seen, released = StopScanner(stops), "", ""
    for piece in pieces:
        seen += piece
        released += scanner.push(piece)
        if scanner.matched is not None:
            return
        possible = [n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])]
        assert released == seen[: len(seen) - max(possible)]
        assert (scanner.seen, scanner.released) == (len(seen), len(released))


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stop"),
    [
        (["bcd", "abce"], list("abcd"), "a", "bcd"),
        (["aab"], list("aaab"), "a", "aab"),
        (["DEFGHIJ"], ["DEF", "G", "HI", "J"], "", "DEFGHIJ"),
        (["\n\n"], ["?", "\n"], "?\n", None),
        (["five"], ["five", " six"], "", "five"),
        (["cd", "bcd"], ["abcde"], "a", "bcd"),
        (["abcd", "c"], ["abcd"], "ab", "c"),
    ],
)
def test_known_hard_cases(stops, pieces, text, stop):
    released, matched = scan(stops, pieces)
    assert ("".join(released), matched) == (text, stop)


def test_nothing_is_held_back_when_the_stop_belongs_to_the_text():
    assert scan(["DEFG"], ["DEF", "Gx"], include=True) == (["DEF", "G"], "DEFG")


def test_skipped_text_is_not_searched_and_counts_as_seen():
    scanner = StopScanner(["ab"])
    assert scanner.skip("xa") == "xa"
    assert scanner.push("b") == "b"
    assert (scanner.matched, scanner.seen, scanner.released) == (None, 3, 3)
