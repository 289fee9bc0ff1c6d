"""Log lines for programs carry the request that they belong to; the access log is bounded and names no key."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http.routes import tables
from oncegate.gateway.http.routing import Route
from oncegate.gateway.http.server import ROUTES
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.observability import access
from oncegate.gateway.observability.access import AccessLog
from oncegate.gateway.observability.logs import REQUEST, JsonFormatter, TextFormatter, formatter, request_id
from tests.gateway.http_contract import declare, one_node, put, serving

TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def record(message: str, *args: object, fault: bool = False) -> logging.LogRecord:
    found = None
    if fault:
        try:
            raise ValueError("no \ud800 such")
        except ValueError:
            found = sys.exc_info()
    return logging.LogRecord("oncegate.test", logging.WARNING, "file", 1, message, args, found)


@given(st.text(alphabet=st.characters()), st.booleans())
def test_each_event_is_one_line_of_json_whatever_it_says(message: str, fault: bool) -> None:
    line = JsonFormatter("n1").format(record("%s", message, fault=fault))
    told = json.loads(line)
    assert "\n" not in line
    assert (told["level"], told["logger"], told["node"]) == ("WARNING", "oncegate.test", "n1")
    assert told["time"].endswith("Z")
    assert ("exception" in told) == fault
    assert "request" not in told


def test_an_event_of_a_request_carries_its_id_in_both_formats() -> None:
    token = REQUEST.set("r-1")
    try:
        assert json.loads(formatter("json", "n1").format(record("x")))["request"] == "r-1"
        assert formatter("text", "n1").format(record("x")).endswith("x [oncegate.test] [request r-1]")
    finally:
        REQUEST.reset(token)
    assert TextFormatter().format(record("x")).endswith("x [oncegate.test]")


def test_the_id_of_a_request_is_its_sender_s_then_the_trace_s_then_a_new_one() -> None:
    def of(**headers: str) -> str:
        return request_id({name.replace("_", "-"): value for name, value in headers.items()}.get)

    assert of(X_Request_Id="mine", traceparent=TRACE) == "mine"
    assert of(traceparent=TRACE) == "0123456789abcdef0123456789abcdef"
    assert len(of()) == 16
    assert of() != of()
    for bad in ("a b", "x" * 129, "line\nbreak", ""):
        assert of(X_Request_Id=bad) != bad


def test_log_format_is_checked() -> None:
    assert Settings(log_format="json").log_format == "json"
    with pytest.raises(ValueError, match="log_format: 'xml' is not one of text, json"):
        Settings(log_format="xml")


async def test_a_bug_is_logged_with_the_id_that_its_caller_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "table_state", None)
    caplog.handler.setFormatter(JsonFormatter("n1"))
    async with serving(one_node(tmp_path)) as (api, _):
        await api.call("PUT", "/v1/tables/rows", {"kind": "resident"})
        status, _, body = await api.call("GET", "/v1/tables/rows", headers={"X-Request-Id": "mine-2"})
    assert status == 500
    assert body["detail"] == "see the node's log, request mine-2"
    told = [json.loads(line) for line in caplog.text.splitlines() if "a handler failed" in line]
    assert [line["request"] for line in told if "request" in line] == ["mine-2"]
    assert "TypeError" in told[-1]["exception"]


@pytest.mark.parametrize("name", ["/v1/operations", "/v1/tables/{table}"])
async def test_the_access_log_has_each_request_once_and_no_key(tmp_path: Path, name: str) -> None:
    settings = one_node(tmp_path, access_log=True)
    async with serving(settings) as (api, _):
        await declare(api)
        client_id = await api.session()
        await api.operate(client_id, put(1, "secret-key", "secret-value"))
        await api.call("GET", "/v1/tables/rows/rows/secret-key", headers={"X-Request-Id": "mine-3"})
    text = (settings.data_dir / "access" / "access.jsonl").read_text()
    assert "secret" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(line["route"] == name for line in lines) == 1
    assert [line["route"] for line in lines if line.get("request") == "mine-3"] == [_row().path]
    assert all(line["status"] < 500 and line["ms"] >= 0 and line["request"] for line in lines)


def _row() -> Route:
    return next(route for route in ROUTES if route.handler is tables.row)


async def test_no_access_log_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    settings = one_node(tmp_path)
    async with serving(settings) as (api, _):
        await declare(api)
    assert not (settings.data_dir / "access").exists()


def test_the_access_log_leaves_out_what_is_beyond_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "LINES_MAX", 3)
    log = AccessLog(tmp_path)
    for status in range(200, 205):
        log.add(("GET", "/x"), status, 0.001)
    log.close()
    lines = (tmp_path / "access" / "access.jsonl").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == [200, 201, 202]
    assert log.dropped == 2
