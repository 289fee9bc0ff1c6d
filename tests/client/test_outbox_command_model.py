"""``oncegate outbox`` against a list of entries of each kind: what it prints of each, what it leaves, how it exits.

The session that settles entries is the model's: it settles any of them, each in any way, and fails then or not.
Whatever it did, each write is told of once, as it is now, and the exit code says whether anything is left to be done.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from oncegate import OperationFailed, OutboxUnresolved
from oncegate.gateway.cli import outbox
from oncegate.gateway.cli.connection_flags import Cluster
from oncegate.gateway.cli.output import Output
from oncegate.gateway.client.outbox_file import Head, NewEntry, OutboxEntry, OutboxFile
from oncegate.gateway.client.recovery import Recovered
from oncegate.gateway.client.results import Resolution, WriteResult
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

SESSIONS = (ClientId(7), ClientId(0xABC))
COMMANDS = typer.Typer()
"""Those that ask no cluster, without all others: a whole tree costs a tenth of a second a call."""
COMMANDS.command("ls")(outbox.list_entries)
COMMANDS.command("drop")(outbox.drop)
UNREACHED = {Code.TIMEOUT, Code.NOT_READY, Code.NO_LEADER, Code.NOT_LEADER}


def result(request: RequestId, dice: random.Random, *, applied: bool) -> WriteResult:
    commit = dice.randint(1, 999)
    code = None if applied else "CONDITION_FAILED"
    return WriteResult(*request, applied, commit, commit, None, dice.random() < 0.5, 5, code)


class Model:
    """An outbox, and what is said of each of its entries."""

    def __init__(self, seed: int, path: Path) -> None:
        self.dice, self.path = random.Random(seed), path
        self.file = OutboxFile(path)
        self.taken = datetime.fromtimestamp(seed / 1000, UTC).isoformat(timespec="milliseconds")
        self.told: dict[str, dict[str, Any]] = {}
        self.fresh: dict[str, str] = {}
        """Of each write whose fate nobody knows: whether its caller was told so."""
        for session in SESSIONS:
            head = Head(client_id=session, lease_ms=1, window=512, position={"at": seed})
            numbers = sorted(self.dice.sample(range(1, 50), self.dice.randint(0, 6)))
            self.file.write([self._entry(session, number) for number in numbers], head=head, now_ms=seed)
            self._age([RequestId(session, SequenceNumber(number)) for number in numbers])
        self.file.close()

    def _entry(self, session: ClientId, number: int) -> NewEntry:
        op = self.dice.choice(("put", "increment", "delete"))
        operation = Operation(number, op, self.dice.choice("tu"), f"k{number}", by=1)
        about = {"op": op, "table": operation.table, "key": operation.key, "told_unknown": False}
        request = str(RequestId(session, SequenceNumber(number)))
        self.told[request] = {"request": request, **about, "taken": self.taken}
        self.fresh[request] = "waiting"
        return NewEntry(number, msgspec.msgpack.encode(operation))

    def _age(self, requests: list[RequestId]) -> None:
        """Let the callers of some be told that the outcome is unknown, and the fates of some of these be learned."""
        doubted = [request for request in requests if self.dice.random() < 0.6]
        for request in doubted:
            self.told[str(request)]["told_unknown"] = True
            self.fresh[str(request)] = "in doubt"
        learned: list[tuple[RequestId, Resolution]] = []
        for request in doubted:
            state: Literal["applied", "refused", "sealed"] | None
            state = self.dice.choice((None, None, "applied", "refused", "sealed"))
            if state is not None:
                made = None if state == "sealed" else result(request, self.dice, applied=state == "applied")
                learned.append((request, Resolution(state, made)))
                self.told[str(request)]["fate"] = state
                del self.fresh[str(request)]
        self.file.write(doubted=doubted)
        self.file.write(learned=learned)

    def rows(self, requests: Any, **more: Any) -> list[dict[str, Any]]:
        return [{**self.told[request], **more} for request in requests]

    def listed(self) -> None:
        """What is there is listed, with the position, to whoever reads the text as to a program."""
        found = json.loads(run("ls", self.path, "-o", "json").stdout)
        assert found["position"] == self.position()
        assert found["entries"] == list(self.told.values())
        lines = run("ls", self.path, "-o", "jsonl").stdout.splitlines()
        assert [json.loads(line) for line in lines] == found["entries"]
        shown = run("ls", self.path)
        assert f"{len(self.told)} entries, position {json.dumps(self.position())}" in shown.stderr
        assert all(request in shown.stdout for request in self.told)

    def position(self) -> Any:
        opened = OutboxFile(self.path, read_only=True)
        opened.close()
        return opened.head.position

    def left(self) -> list[dict[str, Any]]:
        """Writes of which nothing is known yet; a fate that is kept is no write that waits."""
        return [{**self.told[request], "outcome": said} for request, said in self.fresh.items()]


def run(*words: Any, code: int = 0, answer: str | None = None) -> Result:
    ran = CliRunner().invoke(COMMANDS, [*map(str, words)], input=answer)
    assert ran.exit_code == code, (ran.output, ran.exception)
    return ran


def drained(model: Model, capsys: pytest.CaptureFixture[str], *, forget: bool) -> tuple[int, str, str]:
    """Drain, with the model's session; returns exit code and what is printed."""
    code, cluster = 0, cast("Cluster", None)
    try:
        outbox.drain(model.path, cluster, Output.JSON, forget_unknown=forget)
    except typer.Exit as ended:
        code = ended.exit_code
    return code, *capsys.readouterr()


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    made = Model(request.param, tmp_path / "outbox")
    # In the order in which they were numbered, session by session.
    assert list(made.told) == [str(one.request_id) for one in _entries(made.path)]
    return made


