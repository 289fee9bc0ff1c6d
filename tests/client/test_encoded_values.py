"""Values of types that JSON lacks: what a client's ``encode`` turns, where it is asked, and what it may do wrong."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate import Client, Code, OperationFailed, Outcome, Session, Transaction, sync
from oncegate.gateway.client.arguments import check_json, plain
from oncegate.recipes import Queue, Registry
from oncegate.testing import FakeGateway
from tests.client.answers import fails

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
WHO = UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Seat:
    who: UUID
    paid: Decimal
    at: datetime
    marks: list[date]


SEAT = Seat(WHO, Decimal("9.90"), AT, [date(2026, 3, 2)])
SAID = {"who": str(WHO), "paid": "9.90", "at": "2026-03-01T12:30:00Z", "marks": ["2026-03-02"]}


@pytest.fixture
async def encoding(fake: FakeGateway) -> AsyncIterator[Client]:
    async with Client(fake.endpoints, encode=msgspec.to_builtins) as client:
        yield client


@pytest.fixture
async def writing(encoding: Client) -> AsyncIterator[Session]:
    async with encoding.session() as session:
        yield session


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (AT, "2026-03-01T12:30:00Z"), (date(2026, 3, 1), "2026-03-01"), (WHO, str(WHO)),
        (Decimal("0.10"), "0.10"), (timedelta(hours=1), "PT3600S"), (Colour.RED, "red"), (SEAT, SAID),
        ({"a": [1, {"b": (SEAT, None)}], "c": 1.5}, {"a": [1, {"b": [SAID, None]}], "c": 1.5}),
        ([b"\x00", {1}], ["AA==", [1]]), (b"whole", b"whole"), ("text", "text"),
    ],
    ids=str,
)  # fmt: skip
async def test_every_write_says_what_encode_makes_of_its_value(
    fake: FakeGateway, encoding: Client, writing: Session, value: Any, said: Any
) -> None:
    async def stored(key: str) -> Any:
        row = await encoding.get("rows", key)
        return None if row is None else row.value

    await writing.put("rows", "put", value)
    await writing.insert("rows", "insert", value)
    await writing.submit("put", "rows", "submit", value)
    await writing.update("rows", "update", lambda _: value)
    await encoding.put("rows", "keyed", value, idempotency_key="e1")
    await writing.put("rows", "keyed too", value, idempotency_key="e2")
    async with writing.transaction() as both:
        both.put("rows", "transaction", value)
    await writing.transact(Transaction(encode=msgspec.to_builtins).insert("rows", "own", value))
    for key in ("put", "insert", "submit", "update", "keyed", "keyed too", "transaction", "own"):
        assert await stored(key) == said, key
    # As a condition it is the same value.
    assert (await writing.put("rows", "put", 1, if_value=value)).applied
    assert (await writing.delete("rows", "insert", if_value=value)).applied
    assert (await writing.delete("rows", "submit", if_value=value, idempotency_key="e3")).applied
    async with writing.transaction() as checked:
        checked.check("rows", "update", value=value).delete("rows", "own", if_value=value)
    assert checked.result.applied
    if type(value) is not bytes:
        await writing.put_many("rows", {"many": value})
        await writing.put_many("events", [("many", value)])
        await writing.append("rows", "list", value)
        await encoding.append("rows", "list", value, idempotency_key="e4")
        await writing.append("rows", "list", value, idempotency_key="e5")
        await writing.submit("append", "rows", "list", value)
        async with writing.transaction() as more:
            more.append("rows", "list", value)
        assert await stored("many") == said
        assert await stored("list") == [said] * 5
        assert fake.executed[-1].key == "list"


async def test_outbox_keeps_what_was_encoded_and_a_restart_needs_no_encode(fake: FakeGateway, tmp_path: Path) -> None:
    outbox = tmp_path / "outbox"
    async with (
        Client(fake.endpoints, encode=msgspec.to_builtins) as client,
        client.session(outbox=outbox) as session,
    ):
        await session.put("rows", "k", SEAT, position={"at": AT})
        assert session.position == {"at": SAID["at"]}
        for node in fake.nodes:
            node.freeze()
        with fails(outcome=Outcome.UNKNOWN):
            await session.put("rows", "k", {"seat": SEAT}, position=AT, timeout_s=0.05)
    for node in fake.nodes:
        node.thaw()
    async with Client(fake.endpoints) as client, client.session(outbox=outbox) as session:
        assert session.position == SAID["at"]
        row = await client.get("rows", "k")
        assert row is not None
        assert row.value == {"seat": SAID}


def test_sync_client_encodes_too(oncegate_cluster: Any) -> None:
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints, encode=msgspec.to_builtins) as client, client.session() as session:
        session.put("rows", "a", SEAT)
        client.put("rows", "b", SEAT, idempotency_key="e")
        session.submit("put", "rows", "c", SEAT).result()
        with session.transaction() as both:
            both.put("rows", "d", SEAT, if_absent=True).append("rows", "list", AT)
        for key in "abcd":
            row = client.get("rows", key)
            assert row is not None
            assert row.value_as(Seat) == SEAT
        row = client.get("rows", "list")
        assert row is not None
        assert row.value_as(list[datetime]) == [AT]


async def test_recipes_take_what_encode_takes(encoding: Client, writing: Session) -> None:
    await encoding.declare_table("recipes")
    queue = Queue(encoding, writing, "jobs")
    await queue.put(SEAT)
    claim = await queue.claim()
    assert claim.item == SAID
    await claim.complete()
    registry = Registry(encoding, writing, "names")
    token = await registry.take("ann", SEAT)
    assert token is not None
    assert await registry.take("ann", SEAT) == token  # the same owner, as its row says it
    assert await registry.take("ann", WHO) is None


@pytest.mark.parametrize("value", [AT, {"a": [WHO]}, (Decimal(1),)], ids=str)
async def test_without_encode_such_values_are_refused_by_name(session: Session, value: Any) -> None:
    with pytest.raises(
        OperationFailed, match="JSON has no such type, and neither client nor transaction has an encode"
    ) as caught:
        await session.put("rows", "k", value)
    assert (caught.value.code, caught.value.outcome) == (Code.BAD_REQUEST, Outcome.NOT_APPLIED)


async def test_what_encode_raises_or_returns_wrongly_is_a_bad_request_that_harms_nobody(fake: FakeGateway) -> None:
    class Odd:
        pass

    def encode(value: Any) -> Any:
        match value:
            case Decimal():
                raise LookupError("no such money")
            case Odd():
                return value  # for ever
            case UUID():
                return float("nan")
            case _:
                return {1: "a key that is no text"}

    async with Client(fake.endpoints, encode=encode) as client, client.session() as session:
        for value in (Decimal(1), [Odd()], WHO, {"a": AT}):
            with fails(Code.BAD_REQUEST, Outcome.NOT_APPLIED):
                await session.put("rows", "k", value)  # type: ignore[arg-type]
            with fails(Code.BAD_REQUEST, Outcome.NOT_APPLIED):
                await session.put_many("rows", {"good": 1, "bad": value})  # type: ignore[dict-item]
            with fails(Code.BAD_REQUEST, Outcome.NOT_APPLIED):
                session.transaction().check("rows", "k", value=value)  # type: ignore[arg-type]
        with pytest.raises(OperationFailed, match="encode cannot turn a Decimal into JSON") as caught:
            await client.put("rows", "k", Decimal(1), idempotency_key="e")
        assert isinstance(caught.value.__cause__, LookupError)
        assert (await session.put("rows", "k", 1)).applied
    assert [write.key for write in fake.executed] == ["k"]
    for wrong in ("json", 1):
        with fails(Code.BAD_REQUEST):
            Client(fake.endpoints, encode=wrong)  # type: ignore[arg-type]
        with fails(Code.BAD_REQUEST):
            Transaction(encode=wrong)  # type: ignore[arg-type]


async def test_row_change_and_item_bring_a_type_back_or_say_where_they_do_not_fit(
    encoding: Client, writing: Session
) -> None:
    put = await writing.put("rows", "k", SEAT)
    row = await encoding.get("rows", "k")
    assert row is not None
    assert row.value_as(Seat) == SEAT
    async for change in encoding.watch("rows", from_commit=put.commit - 1):
        assert change.value_as(Seat) == SEAT
        break
    with pytest.raises(OperationFailed, match=r"Expected `int`, got `str` - at `\$\[\.\.\.\]`") as caught:
        row.value_as(dict[str, int])
    assert caught.value.code is Code.BAD_REQUEST


async def test_item_of_a_queue_brings_a_type_back_where_it_is_claimed_and_where_it_was_buried(
    encoding: Client, writing: Session
) -> None:
    queue = Queue(encoding, writing, "seats", table="rows")
    await queue.put(SEAT)
    claim = await queue.claim()
    assert claim.item_as(Seat) == SEAT
    with fails(Code.BAD_REQUEST):
        claim.item_as(dict[str, int])
    await claim.bury()
    assert [letter.item_as(Seat) async for letter in queue.dead()] == [SEAT]


plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
richer = st.recursive(
    plain_json | st.decimals(allow_nan=False, allow_infinity=False) | st.uuids() | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=plain_json)
def test_what_json_can_say_is_never_turned(value: Any) -> None:
    def never(_: Any) -> Any:
        raise AssertionError

    assert plain(value, never) == value
    assert plain(value, None) is value


@given(value=richer)
def test_whatever_is_turned_is_json_and_says_the_same_as_if_it_had_been_turned_whole(value: Any) -> None:
    turned = plain(value, msgspec.to_builtins)
    check_json(turned)
    assert msgspec.json.encode(turned) == msgspec.json.encode(msgspec.to_builtins(value))
