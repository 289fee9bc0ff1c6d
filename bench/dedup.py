"""What exactly-once costs: the same build with duplicate detection and without, side by side in one run.

``python -m bench.dedup`` starts two clusters of three durable nodes, one of them blind (:mod:`bench.altered`), and
loads them through the SDK in turn, the order changing from round to round; what counts is the median of the rounds'
ratios:

- latency: one outstanding put, with detection over without;
- throughput: 512 outstanding puts, with detection over without;
- apply: what a machine takes to apply the same log, in processor time, which minds no neighbours: requests of one put,
  and of 256;
- retries: 512 outstanding puts on the cluster with detection, a tenth of all requests sent a second time with the same
  ids because their answer is thrown away, over none: operations a second, each counted once. On the cluster without
  detection the same is run with increments, whose sum must come out wrong: the proof that detection is what was off.

What is off is the rule, completion records, acks and the renewal of leases. Clients number, send and acknowledge their
operations all the same, and entries carry the same bytes.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from bench.altered import AlteredCluster, BlindMachine
from bench.harness import Bench, Run, Side, option, side
from bench.load import VALUE, Window, compared, in_turn, latency, paired, turned, window
from bench.options import above_zero, at_least
from oncegate.gateway.client.batch_call import BatchCall
from oncegate.gateway.client.courier import Call, Courier
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import in_columns
from oncegate.rifl.ids import SequenceNumber

OUTSTANDING: Final = 512
RETRIED: Final = 0.1
INCREMENTS: Final = 2_000
APPLY_ROUNDS: Final = 40
APPLIED: Final = 2_048
T = TypeVar("T")


class ForgetfulCourier(Courier):
    """Throws away the answer to a share of the batches and sends them again, at once and byte for byte."""

    share = 0.0
    random = random.Random(1)

    async def _attempt(self, call: Call[T]) -> T:
        if self.share and isinstance(call, BatchCall) and self.random.random() < self.share:
            endpoint = self.router.pick(self.clock(), anywhere=call.anywhere)
            url = self._url(endpoint, call.path)
            async with self._http.request(call.method, url, data=call.body, headers=call.headers) as answer:
                await answer.read()
        return await super()._attempt(call)


def retry(one: Side, share: float) -> None:
    """Send this share of all batches twice from now on."""
    courier = one.client._connection.courier  # noqa: SLF001
    courier.__class__ = ForgetfulCourier
    assert isinstance(courier, ForgetfulCourier)
    courier.share = share


async def _rate(one: Side, seconds: float, share: float = 0.0) -> Window:
    retry(one, share)
    try:
        return await window(
            lambda number: one.session.put("t", f"w{number % OUTSTANDING}", VALUE), OUTSTANDING, seconds,
            nodes_s=one.cpu_s,
        )  # fmt: skip
    finally:
        retry(one, 0.0)


async def _single(one: Side, seconds: float) -> Window:
    return await window(lambda number: one.session.put("t", f"k{number % 1_000}", VALUE), 1, seconds)


async def _sum_after_retries(one: Side) -> int:
    """Increment a row with a tenth of the batches sent twice; returns what the row says."""
    retry(one, RETRIED)
    await window(lambda _: one.session.increment("t", "sum"), 100, most=INCREMENTS)
    retry(one, 0.0)
    row = await one.client.get("t", "sum")
    return row.value if row is not None and isinstance(row.value, int) else 0


async def both(run: Run) -> list[dict[str, Any]]:
    """Load both clusters in turn and return a row for each comparison."""
    ForgetfulCourier.random = random.Random(run.options.seed)
    rounds, seconds = run.options.rounds, run.options.seconds
    async with AsyncExitStack() as stack:
        clusters = LocalCluster(run.directory / "on"), AlteredCluster(run.directory / "off")
        on, off = [await stack.enter_async_context(side(cluster)) for cluster in clusters]
        gc.collect()
        gc.freeze()
        for one in (on, off):
            await one.client.declare_table("t", kind="resident")
            await _rate(one, 1.0)
        single = await in_turn({"on": partial(_single, on, seconds), "off": partial(_single, off, seconds)}, rounds)
        ways = {"on": partial(_rate, on, seconds), "off": partial(_rate, off, seconds)}
        many = await in_turn({**ways, "retries": partial(_rate, on, seconds, RETRIED)}, rounds)
        sums = {name: await _sum_after_retries(one) for name, one in (("on", on), ("off", off))}
    if sums["on"] != INCREMENTS or sums["off"] <= INCREMENTS:
        raise RuntimeError(f"{INCREMENTS} increments with retries came to {sums}: this is not what was to be compared")
    medians = [[statistics.median(one.latencies_s) for one in single[name]] for name in ("on", "off")]
    times = {"with": latency(single["on"]), "without": latency(single["off"])}
    rates = {name: [one.rate() for one in windows] for name, windows in many.items()}
    cpu_us = {name: [one.nodes_us() for one in windows] for name, windows in many.items()}
    return [
        {**compared("latency, 1 outstanding", *medians, most=1.05), **times},
        compared("throughput, 512 outstanding", rates["on"], rates["off"], least=0.95),
        compared("throughput, a tenth of all requests sent twice", rates["retries"], rates["on"], least=0.88),
        {
            "what": "processor time of all nodes for an operation, microseconds",
            "with": statistics.median(cpu_us["on"]),
            "without": statistics.median(cpu_us["off"]),
            "retries": statistics.median(cpu_us["retries"]),
            "ratio": paired(cpu_us["on"], cpu_us["off"])["ratio"],
            "ratio_retries": paired(cpu_us["retries"], cpu_us["on"])["ratio"],
        },
        {"what": f"sum of {INCREMENTS:,} increments with retries", "with": sums["on"], "without": sums["off"]},
    ]


def applied(size: int) -> dict[str, Any]:
    """Apply the same entries, requests of ``size`` puts, with detection and without, in turn."""
    machines = {"on": Machine(), "off": BlindMachine()}
    opening: list[c.Command] = [c.DeclareTable("t", "resident", 2**30), c.OpenSession("n", 60_000, 4096)]
    for machine in machines.values():
        apply(machine, 1, 1, c.encode_entry(1, opening))
    took_us: dict[str, list[float]] = {"on": [], "off": []}
    for turn in range(APPLY_ROUNDS):
        begins = range(turn * APPLIED, (turn + 1) * APPLIED, size)
        many = [c.encode_entry(1 + turn, [_puts(begin, size)]) for begin in begins]
        gc.collect()
        for name in turned(["on", "off"], turn):
            began = time.process_time_ns()
            for data in many:
                apply(machines[name], 2, 1, data)
            took_us[name].append((time.process_time_ns() - began) / 1000 / APPLIED)
    what = f"processor time to apply an operation, requests of {size}, microseconds"
    return compared(what, took_us["on"], took_us["off"])


def _puts(done: int, count: int) -> c.Command:
    """Return a request of so many puts behind ``done`` others, the newest ``OUTSTANDING`` not acknowledged."""
    value = msgspec.json.encode(VALUE)
    keys = [f"w{at % OUTSTANDING}" for at in range(done, done + count)]
    ops = [
        c.Op(SequenceNumber(number), c.OpKind.PUT.value, "t", key, c.fingerprint_put("t", key, value), value)
        for number, key in enumerate(keys, done + 1)
    ]
    return in_columns(c.Operate(1, 1, SequenceNumber(max(1, done + 1 - OUTSTANDING)), ops))


def measure(run: Run) -> Iterator[dict[str, Any]]:
    yield from asyncio.run(both(run))
    yield from map(applied, (1, 256))


BENCH: Final = Bench(
    "dedup", __doc__, measure, drawn=True,
    options=(
        option("--rounds", 15, "fewer: a sample", quick=3, type=at_least(1)),
        option("--seconds", 2.0, "of each load; less: a sample", quick=0.5, type=above_zero),
    ),
)  # fmt: skip
main = BENCH.main

if __name__ == "__main__":
    raise SystemExit(main())
