"""Constrained answers without a server: a Pydantic model, a choice and a regex.

python examples/offline.py
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from structgen import LLM, Choice, Regex, SamplingParams

REVIEWS = [
    "The kettle boils fast and looks good on the counter. Best 40 euros I spent this year.",
    "It leaked on the second day and nobody answers my mails.",
]
GREEDY = SamplingParams(temperature=0, max_tokens=128)


class Review(BaseModel, extra="forbid"):  # else the model may go on with keys of its own
    summary: str = Field(max_length=60)
    sentiment: Literal["positive", "neutral", "negative"]
    stars: int = Field(ge=1, le=5)


def ask(question: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"{review}\n\n{question}"}] for review in REVIEWS]


with LLM("smollm2-135m", log_level="WARNING") as llm:
    for result in llm.generate(ask("Judge this review as JSON."), GREEDY, constraint=Review):
        print(Review.model_validate_json(result.raise_for_error().text))

    happy = Choice(("happy", "unhappy"))
    for result in llm.generate(ask("Is the customer happy?"), GREEDY, constraint=happy):
        print(result.raise_for_error().text)

    reply = Regex(r"Dear customer, [a-z ,]{10,60}\.")
    for result in llm.generate(ask("Write a short reply."), GREEDY, constraint=reply):
        print(result.raise_for_error().text)
