"""The public names: which they are, what they cost, what they show and how they are typed."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path

import pytest

import oncegate
from oncegate import middleware, recipes, sync
from oncegate.testing import FakeGateway

CLIENT = {"cluster", "declare_flow", "declare_table", "flow", "get", "highest_commit", "request", "resolve", "scan"}
CLIENT |= {"session", "table", "timeout_s", "flows", "alter_flow", "delete_flow", "start_consumer", "remove_consumer"}
CLIENT |= {"rows", "get_many", "watch", "consume", "items", "turns"}
CLIENT |= {"append", "delete", "increment", "new_idempotency_key", "put", "transact"}
CLIENT |= {"tables", "drop_table", "sessions", "open_requests"}
SESSION = {"append", "client_id", "close", "delete", "drain", "epoch", "get", "get_remembered", "highest_commit"}
SESSION |= {
    "forget",
    "increment",
    "insert",
    "lost",
    "memory_ms_left",
    "outstanding",
    "position",
    "put",
    "put_many",
    "recovered",
}
SESSION |= {"resolve", "send_again", "submit", "transact", "transaction", "update"}
EXPORTS = ["Batch", "Change", "Client", "ClusterInfo", "Code", "Consumer", "DeadlineExceeded", "FlowInfo"]
EXPORTS += ["FlowItem", "Json", "MalformedAnswer"]
EXPORTS += [
    "ManyResult",
    "Member",
    "NeverKnown",
    "NotKnownYet",
    "OncegateError",
    "OpenRequests",
    "OperationFailed",
    "OutboxDamaged",
    "OutboxEntry",
]
EXPORTS += ["OutboxUnresolved", "Outcome", "OutcomeUnknown", "Page", "PartialFailure", "Recovered", "RequestId"]
EXPORTS += ["RequestState", "Resolution", "Row", "RowsPart", "Session", "SessionInfo", "Submitted", "TableInfo"]
EXPORTS += ["Transaction", "Tuning", "Updated", "WriteResult", "recipes", "request_ids", "sync"]
WITH_EXTRAS = ["middleware", "testing"]


def public(instance: object) -> set[str]:
    return {name for name in dir(instance) if not name.startswith("_")}


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_public_exports() -> None:
    assert oncegate.__all__ == EXPORTS
    assert len(oncegate.__all__) <= 42
    for name in (*EXPORTS, *WITH_EXTRAS):
        assert getattr(oncegate, name).__doc__, name
    assert {*EXPORTS, *WITH_EXTRAS} <= set(dir(oncegate))
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = oncegate.Klient  # type: ignore[attr-defined]


async def test_client_and_session_show_what_is_for_applications_and_nothing_else() -> None:
    async with FakeGateway() as fake, oncegate.Client(fake.endpoints) as client, client.session() as session:
        assert public(client) == CLIENT
        assert public(session) == SESSION
        for shown in (client, session):
            assert not hasattr(shown, "__dict__")
    without_await = sync.Client(["http://127.0.0.1:1"])
    assert public(without_await) == CLIENT | {"close"}
    # Not through an instance: reading a property opens the session.
    assert public(sync.Session) == SESSION - {"lost"} | {"is_lost"}


def _signatures() -> Iterator[tuple[str, str]]:
    """Each annotation, as it is written, of what is public."""
    for module in (oncegate, sync, middleware, recipes):
        for name in module.__all__:
            found = getattr(module, name)
            if not inspect.isclass(found):
                continue
            for attribute, text in inspect.get_annotations(found).items():
                yield f"{module.__name__}.{name}.{attribute}", str(text)
            for method, member in vars(found).items():
                called = member.fget if isinstance(member, property) else member
                if inspect.isfunction(called) and (method == "__init__" or not method.startswith("_")):
                    for parameter, text in inspect.get_annotations(called).items():
                        yield f"{module.__name__}.{name}.{method}({parameter})", str(text)


def test_no_public_signature_says_any() -> None:
    signatures = dict(_signatures())
    assert signatures["oncegate.Session.put(value)"] == "Value"
    assert [where for where, text in signatures.items() if re.search(r"\bAny\b", text)] == []


def test_package_is_typed_and_quiet() -> None:
    assert resources.files("oncegate").joinpath("py.typed").is_file()
    assert oncegate.Client
    handlers = logging.getLogger("oncegate.client").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)


def test_importing_costs_nothing_and_using_the_sdk_imports_nothing_of_the_server() -> None:
    loaded = python("import oncegate, sys; print(*sorted(m for m in sys.modules))").split()
    assert not {"oncegate.gateway", "aiohttp", "msgspec"} & set(loaded)
    loaded = python("from oncegate import Client, sync; import sys; print(*sorted(m for m in sys.modules))").split()
    beside = ("oncegate.rifl", "oncegate.sync", "oncegate.version")
    ours = [m for m in loaded if m.startswith("oncegate.") and not m.startswith(beside)]
    assert "oncegate.gateway.client" in ours
    assert [m for m in ours if not re.match(r"oncegate\.gateway(\.wire$|\.sweep$|\.toml_file$|\.client\b|$)", m)] == []
    assert not {"pyarrow", "pysyncobj", "typer"} & set(loaded)


@pytest.mark.parametrize("name", ["sync", "testing", "middleware", "recipes"])
def test_parts_are_modules_that_are_imported_on_use(name: str) -> None:
    part = import_module(f"oncegate.{name}")
    assert getattr(oncegate, name) is part
    for exported in part.__all__:
        assert hasattr(part, exported)


USER = """
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from oncegate import Client, Json, OutcomeUnknown, Session, Transaction, WriteResult, sync
from oncegate.testing import FakeCluster


