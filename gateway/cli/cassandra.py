"""``oncegate cassandra``: a Cassandra for development, one to three nodes on this machine."""

from __future__ import annotations

import typer


def cassandra(context: typer.Context) -> None:
    """Run a Cassandra for development: up, status, down, wipe, start, stop, kill, fetch; needs Java and [spark]."""
    from oncegate.stores.devcassandra.__main__ import main

    raise typer.Exit(main(context.args))
