"""The table of consensus: three durable replicas, three processes, loopback, no HTTP but where the line says so.

``python -m bench.consensus`` prints all of it; ``--parts throughput,kill`` prints some. Throughput: 1, 64 and 512
outstanding 200-byte commands, and 64 of 100 operations each; the load runs inside the leader's process, as a gateway's
would, and commands that wait at a tick share an entry. Interruptions: the leader is killed, frozen, cut off or asked to
hand over; the client is a process of its own and finds the next leader by itself. State: whole gateway nodes. Every
answer is flushed on a majority. Not by default:
``etcd``, three etcd processes under puts beside ours; needs Go. Its puts come over gRPC, ours have no client.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import header, save
from bench.raft import catch_up, etcd, interruptions, state, throughput

PARTS = ("throughput", "batch", "kill", "freeze", "cut", "transfer", "snapshot", "restart", "catchup", "profile")
BESIDE = ("etcd",)
"""Not of the table: other systems in the same run."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    what: str
    reached: str
    wanted: str
    met: bool | None

    def __str__(self) -> str:
        verdict = {True: "yes", False: "NO", None: ""}[self.met]
        return f"{self.what:<54} {self.reached:<66} {self.wanted:<36} {verdict}".rstrip()


def _rates(rows: list[dict[str, Any]]) -> list[Line]:
    wanted = {(1, 1): 1_600, (64, 1): 45_000, (512, 1): 90_000, (64, 100): 450_000}
    lines = []
    for row in rows:
        least = wanted[row["outstanding"], row["operations"]]
        unit = "commands/s" if row["operations"] == 1 else "operations/s"
        times = f" x {row['operations']} operations" if row["operations"] > 1 else ""
        latency = f"p50 {row['p50_ms']:.2f} p99 {row['p99_ms']:.2f} max {row['max_ms']:.1f} ms"
        reached = f"{row['per_second']:,.0f} {unit} ({latency})"
        lines.append(
            Line(f"{row['outstanding']} outstanding{times}", reached, f">= {least:,}", row["per_second"] >= least)
        )
    return lines


def _beside(rows: list[dict[str, Any]] | None, ours: list[dict[str, Any]]) -> list[Line]:
    if rows is None:
        return [Line("etcd", "not run: it was not built, see above", "", None)]
    wanted = {1: 1.4, 64: 6.0, 512: 8.0}
    lines = []
    for row in rows:
        latency = f"p50 {row['p50_ms']:.2f} p99 {row['p99_ms']:.2f} max {row['max_ms']:.1f} ms"
        mine = next((one for one in ours if one["outstanding"] == row["outstanding"]), None)
        ratio = None if mine is None else mine["per_second"] / row["per_second"]
        least = wanted[row["outstanding"]]
        reached = f"{row['per_second']:,.0f} puts/s ({latency})" + (f", ours {ratio:.1f} x" if ratio else "")
        met = None if ratio is None else ratio >= least
        lines.append(Line(f"etcd, {row['outstanding']} outstanding", reached, f"ours >= {least} x", met))
    return lines


def _gap(fault: str, row: dict[str, Any]) -> Line:
    title, median_ms, worst_ms = {
        "kill": ("leader killed: longest gap", 300, 1000),
        "freeze": ("leader frozen: longest gap", 1500, None),
        "cut": ("leader cut off: longest gap", 1500, None),
        "transfer": ("graceful transfer: longest gap", None, 100),
    }[fault]
    parts = [f"median <= {median_ms} ms"] if median_ms else []
    parts += [f"worst <= {worst_ms} ms"] if worst_ms else []
    gaps = f"median {row['median_ms']:.0f} p90 {row['p90_ms']:.0f} worst {row['worst_ms']:.0f} ms in {row['trials']}"
    reached = f"{gaps} (p50 {row['p50_ms']:.2f} p99 {row['p99_ms']:.2f} ms)"
    met = (median_ms is None or row["median_ms"] <= median_ms) and (worst_ms is None or row["worst_ms"] <= worst_ms)
    return Line(title, reached, ", ".join(parts), met)


def _of_state(found: dict[str, Any], parts: set[str]) -> list[Line]:
    lines = []
    rows = f"{found['rows']:,} rows"
    if "snapshot" in parts:
        row = found["snapshot"]
        calm, shipped = row["longest_stall_before_ms"], row["state_bytes"] / 2**30
        reached = f"{row['longest_stall_ms']:.0f} ms (p99 {row['p99_ms']:.1f}; without one {calm:.0f} ms)"
        reached += f", {shipped:.2f} GiB shipped and installed in {row['joined_s']:.0f} s"
        met = row["longest_stall_ms"] <= 50 and row["saves"] > 0
        lines.append(Line(f"snapshot of {rows} under load: longest stall", reached, "<= 50 ms", met))
    if "restart" in parts:
        row = found["restart"]
        memory = max(row["anonymous_bytes"].values())
        reached = f"ready in {row['ready_s']:.1f} s, RssAnon {memory / 2**30:.2f} GiB"
        met = row["ready_s"] <= 10 and memory <= 2**30
        lines.append(Line(f"restart with {rows}", reached, "<= 10 s, <= 1 GiB", met))
    return lines


