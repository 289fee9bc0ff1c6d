"""Commands a second through three durable replicas: three processes, loopback, no HTTP, no state machine.

``python -m bench.consensus`` runs 1, 64 and 512 outstanding 200-byte commands, and 64 outstanding commands of 100
operations each. The load runs inside the leader's process, as a gateway's would; commands that wait at a tick share an
entry. Every answer is flushed on a majority. The disk is calibrated first: 4 KiB writes, each with fdatasync.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import header, save
from consensus import Replica, ReplicaConfig

OPERATION_BYTES = 200
SCENARIOS = ((1, 1), (64, 1), (512, 1), (64, 100))
NODES = ("n1", "n2", "n3")


class Discard:
    """A state machine without state."""

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Answer the position."""
        return index


class ClosedLoop:
    """Keeps a number of commands outstanding; those that wait together are proposed together."""

    def __init__(self, replica: Replica, outstanding: int, command: bytes) -> None:
        self.replica = replica
        self.command = command
        self.latencies: list[float] = []
        self.entries = 0
        self.running = True
        self.loop = asyncio.get_running_loop()
        self.scheduled = False
        self.waiting = [time.perf_counter()] * outstanding
        self.open = outstanding
        self.done = asyncio.Event()
        self.schedule()

    def schedule(self) -> None:
        """Propose at the next loop iteration."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.propose)

    def propose(self) -> None:
        """Put everything that waits into one entry."""
        self.scheduled = False
        started, self.waiting = self.waiting, []
        self.entries += 1
        future = self.replica.propose(b"".join([self.command] * len(started)))
        future.add_done_callback(lambda done: self.answered(done, started))

    def answered(self, done: asyncio.Future[object], started: list[float]) -> None:
        """Record latencies; every answered command is followed by the next."""
        done.result()
        now = time.perf_counter()
        self.latencies += [now - start for start in started]
        if self.running:
            self.waiting += [now] * len(started)
            self.schedule()
        else:
            self.open -= len(started)
            if not self.open:
                self.done.set()


async def measure(replica: Replica, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Run every scenario on the leader; returns one row each."""
    rng = random.Random(arguments.seed)
    rows = []
    for outstanding, operations in SCENARIOS:
        gc.collect()
        load = ClosedLoop(replica, outstanding, rng.randbytes(OPERATION_BYTES * operations))
        await asyncio.sleep(0.3)
        load.latencies.clear()
        flushes, entries = replica.status().flushes, load.entries
        cpu, started = time.process_time(), time.perf_counter()
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        await asyncio.sleep(arguments.seconds)
        profile.disable()
        elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
        samples = sorted(load.latencies)
        status = replica.status()
        load.running = False
        await load.done.wait()
        rows.append(
            {
                "outstanding": outstanding,
                "operations": operations,
                "samples": len(samples),
                "per_second": len(samples) * operations / elapsed,
                "p50_ms": 1e3 * samples[len(samples) // 2],
                "p99_ms": 1e3 * samples[len(samples) * 99 // 100],
                "max_ms": 1e3 * samples[-1],
                "flushes_per_second": (status.flushes - flushes) / elapsed,
                "commands_per_entry": len(samples) / max(1, load.entries - entries),
                "flush_p50_ms": status.flush_p50_ms,
                "flush_p99_ms": status.flush_p99_ms,
                "leader_cpu": cpu / elapsed,
            }
        )
        if arguments.profile:
            print(f"--- {outstanding} outstanding x {operations}", file=sys.stderr)
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(16)
    return rows


async def node(arguments: argparse.Namespace) -> None:
    """One replica; the one that leads runs the load and prints its rows."""
    addresses = json.loads(arguments.addresses)
    replica = Replica(
        ReplicaConfig(
            node_id=arguments.node,
            cluster_id="bench",
            listen=tuple(addresses[arguments.node]),
            peers={name: tuple(address) for name, address in addresses.items() if name != arguments.node},
            data_dir=Path(arguments.directory) / arguments.node,
        ),
        Discard(),
    )
    await replica.start()
    while True:
        status = replica.status()
        behind = [peer for peer in status.peers.values() if peer.match_index < status.last_index]
        if status.ready and not behind:
            break
        await asyncio.sleep(0.05)
    rows = await measure(replica, arguments)
    print(json.dumps(rows), flush=True)
    await replica.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="data directory; a temporary one by default")
    parser.add_argument("--profile", action="store_true", help="profile the leader")
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.node:
        asyncio.run(node(arguments))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        flush = fdatasync_4k(Path(directory))
        about = header(
            "consensus alone",
            seed=arguments.seed,
            durability="three replicas, one fdatasync a batch on each",
            calibrations={"fdatasync_4k_ms": flush.p50_ms, "bare_posts_per_s": bare_posts(64)},
        )
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in NODES]
        addresses = {name: one.getsockname() for name, one in zip(NODES, sockets, strict=True)}
        for one in sockets:
            one.close()
        base = [sys.executable, "-m", "bench.consensus", "--directory", directory, "--addresses", json.dumps(addresses)]
        base += ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
        base += ["--profile"] if arguments.profile else []
        nodes = [subprocess.Popen([*base, "--node", name], stdout=subprocess.PIPE, text=True) for name in NODES]
        rows = None
        try:
            while rows is None:
                time.sleep(0.1)
                for process in nodes:
                    if process.poll() is not None:
                        assert process.stdout is not None
                        rows = json.loads(process.stdout.read())
                        break
        finally:
            for process in nodes:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
    columns = list(rows[0])
    print(" ".join(f"{column:>18}" for column in columns))
    for row in rows:
        print(" ".join(f"{row[column]:>18,.2f}" for column in columns))
    print(f"saved in {save('consensus', about, rows).name}")


if __name__ == "__main__":
    main()
