"""Flows inside the state machine: taps, cuts, quotas, retention, and typed refusals."""

from __future__ import annotations

import pytest

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine.flow_state import FlowTable, declaration_of
from oncegate.rifl.errors import Code, OncegateError

TABLES = ("t", "u", "v")


def flow(name: str = "f", source: str = "t", **fields: object) -> FlowDeclaration:
    return FlowDeclaration(name=name, source=source, **fields)  # type: ignore[arg-type]


def declared(*flows: FlowDeclaration) -> FlowTable:
    table = FlowTable()
    for declaration in flows:
        table.declare(declaration, TABLES, 0)
    return table


def append(table: FlowTable, *commits: int, source: str = "t", now_ms: int = 0) -> None:
    for commit in commits:
        table.append_one(source, commit, f"k{commit}", b"1", now_ms, 1, commit)


def refusal(call: object, *args: object, **kwargs: object) -> Code:
    with pytest.raises(OncegateError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    return caught.value.code


def test_write_goes_to_every_flow_of_its_table_and_to_no_other() -> None:
    table = declared(flow("one"), flow("two"), flow("other", "u"))
    append(table, 1, 2)
    assert [table.get(name).segment.items for name in ("one", "two", "other")] == [2, 2, 0]
    append(table, 3, source="v")
    assert (table.is_tapped("t"), table.is_tapped("v")) == (True, False)


def test_seal_of_another_number_or_of_nothing_changes_nothing() -> None:
    table = declared(flow())
    assert table.seal("f", 1, 0) == 0
    append(table, 1)
    assert table.seal("f", 2, 0) == 0
    assert table.seal("f", 1, 0) == 1
    append(table, 2)
    assert table.seal("f", 1, 0) == 1, "a late copy of the first seal"
    assert table.get("f").segment.items == 1


def test_declaration_is_idempotent_and_refuses_conflicts_cycles_and_unknown_tables() -> None:
    table = declared(flow("a", "t", target="u"), flow("b", "u", target="v"))
    assert table.declare(flow("a", "t", target="u"), TABLES, 0) == "a"
    assert table.names() == ["a", "b"]
    assert len(table.of_table("t")) == 1
    assert refusal(table.declare, flow("a", "t"), TABLES, 0) is Code.CONFLICT
    assert refusal(table.declare, flow("c", "v", target="t"), TABLES, 0) is Code.BAD_REQUEST
    assert refusal(table.declare, flow("d", "nowhere"), TABLES, 0) is Code.NOT_FOUND
    assert table.names() == ["a", "b"]
    assert not table.is_tapped("v")


@pytest.mark.parametrize("attached", range(4))
@pytest.mark.parametrize("removed", [False, True])
def test_fence_of_a_deleted_flow_is_not_given_out_again_also_if_its_consumer_was_gone_before(
    attached: int, removed: bool
) -> None:
    """A job of the flow before must not move a cursor of the next one."""
    table = declared(flow())
    given = [table.attach("f", "job", f"n{at}")[0] for at in range(attached)]
    if removed and attached:
        table.get("f").consumers.remove("job")
    for _ in range(2):
        table.remove(table.get("f"))
        table.declare(flow(), TABLES, 0)
        given.append(table.attach("f", "job", "again")[0])
        assert given == sorted(set(given))


def test_refusals_of_flows_leave_typed() -> None:
    table = declared(flow(max_items=1, retention_ms=0))
    for call, args, code in (
        (table.get, ("x",), Code.NOT_FOUND),
        (table.seal, ("x", 1, 0), Code.NOT_FOUND),
        (table.attach, ("x", "spark", "n"), Code.NOT_FOUND),
        (table.attach, ("f", "..", "n"), Code.BAD_REQUEST),
        (table.batch, ("f", 0), Code.BAD_REQUEST),
        (table.batch, ("f", 1), Code.NOT_FOUND),
    ):
        assert refusal(call, *args) is code
    assert refusal(table.move, "f", "nobody", 0, 1, replay=False, now_ms=0) is Code.NOT_FOUND
    append(table, 1, now_ms=5)
    fence, _ = table.attach("f", "spark", "n")
    table.move("f", "spark", 1, fence, replay=False, now_ms=6)
    assert refusal(table.batch, "f", 1) is Code.RETENTION_EXCEEDED


def test_retention_waits_for_time_and_for_required_consumers_and_gives_the_quota_back() -> None:
    table = declared(flow(max_items=1, retention_ms=100, consumers=("spark",)))
    append(table, 1, now_ms=0)
    append(table, 2, now_ms=50)
    fence, cursor = table.attach("f", "spark", "n")
    assert cursor == 0
    size = table.get("f").retained_bytes
    assert table.is_full("t", size - 1, 0)
    assert not table.is_full("t", size, 0)
    table.move("f", "spark", 2, fence, replay=False, now_ms=99)
    assert table.take_dropped() == []
    table.move("f", "spark", 2, fence, replay=False, now_ms=120)
    assert table.take_dropped() == [("f", 1)]
    assert table.get("f").retained_bytes == size // 2
    assert refusal(table.move, "f", "spark", 0, fence, replay=True, now_ms=120) is not None


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b'{"name":"f"}', b'{"name":"F","source":"t"}', b'{"name":"f","source":""}', b"\xff"]
    + [b'{"name":"f","source":"t","max_items":%s}' % n for n in (b"0", b"-1", b"1.5", b"1e9", b'"2"', b"9" * 5_000)]
    + [b'{"name":"f","source":"t","consumers":["a","a"]}', b'{"name":"f","source":"\\ud800"}', b"[" * 100_000],
    ids=lambda text: text[:30].decode("latin1"),
)
def test_broken_declaration_is_a_bad_request(text: bytes) -> None:
    assert refusal(declaration_of, text) is Code.BAD_REQUEST
