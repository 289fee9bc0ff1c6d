"""``oncegate store``: create a store of derived rows, widen it, show whose it is, take it over, with its rows or not.

The only commands that create keyspaces and tables by themselves, and that change whose a store is. Exit codes: 0 done,
1 the store is somebody else's or nobody's, 2 misuse, 3 the cluster or the store does not answer.
"""

from __future__ import annotations

import contextlib
import importlib
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask
from oncegate.gateway.cli.output import Format, Output, Yes, as_json, confirm, failed, say, show
from oncegate.gateway.local.blocking_http import TIMEOUT_S, RequestRefused, Unreachable, send_json

if TYPE_CHECKING:
    from oncegate.stores.claims import Claim
    from oncegate.stores.tables import StoreTable

store = typer.Typer(help="Stores of derived rows: create, migrate, status, adopt, wipe.", no_args_is_help=True)
Url = Annotated[str, typer.Argument(help="sqlite:///absolute/directory or cassandra://host:port/keyspace")]
_OWN_TABLES: Final = ["oncegate.stores.stream_rows:STREAM_ROWS", "oncegate.spark_sink.rows:TIMELINE"]
_OF_EVERY_JOB: Final = [
    "oncegate.spark_sink.dead_letters:DEAD_LETTERS",
    "oncegate.spark_sink.generations:GENERATIONS",
    "oncegate.spark_sink.replay:REPLAYS",
]


@store.command()
def init(
    url: Url,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    tables: Annotated[
        list[str], typer.Option("--tables", help="module:NAME of tables to create; again for more")
    ] = _OWN_TABLES,
    output: Format = Output.TABLE,
) -> None:
    """Create what is missing of a store and its tables, and claim an empty one for the cluster; idempotent."""
    from oncegate.stores.claimed import claimed_store

    declared = [table for place in (*tables, *_OF_EVERY_JOB) for table in _declared(place)]
    identity, name = _cluster(endpoint)
    with told(), claimed_store(url, identity, cluster_name=name) as opened:
        opened.create(declared)
        _tell(opened.claim(), output)


@store.command()
def migrate(
    url: Url,
    tables: Annotated[list[str], typer.Argument(metavar="MODULE:TABLE…", help="declarations as the job has them now")],
    output: Format = Output.TABLE,
) -> None:
    """Add the tables, and the nullable columns, that a claimed store lacks; idempotent, also while jobs run.

    A job does the same at its start, unless its user may not change the schema.
    """
    from oncegate.stores.claimed import claimed_store

    declared = [table for place in tables for table in _declared(place)]
    with told(), claimed_store(url) as opened:
        opened.create(declared)
    found = [{"table": table.name, "columns": [column.name for column in table.columns]} for table in declared]
    if not as_json(output, found):
        for table in declared:
            typer.echo(f"{table.name}: {', '.join(column.name for column in table.columns)}")


