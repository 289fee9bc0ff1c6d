"""Entry point: the commands, and what every command shares.

Exit codes: 0 done, 1 the answer is no (not ready, mismatch), 2 misuse, 3 the cluster could not be reached;
``verify``, ``perf`` and ``check`` have their own. A command imports its modules when it runs, so that ``status`` does
not load the server and ``oncegate[client]`` is enough for commands that need no server.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final

from oncegate.version import __version__, installing

try:
    import typer
except ModuleNotFoundError:
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"oncegate {__version__}\n")
        sys.exit()
    sys.exit(f"oncegate: the command is not installed; {installing('client')}, or [server] for the node too")

from oncegate.gateway.cli.connection_flags import with_connection_flags
from oncegate.gateway.cli.examples import epilog
from oncegate.gateway.cli.output import VerdictCommand, not_installed

if TYPE_CHECKING:
    from oncegate.gateway.http.server import MakeNode

    app: typer.Typer

_MODULES: Final = {
    "get": "row_reads",
    "put": "row_writes",
    "increment": "row_writes",
    "append": "row_writes",
    "delete": "row_writes",
    "txn": "row_writes",
    "scan": "row_reads",
    "watch": "row_reads",
    "serve": "serve",
    "dev": "serve",
    "config": "config",
    "status": "cluster",
    "explain": "cluster",
    "token": "serve",
    "verify": "verify",
    "member": "cluster",
    "leader": "cluster",
    "level": "cluster",
    "table": "tables",
    "session": "sessions",
    "flow": "flows",
    "consumer": "flows",
    "outbox": "outbox",
    "check": "check",
    "cassandra": "cassandra",
    "store": "store",
    "snapshot": "snapshot",
    "dead-letters": "dead_letters",
    "spark": "spark",
    "debug": "debug",
    "perf": "perf",
    "top": "top",
}
"""The commands, by the modules that define them."""
_OWN_PARSER: Final = frozenset({"cassandra"})
"""Commands that read their arguments themselves, ``--help`` too."""
_VERDICTS: Final = frozenset({"verify", "perf"})
"""Commands whose misuse has an exit code that no verdict has."""
_AS_GIVEN: Final = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def command_line(*names: str) -> typer.Typer:
    """Return the command line with these commands, or all: importing all takes a tenth of a second of a processor."""
    made = typer.Typer(
        name="oncegate", no_args_is_help=True, pretty_exceptions_show_locals=False, rich_markup_mode=None
    )
    made.callback()(_every_command)
    for name in names or _MODULES:
        found = getattr(import_module(f"oncegate.gateway.cli.{_MODULES[name]}"), name.replace("-", "_"))
        if isinstance(found, typer.Typer):
            _complete(found, name)
            made.add_typer(found, name=name)
        else:
            settings = _AS_GIVEN if name in _OWN_PARSER else None
            how = made.command(
                name,
                cls=VerdictCommand if name in _VERDICTS else None,
                context_settings=settings,
                epilog=epilog(name),
            )
            how(with_connection_flags(found))
    return made


def _complete(group: typer.Typer, path: str) -> None:
    """Give the commands of a group their examples, and those that talk to a cluster the flags that say to which."""
    for one in group.registered_commands:
        if one.callback is not None:
            one.callback = with_connection_flags(one.callback)
            one.epilog = epilog(f"{path} {one.name or one.callback.__name__}")
    for below in group.registered_groups:
        if below.typer_instance is not None:
            _complete(below.typer_instance, f"{path} {below.name}")


def __getattr__(name: str) -> object:
    """Make ``app``, the whole command line, when it is asked for first."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, command_line())


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"oncegate {__version__}")
        raise typer.Exit


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
        # For the version any one command will do: importing all of them takes a tenth of a second of a processor.
        named = ["status" if word == "--version" else word for word in sys.argv[1:2]]
        command_line(*(word for word in named if word in _MODULES))(obj=make_node)
    except ModuleNotFoundError as missing:
        raise SystemExit(not_installed(missing, 2).exit_code) from None
