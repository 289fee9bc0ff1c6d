"""``oncegate perf``: PASS or FAIL for this hardware, and for a cluster, with reasons.

Exit codes: 0 PASS, 1 FAIL, 2 could not tell (the cluster does not answer, is not healthy, or refused), 3 misuse, 4
crash. Read next: :mod:`oncegate.gateway.cli.perf_verdict`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oncegate.gateway.cli import perf_host as host
from oncegate.gateway.cli.cluster_state import followed, state_of
from oncegate.gateway.cli.connection_flags import Cluster
from oncegate.gateway.cli.output import CRASH, Format, Output, as_json, exits, failed, say, show
from oncegate.gateway.cli.perf_verdict import Size, Verdict, judge, shown, unfit
from oncegate.gateway.local.blocking_http import TIMEOUT_S, NotAsked, RequestRefused, Unreachable, get

if TYPE_CHECKING:
    from oncegate.gateway.cli.perf_load import Loaded

UNTOLD: Final = 2
_WATCHED_S: Final = 2.0


class _Untold(Exception):
    """There is no verdict; the text says why."""


def perf(
    data_dir: Annotated[Path, typer.Option(help="where a node would keep its data; nothing stays there")] = Path(
        "oncegate-data"
    ),
    cluster: Cluster | None = None,
    size: Annotated[Size, typer.Option(help="what the cluster is to carry: small, medium or large")] = Size.MEDIUM,
    seconds: Annotated[float, typer.Option(min=0.2, max=30, help="of each of the two loads")] = 3.0,
    output: Format = Output.TABLE,
) -> None:
    """Measure disk, clocks, memory and round trips here, and a cluster's writes; PASS or FAIL, with reasons.

    Exit codes: 0 PASS, 1 FAIL, 2 could not tell, 3 misuse, 4 crash. Where --endpoint or --profile names a cluster, it
    is loaded too if it is healthy: writes go into a table `oncegate-perf`, which is dropped afterwards.
    """
    loaded: list[Loaded] = []
    untold: _Untold | None = None
    endpoint: str | None = None
    try:
        if cluster is not None:
            endpoint = cluster.answering()
        with exits(misuse=(OSError,)):
            figures = dict(_here(data_dir))
        if cluster is not None and endpoint is not None:
            with exits(misuse=(NotAsked,)):
                try:
                    loaded = _there(cluster._replace(endpoints=[endpoint]), seconds, figures)
                except _Untold as fault:
                    untold = fault
    except KeyboardInterrupt:
        raise failed("stopped", CRASH) from None  # click's own exit code for it is a verdict's
    if untold is not None:
        raise failed(untold, UNTOLD)
    verdict = judge(figures, size)
    loads = [{"outstanding": one.outstanding, "writes_per_s": one.per_s, **_named(one)} for one in loaded]
    if not as_json(output, {**verdict.as_json(), "endpoint": endpoint, "loads": loads}):
        _print(verdict, endpoint)
    raise typer.Exit(0 if verdict.good else 1)


def _named(one: Loaded) -> dict[str, float]:
    return {f"{name}_ms": value for name, value in one.latency._asdict().items()}


def _here(data_dir: Path) -> Iterator[tuple[str, float]]:
    """Yield the machine's figures, by name."""
    directory = host.existing(data_dir)
    _say(f"flushing 4 KiB {host.FLUSHES} times in {directory}")
    flush = host.flushes(directory)
    yield "flush_p99_ms", flush.p99
    yield "flush_max_ms", flush.max
    _say(f"watching the clocks for {_WATCHED_S:.0f} s")
    clocks = host.clocks(_WATCHED_S)
    yield "pause_max_ms", clocks.pause_ms
    yield "clock_step_ms", clocks.step_ms
    yield "cores", host.cores()
    memory = host.memory_gib()
    if memory is not None:
        yield "memory_gib", memory
    yield "disk_free_gib", host.disk_free_gib(directory)
    yield "loopback_p99_ms", host.loopback().p99


def _there(cluster: Cluster, seconds: float, figures: dict[str, float]) -> list[Loaded]:
    """Add a cluster's figures to ``figures``, and return the loads; it has one endpoint. Raises _Untold for none."""
    import asyncio  # here, so that commands that need none do not load it

    from oncegate.gateway.cli.perf_load import TableTaken
    from oncegate.gateway.client.failures import OperationFailed
    from oncegate.gateway.client.profiles import trusted

    (endpoint,) = cluster.endpoints
    addresses = _healthy(endpoint)
    others = [http for http in addresses if http != endpoint] or addresses
    try:
        context = trusted(cluster.credentials.ca_file)
        figures["peer_p50_ms"] = max(host.round_trips(address, context).p50 for address in others)
        _say(f"writing into {endpoint} for {2 * seconds:.1f} s")
        loaded = asyncio.run(_load(cluster, seconds))
    except (OperationFailed, OSError, HTTPException, TableTaken) as fault:
        raise _Untold(str(fault)) from fault
    alone, many = loaded
    figures["write_1_p99_ms"] = alone.latency.p99
    figures["write_64_per_s"] = many.per_s
    figures["write_64_p99_ms"] = many.latency.p99
    figures["write_max_ms"] = max(one.latency.max for one in loaded)
    return loaded


async def _load(cluster: Cluster, seconds: float) -> list[Loaded]:
    from oncegate.gateway.cli.perf_load import load

    async with cluster.client() as client:
        return await load(client, seconds)


def _healthy(endpoint: str) -> list[str]:
    """Return the members' addresses; raises _Untold if the cluster should not be loaded now."""
    try:
        first = state_of(endpoint, TIMEOUT_S)
    except NotAsked:
        raise
    except (RequestRefused, Unreachable) as fault:
        raise _Untold(f"{endpoint} does not say how the cluster is: {fault}") from fault
    addresses = {one["id"]: one["http"] for one in first["members"]}
    states: dict[str, dict[str, Any] | str] = {}
    for name, address in addresses.items():
        try:
            states[name] = state_of(followed(endpoint, address), TIMEOUT_S)
        except (RequestRefused, Unreachable) as fault:
            states[name] = str(fault)
    answering = {name: address for name, address in addresses.items() if not isinstance(states[name], str)}
    ready = {name: get(f"{address}/readyz") is not None for name, address in answering.items()}
    reason = unfit(states, ready)
    if reason is not None:
        raise _Untold(f"the cluster is not healthy, and gets no load: {reason}")
    return list(addresses.values())


def _print(verdict: Verdict, endpoint: str | None) -> None:
    rows = []
    for one in verdict.findings:
        found = shown(one.measured, one.threshold.unit)
        rows.append((one.threshold.words, found, one.limit, "ok" if one.good else "FAIL"))
    show(("what", "measured", "wanted", ""), rows)
    if endpoint is None:
        _say("no cluster was loaded: --endpoint or --profile names one")
    typer.echo(f"{'PASS' if verdict.good else 'FAIL'} for a {verdict.size} cluster")
    for reason in verdict.reasons:
        typer.echo(f"  - {reason}")


def _say(line: str) -> None:
    if sys.stderr.isatty():
        say(f"… {line}", err=True)
