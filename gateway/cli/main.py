"""Entry point: the command groups, and what every command shares.

Exit codes: 0 done, 1 the answer is no (not ready, mismatch), 2 misuse, 3 the cluster could not be reached;
``verify`` and ``check`` have their own. A command imports its modules when it runs, so that ``status`` does not load
the server and ``oncegate[client]`` is enough for commands that need no server.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

try:
    import typer
except ModuleNotFoundError:
    sys.exit("oncegate: the command is not installed; pip install 'oncegate[client]' or 'oncegate[server]'")

from oncegate.gateway.cli import check, cluster, dev, exits, explain, members, outbox, serve, token, verify

if TYPE_CHECKING:
    from oncegate.gateway.http.server import MakeNode

app = typer.Typer(
    name="oncegate",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode=None,
)
app.command("serve")(serve.serve)
app.command("dev")(dev.dev)
app.command("status")(cluster.status)
app.command("explain")(explain.explain)
app.command("token")(token.token)
app.command("verify", cls=exits.VerdictCommand)(verify.verify)
app.add_typer(members.member, name="member")
app.add_typer(members.leader, name="leader")
app.add_typer(outbox.outbox, name="outbox")
app.add_typer(check.check, name="check")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"oncegate {version('oncegate')}")
        raise typer.Exit


@app.callback()
def _every_command(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A replicated gateway that applies each write exactly once and fans it out through Spark."""


def main(make_node: MakeNode | None = None) -> None:
    """Run the command line; a command of the server says what to install where that is not installed: misuse.

    Args:
        make_node: makes the node that ``serve`` runs; a plain one by default.
    """
    try:
        app(obj=make_node)
    except ModuleNotFoundError as missing:
        exits.say_what_is_missing(missing)
        raise SystemExit(2) from None
