"""Engine outputs become pieces of text: joined they are the answer, and there is one last piece."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from frontend_fakes import EOS, TOKEN_BYTES, WORD_IDS
from hypothesis import given
from hypothesis import strategies as st

from structgen.constraints import JsonObject, Regex
from structgen.errors import ConstraintError, InternalError, to_wire
from structgen.frontend.answer import ConstraintStatus
from structgen.frontend.logprobs import PositionLogprobs, TokenLogprob
from structgen.frontend.outputs import OutputProcessor, RequestOutput, merge, merge_answers
from structgen.frontend.usage import Usage
from structgen.logprobs import TokenLogprobs
from structgen.messages import (
    Abort,
    ConstraintInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestStats,
)
from structgen.params import SamplingParams

END = EngineOutput("e", [], FinishReason.STOP, stop_id=EOS)


def processor(params: SamplingParams | None = None) -> OutputProcessor:
    """One request, engine id "e", known to its caller as "r"; every look at the clock is 1 s."""
    ticks = itertools.count(101)
    result = OutputProcessor(TOKEN_BYTES, clock=lambda: float(next(ticks)))
    result.add(EngineRequest("e", [1, 2, 3], params or SamplingParams(), arrival=100.0), "r")
    return result


def run(
    params: SamplingParams, outputs: list[EngineOutput]
) -> tuple[list[RequestOutput], list[str]]:
    """Process one output at a time; return the pieces, and the engine ids to abort."""
    outputs_processor = processor(params)
    batches = [outputs_processor.process([output]) for output in outputs]
    return (
        [piece for batch in batches for piece in batch.outputs],
        [id for batch in batches for id in batch.abort_ids],
    )


def answer(params: SamplingParams, outputs: list[EngineOutput]) -> RequestOutput:
    return merge(run(params, outputs)[0])


def group(ids: list[int], sizes: list[int], index: int = 0) -> list[EngineOutput]:
    """Cut ids into outputs of the given sizes, the finish in the last one."""
    outputs, at = [], 0
    for size in sizes:
        outputs.append(say(ids[at : at + size], index))
        at += size
    return [*outputs, say(ids[at:], index, FinishReason.MAX_TOKENS)]


def say(ids: list[int], index: int = 0, finish: FinishReason | None = None) -> EngineOutput:
    """Tokens of one sample, each with a log probability of its own."""
    logprobs = [TokenLogprobs(id, -id / 8, [(id, -id / 8), (97, -9.0)]) for id in ids]
    return EngineOutput("e", ids, finish, index=index, logprobs=logprobs)


def content(answer: RequestOutput) -> tuple[object, ...]:
    """What must not depend on how the engine worked."""
    return answer.text, answer.token_ids, answer.logprobs, answer.finish


token_ids = st.lists(
    st.sampled_from([*b"ab\n", *"€".encode(), *WORD_IDS.values()]), min_size=1, max_size=25
)
stops = st.lists(
    st.sampled_from(["ab", "b\n", "\n\n", "five", "e six", "€", "aba", "�"]), max_size=3
)


@given(
    token_ids,
    stops,
    st.booleans(),
    st.integers(0, 8),
    st.lists(st.integers(0, 6), max_size=8),
)
def test_the_answer_does_not_depend_on_how_tokens_are_grouped(ids, stops, include, low, sizes):
    params = SamplingParams(stop=tuple(stops), include_stop=include, min_tokens=low)
    one_by_one = answer(params, group(ids, [1] * len(ids)))
    grouped = answer(params, group(ids, sizes))
    assert content(grouped) == content(one_by_one)
    assert [position.token.token_id for position in grouped.logprobs] == grouped.token_ids
    assert grouped.usage is not None
    assert grouped.usage.completion_tokens == len(grouped.token_ids)


@given(token_ids, stops, st.lists(st.integers(0, 6), max_size=8))
def test_pieces_join_to_the_answer_and_exactly_one_is_the_last(ids, stops, sizes):
    pieces, _ = run(SamplingParams(stop=tuple(stops)), [*group(ids, sizes), END, END])
    assert [piece.finish is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    whole = merge(pieces)
    if whole.finish is not None and whole.finish.stop_string is None:
        text = b"".join(TOKEN_BYTES[id] for id in ids).decode("utf-8", "replace")
        assert (whole.text, whole.token_ids) == (text, ids)


def test_a_stop_in_the_middle_of_a_step_ends_text_ids_logprobs_and_usage_there():
    ids = [WORD_IDS[b"ab"], WORD_IDS[b"five"], WORD_IDS[b" six"], WORD_IDS[b"ab"]]
    pieces, aborts = run(SamplingParams(stop=("five",)), [say(ids)])
    assert aborts == ["e"]
    assert (pieces[0].text, pieces[0].token_ids) == ("ab", ids[:2])
    assert [position.token.text for position in pieces[0].logprobs] == ["ab", "five"]
    assert pieces[0].finish is not None
    assert pieces[0].finish.reason is FinishReason.STOP_STRING
    assert pieces[0].finish.stop_string == "five"
    assert pieces[0].usage is not None
    assert pieces[0].usage.completion_tokens == 2


def test_a_stop_beats_the_end_that_comes_with_it_and_nothing_is_aborted():
    last = EngineOutput("e", list(b"ab"), FinishReason.MAX_TOKENS)
    pieces, aborts = run(SamplingParams(stop=("b",)), [last])
    assert pieces[0].finish is not None
    assert pieces[0].finish.reason is FinishReason.STOP_STRING
    assert aborts == []


def test_held_back_text_comes_with_the_end_and_its_ids_at_once():
    params = SamplingParams(stop=("\n\n",))
    pieces, aborts = run(params, [EngineOutput("e", [63]), EngineOutput("e", [10]), END])
    assert [(piece.text, piece.token_ids) for piece in pieces] == [
        ("?", [63]),
        ("", [10]),
        ("\n", []),
    ]
    assert pieces[-1].finish is not None
    assert pieces[-1].finish.stop_id == EOS
    assert aborts == []


def test_stop_strings_count_only_after_min_tokens():
    params = SamplingParams(stop=("a",), min_tokens=2)
    whole = answer(params, [EngineOutput("e", list(b"aabab"))])
    assert whole.text == "aab"


def test_an_output_after_the_end_is_dropped():
    pieces, _ = run(SamplingParams(stop=("a",)), [EngineOutput("e", [97]), END])
    assert len(pieces) == 1


def test_outputs_of_unknown_and_discarded_requests_are_dropped():
    outputs = processor()
    assert outputs.discard("e")
    assert not outputs.discard("e")
    batch = outputs.process([END, EngineOutput("other", [1])])
    assert (batch.outputs, batch.failures, batch.abort_ids) == ([], [], [])
    assert len(outputs) == 0


def test_an_error_ends_its_request_alone_with_the_exception_it_was():
    outputs = processor()
    outputs.add(EngineRequest("f", [1], SamplingParams(), arrival=100.0), "s")
    error = ConstraintError("no such type", field="input.constraint.json_schema")
    batch = outputs.process(
        [
            EngineOutput("e", [], FinishReason.ERROR, error=to_wire(error)),
            EngineOutput("f", [97]),
        ]
    )
    [(request_id, failure)] = batch.failures
    assert request_id == "r"
    assert isinstance(failure, ConstraintError)
    assert failure.field == error.field
    assert [piece.request_id for piece in batch.outputs] == ["s"]
    assert (len(outputs), batch.abort_ids) == (1, [])


@pytest.mark.parametrize("id", [-1, len(TOKEN_BYTES), len(TOKEN_BYTES) + 3])
def test_an_id_that_is_no_token_fails_its_request_alone(id):
    """From a corrupt step, or from the rows that a model has beyond its tokenizer."""
    outputs = processor()
    outputs.add(EngineRequest("f", [1], SamplingParams(), arrival=100.0), "s")
    batch = outputs.process([EngineOutput("e", [97, id]), EngineOutput("f", [97])])
    [(request_id, failure)] = batch.failures
    assert request_id == "r"
    assert isinstance(failure, InternalError)
    assert [piece.text for piece in batch.outputs] == ["a"]
    assert batch.abort == Abort(["e"])


def test_an_error_without_a_reason_is_ours():
    [(_, failure)] = processor().process([EngineOutput("e", [], FinishReason.ERROR)]).failures
    assert isinstance(failure, InternalError)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (EngineOutput("e", [125], FinishReason.CONSTRAINT_COMPLETE), ConstraintStatus.COMPLETE),
        (EngineOutput("e", [], FinishReason.STOP, stop_id=EOS), ConstraintStatus.COMPLETE),
        (
            EngineOutput("e", [125], FinishReason.MAX_TOKENS, accepting=True),
            ConstraintStatus.COMPLETE,
        ),
        (EngineOutput("e", [123], FinishReason.MAX_TOKENS), ConstraintStatus.INCOMPLETE),
        (EngineOutput("e", [123], FinishReason.DEAD_END), ConstraintStatus.INCOMPLETE),
    ],
)
def test_constraint_status_says_whether_the_constraint_accepts_the_text(last, status):
    constrained = answer(SamplingParams(constraint=JsonObject()), [last]).finish
    free = answer(SamplingParams(), [last]).finish
    assert constrained is not None
    assert free is not None
    assert constrained.constraint_status is status
    assert free.constraint_status is ConstraintStatus.NOT_CONSTRAINED


@pytest.mark.parametrize(
    ("stop", "include", "outputs", "status"),
    [
        # {} then a stop that is cut off: the text is {} again, and {} was accepted.
        ("\n", False, [([123, 125], True), ([10], True)], ConstraintStatus.COMPLETE),
        # The stop is cut out of the object itself.
        ("}", False, [([123, 125], True)], ConstraintStatus.INCOMPLETE),
        ("}", True, [([123, 125], True)], ConstraintStatus.COMPLETE),
        # Accepted after the last id, which the stop cut off: nothing is known of the text before.
        ("{", True, [([123, 125], True)], ConstraintStatus.INCOMPLETE),
    ],
)
def test_a_stop_string_leaves_a_complete_text_only_where_the_constraint_accepted(
    stop, include, outputs, status
):
    params = SamplingParams(constraint=JsonObject(), stop=(stop,), include_stop=include)
    finish = answer(params, [EngineOutput("e", ids, accepting=ok) for ids, ok in outputs]).finish
    assert finish is not None
    assert finish.reason is FinishReason.STOP_STRING
    assert finish.constraint_status is status


@pytest.mark.parametrize("stop", ["}", "]", "}]", "{", "x"])
@pytest.mark.parametrize("include", [False, True])
def test_how_tokens_came_in_groups_decides_nothing_about_a_text_that_a_stop_ends(stop, include):
    ids = list(b"x{}]x")
    accepted = {0, 1, 3, 4}  # after how many ids
    params = SamplingParams(constraint=JsonObject(), stop=(stop,), include_stop=include)
    seen = set()
    for borders in range(2 ** (len(ids) - 1)):
        ends = [at for at in range(1, len(ids)) if borders >> (at - 1) & 1] + [len(ids)]
        outputs = []
        for start, end in itertools.pairwise([0, *ends]):
            within = [at - start for at in range(start, end) if at in accepted]
            outputs.append(
                EngineOutput("e", ids[start:end], accepting=end in accepted, complete_at=within)
            )
        whole = answer(params, outputs)
        seen.add((whole.text, whole.finish))
    assert len(seen) == 1, seen
    ((text, finish),) = seen
    assert (finish.constraint_status is ConstraintStatus.COMPLETE) is (len(text) in accepted)


def test_usage_and_timings_come_first_and_last_with_the_engines_figures():
    info = ConstraintInfo("xgrammar", 0.5, False, "key")
    first = RequestStats(
        3, cached_tokens=2, forwards=1, queue_s=0.1, prefill_s=0.2, constraint=info
    )
    last = RequestStats(3, cached_tokens=2, forwards=4, queue_s=0.1, decode_s=9.0, constraint=info)
    pieces, _ = run(
        SamplingParams(),
        [
            EngineOutput("e", [97], stats=first),
            EngineOutput("e", [98]),
            EngineOutput("e", [99], FinishReason.MAX_TOKENS, stats=last),
        ],
    )
    assert [piece.usage for piece in pieces] == [Usage(3, 2, 1, 1), None, Usage(3, 2, 3, 4)]
    assert [piece.constraint for piece in pieces] == [info, None, info]
    assert pieces[0].timings is not None
    assert pieces[0].timings.time_to_first_token == 1.0
    assert pieces[0].timings.compile == 0.5
    assert pieces[2].timings is not None
    assert pieces[2].timings.decode == 9.0


def test_a_stop_string_reports_the_counters_of_the_output_that_it_ends_in():
    params = SamplingParams(stop=("c",))
    info = ConstraintInfo("xgrammar", 0.5, False, "key")
    last = RequestStats(
        3, forwards=4, forced_tokens=1, drafted_tokens=5, accepted_tokens=2, decode_s=7.0
    )
    outputs = [
        EngineOutput("e", [97], stats=RequestStats(3, forwards=2, constraint=info)),
        EngineOutput("e", [98], stats=RequestStats(3, forwards=3)),
        EngineOutput("e", [99], stats=last),
    ]
    whole = answer(params, outputs)
    assert whole.usage == Usage(3, 0, 3, 4, 1, 5, 2)
    assert whole.timings is not None
    assert (whole.timings.decode, whole.timings.compile) == (7.0, 0.5)


def test_merge_keeps_the_last_report_of_the_pieces():
    usage = Usage(1, 0, 1, 1)
    pieces = [
        RequestOutput(request_id="r", text="a", token_ids=[1], usage=usage),
        RequestOutput(request_id="r", text="b", token_ids=[2]),
    ]
    assert merge(pieces) == RequestOutput(request_id="r", text="ab", token_ids=[1, 2], usage=usage)


# ---- several answers


samples = st.lists(token_ids, min_size=2, max_size=4)
schedules = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20)


def interleave(samples: list[list[int]], schedule: list[tuple[int, int]]) -> list[EngineOutput]:
    """Cut each sample's ids as the schedule says, in its order."""
    of_sample = [
        group(ids, [size for sample, size in schedule if sample == index], index)
        for index, ids in enumerate(samples)
    ]
    turns = [sample for sample, _ in schedule if sample < len(samples)]
    scheduled = [of_sample[sample].pop(0) for sample in turns]
    return [*scheduled, *itertools.chain.from_iterable(of_sample)]


