"""What workloads share: each answer of a node is recorded as what it says, of live and of restored rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncegate import Client, Code, OperationFailed, Outcome, OutcomeUnknown, PartialFailure
from oncegate.gateway.client import Tuning
from oncegate.gateway.local.blocking_http import RequestRefused
from oncegate.proof.check import restored_reads
from oncegate.proof.check import workload as workloads
from oncegate.proof.check.direct_session import ATTEMPT_S, AttemptReply, DirectSession, Nodes
from oncegate.proof.check.plan import PROCESSES_MAX, RunPlan
from oncegate.proof.check.recorder import LANES, HistoryRecorder
from oncegate.proof.check.restored_reads import ROWS_MAX, RestoredReads
from oncegate.proof.check.workload import NotRecovered, Worker, World, value_of
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.check.workloads.bank import ACCOUNTS, _balances_of
from oncegate.proof.check.workloads.order import _told
from oncegate.proof.check.workloads.rows import IMPATIENT
from oncegate.proof.lincheck import Event
from oncegate.testing import FakeGateway

Answer = Callable[[str, str, str, Any], AttemptReply]
ROW = {"value": 7, "version": 3, "commit": 3}


def reply(status: int, body: Any = None, code: str = "") -> AttemptReply:
    return AttemptReply(status, body, {}, code, doubt=status in (0, 504), retryable=status != 200)


OK, ABSENT = reply(200, ROW), reply(404, {"code": "NOT_FOUND"}, "NOT_FOUND")
LATE, REFUSED, NOBODY = reply(504, {}, "TIMEOUT"), reply(429, {}, "OVERLOADED"), reply(0, None, "no answer in time")


class Scripted:
    """Nodes n1 to n3 whose answers a function gives."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[tuple[str, str, str]] = []

    @property
    def ids(self) -> list[str]:
        return ["n1", "n2", "n3"]

    def endpoints(self) -> Mapping[str, str]:
        return {node: f"http://{node}" for node in self.ids}

    async def call(
        self, node: str, method: str, path: str, body: Any = None, *, headers: Any = None, timeout_s: float = 1.0
    ) -> AttemptReply:
        self.asked.append((node, method, path))
        return self._answer(node, method, path, body)


def world(answer: Answer, events: list[Event], **plan: Any) -> tuple[World, Scripted]:
    nodes = Scripted(answer)
    made = World(
        RunPlan(workload="register", seed=1, seconds=1.0, **plan), cast(Nodes, nodes), recorder(events), Path()
    )
    return made, nodes


def recorder(events: list[Event]) -> HistoryRecorder:
    return HistoryRecorder(events.append)


def worker(answer: Answer, events: list[Event]) -> Worker:
    made, nodes = world(answer, events)
    found = Worker(made, 2, time.monotonic() + 60)
    found.session = DirectSession(cast(Nodes, nodes), found.random, "a", 5)
    return found


@pytest.mark.parametrize(
    ("given", "kind", "value", "error"),
    [
        (OK, "ok", 7, None),
        (ABSENT, "ok", None, None),
        (REFUSED, "fail", None, "OVERLOADED"),
        (LATE, "fail", None, "TIMEOUT"),
        (NOBODY, "fail", None, "no answer in time"),
    ],
)
async def test_read_is_a_row_or_its_absence_and_without_either_it_has_failed(
    given: AttemptReply, kind: str, value: Any, error: str | None
) -> None:
    events = list[Event]()
    one = worker(lambda *_: given, events)
    row = await one.read("t", "k", query="?x=1")
    assert row == (ROW if given is OK else None)
    begun, ended = events
    ((node, method, path),) = cast(Scripted, one.world.nodes).asked
    assert (begun.type, begun.process, begun.f, begun.key, begun.node) == ("invoke", 2, "read", "k", node)
    assert (method, path) == ("GET", "/v1/tables/t/rows/k?x=1")
    assert (ended.type, ended.value, ended.error, ended.key) == (kind, value, error, "k")


def result(status: str, **more: Any) -> AttemptReply:
    return reply(200, {"results": [{"status": status, **more}]})


