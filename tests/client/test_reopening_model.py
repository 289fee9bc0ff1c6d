"""A lost session that is opened anew: how often that is tried, what the next one is like, and what is asked in it.

However the opening fails: the next session has a lease of its own, which is renewed as that of the first one was; what
is known of writes of the one before can still be told; and a number of it is no number of the next.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from oncegate import (
    Client,
    Code,
    NeverKnown,
    NotKnownYet,
    OncegateError,
    OperationFailed,
    OutboxEntry,
    Outcome,
    OutcomeUnknown,
    RequestId,
    RequestState,
    Session,
    WriteResult,
)
from oncegate.gateway.client.outbox_file import OutboxFile
from oncegate.gateway.client.session_life import REOPEN_CAP_S, REOPEN_FIRST_S
from oncegate.rifl.ids import format_client_id
from tests.client.answers import fails
from tests.client.test_leaving_model import (
    BOTH,
    OPENING,
    Moody,
    play,
)
from tests.client.test_session_model import LEASE_S, SLACK_S, TUNING

PATIENT_S = 300.0
FOR_GOOD = OncegateError(Code.FORBIDDEN, "for now, as it turns out")


class Lost:
    """A session, with or without an outbox, that is to be opened anew when it is lost."""

    def __init__(self, nodes: Moody, client: Client, path: Path, *, keeps: bool, window: int = 512) -> None:
        self.nodes, self.path = nodes, path
        self.reported: list[Code] = []
        self.unknown: list[OutboxEntry] = []
        self.session = client.session(
            lease_ms=round(LEASE_S * 1000),
            window=window,
            renew_lost=True,
            outbox=path if keeps else None,
            on_unknown=self.unknown.append if keeps else None,
            on_lost=lambda why: self.reported.append(why.code),
        )

    def expire(self) -> None:
        self.nodes.state.expire(self.session.client_id)

    async def lose(self) -> WriteResult:
        """Lose it, and return what becomes of a write that finds that out."""
        self.expire()
        return await self.session.append("rows", "l", 1, timeout_s=PATIENT_S)

    async def is_kept_alive(self) -> None:
        """For some leases its memory is long enough, and known to be; and no renewal is too many."""
        nodes, session = self.nodes, self.session
        before = nodes.count("/renew$")
        for _ in range(80):
            await asyncio.sleep(LEASE_S / 20)
            assert nodes.known(session.client_id)
            assert 0.45 * LEASE_S <= session.memory_ms_left / 1000 <= LEASE_S
        assert 6 <= nodes.count("/renew$") - before <= 9, "half of a lease lies between two"
        assert nodes.count(f"/{format_client_id(session.client_id)}/renew$") >= 6


async def doubt_of(nodes: Moody, session: Session, row: str) -> RequestId:
    """Leave a write in doubt about which the session cannot ask."""
    nodes.hows |= {"/operations": "after", "/resolve": "before"}
    with pytest.raises(OutcomeUnknown) as doubt:
        await session.append("rows", row, 1, timeout_s=0.3)
    await asyncio.sleep(2 * TUNING.attempt_timeout_s)
    del nodes.hows["/operations"]
    assert doubt.value.request_id is not None
    return doubt.value.request_id


@pytest.mark.parametrize("keeps", BOTH)
@pytest.mark.parametrize("how", ["", "busy", "before", "after", FOR_GOOD], ids=str)
def test_next_session_is_opened_as_soon_as_it_can_be_and_lives_as_the_first_one_did(
    how: str | OncegateError, keeps: bool, tmp_path: Path
) -> None:
    async def test(nodes: Moody, client: Client) -> None:
        if keeps:  # an earlier process leaves something, so that its session lives on, under another epoch
            before = Lost(nodes, client, tmp_path / "o", keeps=True)
            async with before.session as session:
                await doubt_of(nodes, session, "d")
            nodes.hows.clear()
        lost = Lost(nodes, client, tmp_path / "o", keeps=keeps)
        async with lost.session as session:
            first = session.client_id
            assert session.epoch == (2 if keeps else 1)
            await session.append("rows", "l", 0)
            await lost.is_kept_alive()
            began = len(nodes.seen)
            nodes.hows[OPENING] = how
            write = asyncio.ensure_future(lost.lose())
            await asyncio.sleep(60.0 if how else 0.0)
            if how:
                assert not write.done()
                assert not session._sender.is_open
            nodes.hows.clear()
            result = await write
            assert result.client_id == session.client_id != first
            assert (lost.reported, session.lost.is_set()) == ([Code.SESSION_EXPIRED], False)
            assert 0.5 * LEASE_S <= session.memory_ms_left / 1000 <= LEASE_S
            if how is FOR_GOOD:
                asked = zip(nodes.seen[began:], nodes.seen_at[began:], strict=True)
                gaps = [then - at for at, then in pairwise(at for one, at in asked if one == "POST /v1/sessions")]
                for number, gap in enumerate(gaps):
                    pause_s = min(REOPEN_CAP_S, REOPEN_FIRST_S * 2**number)
                    assert pause_s - SLACK_S <= gap <= pause_s + 1.0
            await lost.is_kept_alive()
            assert session.epoch == 1
            if keeps:
                file = OutboxFile(lost.path, read_only=True)
                assert (file.head.client_id, file.head.nonce) == (session.client_id, "")
                file.close()
            assert len(nodes.nonces) == 2
        assert not nodes.known(result.client_id)
        assert [one.value for one in nodes.executed("l")] == [0, 1]

    play(test)


@pytest.mark.parametrize("keeps", BOTH)
def test_opening_anew_is_given_up_where_trying_again_is_no_use(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster, or a disk on which nothing can be stored: each write is told, and none is sent."""

    async def test(nodes: Moody, client: Client) -> None:
        lost = Lost(nodes, client, tmp_path / "o", keeps=keeps)
        async with lost.session as session:
            await session.append("rows", "l", 0)
            if keeps:

                def full(*_: Any, **__: Any) -> None:
                    raise OSError("no space left on device")

                nodes.hows[OPENING] = FOR_GOOD
            else:
                nodes.hows[OPENING] = OncegateError(Code.CONFLICT, "another one")
            write = asyncio.ensure_future(lost.lose())
            await asyncio.sleep(1.0)
            if keeps:
                monkeypatch.setattr(OutboxFile, "write", full)
                await asyncio.sleep(2 * REOPEN_CAP_S)
            assert session.lost.is_set()
            asked = nodes.count(OPENING)
            with fails(Code.INTERNAL, Outcome.NOT_APPLIED):
                await session.append("rows", "l", 2)
            await asyncio.wait([write], timeout=1.0)
            failure = write.exception()
            assert isinstance(failure, OperationFailed)
            assert failure.code is Code.INTERNAL
            await asyncio.sleep(PATIENT_S)
            assert nodes.count(OPENING) == asked
            assert lost.reported == [Code.SESSION_EXPIRED, Code.INTERNAL]
        assert len(nodes.executed("l")) == 1

    play(test)