def _entries(path: Path) -> list[OutboxEntry]:
    opened = OutboxFile(path, read_only=True)
    opened.close()
    return opened.loaded


@pytest.mark.parametrize("model", range(5), indirect=True)
def test_each_write_is_listed_and_dropped_as_it_is(model: Model) -> None:
    model.listed()
    dice, requests = model.dice, list(model.told)
    nobody = "0000000000000001/77"
    run("drop", model.path, *requests[:1], nobody, "--yes", code=2)
    some = dice.sample(requests, len(requests) // 2)
    if some:
        assert f"Drop {len(some)} writes" in run("drop", model.path, *some, code=1, answer="n\n").output
        model.listed()
        dropped = json.loads(run("drop", model.path, *some, "--yes", "-o", "json").stdout)
        chosen = [request for request in requests if request in some]
        # Of one whose fate is known that is said, too: it is the last time.
        assert dropped == model.rows(chosen, outcome="dropped")
        for request in some:
            del model.told[request]
            model.fresh.pop(request, None)
    model.listed()
    run("drop", model.path, "--yes")
    assert _entries(model.path) == []


FAILURES = [*([None] * 8), *(code for code in Code if code is not Code.CONFLICT)]


@pytest.mark.parametrize("model", range(len(FAILURES)), indirect=True)
def test_a_drain_tells_once_of_each_write_and_exits_with_0_only_if_nothing_is_left(
    model: Model, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = model.dice
    failure = FAILURES[request.node.callspec.params["model"]]
    forget, told, lost = dice.random() < 0.5, list[dict[str, Any]](), list[dict[str, Any]]()
    share = dice.choice((0.5, 1.0))

    async def settle(_path: Path, _cluster: Any, _timeout_s: float, unknown: Any) -> list[Recovered]:
        assert (unknown is not None) == forget
        file, settled, recovered = OutboxFile(model.path), [], []
        for entry in file.loaded:
            name = str(entry.request_id)
            if dice.random() > share:
                continue
            row = model.told.pop(name)
            model.fresh.pop(name, None)
            settled.append(entry.request_id)
            match dice.choice(("applied", "refused", "failed", "sealed", "unknown")):
                case "unknown" if forget and entry.fate is None:
                    unknown.append(entry)
                    lost.append({**row, "outcome": "unknown"})
                case "failed":
                    code = dice.choice((Code.QUOTA, Code.FORBIDDEN, Code.CONFLICT))
                    recovered.append(Recovered(entry, failure=OperationFailed(code, request_id=entry.request_id)))
                    told.append({**row, "outcome": "not_applied", "code": str(code)})
                case "sealed":
                    recovered.append(Recovered(entry))
                    told.append({**row, "outcome": "not_applied", "code": "INTERNAL"})
                case state:
                    made = result(entry.request_id, dice, applied=state == "applied")
                    recovered.append(Recovered(entry, made))
                    outcome = "applied" if made.applied else "refused"
                    told.append({**row, "outcome": outcome, "commit": made.commit, "replayed": made.replayed})
        file.write(dropped=settled)
        file.close()
        if failure is not None:
            raise OncegateError(failure)
        return recovered

    monkeypatch.setattr(outbox, "_drain", settle)
    code, out, err = drained(model, capsys, forget=forget)
    found, left = json.loads(out), model.left()
    if failure is None:
        assert found == [*told, *lost, *left]
        assert code == (1 if left else 0), err
    else:
        assert found == left
        assert code == (3 if failure in UNREACHED else 2 if failure is Code.NOT_FOUND else 1), failure
    if left and failure is None:
        assert f"{len(left)} writes stay" in err
    model.listed()


@pytest.mark.parametrize("model", [3], indirect=True)
def test_a_drain_that_may_not_forget_names_what_nobody_can_know(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [entry for entry in _entries(model.path) if entry.fate is None]

    async def refuse(*_: Any) -> None:
        raise OutboxUnresolved(str(model.path), entries)

    monkeypatch.setattr(outbox, "_drain", refuse)
    code, out, err = drained(model, capsys, forget=False)
    assert (code, "--forget-unknown" in err) == (1, True)
    assert json.loads(out) == model.rows([str(one.request_id) for one in entries], outcome="unknown")
    model.listed()


def test_an_outbox_that_a_worker_has_open_is_listed_and_no_damage_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    owner = OutboxFile(path)
    assert json.loads(run("ls", path, "-o", "json").stdout) == {"position": None, "entries": []}
    run("drop", path, "--yes", code=1)
    owner.close()
    path.write_bytes(b"no outbox" * 200)
    for words in (("ls", path), ("drop", path, "--yes")):
        assert "is damaged" in run(*words, code=1).stderr
