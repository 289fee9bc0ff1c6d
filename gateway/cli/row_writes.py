"""``oncegate put``, ``increment``, ``append``, ``delete`` and ``txn``: writes, each done once for its idempotency key.

Every write travels as a transaction under a key, the caller's or a new one: so a doubt can be ended by running the same
command again (decision 0056). Exit codes: :mod:`oncegate.gateway.cli.calls`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Never
from uuid import uuid4

import typer

from oncegate.gateway.cli.calls import CONDITION_FAILED, run
from oncegate.gateway.cli.connection_flags import Cluster
from oncegate.gateway.cli.flows import duration
from oncegate.gateway.cli.output import Format, Output, as_json, failed, show
from oncegate.gateway.cli.row_reads import Key, Table, Timeout, ValueFormat
from oncegate.gateway.cli.row_values import AsText, BytesFrom, given, parsed, print_value, read, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncegate.gateway.client import Transaction, WriteResult

IdempotencyKey = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="TEXT", help="names the write: again with the same, it is done once"),
]
IfVersion = Annotated[int | None, typer.Option(min=0, help="only if the row has this version")]
IfValue = Annotated[str | None, typer.Option(metavar="JSON", help="only if the row has this value")]
Ttl = Annotated[str | None, typer.Option(metavar="TIME", help="the row ends after so much cluster time, as 15m")]
_SHOWN: Final = ("applied", "commit", "version", "value", "replayed", "code")


def put(
    table: Table,
    key: Key,
    cluster: Cluster,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="JSON; -: from stdin")] = None,
    text: AsText = False,
    bytes_file: BytesFrom = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="only if there is no such row")] = False,
    if_version: IfVersion = None,
    if_value: IfValue = None,
    ttl: Ttl = None,
    idempotency_key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    output: Format = Output.TABLE,
) -> None:
    """Write a row exactly once. Exit status 5 if the condition failed, 6 if the outcome is unknown."""
    what = given(value, text=text, bytes_file=bytes_file)
    ttl_ms = duration(ttl)

    def write(made: Transaction) -> None:
        tests = {"if_version": if_version, **_if_value(if_value)}
        made.put(table, key, what, if_absent=if_absent, **tests, ttl_ms=ttl_ms)

    _print(_sent(cluster, write, idempotency_key, timeout_s, table=table), output)


def increment(
    table: Table,
    key: Key,
    cluster: Cluster,
    by: Annotated[int, typer.Option(help="what is added; may be below 0")] = 1,
    floor: Annotated[int | None, typer.Option(help="refused if the sum is below")] = None,
    ceiling: Annotated[int | None, typer.Option(help="refused if the sum is above")] = None,
    if_version: IfVersion = None,
    if_value: IfValue = None,
    ttl: Ttl = None,
    idempotency_key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    output: ValueFormat = None,
) -> None:
    """Add to a row's number exactly once and print the sum; no row counts as 0. Exit status 5 if it is refused."""
    ttl_ms = duration(ttl)

    def write(made: Transaction) -> None:
        made.increment(table, key, by, floor=floor, ceiling=ceiling, ttl_ms=ttl_ms)
        _check(made, table, key, if_version, if_value)

    found = _sent(cluster, write, idempotency_key, timeout_s, table=table)
    if output is None and found["applied"]:
        print_value(found["value"])
    else:
        _print(found, output or Output.TABLE)


def append(
    table: Table,
    key: Key,
    cluster: Cluster,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="JSON; -: from stdin")],
    text: AsText = False,
    if_version: IfVersion = None,
    if_value: IfValue = None,
    ttl: Ttl = None,
    idempotency_key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    output: Format = Output.TABLE,
) -> None:
    """Add an item to the end of a row's list exactly once; no row counts as an empty list."""
    what: Any = given(item, text=text)
    ttl_ms = duration(ttl)

    def write(made: Transaction) -> None:
        made.append(table, key, what, ttl_ms=ttl_ms)
        _check(made, table, key, if_version, if_value)

    _print(_sent(cluster, write, idempotency_key, timeout_s, table=table), output)


