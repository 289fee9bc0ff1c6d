"""The checker of a node against a plain account: which rows it follows, of which table, what it tells others.

Histories have gaps, so what is an alarm depends on whether the node saw everything; tables are dropped and declared
again; more rows and operations come than are remembered; other members are there, fall silent or answer noise.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from oncegate.consensus.errors import ConsensusError
from oncegate.gateway.live_check import checker as checked
from oncegate.gateway.live_check.checker import LiveChecker
from oncegate.gateway.live_check.order import Requests, RowOrder, before_asked
from oncegate.gateway.live_check.recorder import Seen
from tests.live_check.test_order import true_history

ROWS_MAX, KEPT_MAX, KEPT_BYTES_MAX = 7, 25, 9_000


class Others:
    """Other members: each gives what it has checked, or nothing that can be read."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | None] = {}

    async def call(self, peer_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        answer = self.answers[peer_id]
        if answer is None:
            raise ConsensusError("it does not answer")
        return answer


def histories(seed: int) -> list[Seen]:
    """Histories of several tables, one after the other in every row, mixed; some operations are missing."""
    dice, mixed = random.Random(seed), list[Seen]()
    for at, table in enumerate("tuv"):
        history = true_history(3 * seed + at, 70)
        # Commit numbers of one cluster: every third is one of this table's.
        mixed += (_moved(one, table, lambda number, at=at: 3 * number + at if number else 0) for one in history)
    return [one for one in mixed if dice.random() > 0.15]


def _moved(seen: Seen, table: str, to: object) -> Seen:
    place = to
    assert callable(place)
    operand = seen.operand if not isinstance(seen.operand, int) else place(seen.operand)
    # What lies between two commits of a table is of others: a place is as far behind the commit as it was.
    return msgspec.structs.replace(
        seen, table=table, commit=place(seen.commit), floor=place(seen.floor), version=place(seen.version),
        request=f"{table}{seen.request}" if seen.request else "", operand=operand,
    )  # fmt: skip


class Account:
    """What the checker has to have found, row by row."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int | None], RowOrder] = {}
        self.requests = Requests(checked.REQUESTS_MAX)
        self.alarms: list[str] = []
        self.kept: list[Seen] = []

    def window(self, seen: list[Seen], since: dict[str, int | None], unknown: set[str], *, complete: bool) -> None:
        for one in sorted(seen, key=lambda one: (one.commit, one.request == "")):
            began = since[one.table]
            if began is None or 0 < began >= one.commit:
                continue
            order = self.rows.pop((one.row, began), None) or RowOrder()
            self.rows[one.row, began] = order  # the newest is the last
            if len(self.rows) > checked.ROWS_MAX:
                del self.rows[next(iter(self.rows))]
            unseen = not complete or one.row in unknown
            words = self.requests.add(one) or before_asked(one) or order.step(one, unseen=unseen)
            self.alarms += [words] if words else []
            self.kept.append(one)

    def newest(self) -> list[Seen]:
        size, found = 0, list[Seen]()
        for one in reversed(self.kept):
            size += 200 + len(one.value or b"") + len(one.argument or b"") + len(one.key)
            if len(found) == KEPT_MAX or size > KEPT_BYTES_MAX:
                break
            found.insert(0, one)
        return found


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "ROWS_MAX", ROWS_MAX)
    monkeypatch.setattr(checked, "RECENT_MAX", KEPT_MAX)
    monkeypatch.setattr(checked, "RECENT_BYTES_MAX", KEPT_BYTES_MAX)


@pytest.mark.parametrize("seed", range(16))
async def test_a_checker_follows_the_newest_rows_of_the_tables_that_are_there_and_tells_its_newest_operations(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 4 > 1:
        monkeypatch.setattr(
            checked, "ROWS_MAX", 100
        )  # then a row of a dropped table is remembered beside the new one's
    dice, others, account = random.Random(seed), Others(), Account()
    since: dict[str, int | None] = dict.fromkeys("tuv", 0)
    members: list[str] = []
    check = LiveChecker("n1", 1.0, 7, 1_000, others, lambda: members, since.__getitem__)
    history = sorted(histories(seed), key=lambda one: one.commit)
    last, alone, complete = history[-1].commit, True, True
    while history:
        size = dice.randint(1, 30)
        window, history = history[:size], history[size:]
        dice.shuffle(window)
        if dice.random() < 0.15:  # dropped, and perhaps declared again
            since[dice.choice("tuv")] = dice.choice((None, window[len(window) // 2].commit))
        if seed % 2 and dice.random() < 0.3:
            members[:] = dice.choice(([], ["n2"]))
        if dice.random() < 0.3:
            check.recorder.unknown.add(dice.choice(window).row)
        alone = alone and not members
        complete = complete and alone
        account.window(window, since, set(check.recorder.unknown), complete=complete)
        check.recorder.seen, check.recorder._floor = window, last + 1
        await check.check_window()
        assert check.complete == complete
        assert msgspec.msgpack.decode(check.serve(), type=list[Seen]) == account.newest()
        assert (check.operations, check.anomalies) == (len(account.kept), len(account.alarms))
        assert check.first_anomaly == (account.alarms[0] if account.alarms else "")
        assert len(check._rows) == len(account.rows)


@pytest.mark.parametrize("seed", range(8))
async def test_a_look_at_all_members_names_who_is_silent_and_finds_what_no_one_alone_can(seed: int) -> None:
    dice, others = random.Random(seed), Others()
    ids, shares = ["n1", "n2", "n3", "n4"], dict[str, list[Seen]]()
    history = true_history(seed, 40)
    twice = dice.choice([one for one in history if one.writes and not one.test])
    history.append(
        msgspec.structs.replace(twice, commit=history[-1].commit + 1, version=history[-1].commit + 1, floor=0)
    )
    began = dice.choice((0, 0, history[20].commit))  # what was before is of a dropped table of that name
    for node in ids:
        shares[node] = [one for one in history if dice.random() < 0.6]
        others.answers[node] = msgspec.msgpack.encode(shares[node])
    for node in ids[1:]:
        others.answers[node] = dice.choice((others.answers[node], others.answers[node], None, b"\xc1"))
    check = LiveChecker("n1", 1.0, 7, 1_000, others, lambda: ids[:0:-1], lambda _: began)
    check._kept.extend(shares["n1"])
    silent = [node for node in ids[1:] if others.answers[node] in (None, b"\xc1")]
    heard = [node for node in ids if node not in silent]
    found = (await check.report()).cluster
    assert (found.nodes, found.silent) == (heard, silent)
    together = [one for node in heard for one in shares[node]]
    there = [one for one in together if not began or one.commit > began]
    assert (found.operations, found.keys) == (len(together), len({one.row for one in there}))
    requests = {(one.request, one.commit) for one in there if one.logged}
    if len({request for request, _ in requests}) < len(requests):
        assert found.verdict == "anomaly"
        assert "was executed twice" in found.first_anomaly
        assert (check.verdict, check.anomalies) == ("anomaly", 1)
        await check.report()
        assert check.anomalies == 1, "found again, it is the same one"
    else:
        assert found.verdict == ("ok" if together else "unknown"), found.first_anomaly