@pytest.mark.parametrize(
    ("given", "kind", "value", "error"),
    [
        (result("applied", commit=4), "ok", {"commit": 4}, None),
        (result("refused", code="CONDITION_FAILED", value=9), "ok", {"refused": "CONDITION_FAILED", "value": 9}, None),
        (result("refused"), "ok", {"refused": "CONDITION_FAILED"}, None),
        (result("rejected", code="FENCED", outcome="not_applied"), "fail", None, "FENCED"),
        (result("rejected", code="INTERNAL", outcome="unknown"), "info", None, "INTERNAL"),
    ],
)
async def test_write_is_recorded_under_its_request_with_what_is_known_of_it_and_acknowledged(
    given: AttemptReply, kind: str, value: Any, error: str | None
) -> None:
    events = list[Event]()
    one = worker(lambda *_: given, events)
    told = await one.write({"op": "put", "key": "k"}, "write", 8, answer=lambda result: {"commit": result["commit"]})
    begun, ended = events
    assert (begun.f, begun.key, begun.value, begun.request) == ("write", "k", 8, "a/1")
    assert (ended.type, ended.value, ended.error, ended.request) == (kind, value, error, "a/1")
    assert ended.node == cast(Scripted, one.world.nodes).asked[-1][0] == told.node
    assert one.session.pending == set()
    await one.write({"op": "put", "key": "k"}, "write", 9, key="other", answer=dict)
    assert (events[2].key, events[2].request) == ("other", "a/2")


@pytest.mark.parametrize(("given", "kind"), [(reply(204, b""), "ok"), (LATE, "info"), (REFUSED, "info")])
async def test_closed_session_is_not_used_again_whatever_the_answer_was(given: AttemptReply, kind: str) -> None:
    events = list[Event]()
    one = worker(lambda *_: given, events)
    await one.close_session()
    assert one.session.over
    assert [(event.type, event.f, event.key) for event in events] == [("invoke", "close", "a"), (kind, "close", "a")]
    assert cast(Scripted, one.world.nodes).asked[0][1:] == ("DELETE", "/v1/sessions/a?epoch=5")


async def test_worker_keeps_its_session_until_it_is_over_and_opens_none_when_its_time_is() -> None:
    numbers = iter("abc")
    one = worker(lambda *_: reply(200, {"client_id": next(numbers), "epoch": 1}), [])
    assert await one.has_session()
    first = one.session
    assert await one.has_session()
    assert one.session is first
    first.over = True
    assert await one.has_session()
    assert (first.client_id, one.session.client_id, one.session.over) == ("a", "b", False)
    one.until, one.session.over = time.monotonic(), True
    assert not await one.has_session()


def test_worker_begins_nothing_when_its_time_is_over_or_the_history_is_full() -> None:
    one = worker(lambda *_: OK, [])
    assert one.goes_on()
    one.world.recorder = HistoryRecorder(lambda event: None, events_max=0)
    assert not one.goes_on()
    one = worker(lambda *_: OK, [])
    one.until = time.monotonic()
    assert not one.goes_on()


def test_dice_fall_the_same_way_for_each_purpose_of_a_seed_and_another_way_for_others() -> None:
    one, _ = world(lambda *_: OK, [])
    again, _ = world(lambda *_: OK, [])
    assert one.random(3).random() == again.random(3).random() != one.random(4).random()


@pytest.mark.parametrize("asked", [None, "n2"])
async def test_healthy_cluster_is_asked_in_turn_until_it_answers(asked: str | None) -> None:
    answers = [NOBODY, REFUSED, LATE, OK]
    made, nodes = world(lambda *_: answers.pop(0), [])
    assert await made.insist("GET", "/x", node=asked) is OK
    assert [node for node, *_ in nodes.asked] == ([asked] * 4 if asked else ["n1", "n2", "n3", "n1"])
    absent, _ = world(lambda *_: ABSENT, [])
    assert await absent.insist("GET", "/x") is ABSENT


async def test_final_reads_are_of_each_key_at_each_node_and_end_the_run_where_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = list[Event]()
    made, _ = world(lambda node, *_: ABSENT if node == "n2" else OK, events)
    await made.final_reads("t", ["k", "l"], f="get", seen=value_of)
    made.note("scan", "all", 5, node="n3")
    assert {event.process for event in events} == {PROCESSES_MAX}
    assert [(event.key, event.node) for event in events if event.type == "invoke"] == [
        *((key, node) for key in "kl" for node in ("n1", "n2", "n3")),
        ("all", "n3"),
    ]
    assert [event.value for event in events if event.type == "ok"] == [7, None, 7, 7, None, 7, 5]
    monkeypatch.setattr(workloads, "FINAL_S", 0.01)
    made, _ = world(lambda node, *_: NOBODY if node == "n2" else OK, events)
    events.clear()
    with pytest.raises(NotRecovered, match="n2: 0 no answer in time"):
        await made.final_reads("t", ["k"])
    assert [event.type for event in events] == ["invoke", "ok", "invoke", "fail"]


