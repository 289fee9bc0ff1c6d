"""Directories of stopped nodes verify; each planted difference is found and named; nothing is changed."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.flows import segment
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.cli.main import app
from oncegate.gateway.cli.output import CRASH
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import StoredRow
from oncegate.proof.verify import Report, StoreWanted, verify
from oncegate.proof.verify.findings import Difference
from oncegate.proof.verify.node_files import NodeFiles, Replay
from oncegate.proof.verify.states import StateCheck
from oncegate.rifl import rule
from oncegate.spark_sink import contacts, rows
from oncegate.spark_sink.dead_letters import DEAD_LETTERS, letters
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.stores.claimed import claimed_store
from oncegate.stores.claims import adopt
from oncegate.stores.store import open_store
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS, rows_of
from tests.conftest import Api
from tests.gateway.http_contract import declare, one_node, put, serving
from tests.verify.scenes import changed_batch, changed_row, cut_log, flipped, listing, rewritten_log


def found(report: Report) -> tuple[str, str, str]:
    """Return node, name of the file or directory, and what differs."""
    assert report.verdict == "different"
    assert report.difference is not None, report
    return report.difference.node, Path(report.difference.place).name, report.difference.what


def exchanged(commands: dict[int, bytes]) -> dict[int, bytes]:
    """Exchange the first two puts whose entries are as long; one that a seal shares is longer."""
    puts = [at for at, data in commands.items() if re.search(rb'"v\d\d"', data)]
    for one, other in pairwise(puts):
        if len(commands[one]) == len(commands[other]):
            return {one: commands[other], other: commands[one]}
    return {}


# --- what is as it should be -------------------------------------------------------------------------------------


def test_stopped_cluster_verifies_and_nothing_in_it_changes(nodes: list[Path], whole: Path) -> None:
    before = listing(whole)
    report = verify(nodes)
    assert (report.verdict, report.difference, report.undecided) == ("equal", None, [])
    assert len({node.digest for node in report.nodes}) == 1
    assert [node.batches for node in report.nodes] == [report.nodes[0].batches] * 3
    assert report.nodes[0].batches > 3
    assert min(report.entries, report.rows, report.records, report.items) > 10
    assert [node.saved_index > 0 for node in report.nodes] == [True, True, False]
    assert listing(whole) == before


def test_each_node_verifies_by_itself(nodes: list[Path]) -> None:
    for node in nodes:
        assert verify([node]).verdict == "equal"


def test_logs_without_their_beginning_verify(late_nodes: list[Path]) -> None:
    report = verify(late_nodes)
    assert (report.verdict, report.difference, report.undecided) == ("equal", None, [])
    assert min(node.log_first for node in report.nodes) > 1


def test_killed_cluster_verifies(tmp_path: Path) -> None:
    async def write(endpoint: str) -> None:
        async with aiohttp.ClientSession(base_url=endpoint) as http:
            api = Api(http)
            await declare(api)
            await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 7})
            client_id = await api.session()
            for sequence in range(1, 30):
                await api.operate(client_id, put(sequence, f"k{sequence % 9}", sequence))
            rest = [asyncio.ensure_future(api.operate(client_id, put(at, f"k{at % 9}", at))) for at in range(30, 200)]
            await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)
            cluster.kill()
            await asyncio.gather(*rest, return_exceptions=True)

    with LocalCluster(tmp_path / "c") as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(write(cluster.endpoints[0]))
        report = verify([tmp_path / "c" / name for name in cluster.ids])
    assert (report.verdict, report.difference, report.undecided) == ("equal", None, [])
    assert report.rows > 0


# --- what is not -------------------------------------------------------------------------------------------------


def test_flipped_bit_in_a_batch_is_named(nodes: list[Path]) -> None:
    flipped(nodes[1] / "segments" / "f" / f"{1:016d}.segment", 300)
    assert found(verify(nodes)) == ("n2", f"{1:016d}.segment", "batch 1 of f")


def test_batch_with_other_items_and_right_checksums_is_named(nodes: list[Path]) -> None:
    changed_batch(nodes[2], "f", 2, lambda payload: payload.replace(b'"v05"', b'"v55"'))
    report = verify(nodes)
    assert found(report) == ("n3", f"{2:016d}.segment", "batch 2 of f")
    assert report.difference is not None
    assert "as entry" in report.difference.expected


def test_batch_of_which_the_log_is_gone_differs_between_nodes(late_nodes: list[Path]) -> None:
    changed_batch(late_nodes[2], "f", 1, lambda payload: payload.replace(b'"v02"', b'"v22"'))
    assert found(verify(late_nodes)) == ("n1 and n3", f"{1:016d}.segment", "batch 1 of f")


def test_batch_with_an_item_too_few_is_named(late_nodes: list[Path]) -> None:
    def shorter(payload: bytes) -> bytes:
        table = segment.read_table(payload)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(0, table.num_rows - 1))
        return bytes(sink.getvalue().to_pybytes())

    changed_batch(late_nodes[0], "f", 1, shorter)
    assert found(verify([late_nodes[0]])) == ("n1", f"{1:016d}.segment", "batch 1 of f")


def test_item_that_contradicts_its_completion_record_is_named(late_nodes: list[Path]) -> None:
    def renumbered(payload: bytes) -> bytes:
        table = segment.read_table(payload)
        sequences = [sequence + 1 for sequence in table.column("sequence").to_pylist()]
        at = table.schema.get_field_index("sequence")
        table = table.set_column(at, table.schema.field(at), pa.array(sequences, pa.int64()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue().to_pybytes())

    changed_batch(late_nodes[0], "f", 10, renumbered)
    report = verify([late_nodes[0]])
    assert found(report) == ("n1", f"{10:016d}.segment", "batch 10 of f")
    assert report.difference is not None
    assert "as remembered" in report.difference.expected


def test_missing_batch_is_named(nodes: list[Path]) -> None:
    (nodes[0] / "segments" / "f" / f"{2:016d}.segment").unlink()
    assert found(verify(nodes)) == ("n1", f"{2:016d}.segment", "batch 2 of f")


def test_missing_batch_of_a_state_that_may_have_been_sent_is_told(late_nodes: list[Path]) -> None:
    (late_nodes[0] / "segments" / "f" / f"{1:016d}.segment").unlink()
    report = verify(late_nodes)
    assert (report.verdict, report.notes) == ("equal", ["n1 lacks batch 1 of f and can fetch it from n2"])
    alone = verify(late_nodes[:1])
    assert alone.verdict == "unknown"
    assert "n1 lacks batch 1 of f" in alone.undecided[0]


def test_batch_that_the_log_never_sealed_is_named(nodes: list[Path]) -> None:
    store = SegmentStore(nodes[0] / "segments")
    store.put("f", 99, store.get("f", 1))
    assert found(verify(nodes)) == ("n1", f"{99:016d}.segment", "batch 99 of f")


def test_row_changed_in_a_saved_state_is_named_by_its_own_log(nodes: list[Path]) -> None:
    changed_row(nodes[0], 0, "k2", StoredRow(8, b'"v88"'))
    node, _, what = found(verify([nodes[0]]))
    assert (node, what.split(",")[0]) == ("n1", "row rows/k2")


def test_row_changed_in_a_saved_state_is_named_by_the_others(late_nodes: list[Path]) -> None:
    changed_row(late_nodes[1], 0, "n", StoredRow(11, b"2"))
    node, _, what = found(verify(late_nodes))
    assert (node, what.split(",")[0]) == ("n2", "row rows/n")


def test_row_that_contradicts_its_newest_item_is_named_without_log_or_other_node(late_nodes: list[Path]) -> None:
    changed_row(late_nodes[1], 0, "k2", StoredRow(8, b'"v88"'))
    assert found(verify([late_nodes[1]])) == ("n2", "state", "row rows/k2")


def test_two_rows_of_one_commit_are_named(late_nodes: list[Path]) -> None:
    changed_row(late_nodes[1], 0, "k2", StoredRow(9, b'"v08"'))
    assert found(verify([late_nodes[1]]))[2] == "commit 9"


def test_flipped_bit_in_the_log_is_named(nodes: list[Path]) -> None:
    file = min((nodes[1] / "raft").glob("journal-*.segment"))
    flipped(file, file.read_bytes().index(b'"v04"'))
    assert found(verify(nodes))[:2] == ("n2", file.name)


@pytest.mark.parametrize("damage", [lambda file: flipped(file, 5), lambda file: file.unlink()], ids=["flipped", "gone"])
def test_damaged_or_missing_pointer_to_the_state_is_named(nodes: list[Path], damage: Callable[[Path], object]) -> None:
    damage(nodes[1] / "state" / "CURRENT")
    node, file, what = found(verify(nodes))
    assert (node, what) == ("n2", "the saved state")
    assert file in ("CURRENT", "state")


def test_exchanged_entries_are_named_by_the_other_logs(nodes: list[Path]) -> None:
    rewritten_log(nodes[1], exchanged)
    node, file, what = found(verify(nodes))
    assert (node, file.startswith("journal-"), what.split()[0]) == ("n2", True, "entry")


def test_exchanged_entries_are_named_by_the_state_they_led_to(nodes: list[Path]) -> None:
    rewritten_log(nodes[0], exchanged)
    report = verify([nodes[0]])
    assert found(report)[:2] == ("n1", "state")


def test_exchanged_entries_are_named_by_the_batches_they_led_to(nodes: list[Path]) -> None:
    rewritten_log(nodes[2], exchanged)
    assert found(verify([nodes[2]])) == ("n3", f"{1:016d}.segment", "batch 1 of f")


def test_committed_entries_that_most_nodes_lack_are_named(nodes: list[Path]) -> None:
    report = verify(nodes[:1])
    for node in nodes[1:]:
        (state,) = (node / "state").glob("store-*")
        assert state.is_dir()
        cut_log(node, report.nodes[0].saved_index)
    node, _, what = found(verify(nodes))
    assert (node, "to be committed" in what) == ("n2", True)


def test_ballot_behind_its_log_is_named(nodes: list[Path], tmp_path: Path) -> None:
    (nodes[0] / "raft" / "ballot").unlink()
    Ballot.create(DirectoryStorage(nodes[0] / "raft"))
    assert found(verify(nodes)) == ("n1", "ballot", "term")


def test_directory_of_one_node_twice_is_named(nodes: list[Path], whole: Path) -> None:
    assert found(verify([nodes[0], whole / "n1"]))[1:] == ("identity", "node id")


# --- the store ---------------------------------------------------------------------------------------------------


@pytest.fixture
def store(nodes: list[Path], tmp_path: Path) -> StoreWanted:
    """A store that holds what both jobs would have written of the flow ``events``."""
    known = tmp_path / "contacts.csv"
    known.write_text("sender,follower\n1,2\n1,3\n")
    url = f"sqlite://{tmp_path}/store"
    files = SegmentStore(nodes[0] / "segments")
    with claimed_store(url, _identity(nodes[0])) as opened:
        opened.create((rows.TIMELINE, DEAD_LETTERS, STREAM_ROWS))
        for number in files.list("events"):
            items = segment.read_table(files.get("events", number)).to_batches()[0]
            posts, errors = rows.decode(items)
            opened.write(rows.TIMELINE, rows.fan_out(posts, contacts.load(known)))
            opened.write(DEAD_LETTERS, letters(FlowBatch("events", number, items), "job", errors))
            for piece in rows_of(items, "events", 100):
                opened.write(STREAM_ROWS, piece)
    return StoreWanted(url, "events", "job", known)


def _identity(node: Path) -> str:
    with NodeFiles(node) as files:
        return files.saved().machine.identity


def test_store_with_all_delivered_items_verifies(nodes: list[Path], store: StoreWanted) -> None:
    report = verify(nodes, store)
    assert (report.verdict, report.difference, report.undecided) == ("equal", None, [])
    assert report.store_rows == 4 * 2 + 6
    report = verify(nodes, _rows(store))
    assert (report.verdict, report.difference, report.undecided) == ("equal", None, [])
    assert report.store_rows == 10


def _rows(store: StoreWanted) -> StoreWanted:
    return store._replace(consumer=ROWS_CONSUMER, contacts=None)


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("DELETE FROM timeline WHERE user = 3", "timeline"),
        ("UPDATE timeline SET dead = 1 WHERE user = 2", "timeline"),
        ("UPDATE timeline SET sent_at = 4 WHERE user = 2", "timeline"),
        ("UPDATE job_dead_letters SET write_ts = write_ts - 1", "job_dead_letters"),
        ("DELETE FROM stream_rows WHERE key = 'm1'", "stream_rows"),
        ("UPDATE stream_rows SET value = '1' WHERE key = 'p1'", "stream_rows"),
        ("UPDATE stream_rows SET source = 'other'", "stream_rows"),
    ],
)
def test_row_missing_or_other_in_the_store_is_named(
    nodes: list[Path], store: StoreWanted, tmp_path: Path, statement: str, table: str
) -> None:
    for shard in (tmp_path / "store").glob("*.sqlite"):
        with closing(sqlite3.connect(shard)) as connection:
            connection.execute(statement)
            connection.commit()
    node, _, what = found(verify(nodes, _rows(store) if table == STREAM_ROWS.name else store))
    assert (node, what.split()[0]) == ("store", table)


def test_store_that_is_not_there_or_not_asked_rightly_is_undecided(
    nodes: list[Path], store: StoreWanted, tmp_path: Path
) -> None:
    assert verify(nodes, store._replace(url=f"sqlite://{tmp_path}/elsewhere")).verdict == "unknown"
    assert not (tmp_path / "elsewhere").exists()
    assert verify(nodes, store._replace(consumer="nobody")).verdict == "unknown"
    assert verify(nodes, store._replace(flow="nothing")).verdict == "unknown"


def test_store_of_another_cluster_or_of_nobody_is_undecided_and_its_adopted_rows_count_for_nothing(
    nodes: list[Path], store: StoreWanted, tmp_path: Path
) -> None:
    with open_store(store.url) as opened:
        adopt(opened, "here", "b" * 32)
        (reason,) = verify(nodes, store).undecided
        assert "holds rows of cluster bbbb" in reason
        adopt(opened, "here", _identity(nodes[0]))
        report = verify(nodes, store)
        assert (report.verdict, report.undecided) == ("different", [])
    with open_store(f"sqlite://{tmp_path}/earlier") as opened:
        opened.create([STREAM_ROWS])
    (reason,) = verify(nodes, store._replace(url=f"sqlite://{tmp_path}/earlier")).undecided
    assert "oncegate store adopt" in reason


# --- the command -------------------------------------------------------------------------------------------------


def test_exit_codes_of_the_command(nodes: list[Path], tmp_path: Path) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
        return result.exit_code, result.output

    assert run(*nodes)[0] == 0
    assert run(nodes[0], tmp_path / "nowhere")[0] == 3
    assert run(nodes[0], nodes[0])[0] == 3
    assert run(nodes[0], "--store", "sqlite:///x")[0] == 3
    assert run(nodes[0], "--store", "sqlite:///x", "--consumer", "events/job")[0] == 3
    assert run(*nodes, "--store", f"sqlite://{tmp_path}/none", "--consumer", "events/rows")[0] == 2
    assert run("--nonsense")[0] == 3
    code, text = run(tmp_path)
    assert (code, "is no data directory" in text) == (2, True)
    (nodes[0] / "segments" / "f" / f"{2:016d}.segment").unlink()
    code, text = run(*nodes, "-o", "json")
    assert code == 1
    assert '"what": "batch 2 of f"' in text


def test_crash_does_not_pass_for_a_verdict(nodes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("oncegate.proof.verify.verify", broken)
    assert CliRunner().invoke(app, ["verify", *map(str, nodes)]).exit_code == CRASH


async def test_directory_of_a_live_node_is_refused_by_name(nodes: list[Path]) -> None:
    storage = DirectoryStorage(nodes[1] / "raft")
    storage.lock()
    report = verify(nodes)
    storage.close()
    assert report.verdict == "unknown"
    assert str(nodes[1] / "raft") in report.undecided[0]
    assert verify(nodes).verdict == "equal"


def test_second_execution_in_a_log_is_reported_with_its_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What stops a node is told of its files too: the entry that would overwrite a record."""
    op = c.Op(1, int(c.OpKind.PUT), "t", "k", 1, b"1")
    commands: list[list[c.Command]] = [
        [c.DeclareTable("t", "resident", 1 << 20), c.OpenSession("n", 1_000, 8)],
        [c.Operate(1, 1, 1, [op])],
        [c.Operate(1, 1, 1, [op])],
    ]
    entries = [(c.encode_entry(0, each), index, 1) for index, each in enumerate(commands, 1)]
    replay = Replay(SimpleNamespace(node="n1", path=tmp_path), Machine(), 0)  # type: ignore[arg-type]
    replay.run(entries)
    monkeypatch.setattr(rule, "decide", lambda *how: rule.EXECUTE)
    again = Replay(SimpleNamespace(node="n1", path=tmp_path), Machine(), 0)  # type: ignore[arg-type]
    with pytest.raises(Difference) as told:
        again.run(entries)
    assert told.value.what == "entry 3"
    assert "operations 1 to 1" in told.value.found


