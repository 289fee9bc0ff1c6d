"""What writes of sessions and transactions order, field by field, what they are charged for, and which order nothing.

The tenant, the place in the session and the trace of a request are those of its token and headers; the tables are those
that its token may write; a request about another tenant's session costs no entry.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.http.routes import operations, transactions
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT
from tests.gateway.lagging_node import Asked, LaggingNode, Told, refusal, told
from tests.gateway.test_flow_routes import MINE

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BOB = MINE._replace(tenant="bob")
ID = format_client_id(1)


@pytest.fixture
def node() -> LaggingNode:
    """A node that has tables of two prefixes, and a session of ann's with the id 1."""
    made = LaggingNode()
    made.commit(c.DeclareTable("a.t", "resident", 1 << 20), c.DeclareTable("b.t", "resident", 1 << 20))
    made.commit(c.DeclareTable("a.s", "stream", 1 << 20), c.OpenSession("n", 3_600_000, 512, "ann"))
    made.catch_up()
    return made


def placed(sequence: int, first_incomplete: int = 1, epoch: int = 1) -> dict[str, str]:
    place = {wire.H_EPOCH: str(epoch), wire.H_FIRST_INCOMPLETE: str(first_incomplete)}
    return {wire.H_REQUEST: f"{ID}/{sequence}", "traceparent": TRACE, **place}


def write(table: str = "a.t", key: str = "k", **more: Any) -> dict[str, Any]:
    return {"op": "put", "table": table, "key": key, "value": 1, **more}


async def refused_without_an_entry(node: LaggingNode, handler: Any, body: Any, **how: Any) -> Code:
    asked = Asked(node, body, **how)
    with pytest.raises(OncegateError) as refused:
        await handler(asked)
    assert not node.ordered
    return refused.value.code


async def test_transaction_is_ordered_under_its_place_or_key_with_tenant_and_trace(node: LaggingNode) -> None:
    sent = {"writes": [write(), write(key="l")], "conditions": [{"table": "a.t", "key": "m", "if": {"absent": True}}]}
    asked = Asked(node, sent, identity=MINE, headers=placed(5, 3))
    done = Told(await transactions.transact(asked))  # type: ignore[arg-type]
    [(command, size)] = node.ordered
    given = command.client_id, command.epoch, command.first_incomplete, command.tenant, command.traceparent
    assert given == (1, 1, 3, "ann", TRACE)
    assert [op.sequence for op in command.ops] == [5]
    assert (size, asked.charged) == (len(asked.body), [3]), "its condition on a row counts as a write does"
    assert (done.body["request"], done.headers[wire.H_REQUEST]) == (f"{ID}/5", f"{ID}/5")
    keyed = {wire.H_IDEMPOTENCY_KEY: '"k1"', "traceparent": TRACE}
    done = await told(transactions.transact, node, {"writes": [write()]}, identity=MINE, headers=keyed)
    command, _ = node.ordered[-1]
    assert (command.tenant, command.traceparent, command.lifetime_ms) == ("ann", TRACE, 60_000)
    assert [item.key for item in command.ops] == ["kk1"]
    assert done.headers[wire.H_REQUEST] == f"{format_client_id(KEYS_CLIENT)}/1"


async def test_transaction_of_anothers_session_or_table_or_bound_to_no_session_orders_nothing(
    node: LaggingNode,
) -> None:
    transact, keyed = transactions.transact, {wire.H_IDEMPOTENCY_KEY: '"k1"'}
    for headers in (placed(1), keyed):
        for body in (
            {"writes": [write(), write("b.t")]},
            {"writes": [write()], "conditions": [{"table": "b.t", "key": "m", "if": {"absent": True}}]},
        ):
            found = await refused_without_an_entry(node, transact, body, identity=MINE, headers=headers)
            assert found is Code.FORBIDDEN
    one = {"writes": [write()]}
    assert await refused_without_an_entry(node, transact, one, identity=BOB, headers=placed(1)) is Code.FORBIDDEN
    bound = {"writes": [write(), write(key="l", bound=True)]}
    assert await refused_without_an_entry(node, transact, bound, identity=MINE, headers=keyed) is Code.BAD_REQUEST
    assert (await told(transact, node, bound, identity=MINE, headers=placed(1))).status == 200


