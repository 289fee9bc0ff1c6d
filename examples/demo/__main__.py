"""``python -m examples.demo``: real messages, exactly once, through duplicates and kills, recounted at the end.

Exit status: 0 all counts are exact, 1 they are not, 2 misuse, 3 it could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from examples.demo import dataset, environment, plan, report, scenario, stage
from examples.demo.console import Screen, results
from examples.demo.errors import CouldNotRun
from examples.demo.recording import Recording
from oncegate.rifl.errors import OncegateError
from oncegate.stores.errors import StoreError

EXACT: Final = 0
MISMATCH: Final = 1
COULD_NOT_RUN: Final = 3
INTERRUPTED: Final = 130
_LOG_WIDTH: Final = 120


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line; ends the process with status 2 on a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--store", choices=("sqlite", "cassandra"), default="sqlite", help="where Spark writes [sqlite]")
    add("--messages", type=_count, help="how many lines of the file are sent, from the first [all]")
    add("--keep", action="store_true", help="leave the nodes (and Cassandra) running, and print what to try")
    add("--report", type=Path, default=Path("demo-report.html"), help="where the report goes [demo-report.html]")
    add("--seed", type=int, default=1, help="chooses what is sent as a range, and what twice [1]")
    add("--data-dir", type=Path, help="empty directory for all files, which then stay [a temporary one]")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = parse(arguments)
    logging.basicConfig(level=logging.ERROR)
    # Without a terminal there is no width to respect: lines of a log should stay whole.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _LOG_WIDTH)
    try:
        with _interruptible():
            return _run(options, console)
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything is stopped", markup=False)
        return INTERRUPTED
    except (CouldNotRun, OncegateError, StoreError, OSError) as fault:
        Console(stderr=True, highlight=False).print(f"demo: could not run: {fault}", markup=False, soft_wrap=True)
        return COULD_NOT_RUN


def _run(options: argparse.Namespace, console: Console) -> int:
    java = stage.check_java()
    options.report.parent.mkdir(parents=True, exist_ok=True)
    messages = dataset.load(limit=options.messages)
    slices = plan.plan(len(messages), options.seed)
    fan_out = messages.fan_out()
    with (
        stage.Stage(options.store, options.data_dir) as ground,
        Screen(len(messages), int(fan_out.sum()), scenario.KILLS, console) as screen,
    ):
        ground.set_up(screen.say)
        recording = Recording(len(messages))
        screen.begin()
        try:
            found = asyncio.run(scenario.perform(ground, messages, slices, recording, screen, seed=options.seed))
        except BaseExceptionGroup as group:
            raise _first(group) from group
        screen.say("recounting from the file alone")
        checks = scenario.recount(ground, messages, recording, found)
        run = report.Run(
            recording=recording,
            checks=checks,
            fan_out=fan_out,
            environment=environment.describe(ground, java=java, seed=options.seed),
            finished_s=recording.now_s(),
        )
        options.report.write_text(report.render(run), encoding="utf-8")
        lines = ground.keep() if options.keep else []
    results(checks, console)
    console.print(f"{run.finished_s:.1f} s in all; report: {options.report}", soft_wrap=True)
    if lines:
        console.print("Still running. Try:")
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True)
    return EXACT if run.passed else MISMATCH


def _first(fault: BaseException) -> BaseException:
    """Return the first cause in a group of groups."""
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= dataset.MESSAGES_ALL:
        raise argparse.ArgumentTypeError(f"1 to {dataset.MESSAGES_ALL:,} messages")
    return count


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Give SIGINT, SIGTERM and SIGHUP one way out, which the running loop turns into an orderly end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
