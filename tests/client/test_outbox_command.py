"""``oncegate outbox``: what it prints, sends and exits with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from oncegate.gateway.cli.main import app
from oncegate.gateway.client.outbox_file import Head, NewEntry, OutboxFile
from oncegate.gateway.http import request_bodies
from oncegate.gateway.wire import OpenSession, Operation
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import parse_client_id
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, rejected, results


@pytest.fixture
def path(fake: FakeGateway, tmp_path: Path) -> Path:
    """An outbox with two writes of a live session that never left."""
    opened = fake.apply(request_bodies.open_session(OpenSession("worker"))).body
    path = tmp_path / "worker.outbox"
    file = OutboxFile(path)
    head = Head(client_id=parse_client_id(opened.client_id), lease_ms=opened.lease_ms, window=512, position=7)
    bodies = [msgspec.msgpack.encode(Operation(n, "increment", "rows", f"k{n}", by=n)) for n in (1, 2)]
    file.write([NewEntry(n, body) for n, body in enumerate(bodies, 1)], head=head)
    file.close()
    return path


async def run(*arguments: Any) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["outbox", *map(str, arguments)])


async def test_ls_lists_entries_and_position(path: Path) -> None:
    listed = await run("ls", path, "-o", "json")
    assert listed.exit_code == 0
    found = json.loads(listed.stdout)
    assert found["position"] == 7
    assert [(entry["request"][-2:], entry["op"], entry["key"]) for entry in found["entries"]] == [
        ("/1", "increment", "k1"),
        ("/2", "increment", "k2"),
    ]
    table = await run("ls", path)
    assert "k1" in table.stdout
    assert "2 entries" in table.stderr


async def test_ls_works_beside_the_process_that_owns_the_file(path: Path) -> None:
    owner = OutboxFile(path)
    listed = await run("ls", path, "-o", "json")
    owner.close()
    assert len(json.loads(listed.stdout)["entries"]) == 2


async def test_drain_sends_what_is_left_once(path: Path, fake: FakeGateway) -> None:
    drained = await run("drain", path, "--endpoint", fake.endpoints[0], "-o", "json")
    assert drained.exit_code == 0, drained.output
    assert [(row["outcome"], row["replayed"]) for row in json.loads(drained.stdout)] == [("applied", False)] * 2
    assert [(write.key, write.sequence) for write in fake.executed] == [("k1", 1), ("k2", 2)]
    again = await run("drain", path, "--endpoint", fake.endpoints[0], "-o", "json")
    assert json.loads(again.stdout) == []
    assert len(fake.executed) == 2


async def test_drain_reports_unknown_writes_and_forgets_them_only_on_request(path: Path, fake: FakeGateway) -> None:
    (session,) = fake.machine.sessions
    fake.expire(session.client_id)
    for _ in range(2):
        refused = await run("drain", path, "--endpoint", fake.endpoints[0], "-o", "json")
        assert refused.exit_code == 1
        assert [row["outcome"] for row in json.loads(refused.stdout)] == ["unknown"] * 2
    forgot = await run("drain", path, "--endpoint", fake.endpoints[0], "--forget-unknown", "-o", "json")
    assert forgot.exit_code == 0
    assert [row["outcome"] for row in json.loads(forgot.stdout)] == ["unknown"] * 2
    assert fake.executed == []
    assert json.loads((await run("ls", path, "-o", "json")).stdout)["entries"] == []


async def test_drain_sends_the_profile_s_token(
    path: Path, tmp_path: Path, fake: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = set()

    async def look(request: web.Request) -> None:
        sent.add(request.headers.get("Authorization"))

    fake.nodes[0].before = look
    (tmp_path / "profiles.toml").write_text(f'[here]\nendpoints = ["{fake.endpoints[0]}"]\ntoken = "secret"\n')
    monkeypatch.setenv("ONCEGATE_PROFILES", str(tmp_path / "profiles.toml"))
    drained = await run("drain", path, "--profile", "here", "-o", "json")
    assert drained.exit_code == 0, drained.output
    assert sent == {"Bearer secret"}
    assert len(fake.executed) == 2


async def test_exit_codes_tell_misuse_no_and_unreachable(path: Path, tmp_path: Path, fake: FakeGateway) -> None:
    assert (await run("ls", tmp_path / "none")).exit_code == 2
    assert (await run("drain", tmp_path / "none")).exit_code == 2
    await fake.nodes[0].stop()
    unreachable = await run("drain", path, "--endpoint", fake.endpoints[0], "--timeout-s", "0.2")
    assert unreachable.exit_code == 3
    (tmp_path / "bad").write_bytes(b"no outbox" * 200)
    damaged = await run("ls", tmp_path / "bad")
    assert damaged.exit_code == 1
    assert "is damaged" in damaged.stderr


async def test_drop_asks_and_removes_only_what_it_is_given(path: Path, fake: FakeGateway) -> None:
    first, second = (entry["request"] for entry in json.loads((await run("ls", path, "-o", "json")).stdout)["entries"])
    refused = await run("drop", path, first)
    assert refused.exit_code == 1, "nobody said yes"
    assert (await run("drop", path, "0000000000000001/9", "--yes")).exit_code == 2
    assert (await run("drop", path.with_name("none"), "--yes")).exit_code == 2
    assert len(json.loads((await run("ls", path, "-o", "json")).stdout)["entries"]) == 2
    dropped = await run("drop", path, first, "--yes", "-o", "json")
    assert [(row["request"], row["outcome"]) for row in json.loads(dropped.stdout)] == [(first, "dropped")]
    agreed = await asyncio.to_thread(CliRunner().invoke, app, ["outbox", "drop", str(path)], input="y\n")
    assert agreed.exit_code == 0
    assert second in agreed.stdout
    drained = await run("drain", path, "--endpoint", fake.endpoints[0], "-o", "json")
    assert (json.loads(drained.stdout), fake.executed) == ([], [])


async def test_drop_is_refused_while_a_worker_owns_the_file(path: Path) -> None:
    owner = OutboxFile(path)
    refused = await run("drop", path, "--yes")
    owner.close()
    assert refused.exit_code == 1
    assert "in use" in refused.output


async def test_drain_says_of_each_write_what_became_of_it(path: Path, fake: FakeGateway) -> None:
    """The first is refused each time, the second may not be written with this token, nor asked about."""

    async def judge(request: web.Request) -> web.StreamResponse | None:
        if request.path == OPERATIONS:
            return results(rejected(1, "QUOTA", later=True), rejected(2, "FORBIDDEN"))
        if request.path.endswith("/2/resolve"):
            return fake.nodes[0].problem(OncegateError(Code.FORBIDDEN))
        return None

    fake.nodes[0].before = judge
    drained = await run("drain", path, "--endpoint", fake.endpoints[0], "-o", "json")
    assert drained.exit_code == 1
    told = [(row["key"], row["outcome"], row.get("code")) for row in json.loads(drained.stdout)]
    assert told == [("k1", "not_applied", "QUOTA"), ("k2", "in doubt", None)]
    await fake.nodes[0].stop()
    unreachable = await run("drain", path, "--endpoint", fake.endpoints[0], "--timeout-s", "0.2", "-o", "json")
    assert unreachable.exit_code == 3
    assert [(row["key"], row["outcome"]) for row in json.loads(unreachable.stdout)] == [("k2", "in doubt")]
