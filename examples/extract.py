"""Extract the documents beside this file: each as JSON of its own schema, from a running server.

    python examples/extract.py [HOST:PORT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema_rs

from structgen import SamplingParams
from structgen.client import Client, Completion

HERE = Path(__file__).parent
DOCUMENTS = sorted((HERE / "documents").glob("*.txt"))
INSTRUCTION = "You extract data. Answer with one JSON object and nothing else."


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    with Client(address) as client:
        answers = [extract(client, document) for document in DOCUMENTS]
    return 0 if all(answers) else 1


def extract(client: Client, document: Path) -> bool:
    """Print what the server makes of a document; return whether it is valid."""
    schema = json.loads((HERE / "schemas" / f"{document.stem}.json").read_text())
    fields = ", ".join(schema["properties"])
    answer = client.generate(
        [
            {"role": "system", "content": INSTRUCTION},
            {"role": "user", "content": f"Extract {fields} as JSON.\n\n{document.read_text()}"},
        ],
        SamplingParams(temperature=0, max_tokens=512),
        constraint=schema,
    )
    valid = jsonschema_rs.is_valid(schema, answer.parsed)
    show(document.name, answer, valid)
    return valid


def show(name: str, answer: Completion[object], valid: bool) -> None:
    print(f"\n{name}")
    print(answer.text if answer.parsed is None else json.dumps(answer.parsed, indent=2))
    usage, timings = answer.usage, answer.timings
    assert usage is not None and timings is not None
    print(
        f"{answer.constraint_status}, {answer.finish_reason}, {'valid' if valid else 'NOT VALID'} | "
        f"{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} of the answer | "
        f"first token after {timings.time_to_first_token:.2f} s, the rest in {timings.decode:.2f} s, "
        f"schema compiled in {timings.compile:.3f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