@pytest.mark.parametrize("keeps", BOTH)
def test_writes_whose_request_is_refused_as_a_whole_go_on_and_keep_their_places(keeps: bool, tmp_path: Path) -> None:
    """What says that the session has ended may be a verdict on each write, or the refusal of all of them."""

    async def test(nodes: Moody, client: Client) -> None:
        lost = Lost(nodes, client, tmp_path / "o", keeps=keeps, window=4)
        async with lost.session as session:
            for round_ in range(3):
                lost.expire()
                nodes.hows = {
                    "/operations": OncegateError(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED),
                    OPENING: "before",
                }
                writes = [
                    session.submit("append", "rows", "l", 4 * round_ + at, timeout_s=PATIENT_S) for at in range(4)
                ]
                await asyncio.sleep(3.0)
                assert not session._sender.is_open
                assert session.outstanding == 4, "each has its place"
                nodes.hows.clear()
                assert all(result.client_id == session.client_id for result in await asyncio.gather(*writes))
                assert session.outstanding == 0
        assert [one.value for one in nodes.executed("l")] == list(range(12))

    play(test)


def test_what_opening_anew_finds_out_of_a_write_is_told_and_reflected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has ended, and a node still has the record of the write: nobody needs to take it for unknown."""

    async def test(nodes: Moody, client: Client) -> None:
        lost = Lost(nodes, client, tmp_path / "o", keeps=True)
        async with lost.session as session:
            doubt = await doubt_of(nodes, session, "d")
            found = WriteResult(doubt.client_id, doubt.sequence, True, 1_000, 1, [1], True, 0)

            async def request(client_id: int, sequence: int, timeout_s: float | None = None) -> RequestState:
                assert (client_id, sequence) == doubt
                return RequestState("applied", found)

            monkeypatch.setattr(client._connection, "request", request)
            await lost.lose()
            nodes.hows["/resolve"] = OncegateError(Code.SESSION_EXPIRED)
            assert (await session.resolve(doubt)).result == found
            assert session.highest_commit == 1_000
            assert [one.result for one in session.recovered] == [found]
            assert lost.unknown == []

    play(test)


@pytest.mark.parametrize("keeps", BOTH)
def test_question_is_about_the_session_and_the_number_that_it_names(keeps: bool, tmp_path: Path) -> None:
    """Number 1 is in doubt in the session that was lost, and applied in the next; nobody has used number 9."""

    async def test(nodes: Moody, client: Client) -> None:
        lost = Lost(nodes, client, tmp_path / "o", keeps=keeps)
        async with lost.session as session:
            ended = await doubt_of(nodes, session, "d")
            written = await lost.lose()
            assert written.sequence == ended.sequence == 1
            del nodes.hows["/resolve"]
            asked = nodes.count("/resolve")
            with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
                await session.send_again(ended)
            if not keeps:
                with pytest.raises(NeverKnown) as never:
                    await session.resolve(ended)
                assert (never.value.code, never.value.request_id) == (Code.SESSION_EXPIRED, ended)
            with fails(Code.BAD_REQUEST):
                await session.resolve(9)
            with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
                await session.send_again(9)
            told = await session.resolve(1)
            assert (told.applied, told.result and told.result.value) == (True, written.value)
            assert nodes.count("/resolve") > asked
            doubt = await doubt_of(nodes, session, "e")
            nodes.hows["/resolve"] = OncegateError(Code.FORBIDDEN, "may not ask")
            with pytest.raises(NotKnownYet) as later:
                await session.resolve(doubt)
            assert (later.value.code, later.value.request_id) == (Code.FORBIDDEN, doubt)
            nodes.hows.clear()
            assert (await later.value.resolve()).applied, "the error itself can be asked again"
            asked = nodes.count("/resolve")
            assert (await session.resolve(doubt)).applied
            assert nodes.count("/resolve") == asked, "what is known is told without a question"
        assert len(nodes.executed("d")) == len(nodes.executed("e")) == 1

    play(test)
