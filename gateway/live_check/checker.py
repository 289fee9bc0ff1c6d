"""The check of live traffic: window by window on each node, and over the newest operations of all when asked.

Owns: windows, the progress of each row, the verdict, and the question to the other nodes. Decides nothing itself:
:mod:`oncegate.gateway.live_check.order` says what must hold. Event loop's thread; checks in slices, between which the
loop serves others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

import msgspec

from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.ports import Caller
from oncegate.gateway import wire
from oncegate.gateway.live_check.order import Requests, RowOrder, before_asked, in_order
from oncegate.gateway.live_check.recorder import RowSample, Seen, WindowRecorder

LIVE_CHECK: Final = b"l"
"""First byte of a peer call that asks for the newest sampled operations."""
ROWS_MAX: Final = 5_000
"""Rows of which is remembered how far they have come; the one that was quiet for longest is forgotten first."""
RECENT_MAX: Final = 2_000
"""Checked operations that are kept for whoever asks."""
RECENT_BYTES_MAX: Final = 2 * 2**20
REQUESTS_MAX: Final = 20_000
SLICE_OPERATIONS: Final = 32
PEER_S: Final = 1.0
log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_recent = msgspec.msgpack.Decoder(list[Seen])


class LiveChecker:
    """One a node.

    Args:
        node_id: this node.
        share: of all rows, above 0.
        seed: the same on all nodes.
        window_ms: between two checks.
        peers: the calls to other nodes.
        others: ids of the other members, now.
        since: the commit number above which a name is this table's, None for a table that is not there.
        ends: whether there has been a row, since the node started, that ends by itself.

    ``operations``, ``windows`` and ``anomalies`` count what was checked and found so far.
    """

    def __init__(
        self,
        node_id: str,
        share: float,
        seed: int,
        window_ms: int,
        peers: Caller,
        others: Callable[[], Iterable[str]],
        since: Callable[[str], int | None] = lambda _: 0,
        ends: Callable[[], bool] = lambda: False,
    ) -> None:
        self._since, self._ends = since, ends
        self.recorder = WindowRecorder(RowSample(share, seed))
        self._node_id = node_id
        self._share = share
        self._window_ms = window_ms
        self._peers = peers
        self._others = others
        self._rows: OrderedDict[str, RowOrder] = OrderedDict()
        self._requests = Requests(REQUESTS_MAX)
        self._kept: deque[Seen] = deque()
        self._kept_bytes = 0
        self._alone = True
        self._task: asyncio.Task[None] | None = None
        self._merging: asyncio.Task[wire.LiveCheckCluster] | None = None
        """One at a time, whoever waits for it."""
        self.operations = 0
        self.keys = 0
        self.windows = 0
        self.anomalies = 0
        self.last_unix_ms = 0
        self.first_anomaly = ""

    @property
    def verdict(self) -> str:
        """``anomaly`` once one was found, ``ok`` if not, ``unknown`` before anything was checked."""
        return "anomaly" if self.anomalies else "ok" if self.operations else "unknown"

    @property
    def complete(self) -> bool:
        """Whether all that was done to the sampled rows came through this node and was recorded."""
        self._alone = self._alone and not list(self._others()) and not self._ends()  # no operation says that a row ends
        return self._alone and not self.recorder.dropped and not self.recorder.moves

    def start(self) -> None:
        """Begin to check, one window after another."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End it."""
        tasks = [task for task in (self._task, self._merging) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._window_ms / 1000)
            try:
                await self.check_window()
            except Exception:
                # A bug in the check must stop neither the check nor the node.
                log.exception("a window of the live check failed")

    async def check_window(self) -> None:
        """Check the answers since the last window."""
        seen = self._of_tables(self.recorder.take())
        complete = self.complete
        for number, one in enumerate(seen, 1):
            self._check_one(one, complete=complete)
            if not number % SLICE_OPERATIONS:
                await asyncio.sleep(0)
        self.windows += 1
        self.keys = len({one.row for one in seen})
        self.last_unix_ms = int(time.time() * 1000)

    def _of_tables(self, seen: Iterable[Seen]) -> list[Seen]:
        """Return in order what is of tables that are there: a dropped one, also of the same name, had other rows."""
        return in_order(one for one in seen if (since := self._since(one.table)) == 0 or one.commit > (since or inf))

    def _check_one(self, seen: Seen, *, complete: bool) -> None:
        name = f"{seen.row}@{self._since(seen.table)}"
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = RowOrder()
            if len(self._rows) > ROWS_MAX:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(name)
        unseen = not complete or seen.row in self.recorder.unknown
        # Each of the three finds what the others cannot; the first complaint says the most.
        self._tell(self._requests.add(seen) or before_asked(seen) or row.step(seen, unseen=unseen))
        self.operations += 1
        self._keep(seen)

    def _tell(self, words: str | None) -> None:
        if words is None:
            return
        self.anomalies += 1
        self.first_anomaly = self.first_anomaly or words
        log.error("live check: %s", words)

    def _keep(self, seen: Seen) -> None:
        self._kept.append(seen)
        self._kept_bytes += _size(seen)
        while len(self._kept) > RECENT_MAX or self._kept_bytes > RECENT_BYTES_MAX:
            self._kept_bytes -= _size(self._kept.popleft())

    def serve(self) -> bytes:
        """Answer another node: the newest operations that were checked here."""
        return _encode(list(self._kept))

    async def report(self) -> wire.LiveCheck:
        """Return what this node found, and check the newest operations of all members together."""
        if self._merging is None or self._merging.done():
            self._merging = asyncio.get_running_loop().create_task(self._merged())
        merged = await asyncio.shield(self._merging)
        return wire.LiveCheck(
            node=self._node_id,
            verdict=self.verdict,
            share=self._share,
            operations=self.operations,
            keys=self.keys,
            windows=self.windows,
            window_ms=self._window_ms,
            last_unix_ms=self.last_unix_ms,
            dropped=self.recorder.dropped,
            complete=self.complete,
            anomalies=self.anomalies,
            first_anomaly=self.first_anomaly,
            cluster=merged,
        )

    async def _merged(self) -> wire.LiveCheckCluster:
        others = sorted(self._others())
        answers = await asyncio.gather(
            *(self._peers.call(peer, LIVE_CHECK, timeout_s=PEER_S) for peer in others), return_exceptions=True
        )
        seen, nodes, silent = list(self._kept), [self._node_id], []
        for peer, answer in zip(others, answers, strict=True):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                seen += _recent.decode(answer)
                nodes.append(peer)
            except (ConsensusError, msgspec.DecodeError):
                silent.append(peer)
        rows: dict[str, RowOrder] = {}
        requests = Requests(len(seen) + 1)
        anomalies, first = 0, ""
        # Floors belong to one node; across nodes only the order of commit numbers is compared.
        for number, one in enumerate(self._of_tables(seen), 1):
            words = requests.add(one) or before_asked(one) or rows.setdefault(one.row, RowOrder()).step(one)
            if words is not None:
                anomalies += 1
                first = first or words
            if not number % SLICE_OPERATIONS:
                await asyncio.sleep(0)
        verdict = "anomaly" if anomalies else "ok" if seen else "unknown"
        if anomalies and not self.anomalies:
            self._tell(first)
        return wire.LiveCheckCluster(verdict, nodes, silent, len(seen), len(rows), first)


def _size(seen: Seen) -> int:
    return 200 + len(seen.value or b"") + len(seen.argument or b"") + len(seen.key)
