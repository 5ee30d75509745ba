"""What structgen's two workers ask for."""

from __future__ import annotations

from _wire import Item, Job

from structgen import JsonSchema, SamplingParams
from structgen.constraints import Whitespace


def params(job: Job, item: Item, whitespace: bool) -> SamplingParams:
    """whitespace: optional blanks, which are not part of JSON's data, are the model's choice."""
    if job.free:
        return SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True)
    blanks = Whitespace.FLEXIBLE if whitespace else Whitespace.COMPACT
    constraint = JsonSchema.of(item["schema"], blanks)
    return SamplingParams(temperature=0.0, max_tokens=job.max_tokens, constraint=constraint)
