"""Extract the documents beside this file from a running server, each as JSON of its own schema.

    python examples/extract.py [HOST:PORT]

Prints each object, whether it is valid, and what it cost.  Exits with 1 unless all are valid.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema_rs

from structgen import SamplingParams, StructgenError
from structgen.client import Client, Completion

HERE = Path(__file__).parent
DOCUMENTS = sorted((HERE / "documents").glob("*.txt"))
INSTRUCTION = "You extract data. Answer with one JSON object and nothing else."


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    with Client(address) as client:
        try:
            valid = [extract(client, document) for document in DOCUMENTS]
        except StructgenError as error:
            print(f"extract: {error}", file=sys.stderr)
            return 1
    print(f"\n{sum(valid)} of {len(valid)} valid")
    return 0 if all(valid) else 1


def extract(client: Client, document: Path) -> bool:
    """Print what the server makes of a document; return whether it is valid."""
    schema = json.loads((HERE / "schemas" / f"{document.stem}.json").read_text())
    answer = client.generate(
        prompt(document.read_text(), schema),
        SamplingParams(temperature=0, max_tokens=512),
        constraint=schema,
    )
    valid = jsonschema_rs.is_valid(schema, answer.parsed)
    show(document.name, answer, valid)
    return valid


def prompt(document: str, schema: dict[str, dict[str, object]]) -> list[dict[str, str]]:
    fields = ", ".join(schema["properties"])
    return [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": f"{document}\nExtract {fields} as JSON."},
    ]


def show(name: str, answer: Completion[object], valid: bool) -> None:
    usage, timings = answer.usage, answer.timings
    assert usage is not None
    assert timings is not None
    text = answer.text if answer.parsed is None else json.dumps(answer.parsed, indent=2)
    print(
        f"\n{name}\n{text}\n"
        f"  status  {answer.constraint_status} ({answer.finish_reason}), "
        f"{'valid' if valid else 'NOT VALID'} by jsonschema-rs\n"
        f"  tokens  {usage.prompt_tokens} of the prompt ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} of the answer\n"
        f"  time    {timings.time_to_first_token:.2f} s to the first token, "
        f"{timings.decode:.2f} s for the others; schema compiled in {timings.compile:.3f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
