"""Requests under idempotency keys: effect and record in one transition, forgotten in order, never silently repeated."""

from __future__ import annotations

from typing import Any

import pytest

from oncegate.gateway.answers import request_state
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Operated
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.key_table import KEYS_CLIENT, NO_TIME, KeyTable
from tests.gateway.logs import told
from tests.gateway.test_machine import Log, increment, op, put, started

HOUR = 3_600_000


def keyed(log: Log, *ops: tuple[str, c.Op], at: int | None = None, named_ms: int = NO_TIME, tenant: str = "") -> Any:
    """Return a verdict per operation: the code of a refusal, else (number, commit, value, replayed)."""
    command = c.Keyed(HOUR, [c.KeyedOp(key, named_ms, operation) for key, operation in ops], tenant)
    [result] = log.do(command, at=at)
    assert isinstance(result, Operated)
    return [
        code if record is None else (number, record.commit, record.result and record.result.value, replayed)
        for number, code, record, replayed in map(told, result.verdicts)
    ]


def test_same_key_replays_and_another_payload_is_refused() -> None:
    log = started()
    assert keyed(log, ("a", increment(0, 5))) == [(1, 1, b"5", False)]
    assert keyed(log, ("b", increment(0, 5))) == [(2, 2, b"10", False)]
    assert keyed(log, ("a", increment(0, 5))) == [(1, 1, b"5", True)]
    assert keyed(log, ("a", increment(0, 6)), ("a", put(0))) == [Code.PAYLOAD_MISMATCH] * 2
    assert log.value("n") == 10


def test_duplicates_in_one_request_or_one_entry_apply_once() -> None:
    log = started()
    assert keyed(log, ("a", increment(0)), ("a", increment(0))) == [(1, 1, b"1", False), (1, 1, b"1", True)]
    command = c.Keyed(HOUR, [c.KeyedOp("b", NO_TIME, increment(0))])
    one, two = log.do(command, command)
    assert [told(one.verdicts[0])[3], told(two.verdicts[0])[3]] == [False, True]
    assert log.value("n") == 2


def test_business_refusals_are_remembered_and_rejections_are_not() -> None:
    """Case 31."""
    log = started()
    log.one(put(1, "x"))
    absent = put(0, "y", test=int(c.Test.ABSENT))
    assert keyed(log, ("a", absent)) == [(1, 2, b'"x"', False)]
    log.one(op(2, c.OpKind.DELETE))
    assert keyed(log, ("a", absent)) == [(1, 2, b'"x"', True)]
    assert keyed(log, ("b", put(0, table="later"))) == [Code.NOT_FOUND]
    log.do(c.DeclareTable("later", "resident", 1 << 20))
    assert keyed(log, ("b", put(0, table="later"))) == [(2, 4, None, False)]


def test_key_is_remembered_for_its_lifetime_and_then_refused_where_it_names_a_time() -> None:
    log = started()
    at = log.now + 5_000
    assert keyed(log, ("plain", increment(0)), at=at) == [(1, 1, b"1", False)]
    assert keyed(log, ("named", increment(0)), named_ms=4_000) == [(2, 2, b"2", False)]
    assert keyed(log, ("future", increment(0)), named_ms=at + 1) == [Code.BAD_REQUEST]
    late = at + HOUR
    assert keyed(log, ("plain", increment(0)), ("named", increment(0)), at=late)[1] == (2, 2, b"2", True)
    log.do(c.ForgetKeys(), at=late + 1)
    assert keyed(log, ("named", increment(0)), named_ms=4_000) == [Code.SESSION_EXPIRED]
    assert keyed(log, ("other", increment(0)), named_ms=at) == [Code.SESSION_EXPIRED]
    assert keyed(log, ("other", increment(0)), named_ms=at + 1) == [(3, 3, b"3", False)]
    assert keyed(log, ("plain", increment(0))) == [(4, 4, b"4", False)], "its age cannot be told"


def test_tenants_keys_never_meet() -> None:
    """Case 3."""
    log = started()
    keyed(log, ("a", increment(0, 5)))
    assert keyed(log, ("a", increment(0, 5)), tenant="bob") == [(2, 2, b"10", False)]
    assert request_state(log.machine, KEYS_CLIENT, 1).state == "applied"
    assert request_state(log.machine, KEYS_CLIENT, 1, "bob").state == "never_seen"
    [refused] = log.do(c.Resolve(KEYS_CLIENT, 1, tenant="bob"))
    assert refused.code is Code.NOT_FOUND
    [resolved] = log.do(c.Resolve(KEYS_CLIENT, 2, tenant="bob"))
    assert resolved.resolution.record.commit == 2


def test_flow_items_carry_the_request_id_that_the_key_was_mapped_to() -> None:
    log = started()
    keyed(log, ("a", put(0, "x", table="s")), ("b", put(0, "y", table="s")))
    run = log.machine.flows.get("s").segment.run_view()
    assert list(run.client_ids) == [KEYS_CLIENT] * 2
    assert list(run.sequences) == [1, 2]


def test_keys_whose_time_is_over_never_pile_up() -> None:
    log = started()
    for number in range(20):
        keyed(log, (f"k{number}", put(0)), at=number * (HOUR + 1))
        assert len(log.machine.keys) <= 1


@pytest.mark.parametrize("loses", [True, False])
def test_execution_without_a_remembered_key_or_a_key_without_execution_raises(
    loses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request under that key would find nothing and execute again, or be answered for what never ran."""
    log = started()
    if loses:
        monkeypatch.setattr(KeyTable, "add", lambda *_: None)
    else:
        monkeypatch.setattr(Machine, "execute", lambda _, __, slot, *rest: slot.record(1, 7, 1) and Code.NOT_FOUND)
    with pytest.raises(InvariantViolation, match="key 1 "):
        keyed(log, ("a", increment(0)))