@store.command()
def status(
    url: Url,
    endpoint: Annotated[str | None, typer.Option(help="HTTP address of a node; none: no cluster is asked")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Show who holds a store, its epoch and its tables; with --endpoint or --profile, whether it is that cluster's."""
    from oncegate.stores.claimed import claimed_store, place_of
    from oncegate.stores.write_times import timestamp

    identity = "" if endpoint is None else _cluster(endpoint)[0]
    with told(), claimed_store(url, identity) as opened:
        claim = opened.claim()
        found: dict[str, Any] = {
            "store": place_of(url),
            "cluster": claim.cluster,
            "cluster_name": claim.cluster_name,
            "epoch": claim.epoch,
            "floor": claim.floor,
            "inherited": [list(one) for one in claim.inherited],
            "timestamps_from": timestamp(claim.epoch, 0),
            "tables": opened.tables(),
            "durability": opened.durability(),
        }
    if as_json(output, found):
        return
    shown = {**found, "tables": ", ".join(found["tables"])}
    show(("what", "value"), ((name, str(value)) for name, value in shown.items()))


@store.command()
def adopt(
    url: Url,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    epoch: Annotated[int, typer.Option(min=0, help="the new epoch is at least this one [the next]")] = 0,
    output: Format = Output.TABLE,
) -> None:
    """Make a store the cluster's and keep its rows: they lose to whatever the cluster writes from now on.

    Stop the jobs that write there first, those of the other cluster too. A cluster that was restored inherits the rows
    of what it was restored from. Those of later writes are not there any more, and each consumer that delivers into the
    store reads again what is retained, which writes what they had replaced.
    """
    from oncegate.stores import claims
    from oncegate.stores.claimed import place_of
    from oncegate.stores.store import open_store

    found = ask("GET", endpoint, "/v1/cluster")
    identity, name = _cluster(endpoint)
    origin = (str(found.get("origin", "")), int(found.get("origin_commit", 0)))
    with told(), open_store(url) as opened:
        place = place_of(url)
        if origin[0] and claims.STORE_META.name in opened.tables():
            before = claims.found_claim(opened)
            if before is not None and before.cluster == origin[0]:
                # First: if this is cut off, no job writes there yet, and doing it again does all of it again.
                for flow, consumer in claims.deliveries(opened):
                    _rewind(endpoint, flow, consumer)
        _tell(claims.adopt(opened, place, identity, name, epoch=epoch, origin=origin), output)


@store.command()
def wipe(
    url: Url,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    yes: Yes = False,
    output: Format = Output.TABLE,
) -> None:
    """Make a store the cluster's and delete all rows of all its tables. What is to be there again must be replayed."""
    from oncegate.stores import claims
    from oncegate.stores.claimed import place_of
    from oncegate.stores.store import open_store

    identity, name = _cluster(endpoint)
    with told(), open_store(url) as opened:
        place = place_of(url)
        before = claims.read_claim(opened, place)
        tables = ", ".join(table for table in opened.tables() if table != claims.STORE_META.name)
        if not yes or output is Output.TABLE:
            typer.echo(f"{place}, of cluster {before.cluster} {before.cluster_name}: {tables or 'no tables'}", err=True)
        confirm("Delete all rows of these tables?", yes=yes)
        _tell(claims.wipe(opened, place, identity, name), output)


def _cluster(endpoint: str) -> tuple[str, str]:
    """Return identity and configured name of the cluster."""
    found = ask("GET", endpoint, "/v1/cluster")
    identity = found.get("identity")
    if not identity:
        raise failed("the cluster has no identity yet: its first leader, of this version, gives it one", 1)
    return str(identity), str(found.get("cluster", ""))


def _rewind(endpoint: str, flow: str, consumer: str) -> None:
    """Let a consumer read again all that is retained, and say so; a flow that the cluster does not have is left out."""
    path = f"{endpoint}/v1/flows/{quote(flow)}/consumers/{quote(consumer)}/start"
    try:
        moved = send_json("POST", path, {"nonce": secrets.token_hex(16), "start": "beginning"}, TIMEOUT_S)
    except RequestRefused as refusal:
        say(f"{consumer} of {flow} stays where it is: {refusal}", err=True)
    except Unreachable:
        raise failed(f"no node answers at {endpoint}", 3) from None
    else:
        following = moved["cursor"] + 1
        typer.echo(f"{consumer} of {flow} reads batch {following} next: give its job a new checkpoint", err=True)


def _declared(place: str) -> list[StoreTable]:
    """Return the tables that ``module:NAME`` holds, one or several."""
    from oncegate.stores.tables import StoreTable

    module, _, name = place.partition(":")
    # A job's module lies beside it, and is not installed.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as fault:
        raise failed(f"{place}: {fault}", 2) from None
    tables = [found] if isinstance(found, StoreTable) else list(found) if isinstance(found, list | tuple) else [found]
    if not all(isinstance(table, StoreTable) for table in tables):
        raise failed(f"{place}: no StoreTable, and no sequence of them", 2)
    return tables


def _tell(claim: Claim, output: Output) -> None:
    if not as_json(output, {"cluster": claim.cluster, "cluster_name": claim.cluster_name, "epoch": claim.epoch}):
        typer.echo(f"cluster {claim.cluster} holds the store, epoch {claim.epoch}")


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Print a refusal of a store and exit with its code."""
    from oncegate.stores.errors import StoreCode, StoreError

    try:
        yield
    except StoreError as refusal:
        codes = {StoreCode.BAD_OPTION: 2, StoreCode.BAD_TABLE: 2, StoreCode.STORE_UNAVAILABLE: 3}
        raise failed(refusal.detail, codes.get(refusal.code, 1)) from None
