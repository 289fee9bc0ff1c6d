"""The audit log has each administrative act once, with who, what, when and its end; it is bounded, and its own file."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.server import ROUTES
from oncegate.gateway.observability import audit
from oncegate.gateway.observability.audit import DONE, NOT_APPLIED, REFUSED_PER_MINUTE, Act, AuditLog, Who
from oncegate.gateway.observability.rotated_file import RotatedFile
from tests.conftest import Api
from tests.gateway.http_contract import one_node, serving
from tests.gateway.test_auth import ADMIN, ALL, READER, as_, entry, written

BY_JOBS = {"/v1/flows/{flow}/consumers/{name}/cursor", "/v1/flows/{flow}/consumers/{name}/cascade"}
"""What jobs send with each batch."""
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def lines(data_dir: Path) -> list[dict[str, Any]]:
    """Return the audit log of a node."""
    path = data_dir / "audit" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def acts(data_dir: Path) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Yield act, outcome, token and what it was about."""
    for line in lines(data_dir):
        yield line["act"], line["outcome"], line.get("who", {}).get("token", ""), line.get("what", {})


def test_every_route_that_changes_the_cluster_its_tables_or_flows_is_an_act() -> None:
    changing = {route for route in map(_Shown, ROUTES) if route.changes}
    assert {route.path for route in changing if not route.act} == BY_JOBS
    names = [route.act for route in changing if route.act]
    assert len(set(names)) == len(names)


class _Shown:
    def __init__(self, route: Any) -> None:
        self.path, self.act = route.path, route.act
        self.changes = route.method != "GET" and route.scope in (Scope.ADMIN, Scope.FLOWS)


