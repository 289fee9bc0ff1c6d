"""``oncegate spark``: run a job's program here, on a Spark cluster or on Spark Connect, and keep it running.

Exit codes are the job's, docs/spark.md: 0 done or stopped, 2 to 6 a refusal that no repetition cures.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from oncegate.gateway.cli.output import failed

spark = typer.Typer(help="Spark jobs: submit, pack.", no_args_is_help=True)
Program = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="the job's program")]
Extra = Annotated[
    list[Path], typer.Option("--with", exists=True, help="module or package that executors import; again for more")
]


@spark.command("submit", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def submit(
    context: typer.Context,
    program: Program,
    master: Annotated[str, typer.Option(help="spark://host:port, k8s://…, yarn: run by spark-submit")] = "",
    remote: Annotated[str, typer.Option(help="sc://host:port: run on this server of Spark Connect")] = "",
    conf: Annotated[list[str], typer.Option(help="setting for spark-submit, name=value; again for more")] = [],  # noqa: B006
    extra: Extra = [],  # noqa: B006
    metrics: Annotated[Path | None, typer.Option(help="file for Prometheus, written at each micro-batch")] = None,
) -> None:
    """Run FILE with the job's own options; follow it, and start it again after any failure that may pass.

    Checkpoint and progress file are below $XDG_STATE_HOME/oncegate unless the options name others; the trigger is
    processing-time unless they say otherwise.
    """
    from oncegate.spark_sink.jobs import submit as jobs

    if master and remote:
        raise failed("--master and --remote are two places", 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options, consumer, progress = with_defaults(context.args)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    def report(found: Any) -> None:
        typer.echo(found.text(), err=True)
        if metrics is not None:
            jobs.write_metrics(metrics, consumer, found)

    settings = tuple(word for one in conf for word in ("--conf", one))
    target = jobs.Target(master=master, remote=remote, arguments=settings)
    with tempfile.TemporaryDirectory(prefix="oncegate-job-") as directory:
        packed = jobs.pack(Path(directory) / "job.zip", extra) if master else None
        try:
            line = jobs.command(program, options, target, packed)
        except FileNotFoundError as missing:
            raise failed(missing, 2) from None
        raise typer.Exit(jobs.supervise(line, jobs.environment(target), progress, stopping, report))


@spark.command("pack")
def pack(target: Annotated[Path, typer.Argument(help="zip file to write")], extra: Extra = []) -> None:  # noqa: B006
    """Write what executors import to a zip file, for ``spark-submit --py-files`` by hand or in an image."""
    from oncegate.spark_sink.jobs.submit import pack as packed

    typer.echo(packed(target, extra))


def with_defaults(arguments: list[str]) -> tuple[list[str], str, Path]:
    """Return a job's options with those that a supervised job needs, its consumer, and its progress file."""
    given = {
        word.partition("=")[0]: word.partition("=")[2] or after
        for word, after in zip(arguments, [*arguments[1:], ""], strict=True)
    }
    consumer = given.get("--consumer", "job")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "oncegate" / "jobs"
    # Consumers of two flows may have one name.
    place = state / f"{given.get('--flow') or given.get('--table', 'flow')}.{consumer}"
    defaults = {
        "--checkpoint": str(place / "checkpoint"),
        "--progress": str(place / "progress.jsonl"),
        "--trigger": "processing-time",
    }
    missing = {name: value for name, value in defaults.items() if name not in given}
    progress = Path({**missing, **given}["--progress"])
    progress.parent.mkdir(parents=True, exist_ok=True)
    return [*arguments, *(word for pair in missing.items() for word in pair)], consumer, progress
