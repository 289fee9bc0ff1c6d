"""Cascades without Spark: a chain of three jobs, killed at each of its steps, ends as if nobody had been."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate.flows import segment
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import OncegateError
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.cascade import Cascade, Increment, Put, Remove, Write, WriteDerivation, letter
from oncegate.spark_sink.derivation import Change, FlowBatch, Reject
from oncegate.spark_sink.errors import SinkError
from oncegate.stores import Column, ColumnType, StoreTable, claimed_store
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from tests.spark.fake_gateway import CLUSTER


class KilledError(Exception):
    """The process that ran a job is gone."""


class Gateway:
    """The real state machine, without a network: it seals a batch every three items, and seven of the last flow.

    Attributes:
        left: steps until whoever talks to it is killed: before the last of them is done, and again after the next one,
            which nobody hears of; 0 = never.
        steps: made so far.
    """

    def __init__(self) -> None:
        self.machine = Machine()
        self.left = self.steps = self.entries = 0
        self.batches: dict[tuple[str, int], FlowBatch] = {}
        for table, kind in (("posts", "stream"), ("mids", "stream"), ("ends", "stream"), ("counts", "resident")):
            self.do(c.DeclareTable(table, kind, 1 << 30))
        for flow in (
            FlowDeclaration(name="first", source="posts", target=("mids", "counts"), max_items=3),
            FlowDeclaration(name="second", source="mids", target=("ends", "counts"), max_items=3),
            FlowDeclaration(name="third", source="ends", max_items=7),
        ):
            self.do(c.DeclareFlow(msgspec.json.encode(flow)))
        self.do(c.OpenSession("n", 10**9, 4096))

    def do(self, command: c.Command) -> Any:
        self.entries += 1
        (result,) = apply(self.machine, self.entries, 1, c.encode_entry(0, [command]))
        if isinstance(result, OncegateError):
            raise result
        for sealed in self.machine.flows.take_sealed():
            payload = segment.build(sealed.chunks, sealed.flow, sealed.table, sealed.number)
            items = segment.read_table(payload).cast(PLAIN_SCHEMA).combine_chunks().to_batches()[0]
            self.batches[sealed.flow, sealed.number] = FlowBatch(sealed.flow, sealed.number, items)
        return result

    def put(self, sequence: int, key: str, value: Any) -> None:
        text = msgspec.json.encode(value)
        op = c.Op(sequence, 1, "posts", key, c.fingerprint_put("posts", key, text), text)  # type: ignore[arg-type]
        self.do(c.Operate(1, 1, 1, [op]))  # type: ignore[arg-type]

    def seal(self, flow: str) -> None:
        self.do(c.Seal(flow, self.machine.flows.get(flow).batches.last + 1))

    def step(self, action: Callable[[], Any]) -> Any:
        """Do one step of a job; it may be the last thing that its process does, done or not."""
        self.steps += 1
        self.left -= 1
        if self.left == 1:
            raise KilledError
        done = action()
        if self.left == 0:
            raise KilledError
        return done


class Client:
    """What `FlowClient` is to a job; each call is a step."""

    def __init__(self, gateway: Gateway, flow: str) -> None:
        self.gateway, self.flow = gateway, flow

    def cascade(self, consumer: str, batch: int, part: int, fence: int, writes: list[str], *, last: bool) -> int:
        decoded = [msgspec.json.decode(text, type=wire.CascadeWrite) for text in writes]
        command = request_bodies.cascade(self.flow, consumer, wire.Cascade(batch, part, fence, last, decoded))
        return int(self.gateway.step(lambda: self.gateway.do(command)).cursor)


def enrich(batch: FlowBatch) -> Iterator[Write]:
    """Each post becomes a row and a tag count; two rows where it is a reply."""
    for item in batch:
        post = item.json()
        yield Put("mids", item.key, {"tag": post["tag"].upper(), "by": item.key})
        yield Increment("counts", post["tag"])
        if post["reply"]:
            yield Put("mids", f"{item.key}/reply", {"tag": "REPLY", "by": item.key})


def forward(batch: FlowBatch) -> Iterator[Write]:
    for item in batch:
        value = item.json()
        yield Put("ends", item.key, value) if value["tag"] != "C" else Remove("ends", item.key)
        yield Increment("counts", "forwarded")


ENDS = StoreTable(
    name="ends",
    columns=(Column("key", ColumnType.TEXT), Column("tag", ColumnType.TEXT), Column("by", ColumnType.TEXT)),
    partition_key=("key",),
)


def deliver(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        value = item.json()
        if value is None:
            yield item.delete(ENDS, key=item.key)
        else:
            yield item.upsert(ENDS, key=item.key, tag=value["tag"], by=value["by"])


def cascade_job(gateway: Gateway, flow: str, derivation: WriteDerivation, part_writes: int) -> None:
    """One life of a job that writes back: attach, then all that is sealed."""
    nonce = f"{flow}{gateway.steps}"
    fence, cursor = gateway.step(lambda: gateway.do(c.Attach(flow, "job", nonce)))
    job = Cascade(derivation, Client(gateway, flow), "job", fence, "mids", part_writes=part_writes)
    while (flow, cursor + 1) in gateway.batches:
        cursor += 1
        job.apply(gateway.batches[flow, cursor], Done())


def store_job(gateway: Gateway, store: ClaimedStore) -> None:
    """One life of a job that writes to the store, then moves the cursor."""
    nonce = f"third{gateway.steps}"
    fence, cursor = gateway.step(lambda: gateway.do(c.Attach("third", "job", nonce)))
    while ("third", cursor + 1) in gateway.batches:
        cursor += 1
        batch = gateway.batches["third", cursor]
        gateway.step(lambda batch=batch: Applier(deliver).apply(batch, store, Done()))
        move = c.MoveCursor("third", "job", cursor, fence, False)
        gateway.step(lambda move=move: gateway.do(move))


def lived(gateway: Gateway, job: Callable[[], None]) -> None:
    """Start a job again until one of its processes comes to the end."""
    while True:
        try:
            job()
        except KilledError:
            continue
        return


POSTS = [(f"p{number}", {"tag": random.Random(number).choice("abc"), "reply": number % 4 == 0}) for number in range(12)]


def run_chain(gateway: Gateway, store: ClaimedStore) -> None:
    for sequence, (key, post) in enumerate(POSTS, 1):
        gateway.put(sequence, key, post)
    gateway.seal("first")
    lived(gateway, lambda: cascade_job(gateway, "first", enrich, 2))
    gateway.seal("second")
    lived(gateway, lambda: cascade_job(gateway, "second", forward, 3))
    gateway.seal("third")
    lived(gateway, lambda: store_job(gateway, store))


def check_exact(gateway: Gateway, store: ClaimedStore) -> None:
    """Recount from the posts alone."""
    rows = {key: (post["tag"].upper(), key) for key, post in POSTS if post["tag"] != "c"}
    rows |= {f"{key}/reply": ("REPLY", key) for key, post in POSTS if post["reply"]}
    stored = [row for found in store.scan(ENDS) for row in found.to_pylist()]
    assert {row["key"]: (row["tag"], row["by"]) for row in stored} == rows
    tags = Counter(post["tag"] for _, post in POSTS)
    written = len(POSTS) + sum(post["reply"] for _, post in POSTS)
    counts = {key: msgspec.json.decode(row.value) for key, row in gateway.machine.tables["counts"].rows.items()}
    assert counts == {**tags, "forwarded": written}
    items = sum(gateway.machine.flows.get(flow).batches.items_total for flow in ("second", "third"))
    assert items == 2 * written, "no item of a flow came twice"


def test_chain_of_three_jobs_killed_at_any_step_ends_exact(tmp_path: Path) -> None:
    store_url = f"sqlite://{tmp_path}/{{}}"
    with claimed_store(store_url.format("sound"), CLUSTER) as store:
        store.create([ENDS])
        sound = Gateway()
        run_chain(sound, store)
        check_exact(sound, store)
    assert sound.steps > 30
    for killed_at in range(1, sound.steps + 2):
        gateway = Gateway()
        gateway.left = killed_at
        with claimed_store(store_url.format(killed_at), CLUSTER) as store:
            store.create([ENDS])
            run_chain(gateway, store)
            check_exact(gateway, store)


def test_chain_whose_jobs_are_killed_again_and_again_ends_exact(tmp_path: Path) -> None:
    rng = random.Random(5)

    class Deadly(Gateway):
        def step(self, action: Callable[[], Any]) -> Any:
            fate = rng.random()
            if fate < 0.15:
                raise KilledError
            done = action()
            if fate < 0.3:
                raise KilledError
            return done

    gateway = Deadly()
    with claimed_store(f"sqlite://{tmp_path}/store", CLUSTER) as store:
        store.create([ENDS])
        run_chain(gateway, store)
        check_exact(gateway, store)


def one_batch(derivation: WriteDerivation, *written: tuple[str, Any], **more: Any) -> list[list[dict[str, Any]]]:
    """Return the parts that a batch of these (key, value) pairs is written in."""
    parts: list[list[dict[str, Any]]] = []

    class Writer:
        def cascade(self, consumer: str, batch: int, part: int, fence: int, writes: list[str], *, last: bool) -> int:
            assert part == len(parts) + 1
            parts.append([msgspec.json.decode(text) for text in writes])
            return batch if last else 0

    Cascade(derivation, Writer(), "job", 1, "dead", **more).apply(FlowBatch.of(*written), Done())
    return parts


def test_parts_are_cut_by_number_and_by_bytes_and_a_batch_that_makes_nothing_has_one() -> None:
    def copy(batch: FlowBatch) -> Iterator[Write]:
        yield from (Put("t", item.key, item.json()) for item in batch)

    items = [(f"k{number}", "x" * 100) for number in range(10)]
    assert [len(part) for part in one_batch(copy, *items, part_writes=4)] == [4, 4, 2]
    assert {len(part) for part in one_batch(copy, *items, part_bytes=350)} == {2}
    assert [len(part) for part in one_batch(copy, ("k", "x" * 5_000), part_bytes=350)] == [1]
    assert one_batch(lambda batch: iter(()), ("k", 1)) == [[]]


@pytest.mark.parametrize(
    "bad", ["", "k\0", "x" * 513, "\ud800", 2**63, float("nan"), {"a": [2**64]}, {1, 2}, "v" * 262_145]
)
def test_write_that_the_gateway_would_refuse_makes_a_dead_letter_of_its_item_and_no_other(bad: Any) -> None:
    """The items are told apart by their key; the derivation makes the bad write of the second one."""

    def derive(batch: FlowBatch) -> Iterator[Write]:
        for item in batch:
            if item.key != "b":
                yield Put("t", item.key, 1)
            elif isinstance(bad, str) and len(bad) < 1_000:
                yield Put("t", bad, 1)
            else:
                yield Put("t", "k", bad)

    (part,) = one_batch(derive, ("a", 1), ("b", 2), ("c", 3))
    dead, *rest = part
    assert [(write["table"], write["key"]) for write in rest] == [("t", "a"), ("t", "c")]
    assert (dead["table"], dead["key"]) == ("dead", "job/flow/0000000000000002")
    assert (dead["value"]["raw"], dead["value"]["whole"], dead["value"]["batch"]) == ("2", True, 1)
    assert dead["value"]["error"]


def test_deep_value_is_refused_where_it_is_made() -> None:
    deep: Any = 1
    for _ in range(65):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        Put("t", "k", deep)


def test_reject_of_a_commit_that_no_item_has_is_refused() -> None:
    with pytest.raises(SinkError) as refused:
        one_batch(lambda batch: [Reject(9, "x")], ("a", 1))
    assert refused.value.code is StoreCode.BAD_ROWS


def test_letter_of_a_long_value_has_its_beginning_and_says_so() -> None:
    batch = FlowBatch.of(("short", {"at": "x"}), ("long", {"at": "x" * 40_000}))
    short, long = (letter("dead", "job", batch, Reject(commit, "why")).value for commit in (1, 2))
    assert (short["whole"], json.loads(short["raw"])) == (True, {"at": "x"})
    assert (long["whole"], len(long["raw"]), long["raw"][:5]) == (False, 32 * 1024, '{"at"')