async def test_acts_are_written_down_with_who_what_and_how_they_ended(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    settings = one_node(tmp_path, tokens_file=written(tokens, ALL))
    table = {"kind": "stream", "quota_bytes": 2**20}
    async with serving(settings) as (api, _):
        assert (await as_(api, ADMIN, "PUT", "/v1/tables/rows", table))[0] == 200
        assert (await as_(api, READER, "PUT", "/v1/tables/other", table))[0] == 403
        assert (await as_(api, "nobody", "PUT", "/v1/tables/other", table))[0] == 401
        assert (await as_(api, ADMIN, "PUT", "/v1/flows/f", {"source": "rows", "consumers": ["c"]}))[0] == 200
        assert (await as_(api, ADMIN, "DELETE", "/v1/flows/f?version=7"))[0] == 409
        assert (await as_(api, ADMIN, "POST", "/v1/cluster/leader", {"to": "n9"}))[0] >= 400
        assert (await as_(api, ADMIN, "DELETE", "/v1/cluster/members/n9"))[0] == 200
        status, _, made = await as_(api, ADMIN, "POST", "/v1/snapshots")
        assert status == 201
        assert (await as_(api, ADMIN, "DELETE", f"/v1/snapshots/{made['id']}"))[0] == 204
        assert (await as_(api, ADMIN, "GET", "/v1/tables/rows"))[0] == 200
        found = list(acts(settings.data_dir))
        text = (settings.data_dir / "audit" / "audit.jsonl").read_text()
    assert found == [
        ("table.declare", "done", ADMIN, {"table": "rows"}),
        ("table.declare", "not_applied", READER, {"table": "other"}),
        ("flow.declare", "done", ADMIN, {"flow": "f"}),
        ("flow.delete", "not_applied", ADMIN, {"flow": "f"}),
        ("leader.move", "not_applied", ADMIN, {}),
        ("member.remove", "done", ADMIN, {"id": "n9"}),
        ("snapshot.take", "done", ADMIN, {}),
        ("snapshot.discard", "done", ADMIN, {"id": made["id"]}),
    ]
    first = lines(settings.data_dir)[0]
    assert first["v"] == 1
    assert first["asked"] == table
    assert first["who"] == {"token": ADMIN, "tenant": "ops", "address": "127.0.0.1"}
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert lines(settings.data_dir)[3]["code"] == "CONFLICT"
    assert "Bearer" not in text
    assert stat.S_IMODE((settings.data_dir / "audit" / "audit.jsonl").stat().st_mode) == 0o600


async def test_tokens_that_are_read_again_are_written_down(tmp_path: Path) -> None:
    tokens = written(tmp_path / "tokens.toml", ALL)
    settings = one_node(tmp_path, tokens_file=tokens)
    async with serving(settings) as (api, _):
        written(tokens, ALL + entry("t-later", "ann", "read"))
        async with asyncio.timeout(20):
            while (await as_(api, "t-later", "GET", "/v1/cluster"))[0] == 401:
                await asyncio.sleep(0.05)
    assert list(acts(settings.data_dir)) == [("tokens.reload", "done", "", {})]


async def test_a_node_without_tokens_writes_down_what_anybody_does(api: Api, tmp_path: Path) -> None:
    await api.call("PUT", "/v1/tables/rows", {"kind": "resident"}, headers={"X-Request-Id": "mine-1"})
    (line,) = lines(tmp_path / "n1")
    assert line["who"] == {"address": "127.0.0.1"}
    assert line["request"] == "mine-1"


async def test_an_audit_log_that_cannot_be_written_is_counted_and_logged_and_undoes_nothing(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "n1" / "audit").write_text("in the way")
    assert (await api.call("PUT", "/v1/tables/rows", {"kind": "resident"}))[0] == 200
    assert b"oncegate_audit_failures_total 1.0" in (await api.call("GET", "/metrics"))[2]
    assert '"act":"table.declare"' in caplog.text


def test_whoever_may_do_nothing_does_not_push_out_what_others_did(tmp_path: Path) -> None:
    now_s = 0.0
    log = AuditLog(tmp_path, "n1", wall=lambda: NOW, clock=lambda: now_s)
    for _ in range(REFUSED_PER_MINUTE + 5):
        log.record_now(Act("table.drop", NOT_APPLIED, Who("reader")))
    log.record_now(Act("table.drop", DONE, Who("admin")))
    assert (log.lines, log.unwritten) == (REFUSED_PER_MINUTE + 1, 5)
    now_s = 61.0
    log.record_now(Act("table.drop", NOT_APPLIED, Who("reader")))
    assert len(lines(tmp_path)) == REFUSED_PER_MINUTE + 2


def test_what_was_asked_is_kept_as_an_object_and_a_long_one_as_its_length() -> None:
    assert audit.asked(b'{"a":1}', packed=False) == {"a": 1}
    assert audit.asked(b"\x81\xa1a\x01", packed=True) == {"a": 1}
    for body in (b"", b"[1]", b"{", b"\xff"):
        assert audit.asked(body, packed=False) is None
    assert audit.asked(b" " * 5000, packed=False) == {"bytes": 5000}


def test_rotated_file_keeps_its_bound_and_the_newest_lines(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log" / "x", bytes_max=100, files=3)
    for number in range(100):
        file.write(f"{number:019}\n".encode(), durable=False)
    file.close()
    names = sorted(path.name for path in (tmp_path / "log").iterdir())
    assert names == ["x", "x.1", "x.2"]
    assert all(path.stat().st_size <= 100 for path in (tmp_path / "log").iterdir())
    kept = [int(line) for name in ("x.2", "x.1", "x") for line in (tmp_path / "log" / name).read_text().split()]
    assert kept == list(range(85, 100))


def test_rotated_file_goes_on_behind_a_line_that_a_power_loss_has_torn(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"whole\nto")
    file = RotatedFile(tmp_path / "x", bytes_max=100, files=2)
    file.write(b"next\n", durable=True)
    file.close()
    assert (tmp_path / "x").read_bytes() == b"whole\nto\nnext\n"
