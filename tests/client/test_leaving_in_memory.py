"""Who leaves a line leaves nothing behind, whatever becomes of its requests, and is told whether it had held."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from oncegate import Code, OncegateError, OperationFailed, OutcomeUnknown
from oncegate.gateway.client.recipes.line import put_in_doubt, task_of
from oncegate.recipes import Election, Lock, ReadWriteLock, Semaphore
from oncegate.rifl.ids import RequestId
from tests.client.small_cluster import FULL, GONE, LATE, SmallCluster, in_memory, now_s, settle
from tests.client.test_lines_in_memory import held


def busy(ms: int) -> OperationFailed:
    return OperationFailed(Code.QUOTA, retry_after_ms=ms)


async def left(cluster: SmallCluster, *fates: Any) -> tuple[bool, Any]:
    """Release a lock whose deletion meets these fates; return what is told, and the session."""
    hold, session, _ = await held(cluster)
    session.fates.extend(fates)
    return await hold.release(), session


@pytest.mark.parametrize(("asked_ms", "pause_s"), [(0, 0), (300, 0.3), (999, 0.999), (5_000, 1)])
@in_memory
async def test_who_may_not_leave_yet_tries_again_when_it_is_told_to_and_within_a_second(
    cluster: SmallCluster, asked_ms: int, pause_s: float
) -> None:
    gone, session = await left(cluster, busy(asked_ms))
    assert gone
    assert now_s() == pytest.approx(pause_s, abs=1e-6)
    assert (session.asked["delete"], session.asked["drain"]) == (2, 0)


@in_memory
async def test_who_finds_the_window_full_waits_for_room_and_then_leaves(cluster: SmallCluster) -> None:
    gone, session = await left(cluster, FULL, FULL, LATE)
    assert gone
    assert (session.asked["delete"], session.asked["drain"]) == (4, 2)


@pytest.mark.parametrize("code", [Code.SESSION_EXPIRED, Code.STALE, Code.FENCED, Code.NOT_FOUND])
@in_memory
async def test_who_is_refused_for_good_does_not_say_that_it_has_left(cluster: SmallCluster, code: Code) -> None:
    gone, session = await left(cluster, OncegateError(code))
    assert not gone
    assert session.asked["delete"] == 1


@in_memory
async def test_release_takes_one_request_and_tells_the_same_to_all(cluster: SmallCluster) -> None:
    hold, session, _ = await held(cluster)
    assert [*await asyncio.gather(hold.release(), hold.release())] == [True, True]
    assert await hold.release()
    assert (session.asked["delete"], session.asked["drain"]) == (1, 0)
    again, _, key = await held(cluster)
    cluster.plant(key, "of somebody else")
    assert not await again.release()
    assert cluster.names() == [key]


@in_memory
async def test_release_goes_on_when_who_waits_for_it_is_cut_off(cluster: SmallCluster) -> None:
    hold, session, _ = await held(cluster)
    session.fates.append(busy(300))
    releasing = asyncio.ensure_future(hold.release())
    await settle()
    releasing.cancel()
    await settle()
    assert releasing.cancelled()
    assert await hold.release()
    assert cluster.names() == []


@pytest.mark.parametrize("settled", ["late", "lost"])
@in_memory
async def test_put_in_doubt_is_settled_before_its_row_is_deleted(cluster: SmallCluster, settled: str) -> None:
    session = cluster.session()
    session.fates.append(settled)
    session.refusals.extend([LATE, FULL])
    with pytest.raises(OutcomeUnknown):
        await Lock(cluster.client, session, "l").acquire()
    await settle()
    assert session.asked == {"put": 1, "resolve": 3, "drain": 1, "delete": 1}
    session.arrive()
    assert cluster.names() == []


@in_memory
async def test_put_that_was_acknowledged_need_not_be_settled_and_one_that_cannot_be_stays_alone(
    cluster: SmallCluster,
) -> None:
    for refusal, deletes in ((OncegateError(Code.STALE), 1), (GONE, 0)):
        session = cluster.session()
        session.fates.append("lost")
        session.refusals.append(refusal)
        with pytest.raises(OutcomeUnknown):
            await Lock(cluster.client, session, "l").acquire()
        await settle()
        assert (session.asked["resolve"], session.asked["delete"]) == (1, deletes)
        assert len(cluster.names()) == 1 - deletes


def test_ids_in_doubt_are_those_that_the_error_itself_carries() -> None:
    request = RequestId(1, 2)  # type: ignore[arg-type]
    cut = asyncio.CancelledError()
    assert [*put_in_doubt(cut)] == [*put_in_doubt(None)] == [*put_in_doubt(GONE)] == []
    cut.request_ids = (request, request)  # type: ignore[attr-defined]
    assert [*put_in_doubt(cut)] == [request, request]
    assert [*put_in_doubt(OutcomeUnknown(Code.TIMEOUT, request_id=request))] == [request]
    of_somebody = OutcomeUnknown(Code.TIMEOUT)
    of_somebody.__context__ = cut
    assert [*put_in_doubt(of_somebody)] == []


REFUSALS = ("lost", "late", FULL, LATE, busy(5), busy(4_000), OperationFailed(Code.OVERLOADED, retry_after_ms=0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("put", ["done", "lost", "late", "stuck", "stuck done", LATE, FULL, GONE], ids=str)
@in_memory
async def test_who_is_cut_off_leaves_nothing_whatever_becomes_of_its_requests(
    cluster: SmallCluster, put: Any, seed: int
) -> None:
    dice = random.Random(seed)
    leaving, refusals = dice.choices(REFUSALS, k=dice.randrange(6)), dice.choices((LATE, FULL, busy(5)), k=seed)
    late = dice.randrange(20)
    _, _, before = await held(cluster)
    session = cluster.session()
    session.fates.extend([put, *leaving])
    session.refusals.extend(refusals)
    waiting = asyncio.ensure_future(Lock(cluster.client, session, "l").acquire())
    await settle()
    waiting.cancel()
    with pytest.raises((OncegateError, asyncio.CancelledError)):
        await waiting
    for _ in range(late):
        await asyncio.sleep(0)
    session.arrive()
    await asyncio.sleep(60)
    assert cluster.names() == [before]
    session.arrive()
    assert cluster.names() == [before]


@in_memory
async def test_what_must_be_done_to_its_end_is_though_nobody_keeps_it(cluster: SmallCluster) -> None:
    kept: list[weakref.ref[asyncio.Future[None]]] = []

    async def work() -> int:
        until = asyncio.get_running_loop().create_future()
        kept.append(weakref.ref(until))
        await until
        return 7

    told: list[int] = []
    task_of(work()).add_done_callback(lambda task: told.append(task.result()))
    await settle()
    gc.collect()
    until = kept[0]()
    assert until is not None
    until.set_result(None)
    await settle()
    assert told == [7]


BLOCKS: dict[str, Callable[[Any, Any], AbstractAsyncContextManager[Any]]] = {
    "lock": lambda client, session: Lock(client, session, "b").held(),
    "semaphore": lambda client, session: Semaphore(client, session, "b", 1).held(),
    "reading": lambda client, session: ReadWriteLock(client, session, "b").reading(),
    "writing": lambda client, session: ReadWriteLock(client, session, "b").writing(),
    "leading": lambda client, session: Election(client, session, "b").leading(),
}


@pytest.mark.parametrize("end", ["runs to its end", "fails", "is cancelled"])
@pytest.mark.parametrize("block", BLOCKS)
@in_memory
async def test_block_holds_until_it_ends_however_that_is(cluster: SmallCluster, block: str, end: str) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with BLOCKS[block](cluster.client, cluster.session()) as hold:
            assert hold.alive
            inside.set()
            await go_on.wait()
            if end == "fails":
                raise ZeroDivisionError

    working = asyncio.ensure_future(work())
    await inside.wait()
    await settle()
    assert len(cluster.names()) == 1
    if end == "is cancelled":
        working.cancel()
    go_on.set()
    await asyncio.wait([working])
    assert cluster.names() == []
    assert working.cancelled() == (end == "is cancelled")
    assert working.cancelled() or (working.exception() is not None) == (end == "fails")
