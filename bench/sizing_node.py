"""A durable node of one member that fills itself, and what it takes of memory and disk then; a child of bench.sizing.

``python -m bench.sizing_node WHAT COUNT DIRECTORY`` fills an empty directory, saves, and prints a line of JSON;
``… open 0 DIRECTORY`` starts a node on it and prints the same. Commands go through the node's log, flushed; HTTP is
left out, which would cost the filler ten times as long and the node nothing that stays.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_letters
from typing import Any, Final

from bench.usage import anonymous_mib, written_bytes
from oncegate.flows import range_body
from oncegate.gateway.http.server import GC_THRESHOLDS
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.observability.process import disk_figures
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber

VALUE_BYTES: Final = 200
AT_ONCE: Final = 500
"""Operations of a command."""
UNDER_WAY: Final = 4
SETTLED_S: Final = 300.0
_KEPT: Final = 4_000
"""Results that a session keeps when nothing is acknowledged; a window has 4,096."""

Commands = Iterator[tuple[c.Command, int]]


class Counted(Node):
    """A node that counts the bytes of the entries it applies: what the log takes, without its frames."""

    entries = 0
    entry_bytes = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        apply = self.state.apply

        def counted(index: int, term: int, command: bytes) -> list[Any]:
            self.entries += 1
            self.entry_bytes += len(command)
            return apply(index, term, command)

        self.state.apply = counted  # type: ignore[method-assign]


class Values:
    """JSON texts of 200 bytes, no two alike, of letters: an ordinary compressor finds little to save."""

    def __init__(self) -> None:
        rng = random.Random(1)
        self._tails = ["".join(rng.choices(ascii_letters, k=VALUE_BYTES - 12)) for _ in range(997)]

    def text(self, number: int) -> str:
        """Return the text, quotes included."""
        return f'"{number:010d}{self._tails[number % 997]}"'


def key_of(number: int) -> str:
    """Return a key of 15 bytes; adjacent numbers lie far apart in key order."""
    return f"user:{number * 2654435761 % 2**32:010d}"


def puts(client: int, count: int, at_once: int, *, acknowledged: bool = True, first: int = 1) -> Commands:
    """Yield puts of different rows by one session; unacknowledged ones leave their results behind."""
    values = Values()
    for at in range(first, first + count, at_once):
        numbers = range(at, min(at + at_once, first + count))
        ops = []
        for number in numbers:
            key, value = key_of(number), values.text(number).encode()
            sequence = SequenceNumber(number - first + 1)
            ops.append(c.Op(sequence, int(c.OpKind.PUT), "rows", key, c.fingerprint_put("rows", key, value), value))
        incomplete = SequenceNumber(at - first + 1 if acknowledged else 1)
        yield in_columns(c.Operate(client, 1, incomplete, ops)), len(ops) * (VALUE_BYTES + 40)


def records(clients: list[int]) -> Commands:
    """Yield increments whose results nobody acknowledges: the row is one, so that only results grow."""
    for client in clients:
        for at in range(1, _KEPT + 1, AT_ONCE):
            ops = []
            for number in range(at, at + AT_ONCE):
                op = c.Op(SequenceNumber(number), int(c.OpKind.INCREMENT), "rows", "counter", Fingerprint(0), by=1)
                ops.append(c.Op(op.sequence, op.kind, op.table, op.key, c.fingerprint(op), None, 1))
            yield c.Operate(client, 1, SequenceNumber(1), ops), len(ops) * 40


def keyed(count: int) -> Commands:
    """Yield increments under idempotency keys, of 36 bytes each as UUIDs are, kept for a day."""
    for at in range(0, count, AT_ONCE):
        ops = []
        for _ in range(at, min(at + AT_ONCE, count)):
            op = c.Op(SequenceNumber(0), int(c.OpKind.INCREMENT), "rows", "counter", Fingerprint(0), by=1)
            whole = c.Op(op.sequence, op.kind, op.table, op.key, c.fingerprint(op), None, 1)
            ops.append(c.KeyedOp(str(uuid.uuid4()), ClusterTimeMs(-1), whole))
        yield c.Keyed(86_400_000, ops), len(ops) * 90


def ranges(client: int, count: int) -> Commands:
    """Yield ranges of a stream table."""
    values = Values()
    for at in range(1, count + 1, AT_ONCE):
        numbers = range(at, min(at + AT_ONCE, count + 1))
        keys, texts = [key_of(number) for number in numbers], [values.text(number) for number in numbers]
        prints = [c.fingerprint_put("stream", key, text.encode()) for key, text in zip(keys, texts, strict=True)]
        body = range_body.write(range_body.rows(keys, texts))
        packed = b"".join(one.to_bytes(8, "big") for one in prints)
        yield c.Range(client, 1, SequenceNumber(at), "stream", SequenceNumber(at), packed, body), len(body)


async def submitted(node: Node, commands: Commands, under_way: int = UNDER_WAY) -> None:
    """Propose commands, some at a time, and wait for all of them."""
    pending: set[asyncio.Future[Any]] = set()
    for command, size in commands:
        while node.state.overloaded or node.publisher.overloaded:
            await asyncio.sleep(0.05)
        pending.add(asyncio.ensure_future(node.submit(command, size)))
        if len(pending) >= under_way:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
    for one in pending:
        await one


async def opened(node: Node, count: int) -> list[str]:
    """Open sessions; returns their client ids. No id is asked for when there are too many to keep."""
    ids: list[str] = []
    for at in range(0, count, AT_ONCE):
        ask = [
            node.submit(c.OpenSession(uuid.uuid4().hex, 86_400_000, 4_096), 128)
            for _ in range(min(AT_ONCE, count - at))
        ]
        answers = await asyncio.gather(*ask)
        if count <= 1_000:
            ids += [answer.body.client_id for answer in answers]
    return ids


async def fill(node: Node, what: str, count: int) -> None:
    """Make ``count`` of something."""
    (client,) = await opened(node, 1)
    match what:
        case "nothing":
            pass
        case "rows":
            await submitted(node, puts(int(client, 16), count, AT_ONCE))
        case "rows one by one":
            await submitted(node, puts(int(client, 16), count, 1), 1)
        case "sessions":
            await opened(node, count)
        case "records":
            clients = [int(one, 16) for one in await opened(node, count // _KEPT)]
            await submitted(node, records(clients))
        case "keys":
            await submitted(node, keyed(count))
        case "items":
            await submitted(node, ranges(int(client, 16), count))
        case _:
            raise SystemExit(f"nobody knows how to make {what}")


async def settled(node: Counted) -> None:
    """Have the state saved and the batches written, and give back what was freed."""
    index = node.replica.status().applied_index
    node.state.ask_to_save()
    # A save begins when the next entry has been applied.
    await node.submit(c.OpenSession(uuid.uuid4().hex, 1_000, 1), 64)
    until = asyncio.get_running_loop().time() + SETTLED_S
    while not await asyncio.to_thread(node.state.wait_saved_at, index, 1.0):
        if asyncio.get_running_loop().time() > until:
            raise TimeoutError("the state is not saved")
        node.state.ask_to_save()
        await node.submit(c.OpenSession(uuid.uuid4().hex, 1_000, 1), 64)
    mark = node.publisher.mark()
    await asyncio.to_thread(node.publisher.wait_done, mark, SETTLED_S)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def figures(node: Counted, data_dir: Path) -> dict[str, Any]:
    """Return what the node takes now, in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return {
        "rss_anon": int(anonymous_mib() * 2**20),
        "rss_peak": peak,
        "state": node.state.disk_bytes,
        "journal": node.replica.status().journal_bytes,
        "disk": disk_figures(data_dir).parts,
        "entries": node.entries,
        "entry_bytes": node.entry_bytes,
        "written": written_bytes(),
    }


