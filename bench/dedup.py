"""What exactly-once costs: the same build with duplicate detection and without, side by side in one run.

``python -m bench.dedup`` starts two clusters of three durable nodes, one of them of :mod:`bench.blind`, and loads them
through the SDK in turn, the order changing from round to round; what is printed is the median of the rounds' ratios:

- latency: one outstanding put, with detection over without;
- throughput: 512 outstanding puts, with detection over without;
- apply: what a machine takes to apply the same log, in processor time, which minds no neighbours: requests of one put,
  and of 256;
- retries: 512 outstanding puts on the cluster with detection, a tenth of all requests sent a second time with the same
  ids because their answer is thrown away, over none: operations a second, each counted once. On the cluster without
  detection the same is run with increments, whose sum must come out wrong: the proof that detection is what was off.

What is off is the rule, completion records, acks and the renewal of leases (:mod:`bench.blind`). Clients number, send
and acknowledge their operations all the same, and entries carry the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from bench.blind import BlindMachine
from bench.experiments.results import parser, watched
from bench.figures import Latency, save
from bench.options import above_zero, at_least
from oncegate import Client, Session
from oncegate.gateway.client.batch_call import BatchCall
from oncegate.gateway.client.courier import Call, Courier
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import in_columns
from oncegate.rifl.ids import SequenceNumber

VALUE: Final = "v" * 198
OUTSTANDING: Final = 512
ROUNDS: Final = 15
SECONDS: Final = 2.0
RETRIED: Final = 0.1
PROOF_INCREMENTS: Final = 2_000
LATENCY_RATIO_MAX: Final = 1.05
THROUGHPUT_RATIO_MIN: Final = 0.95
RETRIES_RATIO_MIN: Final = 0.88
T = TypeVar("T")


class BlindCluster(LocalCluster):
    """Nodes without duplicate detection."""

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node."""
        return [sys.executable, "-m", "bench.blind", *super().command(node_id)[3:]]


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


