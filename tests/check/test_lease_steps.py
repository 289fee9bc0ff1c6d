"""What the workload of rows that end asks for and what it is shown are what it writes down, and it ends behind them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from oncegate.gateway import wire
from oncegate.proof.check.direct_session import AttemptReply
from oncegate.proof.check.workloads import leases, workload_of
from oncegate.proof.lincheck import Event
from tests.check.test_workload_steps import result, worker, world

ROW = {"value": 7, "version": 3, "ends_ms": 90, "owner": "b"}
LIVES = ["value", "version", "ends_ms", "owner"]


def shown(status: int, row: dict[str, Any] | None = None) -> AttemptReply:
    headers = {wire.H_TIME_MS: "50", wire.H_COMMIT: "8"}
    code = "" if status == 200 else "TIMEOUT" if status == 504 else "NOT_FOUND"
    # A problem has fields of its own: none of them is a row's.
    body = row if status == 200 else {"code": code, "value": "none"}
    return AttemptReply(status, body, headers, code, doubt=False, retryable=False)


@pytest.mark.parametrize("left_out", [None, "ends_ms", "owner"])
async def test_look_is_written_down_with_the_whole_row_and_the_cluster_s_time(left_out: str | None) -> None:
    row, events = {name: ROW[name] for name in LIVES if name != left_out}, list[Event]()
    await leases.look(worker(lambda *_: shown(200, row | {"commit": 3}), events), "leases", "h0")
    assert (events[1].type, events[1].value) == ("ok", {"at_ms": 50, "commit": 8, **row})


@pytest.mark.parametrize(("status", "kind", "value"), [(404, "ok", {"at_ms": 50, "commit": 8}), (504, "fail", None)])
async def test_look_at_no_row_tells_when_it_was_gone_and_one_without_an_answer_nothing(
    status: int, kind: str, value: Any
) -> None:
    events = list[Event]()
    await leases.look(worker(lambda *_: shown(status), events), "leases", "h0")
    assert (events[1].type, events[1].value) == (kind, value)


@pytest.mark.parametrize("seed", range(3))
async def test_hold_is_written_down_as_it_was_asked_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, events = list[dict[str, Any]](), list[Event]()

    def answer(node: str, method: str, path: str, body: Any) -> AttemptReply:
        if method == "POST":
            asked.append(body)
            return result("applied", commit=len(asked), version=99)
        return shown(404)

    one = worker(answer, events)
    one.random = Random(seed)

    async def at_once(_: float) -> None:
        """A worker that is idle is so for no time."""

    monkeypatch.setattr("asyncio.sleep", at_once)
    for _ in range(60):
        await workload_of("leases").step(one)
    ends = [event for event in events if event.f == "hold"]
    assert len(ends) == 2 * len(asked) > 10
    kinds = set[tuple[bool, bool]]()
    for begun, ended, body in zip(ends[::2], ends[1::2], asked, strict=True):
        (op,) = body["operations"]
        assert begun.value == {
            "value": op["value"],
            "ttl_ms": op.get("ttl_ms", 0),
            "bound": op.get("bound", False),
            "session": body["client_id"],
        }
        assert (op["op"], op["key"], op["if"]) == ("put", begun.key, {"absent": True})
        assert (ended.type, ended.value) == ("ok", {"commit": asked.index(body) + 1})
        kinds.add(("bound" in op, "ttl_ms" in op))
    assert kinds == {(True, True), (True, False), (False, True)}, "no row stays for ever"


async def test_run_ends_when_no_row_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def answer(node: str, method: str, path: str, body: Any) -> AttemptReply:
        asked.append(path.rpartition("/")[2])
        return shown(200, ROW) if asked.count("h2") < 3 and asked[-1] == "h2" else shown(404)

    made, _ = world(answer, list[Event]())

    async def at_once(_: float) -> None:
        """Nobody waits between two looks."""

    monkeypatch.setattr("asyncio.sleep", at_once)
    await workload_of("leases").finish(made)
    assert asked == ["h0", "h1", "h2", "h3"] * 3
