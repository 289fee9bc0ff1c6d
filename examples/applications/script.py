"""A plain script: reserve a seat once, whatever happens to the connection.

oncegate dev --nodes 3 &
python -m examples.applications.script 12A ann
"""

from __future__ import annotations

import asyncio
import sys

from oncegate import Client, OutcomeUnknown


async def reserve(client: Client, seat: str, name: str) -> str:
    """Reserve ``seat`` unless it is taken, and say whose it is."""
    await client.declare_table("seats")
    async with client.session() as session:
        try:
            result = await session.insert("seats", seat, name, timeout_s=5)
        except OutcomeUnknown as doubt:
            # The answer was lost for longer than we wait. Asking again under a new id might find our own reservation.
            resolution = await doubt.resolve(timeout_s=60)
            if resolution.result is None:
                return f"{seat} was not reserved, and will not be"
            result = resolution.result
    return f"{seat} is reserved for {name if result.applied else result.value}"


async def main() -> None:
    seat, name = sys.argv[1:3]
    async with Client() as client:
        print(await reserve(client, seat, name))


if __name__ == "__main__":
    asyncio.run(main())
