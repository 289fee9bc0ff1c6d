"""What holds for every command: an example in its help, and all forms of output where it prints rows or objects."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
from typer.testing import CliRunner

from oncegate.gateway.cli import dead_letters
from oncegate.gateway.cli.examples import EXAMPLES
from oncegate.gateway.cli.main import app, command_line
from oncegate.gateway.client.outbox_file import Head, NewEntry, OutboxFile
from oncegate.gateway.wire import Operation
from oncegate.rifl.ids import ClientId
from tests.gateway.http_contract import declare, one_node, serving
from tests.gateway.test_cli_connection import every_command
from tests.lincheck.lines import event
from tests.lincheck.test_command import line_of

COMMANDS = {" ".join(path): command for path, command in every_command(typer.main.get_command(command_line()))}
OWN_PARSER = {"cassandra"}
PRINTING = {path for path, command in COMMANDS.items() if any("--output" in one.opts for one in command.params)}
LETTER = {"job": "j", "flow": "f", "batch": 1, "commit": 1, "item_key": "k", "error": "KeyError", "raw": b"\xff"}


@pytest.mark.parametrize("path", sorted(COMMANDS.keys() - OWN_PARSER))
def test_help_of_a_command_ends_with_an_example_that_the_command_takes(path: str) -> None:
    command = COMMANDS[path]
    shown = CliRunner().invoke(app, [*path.split(), "--help"])
    assert shown.exit_code == 0
    assert EXAMPLES[path]
    for line in EXAMPLES[path]:
        assert f"    oncegate {path} {line}".rstrip() in shown.stdout.splitlines()
        words = shlex.split(line)
        end = min((words.index(one) for one in ("|", "<", ">", ">>") if one in words), default=len(words))
        context = command.make_context(path, [], resilient_parsing=True)
        given, left, _ = command.make_parser(context).parse_args(words[:end])
        needed = {one.name for one in command.params if one.required}
        assert needed - {name for name, value in given.items() if value is not None} == set()
        assert not left or command.ignore_unknown_options or context.allow_extra_args


def test_there_is_no_example_of_a_command_that_is_not_there() -> None:
    assert EXAMPLES.keys() - COMMANDS.keys() == set()


def test_every_form_of_output_is_one_option_everywhere() -> None:
    for path in PRINTING:
        (option,) = (one for one in COMMANDS[path].params if "--output" in one.opts)
        assert list(option.type.choices) == ["table", "json", "jsonl"], path


async def test_each_command_prints_each_form_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that prints rows or objects is missing here exactly if nobody has said how it is called."""
    store, backups, outbox = f"sqlite://{tmp_path}/store", str(tmp_path / "backups"), tmp_path / "outbox"
    history, transaction = tmp_path / "history.jsonl", tmp_path / "transaction.json"
    transaction.write_text('{"writes": [{"op": "put", "table": "rows", "key": "t", "value": 1}]}')
    history.write_bytes(b"".join(line_of(event(0, kind, "write", 1)) + b"\n" for kind in ("invoke", "ok")))
    file = OutboxFile(outbox)
    entry = NewEntry(1, msgspec.msgpack.encode(Operation(1, "increment", "rows", "k", by=1)))
    file.write([entry], head=Head(client_id=ClientId(1), lease_ms=60_000, window=512))
    file.close()
    monkeypatch.setattr(dead_letters, "_found", lambda *_: [dict(LETTER)])
    settings = one_node(tmp_path)
    endpoint = settings.address.http
    monkeypatch.setenv("ONCEGATE_ENDPOINTS", endpoint)
    monkeypatch.setenv("ONCEGATE_PROFILES", str(tmp_path / "none.toml"))
    job = "oncegate.stores.stream_rows:STREAM_ROWS"
    called: dict[str, str] = {}

    async def call(path: str, arguments: str = "", codes: tuple[int, ...] = (0,)) -> None:
        called[path] = arguments
        for form in ("table", "json", "jsonl"):
            words = [*path.split(), *shlex.split(arguments.replace("FORM", form)), "-o", form]
            ran = await asyncio.to_thread(CliRunner().invoke, app, words)
            assert ran.exit_code in codes, (words, ran.output, ran.exception)
            if form == "table":
                assert ran.stdout, words
                continue
            assert ran.stderr == "", words
            if form == "json":
                json.loads(ran.stdout)
            else:
                lines: list[Any] = [json.loads(line) for line in ran.stdout.splitlines()]
                assert all(isinstance(one, dict) for one in lines), words
                assert lines, words

    async with serving(settings) as (api, _):
        await declare(api)
        await declare(api, "events", "stream")
        await api.call("PUT", "/v1/flows/changes", json={"source": "events", "consumers": ["c"]})
        opened = (await api.call("POST", "/v1/sessions", json={"nonce": "n"}))[2]["client_id"]
        sent = {"client_id": opened, "epoch": 1, "first_incomplete": 1}
        put = {"sequence": 2, "op": "put", "table": "rows", "key": "s", "value": 1}
        await api.call("POST", "/v1/operations", json={**sent, "operations": [put]})
        await call("put", "rows k '{\"n\": 1}'")
        await call("get", "rows k")
        await call("increment", "rows n --by 2")
        await call("append", "rows l 1")
        await call("delete", "rows none")
        await call("txn", str(transaction))
        await call("scan", "rows")
        await call("watch", "rows --since 0 --count 2")
        await call("status")
        await call("top", "--interval 0.2 --count 1")
        await call("explain", "rows/k")
        await call("level show")
        await call("table list")
        await call("session list")
        await call("session requests", opened)
        await call("session resolve", f"{opened}/2")
        await call("flow list")
        await call("flow show", "changes")
        await call("flow alter", "changes --max-items 100")
        await call("consumer list")
        await call("consumer show", "changes c")
        await call("consumer start", "changes c --from beginning")
        await call("consumer detach", "changes c")
        await call("store init", store)
        await call("store migrate", f"{store} {job}")
        await call("store status", f"{store} --endpoint {endpoint}")
        await call("store adopt", store)
        await call("store wipe", f"{store} --yes")
        await call("snapshot save", f"{backups} --name FORM")
        await call("snapshot inspect", backups)
        await call("snapshot prune", f"{backups} --keep 3")
    await call("perf", f"--data-dir {tmp_path}", (0, 1))  # PASS or FAIL: the disk of a test may be slow
    await call("config show")
    await call("dead-letters list", store)
    await call("dead-letters show", f"{store} 1")
    await call("check file", f"{history} --model register")
    await call("outbox ls", str(outbox))
    await call("verify", str(settings.data_dir))
    assert PRINTING - called.keys() == {"outbox drain", "outbox drop"}, "tests/client/test_outbox_command.py"