@given(samples, stops, schedules)
def test_each_answer_is_what_it_would_be_alone(samples, stops, schedule):
    params = SamplingParams(n=len(samples), stop=tuple(stops))
    pieces, _ = run(params, interleave(samples, schedule))
    answers = merge_answers(pieces)
    alone = [answer(SamplingParams(stop=tuple(stops)), group(ids, [])) for ids in samples]
    assert [content(whole) for whole in answers] == [content(whole) for whole in alone]
    assert [whole.index for whole in answers] == list(range(len(samples)))
    usage = Usage(3, 0, sum(len(whole.token_ids) for whole in answers), 0)
    for whole in answers:
        assert whole.usage is not None
        assert msgspec.structs.replace(whole.usage, forwards=0) == usage


@given(samples, stops, schedules)
def test_each_answer_has_one_last_piece_and_nothing_after_it(samples, stops, schedule):
    params = SamplingParams(n=len(samples), stop=tuple(stops))
    outputs = interleave(samples, schedule)
    pieces, _ = run(params, [*outputs, *outputs])
    for index in range(len(samples)):
        own = [piece.finish is not None for piece in pieces if piece.index == index]
        assert own == [False] * (len(own) - 1) + [True]


def test_a_stop_string_ends_its_answer_and_the_others_go_on():
    outputs = processor(SamplingParams(n=3, stop=("b",)))
    first = outputs.process([say(list(b"ab"), 1), say(list(b"aa"), 0), say(list(b"a"), 2)])
    assert [(piece.index, piece.finish is not None) for piece in first.outputs] == [
        (1, True),
        (0, False),
        (2, False),
    ]
    assert first.abort == Abort([], [("e", 1)])
    assert outputs.process([say(list(b"a"), 1)]).outputs == []
    assert outputs.process([say([], 0, FinishReason.MAX_TOKENS)]).abort is None
    assert len(outputs) == 1
    last = outputs.process([say(list(b"b"), 2)])
    assert last.abort == Abort(["e"])
    assert len(outputs) == 0


