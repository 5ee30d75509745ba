"""What a trace says (`structgen serve --trace FILE`): shares of threads and steps, and a picture.

    python benchmarks/timeline.py FILE
    python benchmarks/timeline.py FILE --svg steps.svg --step 100 --count 4

A line per span of each thread: how often, how long, and its share of the time from the first
forward to the last.  A line per number of rows that forwards had, medians in milliseconds:

    gap        from the end of a step's sampling to the beginning of the next forward, where the
               engine had something to do: the device idle, the loop and the device thread busy
    forward, wait, sample     on the device thread; wait: for the masks
    masks      on the loop thread, beside the forward; hidden_share: how much of it did not wait

The picture shows some steps: a lane per thread, a box per span.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
from _common import in_ms, percentile, print_line

DEVICE = ("pack", "forward", "wait", "sample")


class Span(msgspec.Struct, frozen=True):
    """Times in seconds.  rows: of a forward."""

    name: str
    track: str
    began: float
    ended: float
    rows: int = 0

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Step(msgspec.Struct, frozen=True):
    """One forward, and what belongs to it.  gap: before it; None where nothing was to be done."""

    forward: Span
    gap: float | None
    wait: float
    sample: float
    masks: float


def read(file: Path) -> list[Span]:
    """Return the spans of a trace, by beginning.  One whose process was killed has no end."""
    text = file.read_text(encoding="utf-8").rstrip()
    events = json.loads(text if text.endswith("]") else text.removesuffix(",") + "]")
    named = [event for event in events if event["ph"] == "M" and event["name"].endswith("_name")]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    spans = [
        Span(
            event["name"],
            f"{names[event['pid'], 0]}: {names[event['pid'], event['tid']]}",
            event["ts"] / 1e6,
            (event["ts"] + event["dur"]) / 1e6,
            event["args"].get("rows", 0),
        )
        for event in events
        if event["ph"] == "X"
    ]
    return sorted(spans, key=lambda span: span.began)


def by_track(spans: Sequence[Span]) -> dict[str, list[Span]]:
    tracks: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        tracks[span.track].append(span)
    return dict(sorted(tracks.items(), key=lambda item: ("device" not in item[0], item[0])))


def steps(spans: Sequence[Span]) -> Iterator[Step]:
    """Yield the steps of an engine, without the first one, before which nothing is known."""
    forwards = [span for span in spans if span.name == "forward"]
    idle = [span.began for span in spans if span.name == "idle"]
    masks = [span for span in spans if span.name == "masks"]
    mask_starts = [span.began for span in masks]
    after = {name: [span for span in spans if span.name == name] for name in ("wait", "sample")}
    starts = {name: [span.began for span in found] for name, found in after.items()}
    for last, forward in pairwise(forwards):
        wait, sample = (
            _first(after[name], starts[name], forward.ended) for name in ("wait", "sample")
        )
        before = _first(after["sample"], starts["sample"], last.ended)
        beside = _first(masks, mask_starts, before.ended if before else last.ended)
        if wait is None or sample is None or before is None or beside is None:
            continue
        was_idle = bisect_left(idle, forward.began) > bisect_left(idle, before.ended)
        gap = None if was_idle else forward.began - before.ended
        yield Step(forward, gap, wait.seconds, sample.seconds, beside.seconds)


def _first(spans: Sequence[Span], starts: Sequence[float], after: float) -> Span | None:
    at = bisect_left(starts, after - 1e-6)
    return spans[at] if at < len(spans) else None


# ---- figures


def print_shares(spans: Sequence[Span]) -> None:
    forwards = [span for span in spans if span.name == "forward"]
    began, ended = forwards[0].began, forwards[-1].ended
    for track, found in by_track(spans).items():
        kinds: dict[str, list[float]] = defaultdict(list)
        for span in found:
            if began <= span.began <= ended:
                kinds[span.name].append(span.seconds)
        for name, seconds in kinds.items():
            share = sum(seconds) / (ended - began)
            print_line(
                "span", track=track, name=name, n=len(seconds), share=share, **in_ms("one", seconds)
            )


def print_steps(spans: Sequence[Span]) -> None:
    by_rows: dict[int, list[Step]] = defaultdict(list)
    for step in steps(spans):
        by_rows[step.forward.rows].append(step)
    for rows, found in sorted(by_rows.items()):
        gaps = [step.gap for step in found if step.gap is not None]
        if not gaps:
            continue
        forward = median(step.forward.seconds for step in found)
        masks, wait = sum(step.masks for step in found), sum(step.wait for step in found)
        print_line(
            "steps",
            rows=rows,
            n=len(gaps),
            **in_ms("gap", gaps),
            forward_ms=forward * 1e3,
            wait_ms=median(step.wait for step in found) * 1e3,
            wait_p99_ms=percentile([step.wait for step in found], 99) * 1e3,
            sample_ms=median(step.sample for step in found) * 1e3,
            masks_ms=median(step.masks for step in found) * 1e3,
            hidden_share=max(0.0, 1 - wait / masks) if masks else 1.0,
            gap_share=median(gaps) / (forward + median(gaps)),
        )


# ---- the picture

WIDTH, LEFT, LANE, TOP = 1600, 150, 34, 26
COLOURS = (
    *("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2"),
    *("#ff9da6", "#9d755d", "#eeca3b", "#bab0ac", "#86bcb6", "#d67195"),
)


def draw(spans: Sequence[Span], first: int, count: int) -> str:
    """Return an SVG of `count` steps from the first-th on."""
    forwards = [span for span in spans if span.name == "forward"]
    first = min(first, max(len(forwards) - count - 1, 0))
    began = forwards[first].began
    ended = forwards[min(first + count, len(forwards) - 1)].began
    scale = (WIDTH - LEFT) / (ended - began)
    shown = [span for span in spans if span.ended > began and span.began < ended]
    names = list(dict.fromkeys(span.name for span in shown))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    tracks = by_track(shown)
    lines = [_text(LEFT, 16, f"{count} steps, {1e3 * (ended - began):.2f} ms", size=13)]
    for lane, (track, found) in enumerate(tracks.items()):
        y = TOP + lane * LANE
        lines.append(_text(4, y + 18, track.replace("MainThread", "main")))
        for span in found:
            x = LEFT + max(span.began - began, 0) * scale
            width = (min(span.ended, ended) - max(span.began, began)) * scale
            lines.append(_box(x, y, width, colours[span.name], span))
    height = TOP + len(tracks) * LANE + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">'
    background = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, background, *lines, "</svg>", ""])


def _box(x: float, y: float, width: float, colour: str, span: Span) -> str:
    title = f"{span.name} {span.seconds * 1e6:.0f} us"
    box = (
        f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.3):.2f}" height="{LANE - 6}" '
        f'fill="{colour}" stroke="white" stroke-width="0.3"><title>{escape(title)}</title></rect>'
    )
    room = len(span.name) * 6.5 < width
    return box + (_text(x + 3, y + 18, span.name, colour="white") if room else "")


def _text(x: float, y: float, text: str, *, size: int = 11, colour: str = "black") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="sans-serif" font-size="{size}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Shares and a picture of a trace.")
    parser.add_argument("file", type=Path, help="what --trace has written")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw some steps")
    parser.add_argument("--step", type=int, default=50, metavar="N", help="the first to draw")
    parser.add_argument("--count", type=int, default=4, metavar="N", help="how many")
    given = parser.parse_args(arguments)
    spans = read(given.file)
    print_shares(spans)
    print_steps(spans)
    if given.svg is not None:
        given.svg.write_text(draw(spans, given.step, given.count), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
