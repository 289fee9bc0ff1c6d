"""``oncegate get``, ``put`` and the like: what they write, print and exit with."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import Result
from typer.testing import CliRunner

from oncegate import sync
from oncegate.gateway.cli import row_reads
from oncegate.gateway.cli.main import app
from oncegate.gateway.cli.output import Output, Printed
from oncegate.testing import FakeCluster

NOBODY = "http://127.0.0.1:9"
WAIT_S = 60.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster() as started:
        started.declare("rows")
        started.declare("events", "stream")
        monkeypatch.setenv("ONCEGATE_ENDPOINTS", ",".join(started.endpoints))
        monkeypatch.setenv("ONCEGATE_PROFILES", str(tmp_path / "none.toml"))
        yield started


def oncegate(*words: str, stdin: str | bytes = "", code: int = 0) -> Result:
    ran = CliRunner().invoke(app, words, input=stdin)
    assert ran.exit_code == code, (words, ran.output, ran.exception)
    assert (ran.stderr == "") == (code == 0), ran.stderr
    return ran


def shown(*words: str, stdin: str = "", code: int = 0) -> Any:
    return json.loads(oncegate(*words, "-o", "json", stdin=stdin, code=code).stdout)


@pytest.mark.parametrize("value", ["null", "-3", "[1,{}]", '{"name":"ann"}', '"text"', "18446744073709551615", "0.5"])
def test_a_value_is_json_and_comes_back_as_it_was(cluster: FakeCluster, value: str) -> None:
    oncegate("put", "rows", "k", *(("--", value) if value.startswith("-") else (value,)))
    assert json.loads(oncegate("get", "rows", "k").stdout) == json.loads(value)
    oncegate("put", "rows", "k2", "-", stdin=f"{value}\n")
    assert cluster.value("rows", "k2") == json.loads(value)


def test_text_and_bytes_come_and_go_as_they_are(cluster: FakeCluster, tmp_path: Path) -> None:
    oncegate("put", "rows", "t", "--text", "[1] is text")
    assert oncegate("get", "rows", "t", "--text").stdout == "[1] is text\n"
    oncegate("put", "rows", "t", "--text", "-", stdin="two\nlines\n")
    assert cluster.value("rows", "t") == "two\nlines"
    content = bytes(range(256))
    oncegate("put", "rows", "b", "--bytes-file", "-", stdin=content)
    assert oncegate("get", "rows", "b", "--bytes-file", "-").stdout_bytes == content
    oncegate("get", "rows", "b", "--bytes-file", str(tmp_path / "out"))
    oncegate("put", "rows", "c", "--bytes-file", str(tmp_path / "out"))
    assert cluster.value("rows", "c") == content
    assert shown("get", "rows", "b")["encoding"] == "base64"
    assert "--bytes-file" in oncegate("get", "rows", "b", code=2).stderr
    oncegate("put", "rows", "n", "1")
    assert "no text" in oncegate("get", "rows", "n", "--text", code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("put", "rows", "k", "ann"),
        ("put", "rows", "k"),
        ("put", "rows", "k", "1", "--bytes-file", "x"),
        ("put", "rows", "k", "--bytes-file", "missing"),
        ("put", "rows", "k", "NaN"),
        ("put", "rows", "k", "1", "--ttl", "soon"),
        ("put", "rows", "k", "1", "--if-absent", "--if-version", "2"),
        ("put", "No table", "k", "1"),
        ("put", "rows", "k", "1", "--idempotency-key", "ä"),
        ("get", "rows", "k", "--text", "-o", "json"),
        ("get", "rows", "k", "--min-commit", "1"),
        ("watch", "rows", "--key", "a", "--prefix", "a"),
        ("scan", "rows", "--since", "1"),
        ("scan", "events", "--prefix", "x"),
        ("txn", "missing.json"),
    ],
)
def test_misuse_exits_2_with_one_line_and_writes_nothing(cluster: FakeCluster, words: tuple[str, ...]) -> None:
    refused = oncegate(*words, code=2)
    assert (refused.stdout, refused.stderr.count("\n")) == ("", 1)
    assert cluster.executed == []


def test_a_row_or_table_that_is_not_there_exits_4(cluster: FakeCluster) -> None:
    for words in (("get", "rows", "k"), ("get", "nowhere", "k"), ("put", "nowhere", "k", "1"), ("scan", "nowhere")):
        assert oncegate(*words, code=4).stdout == ""


def test_a_condition_that_fails_exits_5_prints_what_it_met_and_changes_nothing(cluster: FakeCluster) -> None:
    first = shown("put", "rows", "k", '{"n": 1}', "--if-absent")
    version = str(first["version"])
    for words in (
        ("put", "rows", "k", "2", "--if-absent"),
        ("put", "rows", "k", "2", "--if-version", "999"),
        ("put", "rows", "k", "2", "--if-value", "2"),
        ("delete", "rows", "k", "--if-version", "999"),
        ("delete", "rows", "k", "--if-value", "null"),
    ):
        met = shown(*words, code=5)
        assert (met["applied"], met["code"], met["value"]) == (False, "CONDITION_FAILED", {"n": 1})
        assert str(met["version"]) == version
    assert cluster.value("rows", "k") == {"n": 1}
    oncegate("put", "rows", "k", "[]", "--if-version", version)
    oncegate("append", "rows", "k", '"x"', "--if-value", "[]")
    oncegate("append", "rows", "k", '"y"', "--if-value", "[]", code=5)
    assert cluster.value("rows", "k") == ["x"]
    oncegate("delete", "rows", "k", "--if-value", '["x"]')
    oncegate("get", "rows", "k", code=4)


def test_increment_prints_the_sum_and_keeps_within_floor_and_ceiling(cluster: FakeCluster) -> None:
    assert oncegate("increment", "rows", "n").stdout == "1\n"
    assert oncegate("increment", "rows", "n", "--by", "-3").stdout == "-2\n"
    assert shown("increment", "rows", "n", "--floor", "0", code=5)["value"] == -2
    assert shown("increment", "rows", "n", "--by", "9", "--ceiling", "6", code=5)["applied"] is False
    assert shown("increment", "rows", "n", "--by", "9", "--ceiling", "7")["value"] == 7


def test_a_row_ends_when_its_time_is_over(cluster: FakeCluster) -> None:
    oncegate("put", "rows", "k", "1", "--ttl", "15m")
    assert shown("get", "rows", "k")["ends_ms"] > 0
    cluster.advance(901)
    oncegate("get", "rows", "k", code=4)


def test_the_same_idempotency_key_does_it_once_and_another_content_is_refused(cluster: FakeCluster) -> None:
    words = ("increment", "rows", "n", "--idempotency-key", "order 17")
    told = [shown(*words) for _ in range(2)]
    assert [(one["value"], one["replayed"]) for one in told] == [(1, False), (1, True)]
    assert "PAYLOAD_MISMATCH" in oncegate(*words, "--by", "2", code=1).stderr
    assert len(cluster.executed) == 1


def test_a_lost_answer_is_retried_and_costs_no_second_execution(cluster: FakeCluster) -> None:
    cluster.lose_answers(2)
    assert shown("increment", "rows", "n")["replayed"] is True
    assert len(cluster.executed) == 1


def test_a_doubt_exits_6_and_the_command_that_it_names_ends_it(cluster: FakeCluster) -> None:
    async def after(request: web.Request) -> None:
        if request.path == "/v1/transactions" and request.transport is not None:
            request.transport.abort()

    for node in cluster.gateway.nodes:
        node.after = after
    doubt = oncegate("increment", "rows", "n", "--timeout-s", "1.5", code=6)
    assert doubt.stdout == ""
    words = doubt.stderr.split()
    key = words[words.index("--idempotency-key") + 1]
    for node in cluster.gateway.nodes:
        node.after = None
    ended = shown("increment", "rows", "n", "--idempotency-key", key)
    assert (ended["value"], ended["replayed"]) == (1, True)
    assert len(cluster.executed) == 1


def test_nobody_who_answers_exits_3(cluster: FakeCluster) -> None:
    at = ("--endpoint", NOBODY, "--timeout-s", "0.2")
    for words in (
        ("get", "rows", "k"),
        ("scan", "rows"),
        ("watch", "rows"),
        ("put", "rows", "k", "1"),
        ("delete", "rows", "k"),
    ):
        assert oncegate(*words, *at, code=3).stdout == ""


@pytest.mark.parametrize(
    "words", [("get", "rows", "k"), ("scan", "rows"), ("watch", "rows"), ("put", "rows", "k", "1")], ids=" ".join
)
def test_whoever_waits_for_a_node_that_nobody_reaches_is_told_why_before_the_time_is_over(
    cluster: FakeCluster, words: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "oncegate", *words, "--endpoint", NOBODY, "--timeout-s", "600"]
    with subprocess.Popen(command, env={**os.environ}, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == f"oncegate: still trying; {NOBODY}: no connection\n"
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)


def test_what_is_shown_of_the_log_stays_as_it_was(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("oncegate.client")
    level, filters = log.level, list(log.filters)
    with caplog.at_level(logging.INFO, "oncegate.client"):
        oncegate("get", "rows", "k", "--endpoint", NOBODY, "--timeout-s", "0.2", code=3)
    assert not caplog.records
    assert (log.level, log.filters) == (level, filters)


@pytest.mark.parametrize(
    "words",
    [
        ("scan", "rows", "--commit"),
        ("watch", "rows", "--count", "1", "--since"),
        ("get", "rows", "a", "--consistency", "session", "--min-commit"),
    ],
    ids=" ".join,
)
def test_a_commit_beyond_the_newest_is_refused_at_once_and_the_newest_is_none(
    cluster: FakeCluster, words: tuple[str, ...]
) -> None:
    oncegate("put", "rows", "a", "1")
    newest = shown("get", "rows", "a")["commit"]
    said = oncegate(*words, str(newest + 1), code=1).stderr
    assert said == f"oncegate: {words[-1]} {newest + 1} is beyond the newest commit, {newest}\n"
    assert cluster.gateway.nodes[0].requests["GET /v1/tables/rows/rows"] == 0  # nor was it asked for
    assert cluster.gateway.nodes[0].requests["GET /v1/tables/rows/watch"] == 0
    if words[0] != "watch":
        assert "1" in oncegate(*words, str(newest)).stdout


def test_a_transaction_happens_whole_or_not_at_all(cluster: FakeCluster) -> None:
    oncegate("put", "rows", "ann", "100")
    transfer = {
        "conditions": [{"table": "rows", "key": "closed", "if": {"absent": True}}],
        "writes": [
            {"op": "increment", "table": "rows", "key": "ann", "by": -30, "floor": 0},
            {"op": "increment", "table": "rows", "key": "bob", "by": 30, "if": {"at_most": 50}},
            {"op": "put", "table": "rows", "key": "r", "value": {"n": 30}, "ttl_ms": 60000},
            {"op": "append", "table": "rows", "key": "log", "item": "moved"},
            {"op": "get", "table": "rows", "key": "ann"},
            {"op": "delete", "table": "rows", "key": "none"},
            {"op": "put", "table": "events", "key": "e", "value": None},
        ],
    }
    done = shown("txn", "-", stdin=json.dumps(transfer))
    assert (done["applied"], [one["value"] for one in done["writes"]][:2], done["writes"][4]["value"]) == (
        True,
        [70, 30],
        70,
    )
    transfer["writes"][0]["by"] = -71
    refused = shown("txn", "-", stdin=json.dumps(transfer), code=5)
    assert (refused["applied"], refused["failed"]) == (False, "writes[0]")
    assert (cluster.value("rows", "ann"), cluster.value("rows", "bob")) == (70, 30)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "is JSON"),
        ("[]", "object"),
        ('{"writes": [], "more": 1}', "more"),
        ('{"writes": []}', "needs a write"),
        ('{"writes": [{"op": "put", "table": "rows", "key": "k"}]}', "writes[0]: put needs value"),
        ('{"writes": [{"op": "move", "table": "rows", "key": "k"}]}', "writes[0]: op is one of"),
        ('{"writes": [{"op": "delete", "table": "rows", "key": "k", "by": 1}]}', "writes[0]: delete does not take by"),
        ('{"writes": [{"op": "get", "table": "rows", "key": "k", "if": {"newer": 1}}]}', "if does not take newer"),
        ('{"writes": [{"op": "get", "table": "rows", "key": ""}]}', "writes[0]: key is empty"),
        ('{"writes": [], "conditions": [{"table": "rows"}]}', "conditions[0]: "),
        ('{"writes": [], "conditions": [{"session": "x"}]}', "conditions[0]: "),
        ('{"writes": [], "conditions": [{"table": "rows", "key": "k", "if": {"absent": 1}}]}', "conditions[0]: "),
    ],
)
def test_a_document_that_is_no_transaction_is_refused_with_the_place(
    cluster: FakeCluster, document: str, said: str
) -> None:
    refused = oncegate("txn", "-", stdin=document, code=2)
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert cluster.executed == []


def filled(cluster: FakeCluster, rows: int) -> None:
    with sync.Client(cluster.endpoints) as client, client.session() as session:
        session.put_many("rows", [(f"{n:04}", n) for n in range(rows)])


def lines(*words: str) -> list[Any]:
    return [json.loads(line) for line in oncegate(*words, "-o", "jsonl").stdout.splitlines()]


def test_a_scan_prints_its_bounds_and_asks_for_no_more_pages_than_it_prints(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster, 30)
    monkeypatch.setattr(row_reads, "_PAGE_ROWS", 10)

    def keys(*words: str) -> list[int]:
        return [int(one["key"]) for one in lines("scan", "rows", *words)]

    assert keys() == list(range(30))
    assert keys("--prefix", "002") == list(range(20, 30))
    assert keys("--from", "0005", "--to", "0008") == [5, 6, 7]
    assert keys("--reverse", "--limit", "3") == [29, 28, 27]
    before = sum(node.requests["GET /v1/tables/rows/rows"] for node in cluster.gateway.nodes)
    assert len(keys("--limit", "15")) == 15
    assert sum(node.requests["GET /v1/tables/rows/rows"] for node in cluster.gateway.nodes) == before + 2
    then = cluster.gateway.commit
    oncegate("delete", "rows", "0000")
    assert (len(keys()), len(keys("--commit", str(then)))) == (29, 30)
    assert [one["key"] for one in json.loads(oncegate("scan", "rows", "-o", "json").stdout)][:1] == ["0001"]
    assert oncegate("scan", "rows", "--limit", "1").stdout.splitlines()[1].split() == ["0001", "2", "1"]


def test_a_scan_of_a_stream_table_prints_what_it_retains_in_commit_order(cluster: FakeCluster) -> None:
    for key in ("b", "a", "c"):
        oncegate("put", "events", key, f'{{"of": "{key}"}}')
    cluster.advance(60)
    found = lines("scan", "events")
    assert [(one["key"], one["value"]) for one in found] == [(key, {"of": key}) for key in "bac"]
    assert [one["key"] for one in lines("scan", "events", "--since", str(found[0]["commit"]), "--limit", "1")] == ["a"]


@pytest.mark.parametrize("output", list(Output))
def test_a_row_is_printed_before_the_next_one_is_there(monkeypatch: pytest.MonkeyPatch, output: Output) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with Printed(output, (("key", 3), ("value", 0))) as printed:
        for number in range(3):
            printed.row({"key": f"k{number}", "value": {"n": [number]}})
            assert f"k{number}" in out.getvalue()
            assert f'{{"n": [{number}]}}' in out.getvalue()
    read = {Output.JSON: json.loads, Output.JSONL: lambda text: [json.loads(one) for one in text.splitlines()]}
    if output in read:
        assert len(read[output](out.getvalue())) == 3


def test_an_array_that_an_error_cuts_off_is_not_read_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)

    def cut_off() -> None:
        with Printed(Output.JSON, ()) as printed:
            printed.row({"key": "a"})
            raise ValueError("cut")

    with pytest.raises(ValueError, match="cut"):
        cut_off()
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(out.getvalue())


def test_a_watch_prints_each_change_from_where_it_is_told_to(cluster: FakeCluster) -> None:
    for words in (("put", "rows", "a", "1"), ("put", "rows", "b", "2"), ("delete", "rows", "a")):
        oncegate(*words)
    every = lines("watch", "rows", "--since", "0", "--count", "3")
    assert [(one["key"], one.get("value"), one.get("deleted", False)) for one in every] == [
        ("a", 1, False),
        ("b", 2, False),
        ("a", None, True),
    ]
    assert lines("watch", "rows", "--since", str(every[0]["commit"]), "--count", "1") == every[1:2]
    assert lines("watch", "rows", "--key", "a", "--since", "0", "--count", "2") == [every[0], every[2]]
    assert lines("watch", "rows", "--prefix", "b", "--since", "0", "--count", "1") == [every[1]]
    shown_as = oncegate("watch", "rows", "--since", "0", "--count", "3", "-o", "table").stdout.splitlines()
    assert [line.split()[2] for line in shown_as] == ["change", "put", "put", "deleted"]


def test_ctrl_c_ends_a_watch_with_whole_output_and_exit_code_0(cluster: FakeCluster) -> None:
    oncegate("put", "rows", "a", "1")
    command = [sys.executable, "-m", "oncegate", "watch", "rows", "--since", "0", "-o", "json"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ}, **streams) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = watching.stdout.readline()  # it is there before the watch ends
        watching.send_signal(signal.SIGINT)
        rest, said = watching.stdout.read(), watching.stderr.read()
    assert (watching.returncode, said) == (0, "")
    assert [one["key"] for one in json.loads(first + rest)] == ["a"]


def test_ctrl_c_while_a_write_waits_is_a_doubt(cluster: FakeCluster) -> None:
    arrived = asyncio.Event()

    async def hold(request: web.Request) -> None:
        if request.path == "/v1/transactions":
            arrived.set()
            await asyncio.Event().wait()

    for node in cluster.gateway.nodes:
        node.before = hold
    command = [sys.executable, "-m", "oncegate", "put", "rows", "a", "1"]
    writing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    cluster._thread.run(asyncio.wait_for(arrived.wait(), WAIT_S))
    writing.send_signal(signal.SIGINT)
    out, said = writing.communicate(timeout=WAIT_S)
    assert (writing.returncode, out) == (6, "")
    assert "--idempotency-key command-" in said
