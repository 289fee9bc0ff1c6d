"""``oncegate top``: a cluster at work, on a terminal or as lines.

Owns: asking the nodes, the interval, the terminal and its keys. What is shown is decided in
:mod:`oncegate.gateway.cli.top_frame`, where it goes in :mod:`oncegate.gateway.cli.top_screen`. It asks each node for
``/v1/cluster`` and ``/metrics``, once an interval; both are answered without the log.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask_cluster
from oncegate.gateway.cli.cluster_state import state_of, unasked, whole
from oncegate.gateway.cli.output import Format, Output, Printed
from oncegate.gateway.cli.top_frame import Frame, frame
from oncegate.gateway.cli.top_sample import NodeSample, Sample, parse
from oncegate.gateway.cli.top_screen import Style, screen, text
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, download

if TYPE_CHECKING:
    import curses

ASK_S: Final = 1.0
"""How long a node may take to answer: others are shown meanwhile as they were."""
_AT_ONCE: Final = 16
_KEY_MS: Final = 50
_METRICS_REFUSED: Final = "no metrics"


def top(
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="seconds between frames")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="end after so many frames [never]")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Show rates, latency, who leads, lag and disk of a running cluster, live; q ends it, space stops and goes on.

    Where no terminal is, each frame is printed as text; with -o jsonl it is a line, with -o json an item of an array.
    Colour only where NO_COLOR is not set, and never alone.
    """
    ask_cluster(endpoint, whole)  # a wrong address, token or certificate ends the command, with its exit code
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        watch = Watch(endpoint, pool)
        try:
            if output is Output.TABLE and sys.stdin.isatty() and sys.stdout.isatty() and _has_screen():
                with _window() as (window, styles):
                    _Terminal(watch, interval, count).run(window, styles)
            else:
                _print(watch, interval, count, output)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
        except BrokenPipeError:
            # Whoever read the frames has gone: neither they nor Python's own flush at the end find a reader.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def _has_screen() -> bool:
    """Tell whether curses knows the terminal and can place its cursor."""
    try:
        import curses

        curses.setupterm(os.environ.get("TERM") or "dumb", sys.stdout.fileno())
        return bool(curses.tigetstr("cup"))
    except (ImportError, OSError, curses.error):
        return False


