"""``oncegate serve``: run one node. Without arguments a durable cluster of one on loopback."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError

from oncegate.consensus.errors import ConsensusError
from oncegate.gateway.http.auth import Tokens
from oncegate.gateway.http.server import serve as run
from oncegate.gateway.http.tls import check_exposure, server_context
from oncegate.gateway.node.node import replica_config
from oncegate.gateway.node.settings import Settings


def serve(
    config: Annotated[Path | None, typer.Option(envvar="ONCEGATE_CONFIG", help="TOML file with settings")] = None,
    node: Annotated[str | None, typer.Option(help="id of this node among the members [n1]")] = None,
    cluster: Annotated[str | None, typer.Option(help="id of the cluster [oncegate]")] = None,
    member: Annotated[
        list[str] | None, typer.Option(help="a member as id=host:http_port:peer_port; repeat for each")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where this node keeps its files [oncegate-data]")] = None,
    join: Annotated[
        bool | None, typer.Option("--join", help="this node is new: a running cluster is about to add it")
    ] = None,
    secret_file: Annotated[Path | None, typer.Option(help="file with the secret that peers share")] = None,
    tokens_file: Annotated[Path | None, typer.Option(help="file of bearer tokens")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM certificate chain of the HTTP side")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of the HTTP side")] = None,
    insecure_http: Annotated[
        bool | None, typer.Option("--insecure-http", help="serve other addresses without TLS or without tokens")
    ] = None,
    body_bytes_max: Annotated[int | None, typer.Option(help="largest request body [8 MiB]")] = None,
    receiving_bytes_max: Annotated[int | None, typer.Option(help="all bodies that are arriving [256 MiB]")] = None,
    unsent_bytes_max: Annotated[int | None, typer.Option(help="answers not taken yet, together [256 MiB]")] = None,
    connections_max: Annotated[int | None, typer.Option(help="open HTTP connections [4096]")] = None,
    headers_ms_max: Annotated[int | None, typer.Option(help="from a connection to its first request [10000]")] = None,
    body_ms_max: Annotated[int | None, typer.Option(help="from a request's headers to its body [30000]")] = None,
    idle_ms_max: Annotated[int | None, typer.Option(help="between two requests of a connection [75000]")] = None,
    unsent_ms_max: Annotated[int | None, typer.Option(help="a client takes nothing of its answer [30000]")] = None,
    tenant_requests_max: Annotated[int | None, typer.Option(help="requests under way of one tenant [2048]")] = None,
    tenant_operations_per_s: Annotated[
        int | None, typer.Option(help="operations a second of one tenant; 0: no bound [0]")
    ] = None,
    sessions_max: Annotated[int | None, typer.Option(help="live sessions [2000000]")] = None,
    tenant_sessions_max: Annotated[int | None, typer.Option(help="live sessions of one tenant [2000000]")] = None,
    idempotency_key_ms: Annotated[int | None, typer.Option(help="memory of an Idempotency-Key [86400000]")] = None,
    log_kept_bytes: Annotated[int | None, typer.Option(help="log kept for nodes that were away [256 MiB]")] = None,
    state_cache_bytes: Annotated[int | None, typer.Option(help="memory for the state on disk [96 MiB]")] = None,
    stream_store: Annotated[
        str | None, typer.Option(help="store with rows of stream tables, sqlite:///… or cassandra://… [none]")
    ] = None,
    live_check_share: Annotated[
        float | None, typer.Option(help="share of all rows checked live; 0: none [0.01]")
    ] = None,
    live_check_seed: Annotated[int | None, typer.Option(help="which rows these are; equal on all nodes [0]")] = None,
    live_check_window_ms: Annotated[int | None, typer.Option(help="between two live checks [5000]")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR [INFO]")] = None,
) -> None:
    """Run one node until SIGTERM. Flags win over ONCEGATE_… variables, those over the file, that over defaults."""
    try:
        settings = Settings.load(
            config,
            node=node,
            cluster=cluster,
            members=member,
            data_dir=data_dir,
            join=join,
            secret_file=secret_file,
            tokens_file=tokens_file,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            insecure_http=insecure_http,
            body_bytes_max=body_bytes_max,
            receiving_bytes_max=receiving_bytes_max,
            unsent_bytes_max=unsent_bytes_max,
            connections_max=connections_max,
            headers_ms_max=headers_ms_max,
            body_ms_max=body_ms_max,
            idle_ms_max=idle_ms_max,
            unsent_ms_max=unsent_ms_max,
            tenant_requests_max=tenant_requests_max,
            tenant_operations_per_s=tenant_operations_per_s,
            sessions_max=sessions_max,
            tenant_sessions_max=tenant_sessions_max,
            idempotency_key_ms=idempotency_key_ms,
            log_kept_bytes=log_kept_bytes,
            state_cache_bytes=state_cache_bytes,
            stream_store=stream_store,
            live_check_share=live_check_share,
            live_check_seed=live_check_seed,
            live_check_window_ms=live_check_window_ms,
            log_level=log_level,
        )
        replica_config(settings)
        check_exposure(settings)
        server_context(settings)
        if settings.tokens_file is not None:
            Tokens(settings.tokens_file)
    except (ValueError, OSError) as fault:
        typer.echo(f"oncegate: {_one_line(fault)}", err=True)
        raise typer.Exit(2) from None
    _log_to_stderr(settings)
    try:
        asyncio.run(run(settings))
    except (ConsensusError, OSError) as fault:
        logging.getLogger("oncegate").critical("node %s cannot serve: %s", settings.node, fault)
        raise typer.Exit(1) from None


def _one_line(fault: Exception) -> str:
    if not isinstance(fault, ValidationError):
        return str(fault)
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors())


def _log_to_stderr(settings: Settings) -> None:
    """One line an event on stderr: time, level, logger, message and the node's id."""
    processors: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=processors, processor=renderer)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level, handlers=[handler])
