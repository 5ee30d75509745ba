"""What do fewer bits cost: how well is text predicted, and how often is the same token the best?

    python benchmarks/quality.py [--model smollm2-135m] [--workload FILE] [--tokens 4096]

A line for each type of weights and each kind of text: this project's own prose, and the prompts of
the extraction workload.  `perplexity_ratio` is relative to float32; `agreement` is the share of the
tokens behind which the most likely next one is float32's.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import _workload
from _common import DATA, REPOSITORY, print_line, print_machine

from structgen import LLM, SamplingParams

TYPES: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32", "quantization": "none"},
    "bfloat16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
PROSE = ("README.md", "examples/documents", "LICENSE")
WINDOW = 512  # tokens of prose that are predicted in one go
ASKED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)


class Judged(NamedTuple):
    """Of every token but the first: its log probability, and which one was the most likely."""

    logprobs: list[float]
    best: list[int]

    @property
    def perplexity(self) -> float:
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))


def judge(llm: LLM, prompts: list[list[int]]) -> Judged:
    judged = Judged([], [])
    for result in llm.generate(prompts, ASKED):
        for position in result.raise_for_error().prompt_logprobs[1:]:
            assert position is not None
            judged.logprobs.append(position.token.logprob)
            judged.best.append(position.top[0].token_id)
    return judged


def prose(llm: LLM, num_tokens: int) -> list[list[int]]:
    paths = [REPOSITORY / name for name in PROSE]
    files = [
        each for path in paths for each in (sorted(path.iterdir()) if path.is_dir() else [path])
    ]
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in files)
    ids = llm.tokenizer.encode(text)[:num_tokens]
    return [ids[i : i + WINDOW] for i in range(0, len(ids) - 1, WINDOW)]


def prompts(llm: LLM, workload: Path, num_tokens: int) -> list[list[int]]:
    chosen: list[list[int]] = []
    for item in _workload.load(workload).items:
        if sum(map(len, chosen)) < num_tokens:
            chosen.append(llm.tokenizer.encode_chat(item.messages))
    return chosen


def report(name: str, text: str, judged: Judged, exact: Judged) -> None:
    same = sum(map(int.__eq__, judged.best, exact.best))
    print_line(
        "quality",
        type=name,
        text=text,
        n=len(judged.best),
        perplexity=judged.perplexity,
        perplexity_ratio=judged.perplexity / exact.perplexity,
        agreement=same / len(exact.best),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--workload", type=Path, default=DATA / "extraction-workload.json")
    parser.add_argument("--tokens", type=int, default=4096, help="of each kind of text")
    parser.add_argument("--quick", action="store_true", help="random model, little text")
    given = parser.parse_args()
    model, num_tokens = ("random:llama", 200) if given.quick else (given.model, given.tokens)
    print_machine("quality", model=model)
    exact: dict[str, Judged] = {}
    for name, options in TYPES.items():
        with LLM(model, prefix_caching=False, **options) as llm:
            texts = {
                "prose": prose(llm, num_tokens),
                "prompts": prompts(llm, given.workload, num_tokens),
            }
            for text, ids in texts.items():
                judged = judge(llm, ids)
                report(name, text, judged, exact.setdefault(text, judged))


if __name__ == "__main__":
    main()
