"""What a transaction of four rows costs against a single write, in processor time of one node.

``python -m bench.transactions`` prints both, per operation, and their ratio: inside the state machine alone (entries of
500 operations decoded and applied); in a node's program (one operation a request: body decoded and checked, command
encoded, entry decoded and applied, answer made and encoded); and of a call of the SDK with all that a node does for it,
HTTP included, but consensus and disk. ``--against DIR`` also compares single writes in the machine with another
checkout, in processes of their own that take turns. Nothing is drawn, so there is no seed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from oncegate.gateway.machine.apply import apply
from oncegate.rifl.ids import Fingerprint, SequenceNumber

ROUNDS = 15
OPERATIONS = 500
ROWS = 4


def machine_with_session() -> Any:
    """A machine with two tables and a session of a wide window."""
    from oncegate.gateway.machine import commands as c
    from oncegate.gateway.machine.machine import Machine

    machine = Machine()
    start = [c.DeclareTable("t", "resident", 1 << 30), c.DeclareTable("u", "resident", 1 << 30)]
    apply(machine, 1, 1, c.encode_entry(1, [*start, c.OpenSession("n", 60_000, 4096)]))
    return machine


def applied_us(kind: str) -> float:
    """Microseconds of processor time to decode and apply one operation, the median of entries of 500."""
    from oncegate.gateway.machine import commands as c

    machine, taken = machine_with_session(), []
    for at in range(ROUNDS):
        first = at * OPERATIONS + 1
        ops = [_operation(kind, number) for number in range(first, first + OPERATIONS)]
        command = c.Operate(1, 1, SequenceNumber(first), ops)
        entry = c.encode_entry(1, [command])
        began = time.process_time()
        apply(machine, at + 2, 1, entry)
        taken.append((time.process_time() - began) / OPERATIONS * 1e6)
    return statistics.median(taken)


def _operation(kind: str, number: int) -> Any:
    from oncegate.gateway.machine import commands as c

    sequence, none, key = SequenceNumber(number), Fingerprint(0), f"k{number % 1000}"
    value = b'{"v":%d}' % number
    if kind == "put":
        return c.Op(sequence, 1, "t", key, c.fingerprint_put("t", key, value), value)
    if kind == "increment":
        return c.Op(sequence, 3, "t", key, Fingerprint(number), None, 1)
    writes = [c.Op(SequenceNumber(0), 1, "tu"[at % 2], f"{key}-{at}", none, value) for at in range(ROWS)]
    return c.Transaction(sequence, c.fingerprint_transaction([], writes), [], writes)


def whole_us(kind: str) -> float:
    """Microseconds of processor time of one request with one operation on the node's whole way but I/O."""
    import msgspec

    from oncegate.gateway import wire
    from oncegate.gateway.answer_values import MSGPACK
    from oncegate.gateway.answers import answer
    from oncegate.gateway.http import request_bodies
    from oncegate.gateway.machine import commands as c

    def fields(number: int, at: int) -> dict[str, object]:
        return {"op": "put", "table": "tu"[at % 2], "key": f"k{number % 1000}-{at}", "value": {"v": number}}

    def body(number: int) -> bytes:
        one = {"op": "transaction", "writes": [fields(number, at) for at in range(ROWS)]}
        sent = fields(number, 0) if kind == "put" else one
        operations = [{"sequence": number, **sent}]
        request = {"client_id": f"{1:016x}", "epoch": 1, "first_incomplete": number, "operations": operations}
        return msgspec.msgpack.encode(request)

    machine, taken = machine_with_session(), []
    for at in range(ROUNDS):
        bodies = [body(number) for number in range(at * OPERATIONS + 1, (at + 1) * OPERATIONS + 1)]
        began = time.process_time()
        for number, sent in enumerate(bodies, at * OPERATIONS + 1):
            command = request_bodies.operate(sent, wire.MSGPACK, "", "")
            [result] = apply(machine, number + 1, 1, c.encode_entry(1, [command]))
            MSGPACK.encode(answer(command, result, machine).body)
        taken.append((time.process_time() - began) / OPERATIONS * 1e6)
    return statistics.median(taken)


def alternating(measure: dict[str, Callable[[], float]], rounds: int = 5) -> dict[str, float]:
    """The smallest of several measurements of each, which take turns: what disturbs one disturbs the others."""
    found: dict[str, list[float]] = {name: [] for name in measure}
    for _ in range(rounds):
        for name, one in measure.items():
            found[name].append(one())
    return {name: min(each) for name, each in found.items()}


async def sdk_us(kind: str) -> float:
    """Microseconds of processor time of one call of the SDK and all that a node does for it but consensus and disk."""
    from oncegate import Client, Transaction
    from oncegate.testing import FakeGateway

    async with FakeGateway() as fake, Client(fake.endpoints) as client, client.session() as session:
        for table in "tu":
            fake.declare(table)
        taken = []
        for at in range(ROUNDS):
            began = time.process_time()
            for number in range(at * 40, at * 40 + 40):
                if kind == "put":
                    await session.put("t", f"k{number}", {"v": number})
                    continue
                made = Transaction()
                for row in range(ROWS):
                    made.put("tu"[row % 2], f"k{number}-{row}", {"v": number})
                await session.transact(made)
            taken.append((time.process_time() - began) / 40 * 1e6)
    return statistics.median(taken)


def in_checkout(directory: Path, kind: str) -> float:
    """:func:`applied_us` with the packages of another checkout, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, "-P", __file__, "--applied", kind]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--applied", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.applied is not None:
        print(applied_us(given.applied))
        return
    ways = {
        "machine": applied_us,
        "program of a node": whole_us,
        "SDK and node": lambda kind: asyncio.run(sdk_us(kind)),
    }
    for what, measure in ways.items():
        us = alternating({kind: partial(measure, kind) for kind in ("put", "transaction")})
        ratio = us["transaction"] / us["put"]
        print(f"{what}: single write {us['put']:.2f} us, {ROWS} rows {us['transaction']:.2f} us: {ratio:.2f}")
    if given.against is not None:
        here = Path(__file__).parents[1]
        for kind in ("put", "increment"):
            us = alternating({str(each): partial(in_checkout, each, kind) for each in (given.against, here)}, 9)
            before, now = us[str(given.against)], us[str(here)]
            print(f"single {kind} in the machine: {before:.3f} us before, {now:.3f} us here: {now / before:.3f}")


if __name__ == "__main__":
    main()
