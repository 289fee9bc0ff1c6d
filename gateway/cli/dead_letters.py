"""``oncegate dead-letters``: items that became no row: list them, show one, and derive them again after a fix.

Exit codes: 0 done, 1 there is no such letter, 2 misuse, 3 the store does not answer; of ``redrive`` those of a job,
6 where some items are dead letters again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from oncegate.gateway.cli.output import Format, Output, as_json, failed, show
from oncegate.gateway.cli.store import Url, told

dead_letters = typer.Typer(help="Items that became no row: list, show, redrive.", no_args_is_help=True)
_SHOWN: Final = ("job", "flow", "batch", "commit", "item_key", "error")
Job = Annotated[str, typer.Option(help="of this job's consumer only")]
Flow = Annotated[str, typer.Option(help="of this flow only")]
Text = Annotated[str, typer.Option("--error", help="whose error contains this text")]


@dead_letters.command("list")
def list_letters(
    url: Url,
    job: Job = "",
    flow: Flow = "",
    error: Text = "",
    limit: Annotated[int, typer.Option(min=1, help="how many to show, the oldest first")] = 100,
    output: Format = Output.TABLE,
) -> None:
    """List dead letters, and say how many there are."""
    found = sorted(_found(url, job, flow, error), key=lambda one: (one["job"], one["flow"], one["commit"]))
    shown = [{name: one[name] for name in _SHOWN} for one in found[:limit]]
    if as_json(output, {"letters": len(found), "shown": shown}, shown):
        return
    show(_SHOWN, ([str(one[name]) for name in _SHOWN] for one in found[:limit]))
    typer.echo(f"{len(found)} dead letters{f', the first {limit} are shown' if len(found) > limit else ''}")


@dead_letters.command("show")
def show_letter(
    url: Url,
    commit: Annotated[int, typer.Argument(help="commit number of the item")],
    job: Job = "",
    flow: Flow = "",
    output: Format = Output.JSON,
) -> None:
    """Print all of one dead letter, its bytes as text where they are text."""
    found = _found(url, job, flow, "", commit)
    if not found:
        raise failed(f"no dead letter of commit {commit}", 1)
    for one in found:
        raw: bytes = one.pop("raw")
        try:
            one["raw"] = raw.decode()
        except UnicodeDecodeError:
            one["raw_hex"] = raw.hex()
    if not as_json(output, found):
        for one in found:
            show(("what", "value"), ([name, str(value)] for name, value in one.items()))


@dead_letters.command("redrive", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def redrive(
    context: typer.Context,
    job_file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="the job's program, mended")],
) -> None:
    """Derive dead letters again with the job's present code: FILE and the job's own options.

    All letters of the job, or those of --commit N (again for more) or --error TEXT. Starts no Spark; batches come from
    the gateway, or with --archive from there.
    """
    command = [sys.executable, str(job_file), "--redrive", *context.args]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _found(url: str, job: str, flow: str, error: str, *commits: int) -> list[dict[str, Any]]:
    from oncegate.stores.claimed import claimed_store
    from oncegate.stores.dead_letters import found_letters

    with told(), claimed_store(url) as opened:
        opened.claim()  # Without it a misspelt URL is a store without letters.
        return list(found_letters(opened, job, flow, error, commits))
