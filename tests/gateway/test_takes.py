"""Taking the first rows of a prefix: who gets which, how they come back, and that it happens once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway import answers, wire
from oncegate.gateway.explain.memory import EXECUTED
from oncegate.gateway.explain.search import Mention, OfKey, Search
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ending, fronts
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.machine.row_ends import BOUND_ROWS_MAX, Life
from oncegate.gateway.machine.row_rule import counted
from oncegate.gateway.machine.tables import Table
from oncegate.gateway.machine.transactions import Taken, Took
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.rule import Replayed
from tests.gateway.state_harness import Fed
from tests.gateway.test_transactions import Log, done, put, transaction

LEASE_MS = 5_000


def take(count: int = 1, **more: Any) -> dict[str, Any]:
    return {"op": "take", "table": "t", "key": "r/", "to": "x/", "count": count, **({"bound": True} | more)}


def took(verdict: Any) -> list[Taken]:
    result = done(verdict)
    assert isinstance(result, Took)
    return result.taken


def of(verdict: Any) -> list[tuple[str, Any]]:
    return [(row.key, row.value) for row in took(verdict)]


@given(st.integers(1, 5), st.integers(0, 3))
def test_rows_that_come_back_with_their_session_are_one_transition_at_all_its_numbers(taken: int, bound: int) -> None:
    log = Log()
    log.transact(1, *(put("t", f"r/{n}", [0]) for n in range(taken)))
    for n in range(bound):
        log.transact(2 + n, put("t", f"b/{n}", 1) | {"bound": True})
    log.transact(2 + bound, take(taken))
    before = log.machine.commit
    log.do(c.CloseSession(1, 1))
    last = log.machine.commit
    assert last == before + 2 * taken + bound
    history = ChangeHistory(1_000, 2**20, before)
    history.record(log.machine.changes, last, log.machine.joined)
    assert [history.end_of(commit) for commit in range(before, last + 1)] == [before] + [last] * (last - before)


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_row_that_moves_at_its_time_is_one_transition_at_both_its_numbers(moves: list[bool]) -> None:
    log = Log()
    for n, goes_on in enumerate(moves):
        log.transact(1 + n, put("t", f"l/{n}", 1, ttl_ms=100, **({"then": f"r/{n}"} if goes_on else {})))
    log.now_ms, before = 1_000, log.machine.commit
    log.do(c.EndRows({"t": [f"l/{n}" for n in range(len(moves))]}))
    history, ends = ChangeHistory(1_000, 2**20, before), [before]
    history.record(log.machine.changes, log.machine.commit, log.machine.joined)
    for goes_on in moves:
        ends += [ends[-1] + 2] * 2 if goes_on else [ends[-1] + 1]
    assert [history.end_of(commit) for commit in range(before, log.machine.commit + 1)] == ends
    assert [change[1] for change in log.machine.changes] == ends[1:]


def test_first_rows_are_moved_and_counted_and_nobody_else_gets_them() -> None:
    log = Log()
    log.transact(1, *(put("t", f"r/{key}", [0, key]) for key in "cab"), put("t", "r", 1), put("t", "s/", 1))
    verdict = log.transact(2, put("t", "beside", 1), take(2))
    commit = verdict.record.commit
    assert took(verdict) == [Taken("x/a", commit + 3, b'[1,"a"]'), Taken("x/b", commit + 5, b'[1,"b"]')]
    assert log.machine.commit == commit + 5 == done(verdict).last_of(commit), "the number that it is told under"
    assert log.row("x/a").life == Life(0, 1, "r/a")  # type: ignore[union-attr]
    assert of(log.transact(3, take(9))) == [("x/c", b'[1,"c"]')]
    assert of(log.transact(4, take(9))) == []
    assert sorted(key for _, key in log.rows()) == ["beside", "r", "s/", "x/a", "x/b", "x/c"]
    assert len({version for version, _ in log.rows().values()}) == 6


@pytest.mark.parametrize("columns", [False, True])
def test_rows_put_by_themselves_are_taken_also_when_no_row_ends_any_more(columns: bool) -> None:
    """The table remembers the front of the prefix since the first take: they take no way around that."""
    log = Log()
    log.transact(1, put("t", "r/m", [0]))
    assert len(took(log.transact(2, take(bound=False, ttl_ms=100)))) == 1
    log.now_ms = 1_000
    log.do(c.EndRows({"t": ["x/m"]}))
    assert not len(log.machine.ends)
    keys = ["a", "b", "y", "z"] * 3
    ops = [c.Op(n, int(c.OpKind.PUT), "t", f"r/{key}", n, b"[0]") for n, key in enumerate(keys, 3)]  # type: ignore[arg-type]
    command = c.Operate(1, 1, 1, ops)  # type: ignore[arg-type]
    log.do(in_columns(command) if columns else command)
    assert [row.key for row in took(log.transact(15, take(9, bound=False)))] == ["x/a", "x/b", "x/m", "x/y", "x/z"]


def test_retry_gets_the_same_rows_and_takes_no_others() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0]), put("t", "r/b", [0]))
    sent = transaction(2, take())
    [first] = log.send(sent)
    [again] = log.send(sent)
    assert isinstance(again, Replayed)
    assert again.record == first.record
    assert of(first) == [("x/a", b"[1]")]


def test_rows_come_back_under_their_own_keys_with_their_session_and_with_time() -> None:
    log = Log()
    log.transact(1, *(put("t", f"r/{key}", [0]) for key in "abc"))
    log.transact(2, take(2))
    [endings] = log.do(c.CloseSession(1, 1))
    first = endings.rows[0].commit
    assert [(one.key, one.then, one.commits) for one in endings.rows] == [("x/a", "r/a", 2), ("x/b", "r/b", 2)]
    assert [(key, log.rows()["t", key]) for key in ("r/a", "r/b")] == [
        ("r/a", (first + 1, b"[1]")),
        ("r/b", (first + 3, b"[1]")),
    ]
    assert [change[:2] for change in log.machine.changes] == [(first + at, first + 3) for at in range(4)], "together"
    log.do(c.Operate(2, 1, SequenceNumber(1), [transaction(1, take(1, bound=False, ttl_ms=100))]))
    log.now_ms = 300
    log.do(c.EndRows({"t": ["x/a"]}))
    assert log.value("r/a") == [2]
    assert log.machine.tables["t"].ending == len(log.machine.ends) == 0


def test_item_that_is_put_with_a_delay_is_moved_when_it_is_over() -> None:
    log = Log()
    later = {"numbered": True, "then": "r/", "ttl_ms": 50}
    commit = log.transact(1, put("t", "l/", [0, "x"], **later)).record.commit
    assert [key for _, key in log.rows()] == [f"l/{commit:019d}"]
    assert of(log.transact(2, take())) == []
    log.now_ms = 200
    log.do(c.EndRows(log.machine.ends.due(200, 10)))
    assert of(log.transact(3, take())) == [(f"x/{commit:019d}", b'[1,"x"]')]


def test_numbered_puts_have_keys_that_rise_with_their_commit_numbers() -> None:
    log = Log()
    verdict = log.transact(1, put("t", "a", 1), put("t", "r/", "x", numbered=True), put("t", "r/", "y", numbered=True))
    keys = [f"r/{verdict.record.commit + at:019d}" for at in (1, 2)]
    assert [log.value(key) for key in keys] == ["x", "y"]


def test_rows_that_the_transaction_writes_itself_are_not_taken() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0]), put("t", "r/b", [0]))
    assert of(log.transact(2, put("t", "r/a", [5]), put("t", "r/0", [5]), take(9))) == [("x/b", b"[1]")]
    assert of(log.transact(3, put("t", "x/a", [7]), take(1))) == [("x/0", b"[6]")]
    assert of(log.transact(4, put("t", "x/a", [7]), take(1))) == [("x/a", b"[6]")]
    assert log.value("x/a") == [6]


def test_values_end_a_take_at_64_kib_but_for_the_first_which_is_told_without_its_value() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0, "v" * 70_000]), put("t", "r/b", [0]), put("t", "r/c", [0, "v" * 65_000]))
    assert of(log.transact(2, take(9))) == [("x/a", None)]
    assert [key for key, _ in of(log.transact(3, take(9)))] == ["x/b", "x/c"]


def test_a_full_table_can_be_taken_from() -> None:
    log = Log()
    log.transact(1, put("small", "r/a", [0, "v" * 170]))
    assert log.transact(2, put("small", "r/b", [0])).refusal.code is Code.QUOTA
    assert of(log.transact(3, take() | {"table": "small"})) == [("x/a", b'[1,"%s"]' % (b"v" * 170))]
    log.transact(4, {"op": "delete", "table": "small", "key": "x/a"})
    assert log.machine.tables["small"].bytes == 0


def test_a_session_takes_as_many_rows_as_may_be_bound_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    table = log.machine.tables["t"]
    log.transact(1, *(put("t", f"r/{at}", [0]) for at in range(4)))
    monkeypatch.setattr(Table, "room_to_end", lambda self, owner, more=0: 3 - self.ends.bound(owner) - more)
    assert len(of(log.transact(2, take(9)))) == 3
    assert log.transact(3, take(9)).refusal.code is Code.QUOTA
    monkeypatch.undo()
    assert table.room_to_end(1) == BOUND_ROWS_MAX - 3
    assert len(of(log.transact(3, take(9)))) == 1


def test_rows_of_a_dropped_table_end_for_good() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0]), put("t", "r/b", [0]))
    log.transact(2, take())
    log.do(c.DropTable("t", 1, force=True))
    log.do(c.CloseSession(1, 1))
    log.do(c.SweepTables())
    assert not log.machine.closing


def test_rows_of_a_restored_cluster_come_back_although_their_sessions_are_gone() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0]))
    log.now_ms = 100
    log.transact(2, take())
    ending.begin_anew(log.machine, 5_000)
    log.now_ms = 300
    log.do(c.EndRows(log.machine.ends.due(300, 10)))
    assert [(place, value) for place, (_, value) in log.rows().items()] == [(("t", "r/a"), b"[1]")]


def test_what_is_under_keys_takes_without_a_session() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0]))
    bound, timed = (transaction(1, take(bound=how, **more)) for how, more in ((True, {}), (False, {"ttl_ms": 5})))
    for key, one, code in (("k1", bound, Code.BAD_REQUEST), ("k2", timed, None)):
        [told] = log.do(c.Keyed(1_000, [c.KeyedOp(key, -1, one)]))[0].verdicts  # type: ignore[arg-type]
        assert (None if code is None else told.refusal.code) == code


@pytest.mark.parametrize(
    ("value", "after"),
    [
        (b"[0]", b"[1]"), (b'[9,"x"]', b'[10,"x"]'), (b"[]", b"[]"), (b"[-1]", b"[-1]"), (b"[1.5]", b"[1.5]"),
        (b"[1e3]", b"[1e3]"), (b"7", b"7"), (b'"[1]"', b'"[1]"'), (b'["1"]', b'["1"]'), (b"[" + b"9" * 16 + b"]",) * 2,
        (b"[999999999999999]", b"[1000000000000000]"), (b"[[1],2]", b"[[1],2]"), (b'{"a":1}', b'{"a":1}'),
    ],
)  # fmt: skip
def test_a_list_that_begins_with_a_count_has_one_more_there(value: bytes, after: bytes) -> None:
    assert counted(value) == after


@pytest.mark.parametrize(
    "wrong",
    [
        [take(), put("t", "a", 1)], [take(0)], [take(c.TAKE_MAX + 1)], [take(to="r/")], [take(to="r/a")],
        [take(to="r")], [take(to="xx/")], [take(to="")], [take(key="")], [take(value=1)], [take(then="a")],
        [take(numbered=True)],
        [take(**{"if": {"absent": True}})], [take(ttl_ms=0)], [put("t", "a", 1, then="b")], [put("t", "a", 1, count=1)],
        [put("t", "a", 1, then="a", ttl_ms=1)], [put("t", "a", 1, then="bb", ttl_ms=1)], [put("t", "a", 1, to="b")],
        [put("t", "a", 1, numbered=True, **{"if": {"absent": True}})],
        [{"op": "increment", "table": "t", "key": "a", "numbered": True}],
    ],
)  # fmt: skip
def test_writes_that_cannot_be_are_refused_before_anything_is_proposed(wrong: list[dict[str, Any]]) -> None:
    with pytest.raises(OncegateError) as refused:
        transaction(1, *wrong)
    assert refused.value.code in (Code.BAD_REQUEST, Code.PAYLOAD_TOO_LARGE)


def test_how_many_rows_a_take_moves_is_in_its_fingerprint() -> None:
    [one, other] = (request_bodies.transaction(msgspec.json.encode({"writes": [take(n)]}), wire.JSON) for n in (1, 2))
    assert one.fingerprint != other.fingerprint


def test_answer_tells_the_rows_and_its_commit_number_is_the_last() -> None:
    log = Log()
    log.transact(1, put("t", "r/a", [0, "x"]), put("t", "r/b", [0, "y"]))
    [result] = log.do(command := c.Operate(1, 1, SequenceNumber(1), [transaction(2, put("t", "z", 1), take(2))]))
    made = answers.answer(command, result, log.machine)
    writes = made.body.results[0].writes
    assert writes[-1].commit == log.machine.commit
    assert [(row.key, row.value) for row in writes[-1].rows] == [("x/a", [1, "x"]), ("x/b", [1, "y"])]


@pytest.mark.parametrize("own", ["", "own"], ids=["numbered", "named"])
def test_explain_finds_the_takes_of_a_row_and_its_way_back(own: str) -> None:
    log = Log()
    commit = log.transact(1, put("t", f"r/{own}", [0], **({} if own else {"numbered": True}))).record.commit
    tail = own or f"{commit:019d}"
    log.transact(2, put("t", "other", 1))
    taken = log.transact(3, take()).record.commit
    log.do(c.CloseSession(1, 1))
    back = log.machine.commit
    for key, expected in (
        (f"r/{tail}", [("put", commit), ("take", taken + 1), ("session end", back)]),
        (f"x/{tail}", [("take", taken + 2), ("session end", back - 1)]),
    ):
        search, found = Search(OfKey("t", key), log.verdicts), list[Any]()
        for index, entry in enumerate(log.entries, 1):
            found += [one for one in search.entry(entry, index, 1) if isinstance(one, Mention)]
        assert [(one.op, one.did.commit) for one in found if one.did.what == EXECUTED] == expected


KEYS = ("r/a", "r/b", "r/c", "r/d", "x/a", "x/b", "l/a")
puts = st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from((0, 0, 90, 2_000)), st.booleans())
takes = st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 4), st.sampled_from((0, 0, 100)), st.booleans())
others = st.one_of(
    st.tuples(st.just("number"), st.integers(0, 1)),
    st.tuples(st.sampled_from(("delete", "plain", "plain")), st.sampled_from(KEYS)),
    st.tuples(st.just("time"), st.sampled_from((1, 99, 1_000, 6_000))),
    st.tuples(st.sampled_from(("close", "replay")), st.integers(0, 1)),
    st.tuples(st.sampled_from(("save", "restart", "snapshot"))),
)


class Tried:
    """A machine on disk, and what a dictionary says that its rows are."""

    def __init__(self, path: Path) -> None:
        self.path, self.copies = path, 0
        self.fed = Fed(path / "s0")
        self.now = self.nonce = 0
        self.rows: dict[str, tuple[Any, Life | None]] = {}
        self.numbers: dict[int, int] = {}
        self.sent: dict[int, tuple[c.Command, Any]] = {}
        self.do(c.DeclareTable("t", "resident", 1 << 20))
        self.sessions = [self.open(), self.open()]

    def do(self, *commands: c.Command) -> list[Any]:
        return self.fed.do(*commands, at_ms=self.now)

    def open(self) -> int:
        self.nonce += 1
        client = int(self.do(c.OpenSession(f"n{self.nonce}", c.TTL_MS_MAX, 512))[0].client_id)
        self.numbers[client] = 0
        return client

    def send(self, who: int, *writes: dict[str, Any]) -> Any:
        client = self.sessions[who]
        self.numbers[client] += 1
        command = c.Operate(client, 1, SequenceNumber(1), [transaction(self.numbers[client], *writes)])
        [result] = self.do(command)
        self.sent[client] = command, result.verdicts[0].record
        return result.verdicts[0].record

    def put(self, key: str, ttl_ms: int, moves: bool) -> None:
        then = "r/" + key[2:] if moves and ttl_ms and key[0] != "r" else ""
        more = {"ttl_ms": ttl_ms} if ttl_ms else {}
        record = self.send(0, put("t", key, [0, key], **more, **({"then": then} if then else {})))
        self.rows[key] = [0, key], (Life(self.now + ttl_ms, 0, then) if ttl_ms else None)
        assert record.result.refusal is None

    def plain(self, key: str) -> None:
        """Put a row by an operation of its own: where nothing ends or was taken, it takes a shorter way."""
        client = self.sessions[0]
        self.numbers[client] += 1
        value = msgspec.json.encode([0, key])
        op = c.Op(
            SequenceNumber(self.numbers[client]), int(c.OpKind.PUT), "t", key, c.fingerprint_put("t", key, value), value
        )
        [result] = self.do(command := c.Operate(client, 1, SequenceNumber(1), [op]))
        self.sent[client] = command, result.verdicts[0].record
        self.rows[key] = [0, key], None

    def number(self, who: int) -> None:
        record = self.send(who, put("t", "r/", [0], numbered=True))
        self.rows[f"r/{record.commit:019d}"] = [0], None

    def delete(self, key: str) -> None:
        self.send(1, {"op": "delete", "table": "t", "key": key})
        self.rows.pop(key, None)

    def take(self, who: int, count: int, ttl_ms: int, bound: bool) -> None:
        more = {"bound": bound} | ({"ttl_ms": ttl_ms} if ttl_ms else {})
        told = self.send(who, take(count, **more)).result.taken
        expected = sorted(key for key in self.rows if key.startswith("r/"))[:count]
        assert [row.key for row in told] == ["x/" + key[2:] for key in expected]
        for key, row in zip(expected, told, strict=True):
            [times, *rest], _ = self.rows.pop(key)
            ends, owner = (self.now + ttl_ms if ttl_ms else 0), (self.sessions[who] if bound else 0)
            life = Life(ends, owner, key) if ends or owner else None
            self.rows[row.key] = [times + 1, *rest], life
            assert msgspec.json.decode(row.value) == [times + 1, *rest]

    def replay(self, who: int) -> None:
        """Send the newest request of a session again: the same answer, and nothing changes."""
        if self.sessions[who] in self.sent:
            command, record = self.sent[self.sessions[who]]
            assert self.do(command)[0].verdicts[0].record == record

    def ended(self, keys: list[str]) -> None:
        for key in keys:
            value, life = self.rows.pop(key)
            if life is not None and life.then:
                self.rows[life.then] = value, None

    def close(self, who: int) -> None:
        client = self.sessions[who]
        self.do(c.CloseSession(client, 1))
        self.ended(sorted(key for key, (_, life) in self.rows.items() if life and life.owner == client))
        self.sessions[who] = self.open()

    def time(self, ms: int) -> None:
        self.now += ms
        self.do()
        for keys in self.fed.machine.ends.due(self.now, c.END_MAX).values():
            self.do(c.EndRows({"t": keys}))
            self.ended(keys)

    def copy(self, what: str) -> None:
        self.copies += 1
        self.fed = self.fed.after(what, self.path / f"s{self.copies}")

    def check(self) -> None:
        table = self.fed.machine.tables["t"]
        found = {key: (msgspec.json.decode(row.value), row.life) for key, row in table.rows.items()}
        assert found == self.rows
        assert table.ending == len(self.fed.machine.ends) == sum(life is not None for _, life in self.rows.values())
        assert table.bytes == sum(len(key) + len(row.value) + 120 for key, row in table.rows.items())

    def check_front(self) -> None:
        """Look at the front as a take does; that alone, and no check, lets a table keep fronts."""
        table = self.fed.machine.tables["t"]
        assert [key for key, _ in table.first_rows("r/")] == sorted(key for key in self.rows if key.startswith("r/"))


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(puts | takes | takes | others, max_size=30), kept=st.sampled_from((1, 2, 512)))
def test_takes_are_what_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[Any, ...]], kept: int
) -> None:
    path = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fronts, "KEPT_KEYS", kept)
        patch.setattr(fronts, "FRONTS_MAX", kept)
        tried = Tried(path)
        for what, *more in plan:
            if what in ("save", "restart", "snapshot"):
                tried.copy(what)
            else:
                getattr(tried, what)(*more)
            tried.check()
        tried.check_front()
        tried.fed.close()
    shutil.rmtree(path)
