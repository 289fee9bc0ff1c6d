"""Each workload in this process: what it does, what it writes down of it, and what a server with a bug shows of itself.

Answers are lost, late or refusals in bad spells, and sessions end without notice. A run is valid all the same, its
history says of each request what the cluster has done, and runs together do everything that the workload is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncegate.gateway.http.routes import watch as watch_route
from oncegate.gateway.machine import commands as c
from oncegate.proof.check import direct_session
from oncegate.proof.check.checks import refused
from oncegate.proof.check.workloads import WORKLOADS, watch
from oncegate.proof.check.workloads.recipes import EACH
from oncegate.proof.lincheck import Operation, operations
from oncegate.proof.mutants import liars
from oncegate.rifl.ids import parse_request_id
from tests.check.in_memory import BAD, Run, Trouble, made

RUNS_MAX = 64
"""The machine decides what meets what: a run does all that its workload can, or does not."""

SERVER = ["OpenSession"]
LISTS = ["append ok", "append failed", "append unknown", "read ok", "append", *SERVER]
DOES = {
    "register": ["write ok", "write failed", "write unknown", "read ok", "put", *SERVER],
    "compare-and-set": [
        *("cas ok", "cas refused", "cas unknown", "write ok", "write unknown", "read ok"),
        *("put", "put if absent", "put if value"),
    ],
    "rows": [
        *("get ok", "insert ok", "insert refused", "put ok", "put refused", "put unknown", "delete ok"),
        *("delete refused", "put", "put if absent", "put if version", "delete", "delete if version", "get"),
    ],
    "counter": ["increment ok", "increment failed", "read ok", "increment", "Resolve"],
    "runs": ["puts ok", "scan ok", "put", "Resolve"],
    "order": ["calls ok", "scan ok", "put", "put, put", "Resolve"],
    "append": LISTS,
    "bank": [
        *("transfer ok", "transfer refused", "transfer failed", "transfer unknown"),
        *("balances ok", "balance ok", "receipts ok"),
        *("increment floor, increment, put", "increment, increment, put if at_least"),
    ],
    "hand-over": [*LISTS, "take-over ok", "take-over unknown", "TakeOver"],
    "dedup": [*LISTS[1:], "increment ok", "increment unknown", "answers ok", "sum ok", "increment"],
    "resolve": [*LISTS, "fates ok", "Resolve"],
    "doubts": [*LISTS, "fate ok", "put", "Resolve"],
    "lease": [*LISTS, "RenewSession", "Reap"],
    "leases": [
        *("hold ok", "hold refused", "hold unknown", "look ok", "close ok", "CloseSession", "EndRows", "Reap"),
        *("put if absent ttl_ms", "put if absent bound", "put if absent ttl_ms bound"),
    ],
    "flow": [
        *("write ok", "write failed", "write unknown", "batch ok", "stored ok"),
        *("put", "Range", "Seal", "DeclareFlow", "Attach", "MoveCursor"),
    ],
    "stream": ["write ok", "write unknown", "read ok", "read-own ok", "put", "Seal"],
    "watch": [
        *("put ok", "hold ok", "delete ok", "transaction ok", "transaction refused", "close ok", "scan ok", "told ok"),
        *("put", "delete", "put ttl_ms", "put bound", "put ttl_ms bound", "EndRows", "CloseSession"),
    ],
}
"""What the runs of a workload do: operations of the history with their ends, and commands and operations that come to
the cluster, the writes of a transaction with a comma between them."""
WRITES = {"write", "cas", "put", "insert", "delete", "increment", "append", "transfer", "hold", "transaction"}


def _seconds(run: int) -> float:
    """Return how long a run takes: on a slow machine short ones, however many, do not come far."""
    return 0.4 * (1 + run // 8)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits longer than a bad spell lasts: some operations end without an answer."""
    monkeypatch.setattr(direct_session, "OPERATION_S", 0.03)
    monkeypatch.setattr(watch, "SDK_S", 0.5)
    monkeypatch.setattr(watch_route, "KEEP_ALIVE_S", 0.1)


# That with a Spark job has tests of its own, as recipes have.
@pytest.mark.parametrize("workload", sorted(WORKLOADS.keys() - {"stored", "recipes"} - {one.name for one in EACH}))
async def test_workload_does_all_that_it_is_for_and_writes_down_what_was_done(tmp_path: Path, workload: str) -> None:
    missing = set(DOES[workload])
    for seed in range(RUNS_MAX):
        directory = tmp_path / f"{seed}"
        directory.mkdir()
        run = await made(workload, directory, seed, seconds=_seconds(seed), trouble=BAD)
        assert [(one.name, one.reason, one.failures) for one in run.found if one.verdict != "valid"] == []
        _says_what_was_done(run)
        missing -= set(_done(run))
        if not missing:
            return
    pytest.fail(f"{RUNS_MAX} runs of {workload} do not show {missing}")


def _says_what_was_done(run: Run) -> None:
    """Requests that were answered have been executed, and those that were refused or never accepted have not."""
    executed = {(one.client_id, one.sequence) for one in run.gateway.executed}
    told: dict[str, list[Operation]] = {}
    for op in operations(run.events):
        if op.f in WRITES and op.request is not None:
            told.setdefault(op.request, []).append(op)
    for request, ops in told.items():
        there = parse_request_id(request) in executed
        if any(op.status == "ok" and not refused(op) for op in ops):
            assert there, f"{request} was told as done"
        elif all(refused(op) for op in ops):
            assert not there, f"{request} was told as refused"


def _done(run: Run) -> Iterator[str]:
    for op in operations(run.events):
        yield f"{op.f} {'refused' if op.status == 'ok' and refused(op) else op.status}"
    for command in run.gateway.commands:
        yield type(command).__name__
        if isinstance(command, c.Operate):
            yield from map(_form, command.ops)


def _form(op: c.Op | c.Transaction) -> str:
    if isinstance(op, c.Transaction):
        tests = [f" if {c.Test(one.test).name.lower()}" for one in op.conditions]
        return ", ".join(map(_form, op.writes)) + "".join(tests)
    words = [c.OpKind(op.kind).name.lower()]
    words += [f"if {c.Test(op.test).name.lower()}"] if op.test else []
    return " ".join([*words, *(name for name in ("ttl_ms", "bound", "floor") if getattr(op.options, name, None))])


@pytest.mark.parametrize(("bug", "workload", "check"), liars.CASES, ids=lambda value: getattr(value, "__name__", None))
async def test_server_that_breaks_a_promise_is_shown(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, check: str
) -> None:
    for seed in range(RUNS_MAX):
        directory = tmp_path / f"{seed}"
        directory.mkdir()
        run = await made(workload, directory, seed, seconds=_seconds(seed), trouble=Trouble(expiry=0.01), bug=bug)
        if run.invalid(check):
            return
    pytest.fail(f"{RUNS_MAX} runs do not show it")
