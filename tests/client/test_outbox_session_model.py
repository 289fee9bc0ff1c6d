"""Processes that come and go over one outbox, against the real machine: killed between any two steps, or taken over.

Session, outbox and file are the real ones, recovery too; network, disk queue and time are the model's. A process that
is killed leaves what is on disk then, and requests that may still arrive. What each caller was told is judged in the
end, and so is the position: whoever restarts from it neither loses a write nor makes one twice.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from oncegate import Client, Code, OperationFailed, OutboxEntry, OutboxUnresolved, Outcome, OutcomeUnknown, Session
from oncegate.gateway.client import durable_outbox
from oncegate.gateway.client.courier import Courier
from oncegate.gateway.client.outbox_file import OutboxFile
from oncegate.gateway.client.recovery import Recovered
from oncegate.rifl.ids import parse_client_id
from tests.at_once import AtOnce
from tests.client.outbox_processes import RUNNING, Many, Process, Write, started
from tests.client.small_cluster import StillLoop
from tests.client.test_session_model import LEASE_S, TUNING, Nodes

STEPS = ("write",) * 14 + ("wait",) * 5 + ("many", "cancel", "ask", "again", "trouble", "arrive", "expire", "long")
ENDS = ("kill",) * 5 + ("lost",) * 3 + ("close", "close", "leave", "over", "disk")
WINDOW = 8


class Line:
    """An outbox that is handed from process to process."""

    def __init__(self, nodes: Nodes, path: Path, *, renews: bool) -> None:
        self.nodes, self.dice, self.loop, self.renews = nodes, nodes.dice, nodes.loop, renews
        self.path = path
        self.writes: list[Write] = []
        self.manies: list[Many] = []
        self.asking: list[asyncio.Task[None]] = []
        self.over: list[Process] = []
        """Processes that live on although another has taken their session."""
        self.copies = 0
        self.left: set[int] = set()
        """Sessions that were being closed."""
        self.process: Process

    # Processes

    async def enter(self, *, unknown: bool = True, last: bool = False) -> bool:
        """Start a process; False if it did not come so far."""
        process = self.process = Process(self.nodes)
        RUNNING.set(process)
        process.client = await Client(["http://n:1"]).__aenter__()
        link = process.client._connection
        link.tuning = TUNING
        link.courier = Courier(link.http, process, link.router, TUNING, self.loop.time)  # type: ignore[arg-type]
        session = process.session = process.client.session(
            lease_ms=round(LEASE_S * 1000),
            window=WINDOW,
            renew_lost=self.renews,
            outbox=self.path,
            on_unknown=self._hand_over if unknown else None,
        )
        entering = asyncio.ensure_future(session.__aenter__())
        if not last and self.dice.random() < 0.3:
            await asyncio.wait([entering], timeout=self.dice.choice((0.0, 0.002, 0.05, 1.0)))
            if not entering.done():
                await self.kill()
                return False
        await asyncio.wait([entering])
        failure = entering.exception()
        if failure is None:
            self._entered(session)
            return True
        if isinstance(failure, OutboxUnresolved):
            assert not unknown
            assert all(one.fate is None for one in failure.entries)
        else:
            assert isinstance(failure, OperationFailed)
            assert self.nodes.trouble, str(failure)
        await self.kill()
        return False

    async def _hand_over(self, entry: OutboxEntry) -> None:
        await asyncio.sleep(self.dice.choice((0.0, 0.1)))
        if not self.copies:
            assert not self.nodes.known(entry.client_id), "nobody needs to say that it is unknown"
            assert entry.client_id not in self.nodes.closed_ids, "its session was closed too early"
        if (one := self.of(entry)) is not None:
            one.handed = True

    def of(self, entry: OutboxEntry) -> Write | None:
        return None if entry.op == "put" else self.writes[entry.operation.item]

    def _entered(self, session: Session) -> None:
        at: Any = -1 if session.position is None else session.position
        for one in self.writes:
            if one.kept and not one.ended and one.number > at:
                one.kept, one.never = False, True  # the application makes it again
        for recovered in session.recovered:
            self.settled(recovered)
        opened = map(parse_client_id, self.nodes.nonces.values())
        live = {client_id for client_id in opened if self.nodes.known(client_id)}
        assert self.copies or live - self.left <= {session.client_id}, "one was opened, and forgotten"
        known = [made.commit for made in self.nodes.state.executed if made.client_id == session.client_id]
        assert session.highest_commit >= max(known, default=0), "its reads do not reflect its own writes"

    def settled(self, recovered: Recovered) -> None:
        one = self.of(recovered.entry)
        if one is None:
            return
        assert one.kept, "it was never taken in"
        if recovered.result is not None:
            assert one.commit in (0, recovered.result.commit)
            one.commit = recovered.result.commit
            assert self.process.session.highest_commit >= one.commit, "its reads do not reflect what it is told"
        else:
            assert recovered.failure is not None
            assert recovered.failure.outcome is Outcome.NOT_APPLIED
            one.never = True

    async def kill(self) -> None:
        for one in self.writes:
            if one.by is self.process and one.future is not None and not one.future.done():
                # Refused for good, and on the way to its caller: its entry may have gone by now.
                one.refused = getattr(one.future._pending.promise, "_waiting", False)  # type: ignore[attr-defined]
        await self.process.kill()
        RUNNING.set(None)  # type: ignore[arg-type]

    async def end(self, how: str) -> None:
        """End a process, or have it live on with another copy of the file."""
        process = self.process
        if how == "lost":
            self.write()
            self.expire()
            self.write()
            await asyncio.sleep(self.dice.choice((0.0, 0.01, 0.1, 0.5)))
        elif how == "disk":
            process.disk.breaks = self.dice.choice(("before", "after"))
            self.write()
            await asyncio.sleep(self.dice.choice((0.0, 0.5, 2.0)))
        elif how == "over":
            copy = self.path.with_name(f"o{self.copies}")
            self.copies += 1
            shutil.copy(self.path, copy)
            self.path = copy
            self.over.append(process)
            process.is_over = True
            file = OutboxFile(copy, read_only=True)
            at = -1 if file.head.position is None else file.head.position
            file.close()
            for one in self.writes:
                one.kept = one.kept and one.number <= at
            return
        elif how in ("close", "leave"):
            self.left.add(process.session.client_id)
            closing = asyncio.ensure_future(process.session.close(drain=how == "close"))
            await asyncio.wait([closing], timeout=self.dice.choice((0.01, 1.0, 60.0)))
            if closing.done():
                closing.result()
                assert not process.session.outstanding
        await self.kill()

    # Calls

    def write(self) -> None:
        number, row = len(self.writes), f"l{self.dice.randrange(3)}"
        timeout_s = self.dice.choice((0.3, 3.0, 12.0))
        future: asyncio.Future[Any] = self.loop.create_future()
        try:
            future = self.process.session.submit("append", "rows", row, number, position=number, timeout_s=timeout_s)
        except OperationFailed as failure:
            future.set_exception(failure)
            future.exception()
        self.writes.append(Write(number, row, future, self.process))

    def many(self) -> None:
        keys = [f"m{len(self.manies)}-{at}" for at in range(self.dice.randint(1, 9))]
        call = self.process.session.put_many("rows", [(key, key) for key in keys], timeout_s=3.0)
        self.manies.append(Many(keys, asyncio.ensure_future(call), self.process))

    def cancel(self) -> None:
        if open_ := [one for one in self.writes if one.future is not None and not one.future.done()]:
            one = self.dice.choice(open_)
            assert one.future is not None
            one.id = getattr(one.future, "request_id", None)
            one.future.cancel()

    def ask(self, *, again: bool) -> None:
        mine = [one for one in self.writes if one.by is self.process and one.doubted and one.id is not None]
        if mine:
            self.asking.append(asyncio.ensure_future(self._ask(self.dice.choice(mine), again=again)))

    async def _ask(self, one: Write, *, again: bool) -> None:
        session, refused, one.asked = self.process.session, None, True
        try:
            if again:
                told = await session.send_again(one.id, timeout_s=self.dice.choice((0.5, 20.0)))
                one.commit = told.commit
            else:
                fate = await session.resolve(one.id, timeout_s=self.dice.choice((0.5, 20.0)))
                assert fate.executed or not one.commit
                if fate.executed and fate.result is not None:
                    one.commit = fate.result.commit
                    assert session.highest_commit >= one.commit, "its reads do not reflect what it is told"
                elif not fate.executed:
                    one.never = True
        except OperationFailed as failure:
            refused = failure
        if refused is not None:
            assert refused.code is not Code.BAD_REQUEST, str(refused)
            assert again or isinstance(refused, OutcomeUnknown)
            one.never = one.never or (refused.code is Code.FORBIDDEN and refused.outcome is Outcome.NOT_APPLIED)

    def expire(self) -> None:
        self.nodes.pass_time()
        if self.nodes.known(self.process.session.client_id):
            self.nodes.state.expire(self.process.session.client_id)

    async def walk(self) -> None:
        dice, nodes = self.dice, self.nodes
        for _ in range(dice.randint(3, 25)):
            match dice.choice(STEPS):
                case "write":
                    self.write()
                case "many":
                    self.many()
                case "cancel":
                    self.cancel()
                case "ask":
                    self.ask(again=False)
                case "again":
                    self.ask(again=True)
                case "wait":
                    await asyncio.sleep(dice.choice((0.0, 0.001, 0.1, 1.0)))
                case "long":
                    await asyncio.sleep(1.5 * LEASE_S)
                case "trouble":
                    nodes.trouble = dice.choice((0.0, 0.0, 0.3, 0.7))
                case "arrive":
                    nodes.arrive()
                case "expire" if dice.random() < 0.3:
                    self.expire()
            assert self.process.session.outstanding <= 2 * WINDOW, "more than its window and what it sends again"

    # What is to be true

    def judge(self) -> None:
        for task in self.asking:
            if task.done() and not task.cancelled():
                task.result()
        done: dict[Any, list[Any]] = {}
        for made in self.nodes.state.executed:
            done.setdefault(made.value, []).append(made)
        for one in self.writes:
            found = done.get(one.number, [])
            assert len(found) <= 1, f"{one.number} was applied twice"
            if one.commit:
                assert [made.commit for made in found] == [one.commit], f"{one.number} has another result"
            elif one.never:
                assert not found, f"{one.number} was told, or left for the next process, as not applied"
            elif one.kept and not one.cancelled and not one.refused:
                assert found or one.handed, f"{one.number} is lost"
                assert one.handed or one.asked, f"nobody is told what became of {one.number}"
        for many in self.manies:
            there = sum(key in done for key in many.keys)
            assert all(len(done.get(key, [])) <= 1 for key in many.keys)
            assert many.applied in (None, there), f"{many.keys} are {there}"
        order: dict[str, list[int]] = {}
        late = {one.number for one in self.writes if one.doubted or one.cancelled or not one.kept}
        for made in self.nodes.state.executed:
            if made.op == "append" and made.value not in late:
                order.setdefault(made.key, []).append(made.value)
        for row, items in order.items():
            assert items == sorted(items), f"the order of the calls is not that of {row}: {items}"


def run(seed: int, monkeypatch: pytest.MonkeyPatch, test: Callable[[Nodes], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.set_default_executor(AtOnce(max_workers=1))
        loop.set_task_factory(started)
        failures: list[Any] = []
        loop.set_exception_handler(lambda _, context: failures.append(context.get("exception") or context))
        await asyncio.sleep(1.0)
        await test(Nodes(seed))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        wrong = [one for one in failures if isinstance(one, (AssertionError, AttributeError, TypeError))]
        assert not wrong, wrong

    monkeypatch.setattr(durable_outbox, "ThreadPoolExecutor", lambda **_: RUNNING.get().disk)
    monkeypatch.setattr("tests.client.small_cluster.TURNS_MAX", 500_000)
    random.seed(seed)
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(whole())
    # What killed processes leave are chains so long that `ast.parse` fails ("recursion depth") if they end during it.
    gc.collect()


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_write_is_lost_or_made_twice_by_processes_that_follow_each_other(
    seed: int, renews: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(nodes: Nodes) -> None:
        line, dice = Line(nodes, tmp_path / "o", renews=renews), nodes.dice
        for _ in range(12):
            if await line.enter(unknown=renews or dice.random() < 0.8):
                await line.walk()
                await line.end(dice.choice(ENDS))
            nodes.trouble = dice.choice((0.0, 0.0, 0.3, 0.7))
        nodes.trouble = 0.0
        for process in line.over:
            await process.kill()
        for _ in range(3):  # what is unresolved is handed over; what is in doubt then is sent again by the next one
            assert await line.enter(last=True)
            await line.process.session.drain()
            await line.process.session.close()
            assert line.process.session.memory_ms_left == 0
            client_id = line.process.session.client_id
            await line.kill()
        file = OutboxFile(line.path, read_only=True)
        assert (file.loaded, file.head.client_id, file.head.nonce) == ([], 0, "")
        file.close()
        assert not nodes.known(client_id)
        nodes.arrive()
        line.judge()

    run(seed, monkeypatch, test)
