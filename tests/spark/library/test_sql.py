"""SQL over a flow: what is refused before a job starts, and items that a query cannot take."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark import DEAD_LETTERS, FlowBatch, Store, apply, open_store
from oncegate.spark_sink.library.sql import batch_rows, item_rows
from oncegate.stores.errors import StoreCode, StoreError

COUNT = batch_rows(
    "posts",
    "SELECT value->>'author' AS author, (value->>'at')::BIGINT // 3600 AS hour, count(*) AS posts "
    "FROM items GROUP BY ALL",
    ["author", "hour"],
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store?shards=1") as opened:
        yield opened


def post(author: Any, at: Any) -> dict[str, Any]:
    return {"author": author, "at": at}


@pytest.mark.parametrize(
    "expression",
    [
        "now()::varchar",
        "NOW()::varchar",
        "current_timestamp::varchar",
        "current_date::varchar",
        "localtime::varchar",
        "today()::varchar",
        "age(to_timestamp(time_ms))::varchar",
        "current_localtimestamp()::varchar",
        "current_localtime()::varchar",
        "pg_postmaster_start_time()::varchar",
        "pg_conf_load_time()::varchar",
        "ago(to_hours(1))::varchar",
        "current_catalog",
        "random()",
        "uuid()::varchar",
        "gen_random_uuid()::varchar",
        "nextval('s')",
        "txid_current()",
        "(SELECT count(*) FROM items USING SAMPLE 10%)",
        "(SELECT count(*) FROM items TABLESAMPLE 3 ROWS)",
        "(SELECT uuid()::varchar)",
        "getenv('HOME')",
        "(SELECT content FROM read_text('/etc/hostname'))",
        "(SELECT count(*) FROM '/etc/hostname')",
        "(SELECT count(*) FROM duckdb_settings())",
        "(SELECT count(*) FROM store)",
        "(SELECT count(*) FROM duckdb_databases)",
        "(SELECT count(*) FROM sqlite_master)",
        "(SELECT count(*) FROM pg_catalog.pg_settings)",
        "(SELECT count(*) FROM information_schema.tables)",
        "(SELECT count(*) FROM (SHOW DATABASES))",
        "(SELECT reservoir_quantile(sequence, 0.5)::bigint FROM items)",
        "1.5::double",
        "nothing",
    ],
)
def test_what_is_not_made_of_the_items_alone_is_refused(expression: str) -> None:
    for make in (
        lambda: item_rows("t", f"SELECT commit, key, {expression} AS x FROM items", ["key"]),
        lambda: item_rows(
            "t", f"WITH x AS (SELECT commit, key, {expression} AS x FROM items) SELECT * FROM x", ["key"]
        ),
        lambda: batch_rows("t", f"SELECT key, {expression} AS x FROM items", ["key"], merge={"x": "max"}),
    ):
        with pytest.raises(StoreError) as refused:
            make()
        assert refused.value.code is StoreCode.BAD_TABLE


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: item_rows("t", "SELECT key, value FROM items", ["key"]),
        lambda: item_rows("t", "SELECT commit, value FROM items", ["key"]),
        lambda: item_rows("t", "SELECT commit, key, key FROM items", ["key"]),
        lambda: item_rows("t", "SELECT 1 AS commit; SELECT 2 AS commit", ["commit"]),
        lambda: item_rows("t", "DROP TABLE items", ["key"]),
        lambda: item_rows("t", "COPY items TO '/tmp/x'", ["key"]),
        lambda: item_rows("t", "SET threads = 4", ["key"]),
        lambda: item_rows("t", "selec", ["key"]),
        lambda: batch_rows("t", "SELECT key, max(value) AS v FROM items GROUP BY key", ["key"]),
        lambda: batch_rows("t", "SELECT key, 1 AS n FROM items", ["k"]),
        lambda: batch_rows("t", "SELECT key, 1 AS n FROM items", ["key"], merge={"m": "max"}),
        lambda: batch_rows("t", "SELECT key, 1 AS n FROM items", ["key"], merge={"n": "avg"}),
        lambda: batch_rows("t", "SELECT key, commit FROM items", ["key"]),
        lambda: batch_rows("t", "SELECT 1 AS n FROM items", []),
    ],
)
def test_a_text_that_is_no_query_or_does_not_fit_its_key_is_refused(wrong: Any) -> None:
    with pytest.raises(StoreError) as refused:
        wrong()
    assert refused.value.code is StoreCode.BAD_TABLE


def test_items_that_a_query_cannot_take_become_dead_letters_and_the_others_count(store: Store) -> None:
    items = [("a", post("ann", 1)), ("b", post("ann", "x")), ("c", post(None, 1)), ("d", None), ("e", post("ann", 2))]
    apply(COUNT, store, COUNT.tables, FlowBatch.of(*items))
    assert COUNT.read(store).to_pylist() == [{"author": "ann", "hour": 0, "posts": 2}]
    letters = {row["item_key"]: row["error"] for rows in store.scan(DEAD_LETTERS) for row in rows.to_pylist()}
    assert set(letters) == {"b", "c", "d"}
    assert "author, hour is null" in letters["d"]


@pytest.mark.parametrize(
    "text",
    [
        "WITH Found AS (SELECT * FROM ITEMS), again AS (FROM found) SELECT a.commit, a.key FROM Again a",
        "SELECT commit, key FROM items WHERE EXISTS (WITH one AS (SELECT 1) FROM one)",
        "SELECT commit, age AS key FROM (SELECT commit, value->>'age' AS age FROM items)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT commit, key FROM items, n",
        "SELECT commit, key FROM items, RANGE(3)",
    ],
)
def test_a_query_may_name_its_own_parts_and_columns(text: str) -> None:
    assert item_rows("t", text, ["key"]).table.key == ("key",)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("strptime(value->>'x', '%Y-%m-%d')::varchar", "2020-13-01"),
        ("json_extract_string(value->>'x', '$.a')", "{"),
        ("regexp_replace(key, value->>'x', '')", "("),
        ("chr((value->>'x')::int)", "-1"),
        ("unhex(value->>'x')::varchar", "%"),
        ("url_decode(value->>'x')", "%ff"),
        ("printf(value->>'x', 1)", "%q"),
        ("(1 // (value->>'x')::int)::varchar", "0"),
        ("(timestamp '2020-01-01' AT TIME ZONE (value->>'x'))::varchar", "Nowhere/Land"),
        ("like_escape(key, 'a', value->>'x')::varchar", "no"),
        ("map([key, value->>'x'], [1, 2])::varchar", "bad"),
    ],
)
def test_whatever_an_item_makes_a_query_fail_with_it_alone_is_a_dead_letter(
    store: Store, expression: str, value: str
) -> None:
    text = f"SELECT commit, key, CASE WHEN key = 'bad' THEN {expression} ELSE 'fine' END AS v FROM items"
    job = item_rows("t", text, ["key"])
    apply(job, store, job.tables, FlowBatch.of(("a", {"x": "1"}), ("bad", {"x": value}), ("c", {"x": "1"})))
    assert {row["key"] for rows in store.scan(job.table) for row in rows.to_pylist()} == {"a", "c"}
    assert [row["item_key"] for rows in store.scan(DEAD_LETTERS) for row in rows.to_pylist()] == ["bad"]


def test_partials_are_added_and_compacted(store: Store) -> None:
    batches = [FlowBatch.of(("a", post("ann", 1)), number=at, first_commit=at) for at in range(1, 6)]
    apply(COUNT, store, COUNT.tables, *batches, batches[0])
    COUNT.partials.compact(store, 3)
    assert COUNT.read(store).to_pylist() == [{"author": "ann", "hour": 0, "posts": 5}]
    assert store.count(COUNT.partials.table) == 2


def test_rows_of_deletions_need_the_key_alone(store: Store) -> None:
    job = item_rows("t", "SELECT commit, key, value->>'a' AS a, value IS NULL AS deleted FROM items", ["key"])
    apply(job, store, job.tables, FlowBatch.of(("x", {"a": "1"}), ("y", {"a": "2"}), ("x", None)))
    assert [row for rows in store.scan(job.table) for row in rows.to_pylist()] == [
        {"key": "y", "a": "2", "write_ts": 2}
    ]


def test_a_row_an_item_may_make_many_rows_and_have_its_commit_in_the_key(store: Store) -> None:
    text = "SELECT commit, key, unnest((value->'tags')::VARCHAR[]) AS tag FROM items"
    job = item_rows("tags", text, ["tag", "commit"])
    apply(job, store, job.tables, FlowBatch.of(("x", {"tags": ["a", "b"]}), ("y", {"tags": ["b"]})))
    found = {(row["tag"], row["commit"]) for rows in store.scan(job.table) for row in rows.to_pylist()}
    assert found == {("a", 1), ("b", 1), ("b", 2)}


def test_a_derivation_of_sql_reaches_other_processes() -> None:
    again = pickle.loads(pickle.dumps(COUNT))
    batch = FlowBatch.of(("a", post("ann", 1)))
    assert list(again(batch)) == list(COUNT(batch))