async def test_operations_are_ordered_for_their_owner_on_its_tables_and_charged_one_by_one(node: LaggingNode) -> None:
    many = [{"sequence": at, **write(key=f"k{at}")} for at in (1, 2)]
    sent = {"client_id": ID, "epoch": 1, "first_incomplete": 1, "operations": many}
    assert await refused_without_an_entry(node, operations.operate, sent, identity=BOB) is Code.FORBIDDEN
    beyond = {**sent, "operations": [*many, {"sequence": 3, **write("b.t")}]}
    assert await refused_without_an_entry(node, operations.operate, beyond, identity=MINE) is Code.FORBIDDEN
    asked = Asked(node, sent, identity=MINE, headers={"traceparent": TRACE})
    assert (await operations.operate(asked)).status == 200  # type: ignore[arg-type]
    [(command, size)] = node.ordered
    assert (command.client_id, command.tenant, command.traceparent) == (1, "ann", TRACE)
    assert (size, asked.charged) == (len(asked.body), [2])


async def test_range_is_ordered_for_its_owner_and_charged_for_each_row(node: LaggingNode) -> None:
    rows = msgspec.msgpack.encode({"keys": ["x", "y", "z"], "values": ["1", "2", "3"]})
    place = {wire.H_CLIENT: ID, wire.H_EPOCH: "1", wire.H_FIRST_SEQUENCE: "4", wire.H_FIRST_INCOMPLETE: "2"}
    how: Any = {"headers": {**place, "traceparent": TRACE}, "kind": wire.MSGPACK, "table": "a.s"}
    assert await refused_without_an_entry(node, operations.put_range, rows, identity=BOB, **how) is Code.FORBIDDEN
    asked = Asked(node, rows, identity=MINE, **how)
    assert (await operations.put_range(asked)).status == 200  # type: ignore[arg-type]
    [(command, _)] = node.ordered
    given = command.client_id, command.epoch, command.first_incomplete, command.table, command.first
    assert (given, command.tenant, command.traceparent) == ((1, 1, 2, "a.s", 4), "ann", TRACE)
    assert asked.charged == [3]


async def test_request_is_looked_up_as_the_log_has_it_and_resolved_for_its_owner_alone(node: LaggingNode) -> None:
    made: Any = c.Op
    operate: Any = c.Operate
    node.commit(operate(1, 1, 1, [made(1, int(c.OpKind.PUT), "a.t", "k", 1, b"1")], "ann"))
    path: Any = {"client_id": ID, "sequence": "1"}
    assert (await refusal(operations.request_of, node, identity=BOB, **path)).code is Code.FORBIDDEN
    assert (await told(operations.request_of, node, identity=MINE, **path)).body["state"] == "applied"
    assert await refused_without_an_entry(node, operations.resolve, None, identity=BOB, **path) is Code.FORBIDDEN
    resolve: Any = c.Resolve
    for body, epoch, acknowledged in ((None, 0, 1), ({"epoch": 1, "first_incomplete": 2}, 1, 2)):
        await told(operations.resolve, node, body, identity=MINE, client_id=ID, sequence="2")
        assert node.ordered.pop()[0] == resolve(1, 2, epoch, acknowledged, "ann")
    keyed = {wire.H_IDEMPOTENCY_KEY: '"k1"'}
    await told(transactions.transact, node, {"writes": [write()]}, identity=MINE, headers=keyed)
    of_key: Any = {"client_id": format_client_id(KEYS_CLIENT), "sequence": "1"}
    states = [(await told(operations.request_of, node, identity=one, **of_key)).body["state"] for one in (MINE, BOB)]
    assert states[0] == "applied"
    assert states[1] != "applied", "another tenant's key is told to nobody else"
