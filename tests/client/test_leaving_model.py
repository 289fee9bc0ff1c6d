"""Leaving a session in each state in which it may be: what callers are told, what the cluster is asked, what is left.

The rule: each write ends, the outbox is released, and no task goes on. The cluster is told exactly if the session is
open, was drained, and has nothing left in its outbox that a restart would send.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oncegate import Client, Code, OncegateError, OperationFailed, Outcome, OutcomeUnknown, Session
from oncegate.gateway.client import durable_outbox
from oncegate.gateway.client.answer_head import AnswerHead
from oncegate.gateway.client.outbox_file import OutboxFile
from oncegate.gateway.client.session_life import CLOSE_TIMEOUT_S
from oncegate.rifl.ids import format_client_id
from tests.at_once import AtOnce
from tests.client.answers import fails, settle
from tests.client.test_session_model import LEASE_S, SLACK_S, TUNING, Nodes, read, run

WRITE_S = 3.0
"""Time of a write that has no answer; its request may end an attempt later."""


class Moody(Nodes):
    """Nodes that treat some kinds of requests in a way of their own, by what is found in method and path.

    They do as with all that fail (:class:`Nodes`), or refuse them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.hows: dict[str, str | OncegateError] = {}
        self.seen: list[str] = []
        self.seen_at: list[float] = []

    async def ask(self, request: bytes, due: float, finish: Callable[..., Any]) -> Any:
        method, path, *_ = read(request)
        self.seen.append(f"{method} {path}")
        self.seen_at.append(self.loop.time())
        how = next((how for kind, how in self.hows.items() if re.search(kind, self.seen[-1])), None)
        if isinstance(how, OncegateError):
            status, headers, told = self._refusal(how)
            return finish(AnswerHead(status, len(told), True, headers), told)
        self.fates.extend([] if how is None else [how])
        return await super().ask(request, due, finish)

    def count(self, kind: str) -> int:
        return sum(re.search(kind, asked) is not None for asked in self.seen)


def play(test: Callable[[Any, Client], Coroutine[Any, Any, None]], kind: type[Moody] = Moody) -> None:
    async def alone(nodes: Moody, client: Client) -> None:
        asyncio.get_running_loop().set_default_executor(AtOnce())
        await test(nodes, client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_outbox, "ThreadPoolExecutor", AtOnce)
        run(0, alone, kind)


class Case(NamedTuple):
    """``drain``: as of ``close``; ``keeps``: with an outbox; then what was written before, and how the session is."""

    drain: bool
    keeps: bool
    written: str = "applied"
    state: str = "open"
    goodbye: str = ""


BOTH = (False, True)
OPENING = "^POST /v1/sessions$"
CASES = [
    *(Case(*one) for one in product(BOTH, BOTH, ("nothing", "applied", "waits", "doubt"), ("open", "over", "between"))),
    *(Case(True, keeps, goodbye=how) for keeps in BOTH for how in ("after", "late", "busy", "before")),
]


WRITES = TUNING.batch_operations_max + 2
"""All of one row: some travel, and the others wait for them."""