async def test_transactions_that_are_remembered_verify_and_one_that_a_row_contradicts_is_named(tmp_path: Path) -> None:
    settings = one_node(tmp_path)
    async with serving(settings) as (api, node):
        await declare(api)
        writes = [
            {"op": "put", "table": "rows", "key": "a", "value": 1},
            {"op": "get", "table": "rows", "key": "a"},
            {"op": "increment", "table": "rows", "key": "n"},
        ]
        for key in ("first", "second"):
            once = {"Idempotency-Key": f'"{key}"'}
            assert (await api.call("POST", "/v1/transactions", json={"writes": writes}, headers=once))[0] == 200
        table = node.machine.tables["rows"]
        report = Report("equal")
        StateCheck("n1", "here", node.machine, report).check()
        assert report.records == 2
        row = table.rows.get("n")
        assert row is not None
        table.rows.put("n", StoredRow(row.version, b"7"), row)
        with pytest.raises(Difference) as contradicted:
            StateCheck("n1", "here", node.machine, report).check()
        table.rows.put("n", row, row)
        assert contradicted.value.what.startswith("row rows/n")
    assert verify([settings.data_dir], None, lambda step: None).verdict == "equal"


async def test_a_row_that_was_taken_is_held_against_what_its_transaction_remembers(tmp_path: Path) -> None:
    settings = one_node(tmp_path)
    async with serving(settings) as (api, node):
        await declare(api)
        puts = [{"op": "put", "table": "rows", "key": f"r/{at}", "value": at} for at in range(3)]
        take = {"op": "take", "table": "rows", "key": "r/", "to": "x/", "count": 2}
        for key, writes in (("put", puts), ("take", [take])):
            once = {"Idempotency-Key": f'"{key}"'}
            assert (await api.call("POST", "/v1/transactions", json={"writes": writes}, headers=once))[0] == 200
        table, report = node.machine.tables["rows"], Report("equal")
        StateCheck("n1", "here", node.machine, report).check()
        for key in ("x/0", "x/1"):
            row = table.rows.get(key)
            assert row is not None
            table.rows.put(key, StoredRow(row.version, b"7"), row)
            with pytest.raises(Difference) as contradicted:
                StateCheck("n1", "here", node.machine, report).check()
            table.rows.put(key, row, row)
            assert contradicted.value.what.startswith(f"row rows/{key}")
    assert verify([settings.data_dir], None, lambda step: None).verdict == "equal"