def _catch_up(row: dict[str, Any]) -> Line:
    end = f"caught up in {row['took_s']:.1f} s" if row["caught_up"] else f"still {row['behind_at_the_end']:,} behind"
    reached = f"{end}, leader kept {row['kept']:.0%} (p99 {row['during_p99_ms']:.1f} max {row['during_max_ms']:.0f} ms)"
    reached += f", {row['kept_of_two_nodes']:.0%} of what two nodes did without it"
    met = row["caught_up"] and row["kept"] >= 0.8
    return Line(f"follower {row['entries']:,} entries behind", reached, "caught up, >= 80 %", met)


def _print_profile(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"-- where the leader's time goes at {row['outstanding']} outstanding (own time, under the profiler)")
        print("   " + ", ".join(f"{part} {share:.0%}" for part, share in row["share"].items() if share >= 0.005))
        print(f"   limited by {row['limit']}")


async def _run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    parts, seconds, seed = options.parts, options.seconds, options.seed
    found: dict[str, Any] = {}
    lines: list[Line] = []

    def show(*new: Line) -> None:
        for line in new:
            print(line, flush=True)
        lines.extend(new)

    if "throughput" in parts:
        found["throughput"] = await throughput.run(directory, throughput.SINGLE, seconds=seconds, seed=seed)
        show(*_rates(found["throughput"]))
    if "etcd" in parts:
        found["etcd"] = etcd.run(directory, seconds=seconds)
        show(*_beside(found["etcd"], found.get("throughput", [])))
    if "batch" in parts:
        found["batch"] = await throughput.run(directory, throughput.BATCHED, seconds=seconds, seed=seed)
        show(*_rates(found["batch"]))
    faults: tuple[interruptions.Fault, ...] = ("kill", "freeze", "cut", "transfer")
    for fault in faults:
        if fault in parts:
            trials = options.trials if fault == "kill" else max(1, options.trials * 2 // 5)
            found[fault] = await interruptions.run(directory, fault, trials=trials, seed=seed)
            show(_gap(fault, found[fault]))
    wanted = parts & {"snapshot", "restart"}
    if wanted:
        found["state"] = await state.run(directory, rows=options.rows, seconds=max(seconds, 30.0), parts=wanted)
        show(*_of_state(found["state"], wanted))
    if "catchup" in parts:
        found["catchup"] = await catch_up.run(
            directory, entries=options.entries, seconds=seconds, seed=seed, limit_s=options.limit_s
        )
        show(_catch_up(found["catchup"]))
    if "profile" in parts:
        found["profile"] = await throughput.run_profile(directory, seconds=seconds, seed=seed)
        _print_profile(found["profile"])
    found["table"] = [str(line) for line in lines]
    return found


def _parts(text: str) -> set[str]:
    chosen = set(text.split(","))
    if unknown := chosen - {*PARTS, *BESIDE}:
        there = ", ".join([*PARTS, *BESIDE])
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}; there are {there}")
    return chosen


def main() -> None:
    """Run the chosen parts and print their lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", type=_parts, default=set(PARTS), help=f"of {','.join(PARTS)}, by default all; and etcd"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each load")
    parser.add_argument("--trials", type=int, default=50, help="leader kills; two fifths of it of the other faults")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of 200 bytes for snapshot and restart")
    parser.add_argument("--entries", type=int, default=1_000_000, help="how far the follower is behind")
    parser.add_argument("--limit-s", type=float, default=300.0, help="longest wait for the follower")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="parent of the data directories; the system's temporary one by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-", dir=options.directory) as directory:
        about = header(
            "consensus",
            seed=options.seed,
            durability="three replicas, one fdatasync a batch on each",
            calibrations={
                "load_average": os.getloadavg()[0],
                "fdatasync_4k_ms": fdatasync_4k(Path(directory)).p50_ms,
                "bare_posts_per_s": bare_posts(64),
            },
        )
        print(f"{'':<54} {'reached':<66} {'wanted':<36} met")
        found = asyncio.run(_run(options, Path(directory)))
    print(f"saved in {save('consensus', about, [found]).name}")


if __name__ == "__main__":
    main()