def delete(
    table: Table,
    key: Key,
    cluster: Cluster,
    if_version: IfVersion = None,
    if_value: IfValue = None,
    idempotency_key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    output: Format = Output.TABLE,
) -> None:
    """Delete a row exactly once; one that is not there stays so."""

    def write(made: Transaction) -> None:
        made.delete(table, key, if_version=if_version, **_if_value(if_value))

    _print(_sent(cluster, write, idempotency_key, timeout_s, table=table), output)


def txn(
    file: Annotated[str, typer.Argument(metavar="FILE", help="the transaction as JSON; -: from stdin")],
    cluster: Cluster,
    idempotency_key: IdempotencyKey = None,
    timeout_s: Timeout = None,
    output: Format = Output.TABLE,
) -> None:
    """Do several writes on several rows and tables at once, all or none. Exit status 5 if a condition failed.

    FILE is an object as the body of `POST /v1/transactions`: `writes` are objects with op (put, delete, increment,
    append, get), table, key, and value, by, floor, ceiling, item, ttl_ms, if; `conditions` with table, key and if.
    """
    try:
        document = parsed(read(file).decode(), "the document")
    except UnicodeDecodeError:
        raise failed(f"{'stdin' if file == '-' else file} is not UTF-8", 2) from None

    def write(made: Transaction) -> None:
        from oncegate.gateway.cli.transaction_document import into

        into(made, document)

    _print(_sent(cluster, write, idempotency_key, timeout_s), output)


def _sent(
    cluster: Cluster,
    write: Callable[[Transaction], None],
    idempotency_key: str | None,
    timeout_s: float | None,
    *,
    table: str | None = None,
) -> dict[str, Any]:
    """Send what ``write`` puts into a transaction, and return the result as an object of JSON.

    ``table`` is that of a single write, whose result is the whole.
    """
    key = idempotency_key if idempotency_key is not None else f"command-{uuid4().hex}"

    async def send() -> WriteResult:
        from oncegate.gateway.client import Transaction

        made = Transaction()
        write(made)
        async with cluster.client(timeout_s) as client:
            return await client.transact(made, idempotency_key=key)

    return _told(run(send(), key=key, table=table), key, single=table is not None)


def _told(result: WriteResult, key: str, *, single: bool) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = {"applied": result.applied, "commit": result.commit}
    if not result.applied:
        found |= {"version": result.version, **told(result.value), "code": result.code, "failed": result.failed}
    else:
        writes = []
        for one in result.writes:
            value = None if one.value is msgspec.UNSET else one.value
            encoding = {} if one.encoding is msgspec.UNSET else {"encoding": one.encoding}
            writes.append({"commit": one.commit, "version": one.version, "value": value, **encoding})
        found |= writes[0] if single else {"writes": writes}
    ids = {"request": str(result.request_id), "idempotency_key": key}
    return {**found, "replayed": result.replayed, **ids}


def _print(found: dict[str, Any], output: Output) -> None:
    """Print a result; one that was refused ends the command with its code."""
    if not as_json(output, found):
        header = tuple(name for name in _SHOWN if found.get(name) is not None)
        if header:
            show(header, [[_cell(found[name]) for name in header]])
        if "writes" in found:
            of_each = ("commit", "version", "value")
            show(of_each, ([_cell(one[name]) for name in of_each] for one in found["writes"]))
    if not found["applied"]:
        _refuse(found)


def _refuse(found: dict[str, Any]) -> Never:
    where = f" of {found['failed']}" if found["failed"] else ""
    present = f"the row has version {found['version']}" if found["version"] else "there is no such row"
    raise failed(f"{found['code']}{where}: nothing was written; {present}", CONDITION_FAILED)


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _if_value(text: str | None) -> dict[str, Any]:
    return {} if text is None else {"if_value": parsed(text, "--if-value")}


def _check(made: Transaction, table: str, key: str, if_version: int | None, if_value: str | None) -> None:
    if if_version is not None or if_value is not None:
        value: dict[str, Any] = {} if if_value is None else {"value": parsed(if_value, "--if-value")}
        made.check(table, key, version=if_version, **value)