def test_client_asks_the_nodes_in_turn_and_has_the_tuning_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[list[str], Tuning]]()
    monkeypatch.setattr(workloads, "Client", lambda endpoints, *, tuning, **_: made.append((endpoints, tuning)))
    run, nodes = world(lambda *_: OK, [])
    for turn in (0, 2, 4):
        run.client(turn)
    run.client(0, IMPATIENT)
    one, two, three = nodes.endpoints().values()
    usual = Tuning(attempt_timeout_s=ATTEMPT_S)
    assert made == [
        ([one, two, three], usual),
        ([three, one, two], usual),
        ([two, three, one], usual),
        ([one, two, three], IMPATIENT),
    ]


async def test_answered_request_is_acknowledged_by_the_next_one_and_what_is_kept_is_not() -> None:
    firsts, sequences = list[int](), list[int]()

    def answer(node: str, method: str, path: str, body: Any) -> AttemptReply:
        firsts.append(body["first_incomplete"])
        sequences.append(body["operations"][0]["sequence"])
        return result("applied") if len(firsts) > 1 else LATE

    one = worker(answer, [])
    kept = one.session.take()
    await one.write({"op": "put", "key": "k"}, "write", 8)
    one.session.acknowledge(kept)
    await one.write({"op": "put", "key": "k"}, "write", 9)
    assert (sequences, firsts) == ([2, 2, 3], [1, 1, 3])


