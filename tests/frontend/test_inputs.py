"""A request is checked once, against the tokenizer and the context, and errors name the field."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_fakes import EOS, TOOL, ToyTokenizer, model_info

from structgen.constraints import Choice, Regex
from structgen.errors import InvalidRequest
from structgen.frontend.inputs import GenerationInput, InputProcessor, num_chars
from structgen.messages import EngineRequest
from structgen.params import SamplingParams
from structgen.tokenizer import ChatMessage

STOP_IDS = "input.stopping.stop_token_ids"


def process(context_length: int = 16, **fields: object) -> EngineRequest:
    processor = InputProcessor(ToyTokenizer(), model_info(context_length), clock=lambda: 7.0)
    return processor.process(GenerationInput(**fields))


def test_text_becomes_ids_with_all_else_passed_on():
    params = SamplingParams(max_tokens=3)
    request = process(prompt="hé", request_id="mine", params=params, priority=4)
    assert request == EngineRequest("mine", [104, 0xC3, 0xA9], params, 7.0, 4)


def test_a_request_without_an_id_gets_a_new_one():
    assert process(prompt="a").id != process(prompt="a").id


def test_control_tokens_are_recognised_only_when_asked():
    assert process(prompt="a<eos>", special_tokens=True).prompt_ids == [97, EOS]
    assert EOS not in process(prompt="a<eos>").prompt_ids


def test_chat_goes_through_the_template():
    request = process(prompt=[ChatMessage("user", "hi")])
    assert bytes(request.prompt_ids) == b"user:hi\n"


def test_integers_of_numpy_are_token_ids_too():
    ids = process(prompt=list(np.array([1, 2]))).prompt_ids
    assert [type(id) for id in ids] == [int, int]


def test_a_prompt_that_leaves_room_for_one_token_is_accepted():
    assert len(process(prompt="x" * 15).prompt_ids) == 15


def test_more_tokens_may_be_asked_for_than_the_context_has():
    process(prompt="x", params=SamplingParams(max_tokens=1000))


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"prompt": ""}, "input.text", "must not be empty"),
        ({"prompt": []}, "input.token_ids.ids", "must not be empty"),
        ({"prompt": [ChatMessage("", "")]}, "input.chat", "must not be empty"),
        ({"prompt": "x" * 16}, "input.text", "the context of 16, got 16 tokens"),
        ({"prompt": [1] * 16}, "input.token_ids.ids", "got 16 tokens"),
        ({"prompt": [ChatMessage("user", "x" * 16)]}, "input.chat", "got 22 tokens"),
        ({"prompt": [ChatMessage("user", "")] * 16}, "input.chat", "got 16 tokens"),
        ({"prompt": [ChatMessage("nobody", "x")]}, "input.chat", "unknown role"),
        ({"prompt": [0, 1, 2, 265]}, "input.token_ids.ids[3]", r"\[0, 265\), got 265"),
        ({"prompt": [-1]}, "input.token_ids.ids[0]", "got -1"),
        ({"prompt": [0.5]}, "input.prompt", "must be a text"),
        ({"prompt": "a\ud800"}, "input.text", "lone surrogate at character 1"),
        (
            {"prompt": "a", "params": SamplingParams(stop_token_ids=(1, 999))},
            f"{STOP_IDS}[1]",
            "got 999",
        ),
        ({"prompt": "a", "params": SamplingParams(stop_token_ids=(-1,))}, f"{STOP_IDS}[0]", "-1"),
        (
            {"prompt": "a", "params": SamplingParams(allowed_token_ids=(1, 265))},
            "input.sampling.allowed_token_ids[1]",
            r"\[0, 265\), got 265",
        ),
        (
            {"prompt": "a", "params": SamplingParams(allowed_token_ids=(1,) * 266)},
            "input.sampling.allowed_token_ids",
            "265, got 266",
        ),
        (
            {"prompt": "a", "params": SamplingParams(bad_token_ids=(2**63 - 1,))},
            "input.sampling.bad_token_ids[0]",
            "got 9223372036854775807",
        ),
        (
            {"prompt": "a", "params": SamplingParams(logit_bias=((1, 0.5), (-1, 5.0)))},
            "input.sampling.logit_bias[-1]",
            r"\[0, 265\), got -1",
        ),
        (
            {"prompt": "a", "params": SamplingParams(logit_bias=((265, 5.0),))},
            "input.sampling.logit_bias[265]",
            "got 265",
        ),
        (
            {"prompt": "a", "params": SamplingParams(bad_token_ids=(EOS,))},
            "input.sampling.bad_token_ids",
            r"must leave a token that ends the answer, got all of \[256\]",
        ),
        (
            {
                "prompt": "a",
                "params": SamplingParams(bad_token_ids=(5, EOS, 4), stop_token_ids=(4, 5)),
            },
            "input.sampling.bad_token_ids",
            r"got all of \[4, 5, 256\]",
        ),
        (
            {
                "prompt": "a",
                "params": SamplingParams(
                    constraint=Choice(("yes", " no")), bad_words=("yes", "no", "x")
                ),
            },
            "input.sampling.bad_words",
            "must leave an option of the choice, got all 2",
        ),
        (
            {
                "prompt": "a",
                "params": SamplingParams(
                    constraint=Choice(("abab", "five six")), max_tokens=1, bad_words=("ab",)
                ),
            },
            "input.stopping.max_tokens",
            "must be at least 2, what the shortest option of the choice takes, got 1",
        ),
        (
            {
                "prompt": "a",
                "params": SamplingParams(constraint=Choice(("aa", "b")), bad_token_ids=(97, 98)),
            },
            "input.sampling",
            "must leave an option of the choice, got none of 2",
        ),
        (
            {
                "prompt": "a",
                "params": SamplingParams(
                    constraint=Choice(("ab", "ba")), allowed_token_ids=(97, 99)
                ),
            },
            "input.sampling",
            "must leave an option of the choice, got none of 2",
        ),
        ({"prompt": "a", "request_id": "x" * 129}, "input.request_id", "at most 128"),
        ({"prompt": "a", "request_id": "a b"}, "input.request_id", "printable ASCII"),
        ({"prompt": "a", "request_id": "a\n"}, "input.request_id", "printable ASCII"),
    ],
)
def test_what_cannot_be_served_is_refused_with_field_and_limit(fields, field, says):
    with pytest.raises(InvalidRequest, match=says) as error:
        process(**fields)
    assert error.value.field == field


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(bad_token_ids=(EOS,), stop_token_ids=(4,)),
        SamplingParams(bad_token_ids=(EOS,), ignore_eos=True),
        SamplingParams(bad_words=("yes",), constraint=Choice(("eyes",))),
        SamplingParams(max_tokens=2, constraint=Choice(("five six", "x" * 9))),
        SamplingParams(bad_token_ids=(97,), constraint=Choice(("ab",))),
        SamplingParams(allowed_token_ids=(97, 98), constraint=Choice(("abc", "bab"))),
        SamplingParams(max_tokens=1, constraint=Choice(("x" * 50_000,))),
        SamplingParams(allowed_token_ids=(0, 264), logit_bias=((0, -1.0), (264, 1.0))),
        SamplingParams(prompt_logprobs=64, logprobs=64, constraint_mass=True, n=128),
    ],
)
def test_what_can_be_answered_is_accepted(params):
    assert process(prompt="a", params=params).params is params


def test_an_option_that_is_a_bad_word_is_no_option():
    params = SamplingParams(bad_words=("no",), constraint=Choice(("yes", "no", " no", "not")))
    assert process(prompt="a", params=params).params.constraint == Choice(("yes", "not"))


def test_bad_words_and_ids_become_sequences_each_once():
    params = SamplingParams(bad_words=("hi", " hi", "a"), bad_token_ids=(7, 97, 7))
    assert process(prompt="x", params=params).bad_sequences == [
        [7],
        [97],
        list(b"hi"),
        list(b" hi"),
        list(b" a"),
    ]


def test_a_text_far_beyond_the_context_is_refused_before_it_is_encoded(monkeypatch):
    monkeypatch.delattr(ToyTokenizer, "encode")
    with pytest.raises(InvalidRequest, match="at most 1024 characters, got 1025"):
        process(prompt="x" * 1025)


def test_num_chars_counts_what_there_is_to_encode():
    assert num_chars(GenerationInput(prompt="abc")) == 3
    assert num_chars(GenerationInput(prompt=[1, 2])) == 0
    assert num_chars(GenerationInput(prompt=[ChatMessage("user", "hi")])) == 6
    words = SamplingParams(bad_words=("x" * 100,) * 256)
    assert num_chars(GenerationInput(prompt="abc", params=words)) > 2 * 256 * 100


# ---- markers


def test_a_marker_that_spells_a_control_token_is_that_token():
    def marker_of(text, **fields):
        params = SamplingParams(constraint=Regex("a"), constraint_after=text, **fields)
        return process(prompt="x", params=params).marker()

    text = marker_of("</think>")
    assert (text.text, text.token) == (b"</think>", None)
    assert marker_of("") is None
    control = marker_of("<tool>")
    assert (control.text, control.token) == (b"<tool>", TOOL)


@pytest.mark.parametrize(
    ("marker", "fields", "says"),
    [
        ("<eos>", {}, "is the token 256, which ends the answer"),
        ("</think>", {"bad_words": (" </think>",)}, "'</think>' is a bad word"),
        ("</think>", {"stop": ("x", "think")}, "the stop string 'think' in '</think>' ends it"),
        ("<tool>", {"stop_token_ids": (TOOL,)}, "which ends the answer"),
        ("<tool>", {"bad_token_ids": (TOOL,)}, "which is not allowed in the answer"),
        ("<tool>", {"allowed_token_ids": (1, EOS)}, "which is not allowed in the answer"),
    ],
)
def test_a_marker_that_cannot_come_is_refused(marker, fields, says):
    params = SamplingParams(constraint=Regex("a"), constraint_after=marker, **fields)
    with pytest.raises(InvalidRequest, match=says) as refusal:
        process(prompt="x", params=params)
    assert refusal.value.field == "input.constraint.options.after"


def test_a_marker_needs_a_constraint():
    with pytest.raises(InvalidRequest, match="applies to a constraint"):
        process(prompt="x", params=SamplingParams(constraint_after="</think>"))