async def visit(session: Session, who: str) -> int:
    try:
        result: WriteResult = await session.increment("visits", who, if_version=3, position={"line": 1})
    except OutcomeUnknown as unknown:
        return 1 if (await unknown.resolve()).applied else 0
    return result.value if isinstance(result.value, int) else 0


@dataclass
class Seat:
    who: UUID
    paid: Decimal


def said(value: Decimal | UUID | Seat | datetime) -> str:
    return str(value)


async def paid(client: Client, session: Session, by: sync.Session, others: sync.Client) -> int:
    sums: list[int] = [(await session.increment("paid", "ann", 3)).value]
    sums.append((await client.increment("paid", "ann", idempotency_key="e")).value)
    sums += [by.increment("paid", "ann").value, others.increment("paid", "ann", idempotency_key="e").value]
    seat = Seat(UUID(int=1), Decimal(1))
    put: WriteResult[Json] = await session.put("seats", "14C", {"at": datetime.now(), "seat": seat})
    await session.append("seats", "list", Decimal(1), if_value=[UUID(int=2)])
    Transaction(encode=said).put("seats", "14C", [Decimal(1)])
    return max(sums) + put.commit


async def read(client: Client) -> Seat | None:
    row = await client.get("seats", "14C")
    return None if row is None else row.value_as(Seat)


async def main() -> None:
    async with Client("http://127.0.0.1:7400", encode=said) as client, client.session() as session:
        rows: dict[str, list[int]] = {"a": [1, 2]}
        await session.put("rows", "k", rows)
        await session.put_many("events", rows)
        row = await client.get("rows", "k")
        value: Json = None if row is None else row.value
        print(value, await visit(session, "ann"))


def script(cluster: FakeCluster) -> None:
    with sync.Client(cluster.endpoints, timeout_s=3.0) as client, client.session(lease_ms=2_000) as session:
        session.increment("visits", "ann", 2, if_value=1, timeout_s=1.0)
"""
WRONG = """
from oncegate import Client, Session, Klient


async def main(client: Client, session: Session) -> None:
    await session.put("rows", "k", object())
    row = await client.get("rows", "k")
    print(row.value)
    client.courier
    text: str = (await session.increment("rows", "n")).value
    number: int = (await session.put("rows", "n", 1)).value
    Client("http://127.0.0.1:7400", encode="json")
"""


@pytest.mark.packaging
def test_type_checker_accepts_an_application_and_finds_its_mistakes(tmp_path: Path) -> None:
    def mypy(source: str) -> list[str]:
        (tmp_path / "user.py").write_text(source)
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "user.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.splitlines()

    assert mypy(USER) == []
    found = mypy(WRONG)
    codes = ["attr-defined", "arg-type", "union-attr", "attr-defined", "assignment", "assignment", "arg-type"]
    assert [line.rpartition("[")[2].rstrip("]") for line in found] == codes, found
