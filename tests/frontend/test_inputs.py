"""A request is checked once, against the tokenizer and the context, and errors name the field."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_fakes import EOS, ToyTokenizer, model_info

from structgen.errors import InvalidRequest
from structgen.frontend.inputs import GenerationInput, InputProcessor, num_chars
from structgen.messages import EngineRequest
from structgen.params import SamplingParams
from structgen.tokenizer import ChatMessage


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
            "input.stopping.stop_token_ids[1]",
            "got 999",
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


def test_a_text_far_beyond_the_context_is_refused_before_it_is_encoded(monkeypatch):
    monkeypatch.delattr(ToyTokenizer, "encode")
    with pytest.raises(InvalidRequest, match="at most 1024 characters, got 1025"):
        process(prompt="x" * 1025)


def test_num_chars_counts_what_there_is_to_encode():
    assert num_chars("abc") == 3
    assert num_chars([1, 2]) == 0
    assert num_chars([ChatMessage("user", "hi")]) == 6