def test_an_error_ends_the_request_with_all_its_answers():
    outputs = processor(SamplingParams(n=2))
    outputs.process([say([97], 0), say([], 1, FinishReason.MAX_TOKENS)])
    error = to_wire(InternalError("not a number"))
    failing = EngineOutput("e", [], FinishReason.ERROR, error=error, index=1)
    batch = outputs.process([failing, say([97], 0)])
    assert [(id, str(failure)) for id, failure in batch.failures] == [("r", "not a number")]
    assert (batch.outputs, batch.abort, len(outputs)) == ([], None, 0)


def test_usage_and_timings_are_those_of_the_request():
    """The prompt counts once; what the answers took is added up."""

    def stats(cached: int, forwards: int, decode_s: float) -> RequestStats:
        return RequestStats(9, cached, forwards, queue_s=0.5, prefill_s=1.5, decode_s=decode_s)

    outputs = [
        EngineOutput("e", [97], stats=stats(4, 1, 0.0)),
        EngineOutput("e", [97], stats=stats(8, 1, 0.0), index=1),
        EngineOutput("e", [97, 98], FinishReason.STOP, stats=stats(8, 3, 7.0), index=1),
        EngineOutput("e", [98], FinishReason.STOP, stats=stats(4, 2, 5.0)),
    ]
    pieces, _ = run(SamplingParams(n=2), outputs)
    assert [piece.usage for piece in pieces] == [
        Usage(9, 4, 1, 1),
        Usage(9, 4, 2, 2),
        Usage(9, 4, 4, 4),
        Usage(9, 4, 5, 5),
    ]
    timings = pieces[-1].timings
    assert timings is not None
    assert (timings.queue, timings.prefill, timings.decode) == (0.5, 1.5, 7.0)
    assert timings.time_to_first_token == 1.0
    assert {whole.usage for whole in merge_answers(pieces)} == {Usage(9, 4, 5, 5)}