class Watch:
    """Asks all members, and remembers them: one that was asked first may be the one that is gone.

    Args:
        endpoint: of any node.
        pool: asks the members at once.
        clock: seconds that never go back.
    """

    def __init__(self, endpoint: str, pool: ThreadPoolExecutor, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._pool = pool
        self._clock = clock
        self._members: dict[str, str] = {}

    def sample(self) -> Sample:
        """Ask every member; takes as long as the slowest, at most some seconds. Raises nothing for a silent node."""
        for address in [self._endpoint, *self._members.values()]:
            if unasked(self._endpoint, address) is not None:
                continue
            try:
                self._members = {one["id"]: one["http"] for one in state_of(address, ASK_S)["members"]}
                break
            except (RequestRefused, Unreachable):
                continue  # another one may know
        unix_s = time.time()
        found = self._pool.map(self._of, self._members.items())
        return Sample(unix_s, {one.node: one for one in found})

    def _of(self, member: tuple[str, str]) -> NodeSample:
        name, address = member
        reason = unasked(self._endpoint, address)
        if reason is not None:
            return NodeSample(name, address, self._clock(), None, {}, f"not asked: {reason}", asked=False)
        try:
            cluster = state_of(address, ASK_S)
        except (RequestRefused, Unreachable) as fault:
            return NodeSample(name, address, self._clock(), None, {}, str(fault))
        at_s = self._clock()
        try:
            metrics = parse(download(f"{address}/metrics", ASK_S).decode(errors="replace"))
            return NodeSample(name, address, at_s, cluster, metrics)
        except (RequestRefused, Unreachable) as fault:
            return NodeSample(name, address, at_s, cluster, {}, f"{_METRICS_REFUSED}: {fault}")


def _frames(watch: Watch, interval: float, count: int | None) -> Iterator[Frame]:
    before, due = watch.sample(), time.monotonic()
    shown = 0
    while count is None or shown < count:
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        after = watch.sample()
        yield frame(before, after)
        before, shown = after, shown + 1


def _print(watch: Watch, interval: float, count: int | None, output: Output) -> None:
    import msgspec

    frames = _frames(watch, interval, count)
    if output is Output.TABLE:
        for number, one in enumerate(frames):
            print(text(one) if number == 0 else f"\n{text(one)}", end="", flush=True)
        return
    with Printed(output, (), live=True) as printed:
        for one in frames:
            printed.row(msgspec.to_builtins(one))


class _Terminal:
    """The screen, until ``q``, or until all frames that were asked for have been shown."""

    def __init__(self, watch: Watch, interval: float, count: int | None) -> None:
        self._watch = watch
        self._interval = interval
        self._left = count
        self._paused = False
        self._frame: Frame | None = None

    def run(self, window: curses.window, styles: dict[Style, int]) -> None:
        """Show frames; keys are looked at all the time, also while a node takes its time to answer."""
        with ThreadPoolExecutor(1) as asking:
            before = self._watch.sample()
            self._draw(window, styles)
            pending: Future[Sample] | None = None
            due = time.monotonic() + self._interval
            while self._left is None or self._left > 0:
                if not self._key(window, styles):
                    return
                if self._paused:
                    continue
                if pending is None and time.monotonic() >= due:
                    pending, due = asking.submit(self._watch.sample), time.monotonic() + self._interval
                if pending is not None and pending.done():
                    after, pending = pending.result(), None
                    self._frame, before = frame(before, after), after
                    self._draw(window, styles)
                    self._left = None if self._left is None else self._left - 1

    def _key(self, window: curses.window, styles: dict[Style, int]) -> bool:
        """Wait a moment for a key, and do what it says; False for the end."""
        import curses

        match window.getch():
            case key if key in (ord("q"), ord("Q")):
                return False
            case key if key == ord(" "):
                self._paused = not self._paused
                self._draw(window, styles)
            case curses.KEY_RESIZE:
                self._draw(window, styles)
            case _:
                pass
        return True

    def _draw(self, window: curses.window, styles: dict[Style, int]) -> None:
        import curses

        height, width = window.getmaxyx()
        window.erase()
        if self._frame is None:
            _put(window, 0, f"oncegate top: looking for {self._interval:g} s …"[:width], 0)
        else:
            for row, line in enumerate(screen(self._frame, width, height, paused=self._paused)):
                _put(window, row, line.text, styles[line.style])
        window.refresh()
        curses.doupdate()


def _put(window: curses.window, row: int, line: str, style: int) -> None:
    import curses

    try:
        window.addstr(row, 0, line, style)
    except curses.error:
        # The last column of the last line: the cursor has nowhere to go, and the text is there.
        return


@contextmanager
def _window() -> Iterator[tuple[curses.window, dict[Style, int]]]:
    """Take the terminal, and give it back as it was. ``curses.wrapper`` would colour it whatever NO_COLOR says."""
    import curses

    window = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        window.keypad(True)
        window.timeout(_KEY_MS)
        yield window, _styles()
    finally:
        window.keypad(False)
        curses.echo()
        curses.nocbreak()
        curses.endwin()


def _styles() -> dict[Style, int]:
    """Return how lines are set off: without colour by what every terminal can."""
    import curses

    plain = {Style.PLAIN: curses.A_NORMAL, Style.HEAD: curses.A_REVERSE}
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return {**plain, Style.LEADER: curses.A_BOLD, Style.BAD: curses.A_BOLD | curses.A_REVERSE}
    curses.start_color()
    curses.use_default_colors()
    curses.init_pair(1, curses.COLOR_GREEN, -1)
    curses.init_pair(2, curses.COLOR_RED, -1)
    leader, bad = curses.color_pair(1), curses.color_pair(2)
    return {**plain, Style.LEADER: curses.A_BOLD | leader, Style.BAD: curses.A_BOLD | bad}
