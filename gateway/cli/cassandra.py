"""``oncegate cassandra``: a Cassandra for development, one to three nodes on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager

import typer

from oncegate.gateway.cli.progress import Advance, Unit, progress


def cassandra(context: typer.Context) -> None:
    """Run a Cassandra for development: up, status, down, wipe, start, stop, kill, fetch; needs Java and [spark]."""
    from oncegate.stores.devcassandra.__main__ import main

    def waiting(what: str, total: int | None) -> AbstractContextManager[Advance]:
        return progress(what, Unit.NODES, total)

    raise typer.Exit(main(context.args, waiting))