# ---- log probabilities


def test_log_probabilities_have_the_text_and_the_bytes_of_each_token():
    half = WORD_IDS["é".encode()[:1]]
    position = TokenLogprobs(WORD_IDS[b" six"], -0.5, [(half, -0.25), (EOS, -2.0)], 0.75)
    pieces, _ = run(SamplingParams(), [EngineOutput("e", [97], logprobs=[position])])
    assert pieces[0].logprobs == [
        PositionLogprobs(
            TokenLogprob(WORD_IDS[b" six"], " six", b" six", -0.5),
            [TokenLogprob(half, "�", b"\xc3", -0.25), TokenLogprob(EOS, "", b"", -2.0)],
            0.75,
        )
    ]


def test_a_row_of_the_model_that_is_no_token_may_be_likely_and_has_no_text():
    position = TokenLogprobs(97, -0.5, [(len(TOKEN_BYTES) + 3, -0.25)])
    pieces, _ = run(SamplingParams(), [EngineOutput("e", [97], logprobs=[position])])
    [likely] = pieces[0].logprobs[0].top
    assert (likely.text, likely.token_bytes) == ("", b"")


def test_log_probabilities_of_the_prompt_come_once_and_begin_with_nothing():
    prompt = [None, TokenLogprobs(2, -1.0, []), TokenLogprobs(3, -2.0, [(97, -0.5)])]
    outputs = [EngineOutput("e", [97], prompt_logprobs=prompt), EngineOutput("e", [98]), END]
    whole = answer(SamplingParams(), outputs)
    assert whole.prompt_logprobs[0] is None
    assert [p.token.token_id for p in whole.prompt_logprobs if p is not None] == [2, 3]
    assert whole.logprobs == []


