"""The command line, in this process."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from scripted_llm import ScriptedLLM, serving_aside

from structgen.config import EngineConfig, ServerConfig
from structgen.constraints import (
    Backend,
    Choice,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Whitespace,
)
from structgen.errors import InvalidRequest
from structgen.frontend import cli, llm
from structgen.frontend.grpc import server
from structgen.frontend.llm import GenerationResult
from structgen.frontend.ready_grammars import ready
from structgen.params import JumpForward, SamplingParams
from structgen.tokenizer import ChatMessage

SCHEMA = '{"type":"object"}'
LLGUIDANCE = ["--backend", "llguidance"]


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[ScriptedLLM, str]]:
    with serving_aside() as place:
        yield place


@pytest.fixture
def address(place: tuple[ScriptedLLM, str], monkeypatch: pytest.MonkeyPatch) -> str:
    place[0].inputs.clear()
    monkeypatch.setenv("STRUCTGEN_ADDRESS", place[1])
    return place[1]


@pytest.fixture
def inputs(place: tuple[ScriptedLLM, str], address: str) -> list[Any]:
    return place[0].inputs


class FakeLLM:
    """Stands in for LLM; remembers what it was asked."""

    asked: tuple[Any, Any]
    options: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        FakeLLM.options = options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def generate(self, prompts: list[Any], params: Any, *, use_tqdm: bool) -> list[Any]:
        FakeLLM.asked = (prompts, params)
        return [
            GenerationResult(request_id=str(index), error=InvalidRequest("no"))
            if prompt == "bad"
            else GenerationResult(request_id=str(index), text=f"answer {index}")
            for index, prompt in enumerate(prompts)
        ]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "LLM", FakeLLM)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))


# ---- help and errors


@pytest.mark.parametrize("command", ["serve", "generate", "call", "check", "pull"])
def test_every_command_explains_its_options(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert "usage: structgen " + command in capsys.readouterr().out


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--port", "99999"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("structgen: error: configuration: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_interrupt_is_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: FakeLLM, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(llm, "LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "__init__", interrupted)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one"))
    assert cli.main(["generate"]) == 130
    assert capsys.readouterr().err == "structgen: interrupted\n"


# ---- serve


def test_options_come_from_flags_then_environment_then_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[tuple[EngineConfig, ServerConfig]] = []

    async def serve(engine: EngineConfig, config: ServerConfig) -> None:
        served.append((engine, config))

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setenv("STRUCTGEN_MAX_NUM_SEQS", "8")
    monkeypatch.setenv("STRUCTGEN_BLOCK_SIZE", "32")
    file = tmp_path / "config.yaml"
    file.write_text("max_num_seqs: 4\nhost: 0.0.0.0\nport: 7000\n")
    arguments = ["--config", str(file), "--port", "0", "--block-size", "8", "--no-prefix-caching"]
    assert cli.main(["serve", *arguments, "--model", "random:llama"]) == 0
    engine, config = served[0]
    assert (config.host, config.port) == ("0.0.0.0", 0)
    assert (engine.max_num_seqs, engine.block_size) == (8, 8)
    assert engine.model == "random:llama"
    assert not engine.prefix_caching


# ---- generate


@pytest.mark.usefixtures("offline")
def test_generate_answers_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--max-tokens", "5", "--temperature", "0", "--stop", "a", "--stop", "b"]
    assert cli.main(["generate", *options, "--max-num-seqs", "3"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["answer 0", "answer 1"]
    prompts, params = FakeLLM.asked
    assert prompts == ["one", "two"]
    assert params == SamplingParams(max_tokens=5, temperature=0.0, stop=("a", "b"))
    assert FakeLLM.options["max_num_seqs"] == 3


@pytest.mark.usefixtures("offline")
def test_every_sampling_option_can_be_given() -> None:
    options = {
        "--max-tokens": 5, "--min-tokens": 2, "--temperature": 0.5, "--top-k": 3, "--top-p": 0.5,
        "--min-p": 0.25, "--seed": 7, "--n": 2, "--repetition-penalty": 1.5,
        "--frequency-penalty": -0.5, "--presence-penalty": 0.5, "--time-limit-s": 9.0,
        "--logprobs": 4, "--prompt-logprobs": 0, "--stop": "x", "--stop-token-id": 4,
        "--bad-word": "y", "--bad-token-id": 6, "--allowed-token-id": 8, "--logit-bias": "9=-1.5",
        "--truncation": "mark", "--jump-forward": "off",
    }  # fmt: skip
    given = [word for flag, value in options.items() for word in (flag, str(value))]
    flags = ["--include-stop", "--ignore-eos", "--constraint-mass", "--bad-word", "z"]
    flags.append("--no-drafts")
    assert cli.main(["generate", *given, *flags]) == 0
    expected = SamplingParams(
        max_tokens=5, min_tokens=2, temperature=0.5, top_k=3, top_p=0.5, min_p=0.25, seed=7, n=2,
        repetition_penalty=1.5, frequency_penalty=-0.5, presence_penalty=0.5, time_limit_s=9.0,
        logprobs=4, prompt_logprobs=0, stop=("x",), stop_token_ids=(4,), bad_words=("y", "z"),
        bad_token_ids=(6,), allowed_token_ids=(8,), logit_bias=((9, -1.5),), include_stop=True,
        ignore_eos=True, constraint_mass=True, close_within_budget=False,
        jump_forward=JumpForward.OFF, drafts=False,
    )  # fmt: skip
    assert FakeLLM.asked[1] == expected
    for name in set(SamplingParams.__struct_fields__) - {"constraint", "constraint_after"}:
        assert getattr(expected, name) != getattr(SamplingParams(), name), name


def test_a_malformed_bias_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["call", "hi", "--logit-bias", "9"])
    assert caught.value.code == 2
    assert "argument --logit-bias: invalid bias value: '9'" in capsys.readouterr().err


@pytest.mark.usefixtures("offline")
def test_generate_prints_each_of_several_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [GenerationResult(request_id="0", index=1, text="another")]
    results = [GenerationResult(request_id="0", text="one", others=others)]
    monkeypatch.setattr(FakeLLM, "generate", lambda *args, **kwargs: results)
    assert cli.main(["generate", "--n", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["index"], line["text"]) for line in lines] == [(0, "one"), (1, "another")]
    assert all("others" not in line for line in lines)


@pytest.mark.usefixtures("offline")
def test_generate_reports_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts"
    file.write_text("good\nbad\n")
    assert cli.main(["generate", str(file)]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["error"] for line in lines] == [None, "no"]


@pytest.mark.usefixtures("offline")
def test_generate_reads_prompts_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text('"text"\n[1, 2]\n[{"role": "user", "content": "hi"}]\n')
    assert cli.main(["generate", "--jsonl", str(file)]) == 0
    assert FakeLLM.asked[0] == ["text", [1, 2], [ChatMessage("user", "hi")]]


@pytest.mark.usefixtures("offline")
def test_generate_names_the_line_that_is_no_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts"
    file.write_text('"text"\n\n{"a": 1}\n')
    assert cli.main(["generate", "--jsonl", str(file)]) == 1
    assert "line 3 is not a prompt" in capsys.readouterr().err


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("arguments", "constraint"),
    [
        (["--schema", "FILE"], JsonSchema(SCHEMA)),
        (["--schema", "FILE", "--whitespace", "flexible"], JsonSchema(SCHEMA, Whitespace.FLEXIBLE)),
        (["--schema", "FILE", "--best-effort"], JsonSchema(SCHEMA, best_effort=True)),
        (["--schema", "FILE", *LLGUIDANCE], JsonSchema(SCHEMA, backend=Backend.LLGUIDANCE)),
        (["--json-object"], JsonObject()),
        (["--json-object", *LLGUIDANCE], JsonObject(backend=Backend.LLGUIDANCE)),
        (["--regex", "a", *LLGUIDANCE], Regex("a", backend=Backend.LLGUIDANCE)),
        (["--ebnf", "FILE", *LLGUIDANCE], Ebnf(SCHEMA, backend=Backend.LLGUIDANCE)),
        (["--choice", "a", *LLGUIDANCE], Choice(("a",), backend=Backend.LLGUIDANCE)),
        (["--regex", "a+"], Regex("a+")),
        (["--ebnf", "FILE"], Ebnf(SCHEMA)),
        (["--lark", "FILE"], Lark(SCHEMA)),
        (["--grammar", "uuid"], ready("uuid")),
        (["--grammar", "json", *LLGUIDANCE], ready("json", Backend.LLGUIDANCE)),
        (["--structural-tag", "FILE"], StructuralTag(SCHEMA)),
        (["--choice", "yes", "--choice", "no"], Choice(("yes", "no"))),
    ],
)
def test_constraints_can_be_given(arguments: list[str], constraint: object, tmp_path: Path) -> None:
    file = tmp_path / "constraint"
    file.write_text(SCHEMA)
    arguments = [str(file) if argument == "FILE" else argument for argument in arguments]
    assert cli.main(["generate", *arguments]) == 0
    assert FakeLLM.asked[1].constraint == constraint


@pytest.mark.usefixtures("offline")
def test_a_constraint_may_wait_for_a_marker() -> None:
    assert cli.main(["generate", "--regex", "a", "--constraint-after", "</think>"]) == 0
    assert FakeLLM.asked[1].constraint_after == "</think>"


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--constraint-after", "</think>"],
        LLGUIDANCE,
        ["--best-effort"],
        ["--regex", "a", "--best-effort"],
    ],
)
def test_an_option_that_applies_to_nothing_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", *arguments]) == 1
    assert "applies to" in capsys.readouterr().err


@pytest.mark.usefixtures("offline")
def test_an_unknown_grammar_is_answered_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["generate", "--grammar", "nope"]) == 1
    shown = capsys.readouterr().err
    assert "there is no ready grammar 'nope'; there are arithmetic, chess-pgn," in shown


def test_the_help_names_the_ready_grammars(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["call", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "arithmetic, chess-pgn, cron," in shown


def test_two_constraints_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "--regex", "a", "--choice", "b"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


# ---- call


@pytest.mark.usefixtures("address")
def test_call_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["call", "hi"]) == 0
    assert capsys.readouterr().out == "Hello\n"


def test_call_prints_the_whole_answer_as_json(
    capsys: pytest.CaptureFixture[str], inputs: list[Any]
) -> None:
    assert cli.main(["call", "json", "--json-object", "--json", "--seed", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads(answer["text"]) == {"name": "Ada"}
    assert answer["finish"]["constraint_status"] == "complete"
    assert answer["finish"]["verified"] is True
    assert answer["constraint"]["backend"] == "xgrammar"
    assert answer["constraint"]["keywords"] == [
        {"pointer": "/title", "keyword": "title", "treatment": "annotation"}
    ]
    assert inputs[0].params == SamplingParams(seed=3, constraint=JsonObject())


@pytest.mark.usefixtures("address")
def test_call_prints_each_of_several_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["call", "hi", "--n", "2"]) == 0
    assert capsys.readouterr().out == "Hello\nHello\n"
    assert cli.main(["call", "hi", "--n", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["index"], line["text"]) for line in lines] == [(0, "Hello"), (1, "Hello")]


@pytest.mark.usefixtures("address")
def test_call_prints_log_probabilities_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["call", "scored", "--json", "--logprobs", "2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [position["token"]["text"] for position in answer["logprobs"]] == ["\x07", "\t", "\b"]
    assert answer["prompt_logprobs"][0] is None


def test_call_takes_a_message_from_stdin(
    monkeypatch: pytest.MonkeyPatch, inputs: list[Any]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nthere"))
    assert cli.main(["call", "--chat"]) == 0
    assert inputs[0].prompt == [ChatMessage("user", "hello\nthere")]


@pytest.mark.usefixtures("address")
def test_call_fails_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["call", "full"]) == 1
    assert capsys.readouterr().err == "structgen: error: the queue holds 1 request\n"


def test_call_takes_an_address_and_a_timeout(address: str) -> None:
    assert cli.main(["call", "hi", "--address", address]) == 0
    assert cli.main(["call", "hi", "--address", "127.0.0.1:1", "--timeout-s", "5"]) == 1
    assert cli.main(["call", "hang", "--timeout-s", "0.1"]) == 1


# ---- pull


def test_pull_prints_the_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from structgen.model import sources

    def resolve(model: str, *, progress: bool) -> Path:
        return Path("/models") / model

    monkeypatch.setattr(sources, "resolve", resolve)
    assert cli.main(["pull", "tiny"]) == 0
    assert capsys.readouterr().out == "/models/tiny\n"
