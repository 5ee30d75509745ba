"""Two answers at once from a running server, printed as they come.

python examples/stream.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

from structgen import SamplingParams
from structgen.client import AsyncClient

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 50_000_000},
        "famous_for": {"type": "string", "maxLength": 60},
    },
    "required": ["city", "country", "population", "famous_for"],
    "additionalProperties": False,
}


async def describe(client: AsyncClient, city: str) -> None:
    prompt = [{"role": "user", "content": f"Describe {city} as a JSON object."}]
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=200)
    async with aclosing(client.stream(prompt, params, constraint=CITY)) as pieces:
        async for piece in pieces:
            if piece.text:
                print(f"{city:>8} | {piece.text}", flush=True)
            if piece.finish is not None:
                print(f"{city:>8} = {piece.finish.constraint_status}")


async def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    async with AsyncClient(address) as client:
        await asyncio.gather(describe(client, "Lisbon"), describe(client, "Osaka"))


asyncio.run(main())
