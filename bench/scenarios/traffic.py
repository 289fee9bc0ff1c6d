"""Live traffic: sales written through the SDK at an even rate, and what was acknowledged.

Owns: the writing thread. Must not know what is done to the cluster meanwhile. Read next: `bench.scenarios.scene`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Final

from bench.scenarios.sales import Sale, Written, sales
from oncegate import Client, Session

TABLE: Final = "sales"
_FLOW: Final = {"retention_ms": 86_400_000, "max_items": 1_000, "linger_ms": 500}
_TICK_S: Final = 0.05
_WRITE_TIMEOUT_S: Final = 60.0


class Traffic:
    """Writes ``rate`` sales a second from its start to its stop.

    Args:
        endpoints: of the gateway.
        rate: writes a second.
        seed: chooses the sales.
    """

    def __init__(self, endpoints: Sequence[str], rate: int, seed: int) -> None:
        self.written: list[Written] = []
        """What was acknowledged, in order of the answers."""
        self._endpoints, self._rate, self._sales = endpoints, rate, sales(seed)
        self._stopping = threading.Event()
        self._declared = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="traffic")

    def start(self) -> None:
        """Declare the table and begin; returns when the first write may travel."""
        self._thread.start()
        while not self._declared.wait(0.1) and self._thread.is_alive():
            pass

    def stop(self) -> list[Written]:
        """Stop, wait until every write is acknowledged, and return all of them.

        Raises:
            OncegateError: a write ended without a result.
        """
        self.abandon()
        if self._failure is not None:
            raise self._failure
        return self.written

    def abandon(self) -> None:
        """Stop, whatever became of the writes; idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._write_all())
        except Exception as failure:  # noqa: BLE001 - told to whoever stops it
            self._failure = failure

    async def _write_all(self) -> None:
        async with Client(self._endpoints) as client:
            await client.declare_table(TABLE, kind="stream", flow=_FLOW)
            async with client.session() as session:
                self._declared.set()
                began, sent = time.monotonic(), 0
                while not self._stopping.is_set():
                    due = int((time.monotonic() - began) * self._rate) - sent
                    sent += due
                    await asyncio.gather(*(self._write(session, *next(self._sales)) for _ in range(due)))
                    await asyncio.sleep(_TICK_S)

    async def _write(self, session: Session, key: str, sale: Sale | None) -> None:
        if sale is None:
            result = await session.delete(TABLE, key, timeout_s=_WRITE_TIMEOUT_S)
        else:
            result = await session.put(TABLE, key, sale, timeout_s=_WRITE_TIMEOUT_S)
        if result.applied:
            self.written.append(Written(result.commit, key, sale))