# ---- markers


@pytest.mark.parametrize("sizes", [[1] * 9, [9], [2, 3, 4], [4, 5]])
def test_the_place_where_the_constraint_begins_is_found(sizes: list[int]) -> None:
    params = SamplingParams(constraint=Regex("[0-9]+"), constraint_after="/>")
    whole = answer(params, group(list("é<//>1/>".encode()), sizes))
    assert whole.finish is not None
    assert whole.finish.constraint_start == len("é<//>".encode())
    assert whole.finish.constrained(whole.text) == "1/>"


def test_a_control_token_may_be_the_marker() -> None:
    params = SamplingParams(constraint=Regex("[0-9]+"), constraint_after="<tool>")
    outputs = OutputProcessor(TOKEN_BYTES)
    outputs.add(EngineRequest("e", [1], params, arrival=0.0, marker_id=EOS), "r")
    [piece] = outputs.process([EngineOutput("e", [97, EOS, 49], FinishReason.STOP)]).outputs
    assert piece.finish is not None
    assert piece.text == "a1"
    assert piece.finish.constrained(piece.text) == "1"


@pytest.mark.parametrize("stop", [(), ("z",)])
def test_a_marker_that_did_not_come_leaves_no_place(stop: tuple[str, ...]) -> None:
    params = SamplingParams(constraint=Regex("a"), constraint_after="/>", stop=stop)
    whole = answer(params, [EngineOutput("e", list(b"a/z"), FinishReason.MAX_TOKENS)])
    assert whole.finish is not None
    assert whole.finish.constraint_start is None
    assert whole.finish.constraint_status is ConstraintStatus.INCOMPLETE