async def test_session_is_asked_for_until_a_node_opens_one(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = [None, None, DirectSession(cast(Nodes, None), Random(1), "b", 1)]
    asked = list[float]()

    async def open_session(nodes: Any, random: Any, *, lease_ms: int, open_s: float) -> DirectSession | None:
        asked.append(lease_ms)
        return opened.pop(0)

    monkeypatch.setattr(workloads, "open_session", open_session)
    one = worker(lambda *_: OK, [])
    assert await one.has_session(1_234)
    assert (one.session.client_id, asked) == ("b", [1_234] * 3)


def test_process_that_is_none_begins_nothing() -> None:
    events = list[Event]()
    for process in (-1, LANES):
        with pytest.raises(ValueError, match="is none"):
            HistoryRecorder(events.append).begin(process, "read")
    HistoryRecorder(events.append).begin(LANES - 1, "read")
    assert len(events) == 1


def restored(events: list[Event], keys: int, processes: int = 6) -> RestoredReads:
    ran = workload_of("register")
    ran.keys = [f"r{number}" for number in range(keys)]
    made, _ = world(lambda *_: OK, events, processes=processes)
    return RestoredReads(made, ran)


@pytest.mark.parametrize(("keys", "processes", "read"), [(2, 6, 2), (20, 6, ROWS_MAX), (20, PROCESSES_MAX - 3, 3)])
async def test_backup_is_read_by_workers_of_its_own_from_when_it_was_asked_for(
    keys: int, processes: int, read: int
) -> None:
    events = list[Event]()
    async with FakeGateway() as new:
        new.declare("registers")
        async with Client(new.endpoints) as client:
            await client.put("registers", "r0", 7, idempotency_key="once")
        reads = restored(events, keys, processes)
        assert await asyncio.to_thread(reads.begin, "n2")
        begun = list(events)
        assert await asyncio.to_thread(reads.end, new.endpoints[0]) == read
    assert [event.key for event in begun] == [f"r{number}" for number in range(read)]
    lanes = [event.process for event in begun]
    assert lanes == [PROCESSES_MAX - 1 - number for number in range(read)]
    assert min(lanes) >= processes, "no worker of the run has that number"
    assert {event.node for event in begun} == {"n2"}
    assert [(event.type, event.value) for event in events[read:]] == [("ok", 7)] + [("ok", None)] * (read - 1)
    assert [event.process % LANES for event in events[read:]] == lanes


async def test_backup_that_cannot_be_read_is_given_up_as_a_whole_and_the_next_one_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = list[Event]()
    reads = restored(events, 2)

    def refuse(method: str, url: str, body: Any, timeout_s: float) -> dict[str, Any]:
        raise RequestRefused("NOT_FOUND: no row" if url.endswith("r0") else "DAMAGED: its state")

    monkeypatch.setattr(restored_reads, "send_json", refuse)
    assert await asyncio.to_thread(reads.begin, "n1")
    with pytest.raises(RequestRefused, match="DAMAGED"):
        await asyncio.to_thread(reads.end, "http://new")
    assert [event.type for event in events] == ["invoke", "invoke"], "nothing is known of any row"
    await asyncio.to_thread(reads.give_up, "damaged")
    assert [(event.type, event.error) for event in events[2:]] == [("fail", "damaged")] * 2
    await asyncio.to_thread(reads.give_up, "again")
    assert len(events) == 4
    assert await asyncio.to_thread(reads.begin, "n1")
    nothing = restored(list[Event](), 0)
    assert not await asyncio.to_thread(nothing.begin, "n1")


def test_of_rows_of_which_some_were_applied_the_order_says_nothing_for_certain() -> None:
    partial = PartialFailure(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED, applied=1, failed=2)
    ends = [None, OutcomeUnknown(Code.TIMEOUT), partial, OperationFailed(Code.QUOTA)]
    assert [_told(end) for end in ends] == ["applied", "unknown", "unknown", "not_applied"]


class Ends:
    """A session of the SDK whose calls end as they are told to."""

    def __init__(self, *ends: BaseException | None) -> None:
        self._ends = list(ends)

    async def _call(self, *_: Any, **__: Any) -> Any:
        end = self._ends.pop(0) if self._ends else None
        if end is not None:
            raise end
        return SimpleNamespace(parts=[SimpleNamespace(commit=7, first=1, last=40)])

    put = transact = put_many = _call


def in_turn(one: Worker, monkeypatch: pytest.MonkeyPatch, sessions: list[Ends]) -> None:
    """Have the worker do a step in each of the sessions."""

    async def through_sdk(step: Callable[[Any], Awaitable[None]], *_: Any, **__: Any) -> None:
        for session in sessions:
            await step(session)

    monkeypatch.setattr(one, "through_sdk", through_sdk)


async def test_calls_of_one_session_have_its_number_and_those_of_another_one_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran, events, first, second = workload_of("order"), list[Event](), Ends(), Ends()
    for _ in range(2):
        one = worker(lambda *_: OK, events)
        in_turn(one, monkeypatch, [first, first, second, first])
        await ran.run_process(one)
    begun = [event.value for event in events if event.type == "invoke"]
    assert [named for named, _ in begun] == [1, 1, 2, 3, 4, 4, 5, 6], "who comes back may have been renewed meanwhile"
    numbers = [number for _, listed in begun for number in listed]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_call_that_ends_with_a_fault_of_the_worker_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    events = list[Event]()
    one = worker(lambda *_: OK, events)
    in_turn(one, monkeypatch, [Ends(None, OutcomeUnknown(Code.TIMEOUT), ValueError("a bug"))])
    with pytest.raises(ValueError, match="a bug"):
        await workload_of("order").run_process(one)
    assert [event.type for event in events] == ["invoke"], "nothing is known of these calls"


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (None, "ok"),
        (PartialFailure(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED, applied=1, failed=2), "info"),
        (PartialFailure(Code.TIMEOUT, outcome=Outcome.UNKNOWN, applied=1, failed=2), "info"),
        (OperationFailed(Code.QUOTA), "fail"),
        (OutcomeUnknown(Code.TIMEOUT), "info"),
    ],
)
async def test_rows_of_which_some_may_be_applied_are_not_written_down_as_refused(
    monkeypatch: pytest.MonkeyPatch, end: BaseException | None, kind: str
) -> None:
    events = list[Event]()
    one = worker(lambda *_: OK, events)
    one.process = 3
    in_turn(one, monkeypatch, [Ends(end)])
    await workload_of("flow").run_process(one)
    assert [event.type for event in events] == ["invoke", kind]
    assert events[1].value == (list(range(7, 47)) if end is None else None)


def test_balance_of_an_account_that_was_never_written_is_nothing() -> None:
    row = {"value": -7, "version": 4, "key": "ann"}
    told = _balances_of({"commit": 9, "rows": [None, row, None, None, None, row]})
    assert told == {"commit": 9, "held": dict(zip(ACCOUNTS, (0, -7, 0, 0, 0, -7), strict=True))}
