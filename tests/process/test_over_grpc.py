"""The same request gives the same answer in process and over gRPC, beside others."""

import asyncio
import json
import re

import pytest

from structgen import LLM, Ebnf, JsonSchema, Lark, SamplingParams, StructuralTag
from structgen.config import EngineConfig, ServerConfig
from structgen.constraints import Constraint
from structgen.frontend.answer import ConstraintStatus
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.client import AsyncClient
from structgen.frontend.grpc.requests import Completion
from structgen.frontend.grpc.server import Server

OPTIONS = {"model": "random:llama", "dtype": "float32", "threads": 1, "num_blocks": 128}
SCHEMA = JsonSchema(
    '{"type":"object","properties":{"a":{"type":"string","maxLength":9},"b":{"type":"boolean"}},'
    '"required":["a","b"],"additionalProperties":false}'
)
REQUESTS: list[tuple[SamplingParams, Constraint | None]] = [
    (SamplingParams(temperature=0.0, max_tokens=30), None),
    (SamplingParams(temperature=0.9, seed=2**63 + 5, top_k=40, top_p=0.9, max_tokens=30), None),
    (SamplingParams(temperature=0.7, seed=3, n=3, max_tokens=20), None),
    (SamplingParams(temperature=1.0, seed=4, max_tokens=60), SCHEMA),
    (
        SamplingParams(
            temperature=0.6,
            seed=5,
            min_p=0.01,
            repetition_penalty=1.2,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            logit_bias=((40, 2.5),),
            bad_words=("the",),
            min_tokens=5,
            max_tokens=25,
            logprobs=2,
        ),
        None,
    ),
]
GRAMMAR = Lark('start: pair ("; " pair)~1..3\npair: /[a-z]{1,5}/ "=" INT\n%import common.INT')
PAIRS = re.compile(r"[a-z]{1,5}=[0-9]+(; [a-z]{1,5}=[0-9]+){1,3}")
TAG = StructuralTag(
    json.dumps(
        {
            "type": "structural_tag",
            "format": {
                "type": "sequence",
                "elements": [
                    {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
                    {"type": "json_schema", "json_schema": json.loads(SCHEMA.schema)},
                ],
            },
        }
    )
)
REQUESTS += [
    (SamplingParams(temperature=0.8, seed=6, max_tokens=60, constraint_after="</think>"), SCHEMA),
    (SamplingParams(temperature=0.8, seed=7, max_tokens=60), GRAMMAR),
    (SamplingParams(temperature=0.8, seed=8, max_tokens=60), Ebnf("root ::= [(] root [)] | [x]")),
    (SamplingParams(temperature=0.8, seed=9, max_tokens=60), TAG),
]


def test_a_request_has_one_answer_in_process_and_over_grpc() -> None:
    prompts = [f"number {index}: {'text ' * index}" for index in range(len(REQUESTS))]
    with LLM(**OPTIONS) as llm:  # type: ignore[arg-type]
        here = [
            llm.generate(prompt, params, constraint=constraint, use_tqdm=False)[0]
            for prompt, (params, constraint) in zip(prompts, REQUESTS, strict=True)
        ]

    async def ask() -> list[Completion[object]]:
        async with AsyncLLM(EngineConfig(log_level="WARNING", **OPTIONS)) as served:  # type: ignore[arg-type]
            server = Server(served, ServerConfig(port=0))
            port = await server.start()
            client = AsyncClient(f"127.0.0.1:{port}")
            try:
                return await asyncio.gather(
                    *(
                        client.generate(prompt, params, constraint=constraint, token_ids=True)
                        for prompt, (params, constraint) in zip(prompts, REQUESTS, strict=True)
                    )
                )
            finally:
                await client.close()
                await server.close()

    there = asyncio.run(ask())
    for mine, theirs in zip(here, there, strict=True):
        assert [s.text for s in mine.samples] == [s.text for s in theirs.samples]
        assert [s.token_ids for s in mine.samples] == [list(s.token_ids) for s in theirs.samples]
    assert here[3].finish is not None
    assert here[3].finish.constraint_status is ConstraintStatus.COMPLETE
    assert here[3].finish.verified
    finish, theirs_behind = here[5].finish, there[5]
    assert finish is not None
    assert finish.verified
    assert here[5].text.partition("</think>")[2] == finish.constrained(here[5].text)
    assert theirs_behind.constraint_start == finish.constraint_start
    assert theirs_behind.parsed == json.loads(finish.constrained(here[5].text))
    for answer in here[5:]:
        assert answer.finish is not None
        assert answer.finish.constraint_status is ConstraintStatus.COMPLETE, answer
    assert PAIRS.fullmatch(here[6].text)
    assert re.fullmatch(r"\(*x\)*", here[7].text)
    assert here[7].text.count("(") == here[7].text.count(")")
    json.loads(here[8].text.partition("</a>")[2])
    logprobs = [position.token.logprob for position in here[4].logprobs]
    assert len(logprobs) == len(here[4].token_ids) > 0
    assert [position.token.logprob for position in there[4].logprobs] == pytest.approx(
        logprobs, rel=1e-4
    )