async def run(what: str, count: int, directory: Path) -> dict[str, Any]:
    """Start a node, fill it or not, and return its figures."""
    http, peer = free_ports(2)
    began = time.perf_counter()
    # The node's own sample of traffic would be part of its memory; it is small and bounded, and left in.
    node = Counted(Settings(members=[f"n1=127.0.0.1:{http}:{peer}"], data_dir=directory))
    await node.start()
    while not node.leadership.leads:
        await asyncio.sleep(0.01)
    ready_s = time.perf_counter() - began
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    if what == "open":
        ctypes.CDLL(None).malloc_trim(0)
        found = {"ready_s": ready_s, **figures(node, directory)}
        await node.stop()
        return found
    await node.submit(c.DeclareTable("rows", "resident", 1 << 40), 64)
    await node.submit(c.DeclareTable("stream", "stream", 1 << 40), 64)
    began = time.perf_counter()
    await fill(node, what, count)
    took = time.perf_counter() - began
    # Straight after the load, before anything is given back: what the node needs while it works.
    busy = figures(node, directory)
    await settled(node)
    found = {"seconds": took, "busy_rss_anon": busy["rss_anon"], **figures(node, directory)}
    await node.stop()
    return found


def main(loop: Callable[..., Any] = asyncio.run) -> None:
    """Run as the arguments say."""
    logging.disable(logging.WARNING)
    what, count, directory = sys.argv[1:4]
    print(json.dumps(loop(run(what, int(count), Path(directory)))))


if __name__ == "__main__":
    main()
