"""One measured load of one running system: what it reached, and what servers and clients used for it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bench import disturbance
from bench.children import with_its_parent
from bench.peers.peer import Case, Peer
from bench.usage import MachineTime, Usage

LATE_S: Final = 40.0
"""How much longer than its window a load may take: connections before it, the last answers after it."""


class LoadFailed(RuntimeError):
    """The generator ended without a result; the text is what it said."""


class _Reading(NamedTuple):
    machine: MachineTime
    servers: Usage
    clients: Usage


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a load; it is killed when the block ends, if it still runs."""
    pipe = subprocess.PIPE
    with subprocess.Popen(with_its_parent(list(command)), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as load:
        try:
            yield load
        finally:
            load.kill()


def window(peer: Peer, case: Case, *, warm_s: float, measured_s: float) -> dict[str, Any]:
    """Run one load and return its row.

    ``disturbed`` says what else had the machine, None nothing; costs are for each operation.

    Raises:
        LoadFailed: no result.
    """
    with running(peer.load_command(case, warm_s=warm_s, measured_s=measured_s)) as load:
        assert load.stdout is not None
        first = load.stdout.readline()
        if not first:
            raise LoadFailed(f"{peer.name} {case.mode}: {load.communicate()[1][-2000:]}")
        times = json.loads(first)
        before = _read_at(times["from_ns"], peer, load.pid)
        after = _read_at(times["until_ns"], peer, load.pid)
        try:
            out, err = load.communicate(timeout=LATE_S)
        except subprocess.TimeoutExpired as late:
            raise LoadFailed(f"{peer.name} {case.mode}: no result {LATE_S:.0f} s after its window") from late
    if load.returncode:
        raise LoadFailed(f"{peer.name} {case.mode}: {err[-2000:]}")
    result = json.loads(out.splitlines()[-1])
    if not result["operations"]:
        raise LoadFailed(f"{peer.name} {case.mode}: no write was answered in the window {result.get('failure', '')}")
    servers, clients = after.servers.since(before.servers), after.clients.since(before.clients)
    machine = after.machine.since(before.machine)
    return {
        "peer": peer.name,
        "mode": case.mode,
        "outstanding": case.outstanding,
        **{name: value for name, value in result.items() if name != "event"},
        "rate": result["operations"] / result["seconds"],
        **shares("servers", servers, result["operations"]),
        **shares("clients", clients, result["operations"]),
        "busy_cores": machine.busy_s / result["seconds"],
        "stolen_share": machine.stolen_s / machine.all_s,
        "disturbed": disturbance.during(machine, servers.cpu_s + clients.cpu_s),
    }


def shares(who: str, used: Usage, operations: int) -> dict[str, float | None]:
    """Return what each operation took of what somebody used; None where there was none."""
    if not operations:
        return {f"{who}_cpu_us": None, f"{who}_written_bytes": None}
    return {
        f"{who}_cpu_us": 1e6 * used.cpu_s / operations,
        f"{who}_written_bytes": used.written_bytes / operations,
    }


def _read_at(when_ns: int, peer: Peer, load: int) -> _Reading:
    time.sleep(max(0.0, (when_ns - time.time_ns()) / 1e9))
    return _Reading(MachineTime.now(), Usage.of(peer.node_pids()), Usage.of([load, *peer.helper_pids()]))