class Leaving:
    """A session that was brought into the state of a case, and is left."""

    def __init__(self, nodes: Moody, session: Session, case: Case) -> None:
        self.nodes, self.session, self.case = nodes, session, case
        self.waiting: list[asyncio.Future[Any]] = []
        self.doubt: OutcomeUnknown | None = None

    async def prepare(self) -> None:
        nodes, session, case = self.nodes, self.session, self.case
        await session._connection.kinds.learn("rows", nodes.loop.time() + WRITE_S)
        if case.written != "nothing":
            await session.put("rows", "a", 1)
        if case.written == "doubt":
            nodes.hows = {"/operations": "after", "/resolve": "before"}
            with pytest.raises(OutcomeUnknown) as doubt:
                await session.append("rows", "d", 1, timeout_s=0.3)
            self.doubt = doubt.value
            await asyncio.sleep(2 * TUNING.attempt_timeout_s)
            nodes.hows.clear()
        if case.state != "open":
            nodes.state.expire(session.client_id)
            nodes.hows[OPENING] = "busy"
            await asyncio.sleep(0.6 * LEASE_S)
            assert session.lost.is_set() == (case.state == "over")
        if case.written == "waits" and case.state != "over":
            nodes.hows["/operations"] = "late"
            self.waiting = [session.submit("append", "rows", "w", at, timeout_s=WRITE_S) for at in range(WRITES)]
            await asyncio.sleep(0.3)
        nodes.hows["DELETE"] = case.goodbye

    @property
    def is_kept(self) -> bool:
        """Whether a restart finds something that it would send, or ask about."""
        # What is in doubt in a session that follows another has been handed over.
        in_doubt = self.doubt is not None and self.case.state != "between"
        return self.case.keeps and (in_doubt or (bool(self.waiting) and self.case.state == "open"))

    def judge(self, took_s: float, path: Path) -> None:
        nodes, session, case = self.nodes, self.session, self.case
        if case.drain:
            writing_s = WRITE_S + TUNING.attempt_timeout_s if self.waiting else 0
            assert took_s <= writing_s + 2 * CLOSE_TIMEOUT_S + SLACK_S
        else:
            assert took_s <= SLACK_S, "it does not wait"
        assert session.memory_ms_left == session.outstanding == 0
        assert session.lost.is_set() == (case.state == "over")
        assert not session._connection._sessions
        goodbye = rf"^DELETE /v1/sessions/{format_client_id(session.client_id)}\?epoch={session.epoch}$"
        told = case.drain and case.state == "open" and not self.is_kept
        assert bool(nodes.count(goodbye)) == told
        if case.state == "open":
            assert nodes.known(session.client_id) != (told and case.goodbye in ("", "after"))
        for at, one in enumerate(self.waiting):
            failure: Any = one.exception()
            assert isinstance(failure, OperationFailed)
            has_travelled = isinstance(failure, OutcomeUnknown)
            assert failure.outcome is (Outcome.UNKNOWN if has_travelled else Outcome.NOT_APPLIED)
            assert has_travelled == (case.state == "open") if at == 0 else True
            assert not has_travelled if at == WRITES - 1 else True
            assert failure.code is (Code.TIMEOUT if case.drain else Code.SESSION_EXPIRED)
        if case.keeps:
            file = OutboxFile(path)  # nobody holds it
            assert bool(file.unsettled) == self.is_kept
            is_over = case.drain and not self.is_kept
            assert file.head.client_id == (0 if is_over or case.state == "between" else session.client_id)
            # Its process may have opened the next session without hearing of it.
            assert (file.head.nonce != "") == (case.state == "between" and not is_over)
            file.close()

    async def stays_left(self) -> None:
        """Whatever is done now, nothing goes out."""
        nodes, session, case = self.nodes, self.session, self.case
        asked = len(nodes.seen)
        await session.close()
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            await session.__aenter__()
        for write in (session.put, session.append):
            with fails(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED):
                await write("rows", "k", 1)
        if self.doubt is not None and case.drain and case.state == "open" and not case.keeps:
            assert self.doubt.request_id is not None
            assert (await session.resolve(self.doubt.request_id)).applied, "it was learned before nobody could tell"
        if self.waiting and case.drain and case.state == "open" and not case.keeps:
            for one in self.waiting:
                if isinstance(failure := one.exception(), OutcomeUnknown):
                    assert failure.request_id is not None
                    assert (await failure.resolve()).state == "sealed", "also what was in doubt at its deadline only"
        await asyncio.sleep(2 * LEASE_S)
        assert len(nodes.seen) == asked


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_leaving_ends_what_a_session_has_and_tells_the_cluster_if_nothing_is_left(case: Case, tmp_path: Path) -> None:
    async def test(nodes: Moody, client: Client) -> None:
        path = tmp_path / "o"
        session = client.session(
            lease_ms=round(LEASE_S * 1000),
            renew_lost=case.state == "between",
            outbox=path if case.keeps else None,
            on_unknown=print if case.keeps else None,
        )
        leaving = Leaving(nodes, await session.__aenter__(), case)
        await leaving.prepare()
        began = nodes.loop.time()
        await session.close(drain=case.drain)
        leaving.judge(nodes.loop.time() - began, path)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await leaving.stays_left()

    play(test)


