"""A write that cannot go on costs those beside it nothing: each of them ends as if it had been alone.

It may be one that cannot be encoded, one for which the outbox has no room, one that the cluster does not take for now,
or one of which nobody knows what became.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import combinations, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate import Client, Code, DeadlineExceeded, OperationFailed, Outcome, OutcomeUnknown
from oncegate.gateway import wire
from oncegate.gateway.client import durable_outbox
from oncegate.gateway.client.batch_call import OperationsCall
from oncegate.gateway.client.outbox_file import OutboxFile
from tests.client.answers import fails
from tests.client.test_leaving_model import BOTH, Moody, play
from tests.client.test_reopening_model import doubt_of
from tests.client.test_session_model import LEASE_S, TUNING

KEYS = "abcde"
"""They travel in one request."""
SPOILT = [keys for count in (1, 2, 5) for keys in combinations(KEYS, count)]


@pytest.mark.parametrize("keeps", BOTH)
def test_writes_beside_one_that_cannot_be_encoded_are_applied(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt: tuple[str, ...] = ()
    encode = OperationsCall.encode

    def refuse(call: OperationsCall) -> None:
        if any(pending.operation.key in spoilt for pending in call.batch.pendings):
            raise TypeError("a bug of this process")
        encode(call)

    async def test(nodes: Moody, client: Client) -> None:
        nonlocal spoilt
        monkeypatch.setattr(OperationsCall, "encode", refuse)
        async with client.session(outbox=tmp_path / "o" if keeps else None, window=8) as session:
            for spoilt in SPOILT:
                before = len(nodes.state.executed)
                writes = {key: session.submit("put", "rows", key, 1) for key in KEYS}
                await asyncio.wait(writes.values())
                for key, write in writes.items():
                    failure = write.exception()
                    assert (failure is not None) == (key in spoilt)
                    if failure is not None:
                        assert isinstance(failure, OperationFailed)
                        assert (failure.code, failure.outcome) == (Code.INTERNAL, Outcome.NOT_APPLIED)
                assert len(nodes.state.executed) - before == len(KEYS) - len(spoilt)
                assert session.outstanding == 0
                # Their numbers are given back, or the window would be used up by now.
                spoilt = ()
                assert (await session.put("rows", "z", 1)).applied

    play(test)


def test_outbox_without_room_refuses_a_write_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(nodes: Moody, client: Client) -> None:
        monkeypatch.setattr(durable_outbox, "ENTRIES_MAX", 3)
        async with client.session(outbox=tmp_path / "o", window=16) as session:
            for _ in range(3):
                ids = [await doubt_of(nodes, session, f"d{at}") for at in range(3)]
                nodes.hows.clear()
                for number in range(4):
                    with fails(Code.QUOTA, Outcome.NOT_APPLIED):
                        await session.put("rows", "k", number)
                assert session.outstanding == 0
                assert session._sender.is_open
                assert all([(await session.resolve(one)).applied for one in ids])
                await session.drain()
                assert (await session.put("rows", "k", 1)).applied
                await session.drain()
            assert not session.lost.is_set()

    play(test)


def test_session_whose_outbox_cannot_be_written_ends_and_nothing_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of the first write is on disk nobody knows; those after it are surely not applied."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    async def test(nodes: Moody, client: Client) -> None:
        lost = list[Code]()
        async with client.session(outbox=tmp_path / "o", on_lost=lambda why: lost.append(why.code)) as session:
            await session.put("rows", "a", 1)
            monkeypatch.setattr(OutboxFile, "write", full)
            with fails(Code.INTERNAL, Outcome.UNKNOWN, kind=OutcomeUnknown):
                await session.put("rows", "b", 1)
            assert (session.lost.is_set(), lost) == (True, [Code.INTERNAL])
            for key in "cd":
                with fails(Code.INTERNAL, Outcome.NOT_APPLIED):
                    await session.put("rows", key, 1)
            assert session.outstanding == 0
        assert [one.key for one in nodes.state.executed] == ["a"]

    play(test)


@pytest.mark.parametrize("doubts", [1, 3, 7])
@pytest.mark.parametrize("keeps", BOTH)
def test_doubts_leave_the_window_to_the_writes_that_follow(keeps: bool, doubts: int, tmp_path: Path) -> None:
    """However few they are: the lowest number in doubt holds back all that may be acknowledged."""

    async def test(nodes: Moody, client: Client) -> None:
        path = tmp_path / "o"
        async with client.session(outbox=path if keeps else None, window=8, lease_ms=round(LEASE_S * 1000)) as session:
            nodes.hows |= {"/operations": "before", "/resolve": "before"}
            ids: list[Any] = []
            for at in range(doubts):
                with pytest.raises(OutcomeUnknown) as doubt:
                    await session.append("rows", f"d{at}", at, timeout_s=0.3)
                ids.append(doubt.value.request_id)
                await asyncio.sleep(2 * TUNING.attempt_timeout_s)
            nodes.hows.clear()
            async with asyncio.timeout(20):
                for number in range(30):
                    assert (await session.put("rows", "k", number)).applied
            fates = [await session.resolve(one) for one in ids]
            applied = [len(nodes.executed(f"d{at}")) for at in range(doubts)]
            assert [fate.applied for fate in fates] == [bool(count) for count in applied]
            assert max(applied) <= 1
            if not keeps:
                assert not any(applied), "it was never sent again"
            elif 2 * doubts < 8:
                assert all(applied), "an outbox is there to send it again"
        if keeps:
            file = OutboxFile(path)
            assert (file.loaded, file.head.client_id) == ([], 0)
            file.close()

    play(test)


class Choosy(Moody):
    """Nodes that do not take the writes of some rows for now."""

    busy: frozenset[str] = frozenset()

    def serve(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if not path.endswith("/operations"):
            return super().serve(method, path, headers, body)
        asked = msgspec.msgpack.decode(body, type=wire.OperationsRequest)
        refused = [
            wire.OperationResult(one.sequence, "rejected", code="OVERLOADED", outcome="not_applied", retryable=True)
            for one in asked.operations
            if one.key in self.busy
        ]
        left = [one for one in asked.operations if one.key not in self.busy]
        if not left:
            return 200, {}, msgspec.msgpack.encode(wire.OperationsResponse(refused, 0))
        taken = msgspec.msgpack.encode(msgspec.structs.replace(asked, operations=left))
        status, told, answer = super().serve(method, path, headers, taken)
        if status == 200:
            found = msgspec.msgpack.decode(answer)
            results = [*found["results"], *map(msgspec.to_builtins, refused)]
            answer = msgspec.msgpack.encode({**found, "results": sorted(results, key=itemgetter("sequence"))})
        return status, told, answer


def test_write_that_is_not_taken_in_its_time_is_never_sent_later_whoever_it_travelled_with() -> None:
    """Those that have more time go on without it, and those that were taken give it none."""
    ends = list(product(BOTH, BOTH))
    told = Counter[type[BaseException | None]]()

    async def test(nodes: Choosy, client: Client) -> None:
        async with client.session(window=8) as session:
            for number, case in enumerate(product(ends, repeat=3)):
                rows = {f"{number}-{at}": one for at, one in enumerate(case)}
                nodes.busy = frozenset(row for row, (busy, _) in rows.items() if busy)
                writes = {
                    row: session.submit("append", "rows", row, 1, timeout_s=10.0 if patient else 0.5)
                    for row, (_, patient) in rows.items()
                }
                await asyncio.sleep(2.0)
                nodes.busy = frozenset()
                await asyncio.wait(writes.values())
                for row, (busy, patient) in rows.items():
                    failure, done = writes[row].exception(), len(nodes.executed(row))
                    assert not (patient and failure)
                    if isinstance(failure, OutcomeUnknown):
                        assert done <= 1, "it was under way"
                    else:
                        assert done == (failure is None), (row, case)
                        assert not failure or busy
                    told[type(failure)] += 1
                assert session.outstanding == 0
                assert session._sender.is_open

    play(test, Choosy)
    assert told[DeadlineExceeded] > 10
