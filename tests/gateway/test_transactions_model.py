"""Transactions against a dumb reference: a copy of the rows is changed write by write, and kept if nothing refused.

The reference knows what a condition is, that all of them are judged on the rows before, and what a write does to a row;
it knows no commit trick and no table; of what an id has done, it knows the record that its first attempt got.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.rifl.errors import Code
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.rule import Replayed
from tests.gateway.test_transactions import Log, done, transaction

Place = tuple[str, str]
Rows = dict[Place, tuple[int, Any]]
"""Version and value of each row."""

places = st.tuples(st.sampled_from("tu"), st.sampled_from("ab"))
values = st.sampled_from((0, 1, 2, "x", [1]))
tests = st.one_of(
    st.sampled_from(({"absent": True}, {"present": True}, {"at_least": 1}, {"at_most": 1})),
    st.builds(lambda version: {"version": version}, st.integers(0, 12)),
    st.builds(lambda value: {"value": value}, values),
)
ifs = st.one_of(st.none(), tests)
bounds = st.sampled_from(({}, {"floor": 0}, {"ceiling": 2}, {"floor": -1, "ceiling": 1}))


def _write(place: Place, what: dict[str, Any], test: dict[str, Any] | None) -> dict[str, Any]:
    table, key = place
    return {**what, "table": table, "key": key, **({} if test is None else {"if": test})}


writes = st.one_of(
    st.builds(lambda place, value, test: _write(place, {"op": "put", "value": value}, test), places, values, ifs),
    st.builds(lambda place, test: _write(place, {"op": "delete"}, test), places, ifs),
    st.builds(
        lambda place, by, bound, test: _write(place, {"op": "increment", "by": by, **bound}, test),
        *(places, st.integers(-2, 2), bounds, ifs),
    ),
    st.builds(lambda place, item, test: _write(place, {"op": "append", "item": item}, test), places, values, ifs),
    st.builds(lambda place: _write(place, {"op": "get"}, None), places),
)
conditions = st.builds(lambda place, test: {"table": place[0], "key": place[1], "if": test}, places, tests)
transactions = st.tuples(st.lists(conditions, max_size=3), st.lists(writes, min_size=1, max_size=5))


def _holds(test: dict[str, Any], row: tuple[int, Any] | None) -> bool:
    ((name, operand),) = test.items()
    version, value = row or (0, None)
    number = value if isinstance(value, int) else 0 if row is None else None
    return {
        "absent": row is None,
        "present": row is not None,
        "version": version == operand,
        "value": row is not None and value == operand,
        "at_least": number is not None and number >= operand if name == "at_least" else False,
        "at_most": number is not None and number <= operand if name == "at_most" else False,
    }[name]


def _judged(rows: Rows, when: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> str:
    """Return the first condition, of the transaction and then of its writes, that the rows before do not meet."""
    named = [(f"conditions[{at}]", one) for at, one in enumerate(when)]
    named += [(f"writes[{at}]", one) for at, one in enumerate(wanted)]
    for name, one in named:
        if "if" in one and not _holds(one["if"], rows.get((one["table"], one["key"]))):
            return name
    return ""


def _after(rows: Rows, commit: int, wanted: list[dict[str, Any]]) -> tuple[str, Rows]:
    """Return which write refuses, and the rows behind all of them."""
    made = dict(rows)
    for at, one in enumerate(wanted):
        place, version = (one["table"], one["key"]), commit + 1 + at
        value = made[place][1] if place in made else None
        if one["op"] == "put":
            made[place] = version, one["value"]
        elif one["op"] == "delete":
            made.pop(place, None)
        elif one["op"] == "increment":
            if value is not None and not isinstance(value, int):
                return f"writes[{at}]", rows
            total = (value or 0) + one["by"]
            if total < one.get("floor", total) or total > one.get("ceiling", total):
                return f"writes[{at}]", rows
            made[place] = version, total
        elif one["op"] == "append":
            if value is not None and not isinstance(value, list):
                return f"writes[{at}]", rows
            made[place] = version, [*(value or []), one["item"]]
    return "", made


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), transactions), min_size=1, max_size=10))
def test_transactions_do_what_a_copy_of_the_rows_does_or_nothing_and_each_id_does_so_once(
    sent: list[tuple[int, tuple[list[Any], list[Any]]]],
) -> None:
    log, rows, commit, answered = Log(), dict[Place, tuple[int, Any]](), 0, dict[int, tuple[int, Any]]()
    for sequence, (when, wanted) in sent:
        one = transaction(sequence, *wanted, when=when)
        [verdict] = log.send(one)
        if sequence in answered:
            fingerprint, record = answered[sequence]
            if one.fingerprint == fingerprint:
                assert verdict == Replayed(SequenceNumber(sequence), record)
            else:
                assert verdict.refusal.code is Code.PAYLOAD_MISMATCH
        else:
            failed = _judged(rows, when, wanted)
            after = rows
            if not failed:
                failed, after = _after(rows, commit, wanted)
            result = done(verdict)
            assert result.failed == failed, (when, wanted)
            assert (result.refusal is None) is (not failed)
            commit += 1 if failed else len(wanted)
            rows = after
            answered[sequence] = one.fingerprint, verdict.record
            assert log.send(one) == [Replayed(SequenceNumber(sequence), verdict.record)]
        assert log.machine.commit == commit
        assert {place: (version, msgspec.json.decode(value)) for place, (version, value) in log.rows().items()} == rows
        for table in "tu":
            held = log.machine.tables[table]
            assert held.bytes == sum(len(key) + len(row.value) + 120 for key, row in held.rows.items())
