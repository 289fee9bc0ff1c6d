"""Items to rows: the vectorised fan-out against the plain loop, and what becomes of items that are no messages."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink import contacts, rows
from oncegate.spark_sink.dead_letters import letters
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.recount import expected

ids = st.one_of(st.integers(0, 6), st.sampled_from([2**40, 2**63 - 1]))
edges = st.lists(st.tuples(ids, ids), max_size=40)
commits = st.one_of(st.integers(1, 50), st.integers(2**20 - 3, 2**20 + 3), st.integers(1, 2**62))


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
traces = st.sampled_from([None, TRACE, TRACE.replace("b7ad", "aaaa")])


def items(*values: str | None, traceparents: list[str | None] | None = None) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array(range(11, 11 + count), pa.int64()),
        pa.array([f"k{at}" for at in range(count)], pa.string()),
        pa.array(values, pa.string()),
        pa.array(range(100, 100 + count), pa.int64()),
        pa.array([-7] * count, pa.int64()),
        pa.array(range(1, 1 + count), pa.int64()),
        pa.array(traceparents or [None] * count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PLAIN_SCHEMA)


def as_contacts(found: list[tuple[int, int]]) -> rows.Contacts:
    columns = np.array(found, dtype=np.int64).reshape(-1, 2)
    return rows.Contacts.from_edges(columns[:, 0], columns[:, 1])


def as_posts(found: list[tuple[str, int, int, int, str | None]]) -> rows.Posts:
    keys, commit, sender, sent_at, trace = zip(*found, strict=True) if found else ((), (), (), (), ())
    columns = [np.array(column, dtype=np.int64) for column in (commit, sender, sent_at)]
    return rows.Posts(pa.array(keys, pa.string()), *columns, pa.array(trace, pa.string()))


@given(
    edges, st.dictionaries(commits, st.tuples(st.text(max_size=5), ids, ids, traces), max_size=12), st.integers(1, 30)
)
@settings(deadline=None)
def test_fan_out_equals_the_plain_loop(
    found: list[tuple[int, int]], by_commit: dict[int, tuple[str, int, int, str | None]], rows_max: int
) -> None:
    posts = [(key, commit, *rest) for commit, (key, *rest) in sorted(by_commit.items())]
    fanned = rows.fan_out(as_posts(posts), as_contacts(found))
    items = [(commit, key, json.dumps({"sender": who, "sent_at": at})) for key, commit, who, at, _ in posts]
    plain = sorted(expected(items, found), key=lambda row: (row[0], row[1], -row[2], row[3]))
    assert list(zip(*fanned.drop_columns(["traceparent"]).to_pydict().values(), strict=True)) == plain
    assert fanned.column("traceparent").to_pylist() == [by_commit[row[2]][3] for row in plain]
    assert fanned.schema == rows.TIMELINE.schema
    cut = [
        rows.fan_out(piece, as_contacts(found)) for piece in rows.pieces(as_posts(posts), as_contacts(found), rows_max)
    ]
    assert sorted(map(str, fanned.to_pylist())) == sorted(str(row) for piece in cut for row in piece.to_pylist())
    single = set(Counter(sender for sender, _ in set(found)).values())
    assert all(piece.num_rows <= rows_max or piece.num_rows in single for piece in cut)


def test_write_timestamp_is_the_commit_number_and_the_key_needs_no_contacts() -> None:
    posts = as_posts([("m", 2**20 + 5, 1, 9, None)])
    (row,) = rows.fan_out(posts, as_contacts([(1, 4)])).to_pylist()
    assert row["write_ts"] == row["commit"] == 2**20 + 5
    assert row["bucket"] == 1
    longer = rows.fan_out(posts, as_contacts([(1, 2), (1, 4), (1, 4)])).to_pylist()
    assert row in longer
    assert len(longer) == 2


def test_each_item_becomes_a_post_or_a_dead_letter() -> None:
    good = json.dumps({"sender": 1, "receiver": 2, "sent_at": 3, "more": {"kept": "by nobody"}})
    bad = [
        "",
        "{",
        "nonsense \x00",
        "[]",
        '{"sender": 1, "receiver": 2}',
        '{"sender": "1", "receiver": 2, "sent_at": 3}',
        '{"sender": -1, "receiver": 2, "sent_at": 3}',
        '{"sender": 9223372036854775808, "receiver": 2, "sent_at": 3}',
        '{"sender": 1.5, "receiver": 2, "sent_at": 3}',
        '{"sender": true, "receiver": 2, "sent_at": 3}',
        '{"x": ' + "[" * 100_000,
        None,
    ]
    found = items(good, *bad, good)
    posts, errors = rows.decode(found)
    dead = letters(FlowBatch("timeline", 3, found), "fan-out", errors)
    assert posts.commit.tolist() == [11, 12 + len(bad)]
    assert posts.key.to_pylist() == ["k0", f"k{len(bad) + 1}"]
    held = dead.to_pylist()
    assert [letter["raw"] for letter in held] == [(text or "").encode() for text in bad]
    assert [letter["commit"] for letter in held] == list(range(12, 12 + len(bad)))
    assert all(letter["error"] and len(letter["error"]) <= 500 for letter in held)
    first = {name: held[0][name] for name in ("job", "flow", "batch", "item_key", "client_id", "sequence", "time_ms")}
    origin = {"item_key": "k1", "client_id": -7, "sequence": 2, "time_ms": 101}
    assert first == {"job": "fan-out", "flow": "timeline", "batch": 3} | origin
    assert held[-1]["error"] == "deleted: no value"
    assert held[0]["write_ts"] == 12


def test_a_trace_context_reaches_the_rows_of_its_item_and_no_others() -> None:
    good = json.dumps({"sender": 1, "receiver": 2, "sent_at": 3})
    found = items(good, good, "bad", "bad", traceparents=[TRACE, None, None, TRACE])
    posts, errors = rows.decode(found)
    dead = letters(FlowBatch("timeline", 3, found), "fan-out", errors)
    fanned = rows.fan_out(posts, as_contacts([(1, 4), (1, 5)])).to_pylist()
    assert {(row["user"], row["message"], row["traceparent"]) for row in fanned} == {
        (4, "k0", TRACE),
        (5, "k0", TRACE),
        (4, "k1", None),
        (5, "k1", None),
    }
    assert [(letter["item_key"], letter["traceparent"]) for letter in dead.to_pylist()] == [("k2", None), ("k3", TRACE)]


def test_decode_of_nothing_is_nothing() -> None:
    posts, errors = rows.decode(items())
    assert rows.fan_out(posts, as_contacts([(1, 2)])).num_rows == len(errors) == 0


def test_a_message_log_read_as_contacts_gives_the_known_counts() -> None:
    known = contacts.load(Path(__file__).parents[2] / "examples" / "collegemsg.txt.gz")
    assert len(known.followers) == 20_296
    assert int(np.diff(known.offsets).max()) == 237


@pytest.mark.parametrize("suffix", ["csv", "parquet", "arrow"])
def test_contacts_files_of_all_forms_agree(tmp_path: Path, suffix: str) -> None:
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    table = pa.table({"sender": [2, 1, 2, 2], "follower": [5, 6, 4, 5]})
    write = {
        "csv": pyarrow.csv.write_csv,
        "parquet": pyarrow.parquet.write_table,
        "arrow": lambda found, path: pyarrow.feather.write_feather(found, str(path)),
    }
    write[suffix](table, tmp_path / f"c.{suffix}")
    known = contacts.load(tmp_path / f"c.{suffix}")
    assert (known.senders.tolist(), known.offsets.tolist(), known.followers.tolist()) == ([1, 2], [0, 1, 3], [6, 4, 5])


@pytest.mark.parametrize("content", [None, "a,b\n1,2\n", "sender,follower\n1,x\n"])
def test_bad_contacts_are_a_typed_refusal(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "c.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreError) as refused:
        contacts.load(path)
    assert refused.value.code is StoreCode.BAD_OPTION


def test_rows_imports_no_clock_no_randomness_and_no_io() -> None:
    tree = ast.parse(Path(rows.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & {"asyncio", "socket", "time", "random", "os", "logging"}