@pytest.mark.parametrize("keeps", BOTH)
@pytest.mark.parametrize("drain", BOTH)
def test_leaving_that_is_cut_off_at_any_moment_leaves_nothing_behind(drain: bool, keeps: bool, tmp_path: Path) -> None:
    """By a second cancellation, say: nobody calls ``close`` again, and it does nothing the second time."""

    async def test(nodes: Moody, client: Client) -> None:
        for turns in range(20):
            path, slow = tmp_path / f"{turns}", turns % 2 == 0
            session = client.session(outbox=path if keeps else None, lease_ms=round(LEASE_S * 1000))
            await session.__aenter__()
            await client._connection.kinds.learn("rows", nodes.loop.time() + WRITE_S)
            nodes.hows = {"/operations": "after", "/resolve": "late"}
            with pytest.raises(OutcomeUnknown):
                await session.append("rows", "d", 1, timeout_s=0.3)
            await asyncio.sleep(TUNING.attempt_timeout_s)  # it is being asked about
            nodes.hows["/operations"] = "late" if slow else ""
            writes = [session.submit("append", "rows", "w", at, timeout_s=WRITE_S) for at in range(WRITES)]
            await asyncio.sleep(0.0005)
            leaving = asyncio.ensure_future(session.close(drain=drain))
            for _ in range(turns // 2 + 1):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving], timeout=WRITE_S)
            assert leaving.done()
            await settle()
            assert not client._connection._sessions
            assert session.memory_ms_left == session.outstanding == 0
            for write in writes:
                assert isinstance(write.exception(), OperationFailed | None), "its caller is told, too"
            if keeps:
                OutboxFile(path).close()  # nobody holds it
            assert asyncio.all_tasks() == {asyncio.current_task()}

    play(test)


@pytest.mark.parametrize("keeps", BOTH)
def test_session_that_is_lost_while_it_is_left_does_not_come_back(keeps: bool, tmp_path: Path) -> None:
    async def test(nodes: Moody, client: Client) -> None:
        lost = list[Code]()
        session = client.session(
            outbox=tmp_path / "o" if keeps else None,
            on_unknown=print if keeps else None,
            on_lost=lambda why: lost.append(why.code),
            renew_lost=True,
        )
        await session.__aenter__()
        await session.put("rows", "a", 1)
        nodes.hows["/operations"] = "busy"
        waiting = session.submit("put", "rows", "b", 1, timeout_s=WRITE_S)
        await asyncio.sleep(0.1)
        leaving = asyncio.ensure_future(session.close())
        await asyncio.sleep(0.1)
        nodes.state.expire(session.client_id)
        nodes.hows.clear()
        await leaving
        failure = waiting.exception()
        assert isinstance(failure, OperationFailed)
        assert failure.code is Code.SESSION_EXPIRED
        assert (nodes.count(OPENING), lost) == (1, [])
        assert not session.lost.is_set()

    play(test)


@pytest.mark.parametrize("keeps", BOTH)
def test_what_a_parent_has_is_left_alone_by_its_child(keeps: bool, tmp_path: Path) -> None:
    """As :mod:`tests.client.test_forked`, without a process: what a child does of what it finds in its memory."""

    async def test(nodes: Moody, client: Client) -> None:
        path, link = tmp_path / "o", client._connection
        session = client.session(outbox=path if keeps else None)
        await session.__aenter__()
        await session.put("rows", "a", 1)
        life, asked, tasks = session._life, len(nodes.seen), asyncio.all_tasks()
        keeper = life._keeper
        link.forked()
        if keeps:
            OutboxFile(path).close()
        for call in (
            lambda: session.put("rows", "b", 1),
            lambda: session.put_many("rows", {"b": 1}),
            lambda: session.get("rows", "a"),
            lambda: session.drain(),
            lambda: client.get("rows", "a"),
            lambda: client.session().__aenter__(),
        ):
            with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
                await call()
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            session.submit("put", "rows", "b", 1)
        await session.close()
        await link.close(drain=True)
        assert (len(nodes.seen), asyncio.all_tasks()) == (asked, tasks)
        assert not session.lost.is_set()
        link._refusal = None  # from here on it is the parent again
        link._sessions.remove(life)
        assert keeper is not None
        keeper.cancel()
        life.sender._sweep.cancel()
        if life.outbox is not None:
            await life.outbox.close()

    play(test)