class Side(NamedTuple):
    """One of the two clusters, with a session on it."""

    cluster: LocalCluster
    client: Client
    session: Session

    def cpu_s(self) -> float:
        """Return the processor time that the nodes have taken so far: unlike a rate it does not mind neighbours."""
        ticks = 0
        for node_id in self.cluster.ids:
            words = Path(f"/proc/{self.cluster.pid(node_id)}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def retry(self, share: float) -> None:
        """Send this share of all batches twice from now on."""
        assert isinstance(self.client._connection.courier, ForgetfulCourier)  # noqa: SLF001
        self.client._connection.courier.share = share  # noqa: SLF001


async def _sequential(session: Session, seconds: float) -> list[float]:
    until, number, took = time.perf_counter() + seconds, 0, []
    while (began := time.perf_counter()) < until:
        number += 1
        await session.put("t", f"k{number % 1_000}", VALUE)
        took.append(time.perf_counter() - began)
    return took


async def _rate(session: Session, seconds: float) -> tuple[int, float]:
    """Keep 512 puts outstanding; returns how many were done, and operations a second."""
    done, began = 0, time.perf_counter()
    until = began + seconds

    async def worker(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await session.put("t", f"w{number}", VALUE)
            done += 1

    await asyncio.gather(*(worker(number) for number in range(OUTSTANDING)))
    return done, done / (time.perf_counter() - began)


async def _enter(stack: AsyncExitStack, cluster: LocalCluster) -> Side:
    client = await stack.enter_async_context(Client(cluster.endpoints))
    client._connection.courier.__class__ = ForgetfulCourier  # noqa: SLF001
    await client.declare_table("t", kind="resident")
    return Side(cluster, client, await stack.enter_async_context(client.session(window=4096)))


async def _sum_after_retries(side: Side) -> int:
    """Increment a row with a tenth of the batches sent twice; returns what the row says."""
    side.retry(RETRIED)
    for _ in range(PROOF_INCREMENTS // 100):
        await asyncio.gather(*(side.session.increment("t", "sum") for _ in range(100)))
    side.retry(0.0)
    row = await side.client.get("t", "sum")
    return row.value if row is not None and isinstance(row.value, int) else 0


async def run(on: LocalCluster, off: LocalCluster, rounds: int, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Load both clusters in turn and return a row for each comparison."""
    ForgetfulCourier.random = random.Random(seed)
    async with AsyncExitStack() as stack:
        sides = {"on": await _enter(stack, on), "off": await _enter(stack, off)}
        gc.collect()
        gc.freeze()
        for side in sides.values():
            await _rate(side.session, 1.0)
        latencies: dict[str, list[float]] = {"on": [], "off": []}
        medians: dict[str, list[float]] = {"on": [], "off": []}
        rates: dict[str, list[float]] = {"on": [], "off": [], "retries": []}
        cpu_us: dict[str, list[float]] = {"on": [], "off": [], "retries": []}
        for turn in range(rounds):
            for name in _turned(["on", "off"], turn):
                took = await _sequential(sides[name].session, seconds)
                latencies[name] += took
                medians[name].append(statistics.median(took))
            for name in _turned(["on", "off", "retries"], turn):
                side = sides["off" if name == "off" else "on"]
                side.retry(RETRIED if name == "retries" else 0.0)
                before = side.cpu_s()
                done, rate = await _rate(side.session, seconds)
                rates[name].append(rate)
                cpu_us[name].append((side.cpu_s() - before) / done * 1e6)
                side.retry(0.0)
        sums = {name: await _sum_after_retries(side) for name, side in sides.items()}
    if sums["on"] != PROOF_INCREMENTS or sums["off"] <= PROOF_INCREMENTS:
        raise RuntimeError(
            f"{PROOF_INCREMENTS} increments with retries came to {sums}: this is not what was to be compared"
        )
    return [
        {
            "what": "latency, 1 outstanding",
            "with": Latency.of(latencies["on"])._asdict(),
            "without": Latency.of(latencies["off"])._asdict(),
            **_ratio(medians["on"], medians["off"], LATENCY_RATIO_MAX, lambda ratio, bound: ratio <= bound),
        },
        {
            "what": "throughput, 512 outstanding",
            "with": statistics.median(rates["on"]),
            "without": statistics.median(rates["off"]),
            **_ratio(rates["on"], rates["off"], THROUGHPUT_RATIO_MIN, lambda ratio, bound: ratio >= bound),
        },
        {
            "what": "throughput, a tenth of all requests sent twice",
            "with": statistics.median(rates["retries"]),
            "without": statistics.median(rates["on"]),
            **_ratio(rates["retries"], rates["on"], RETRIES_RATIO_MIN, lambda ratio, bound: ratio >= bound),
        },
        {
            "what": "processor time of all nodes for an operation, microseconds",
            "with": statistics.median(cpu_us["on"]),
            "without": statistics.median(cpu_us["off"]),
            "retries": statistics.median(cpu_us["retries"]),
            "ratio": _paired(cpu_us["on"], cpu_us["off"])[1],
            "ratio_retries": _paired(cpu_us["retries"], cpu_us["on"])[1],
        },
        {"what": f"sum of {PROOF_INCREMENTS:,} increments with retries", "with": sums["on"], "without": sums["off"]},
    ]


def applied(rounds: int = 40, operations: int = 2_048) -> list[dict[str, Any]]:
    """Apply the same entries with detection and without, in turn; return a row for each size of a request."""
    rows: list[dict[str, Any]] = []
    for size in (1, 256):
        machines = {"on": Machine(), "off": BlindMachine()}
        opening: list[c.Command] = [
            c.DeclareTable("t", "resident", 2**30),
            c.OpenSession("n", 60_000, 4096),
        ]
        for machine in machines.values():
            apply(machine, 1, 1, c.encode_entry(1, opening))
        took_us: dict[str, list[float]] = {"on": [], "off": []}
        sequence = 0
        for turn in range(rounds):
            many: list[bytes] = []
            for _ in range(operations // size):
                command = _puts(sequence, size)
                many.append(c.encode_entry(1 + turn, [command]))
                sequence += size
            gc.collect()
            for name in _turned(["on", "off"], turn):
                began = time.process_time_ns()
                for data in many:
                    apply(machines[name], 2, 1, data)
                took_us[name].append((time.process_time_ns() - began) / 1000 / operations)
        low, ratio, high = _paired(took_us["on"], took_us["off"])
        rows.append(
            {
                "what": f"processor time to apply an operation, requests of {size}, microseconds",
                "with": statistics.median(took_us["on"]),
                "without": statistics.median(took_us["off"]),
                "ratio": ratio,
                "quartile_low": low,
                "quartile_high": high,
            }
        )
    return rows


def _puts(done: int, count: int) -> c.Command:
    """Return a request of so many puts behind ``done`` others, the newest ``OUTSTANDING`` not acknowledged."""
    value = msgspec.json.encode(VALUE)
    keys = [f"w{at % OUTSTANDING}" for at in range(done, done + count)]
    ops = [
        c.Op(SequenceNumber(number), c.OpKind.PUT.value, "t", key, c.fingerprint_put("t", key, value), value)
        for number, key in enumerate(keys, done + 1)
    ]
    return in_columns(c.Operate(1, 1, SequenceNumber(max(1, done + 1 - OUTSTANDING)), ops))


def _turned(names: list[str], turn: int) -> list[str]:
    at = turn % len(names)
    return names[at:] + names[:at]


def _ratio(
    over: list[float], under: list[float], bound: float, holds: Callable[[float, float], bool]
) -> dict[str, float | bool]:
    low, ratio, high = _paired(over, under)
    return {"ratio": ratio, "quartile_low": low, "quartile_high": high, "wanted": bound, "met": holds(ratio, bound)}


def _paired(over: list[float], under: list[float]) -> tuple[float, float, float]:
    """Return the quartiles of the rounds' ratios."""
    ratios = sorted(a / b for a, b in zip(over, under, strict=True))
    quarter = len(ratios) // 4
    return ratios[quarter], statistics.median(ratios), ratios[-1 - quarter]


def main() -> None:
    """Run the comparison and print it."""
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=at_least(1), help=f"[{ROUNDS}; 3 with --quick]; fewer: a sample")
    options.add_argument(
        "--seconds", type=above_zero, help=f"of each load [{SECONDS}; 0.5 with --quick]; less: a sample"
    )
    run_as(options.parse_args())


def run_as(options: argparse.Namespace) -> None:
    """Measure, print and store."""
    rounds = options.rounds or (3 if options.quick else ROUNDS)
    seconds = options.seconds or (0.5 if options.quick else SECONDS)
    sample = options.quick or rounds < ROUNDS or seconds < SECONDS
    with (
        tempfile.TemporaryDirectory(prefix="oncegate-bench-", dir=options.directory) as name,
        watched("dedup", Path(name), seed=options.seed, quick=sample) as about,
    ):
        directory = Path(name)
        with LocalCluster(directory / "on") as on, BlindCluster(directory / "off") as off:
            for cluster in (on, off):
                cluster.start()
                cluster.wait_ready()
            rows = asyncio.run(run(on, off, rounds, seconds, options.seed))
        rows += applied()
    for row in rows:
        print("   " + ", ".join(f"{key} {_shown(value)}" for key, value in row.items()))
    if not options.no_save:
        print(f"saved in {save('dedup', about, rows).name}; python -m bench.experiments page draws it")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_shown(part)}" for key, part in value.items()) + ")"
    return f"{value:,.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
