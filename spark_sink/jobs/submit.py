"""A job's program under a supervisor: packed, started, followed, and started again, until it is stopped.

Owns: the command line of the process, what is sent along, and restarts. Must not know Spark: it starts processes. Read
next: `progress`, `job`.

The same program runs by itself, by `spark-submit` and on a server of Spark Connect; which, the target says. A status
of 2 to 6 is a refusal that no repetition cures (`exit_status`), and ends the supervisor with it; 0 ends it too. After
anything else, a signal among it, the process is started again: 1 s later, then twice that and so on up to a minute; a
micro-batch that was finished meanwhile sets the wait back.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oncegate.flows.directories import put_durably
from oncegate.spark_sink.jobs.exit_status import DIFFERS
from oncegate.spark_sink.jobs.progress import Progress

_log = logging.getLogger(__name__)

_PACKAGES: Final = ("flows", "rifl", "spark_sink", "stores")
_MODULES: Final = ("__init__.py", "spark.py", "version.py")
_WAIT_S_MIN: Final = 1.0
_WAIT_S_MAX: Final = 60.0
_LOOK_S: Final = 0.5
_STOP_S: Final = 30.0
_REFUSALS: Final = range(2, DIFFERS + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a job runs: nothing said, in a session of its own here.

    Attributes:
        master: `spark://host:port`, `k8s://…`, `yarn`, `local[4]`: run by `spark-submit`, in client mode.
        remote: `sc://host:port`: on this server of Spark Connect.
        arguments: further ones of `spark-submit`, such as ``--conf spark.executor.memory=2g``.
    """

    master: str = ""
    remote: str = ""
    arguments: tuple[str, ...] = ()


def command(program: Path, options: Sequence[str], target: Target, packed: Path | None) -> list[str]:
    """Return the command line that runs a job's program with its options at the target."""
    if not target.master:
        return [sys.executable, str(program), *options]
    sent = ["--py-files", str(packed)] if packed is not None else []
    return [spark_submit(), "--master", target.master, *sent, *target.arguments, str(program), *options]


def environment(target: Target) -> dict[str, str]:
    """Return the variables of that process: executors run the Python that runs here unless something else is said."""
    found = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **os.environ}
    return {**found, "SPARK_REMOTE": target.remote} if target.remote else found


def spark_submit() -> str:
    """Return the path of `spark-submit`: of `SPARK_HOME`, else of the installed pyspark.

    Raises:
        FileNotFoundError: there is none.
    """
    spec = importlib.util.find_spec("pyspark")
    own = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("/nowhere")
    path = Path(os.environ.get("SPARK_HOME") or own) / "bin" / "spark-submit"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: install pyspark, or set SPARK_HOME")
    return str(path)


def pack(target: Path, extra: Sequence[Path] = ()) -> Path:
    """Write what executors import to a zip file: this package without the server, and modules or packages of one's own.

    Compiled libraries (pyarrow, numpy, cassandra-driver) cannot travel so: executors need an environment with them.

    Args:
        target: the file; replaced.
        extra: files and directories, which keep their own names.
    """
    root = Path(__file__).parents[2]
    # In a checkout the packages lie beside each other, installed they lie in `oncegate`: the links there lead to both.
    top = root if root.name == "oncegate" else root / "oncegate"
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name in _MODULES:
            file.write(top / name, f"oncegate/{name}")
        for path, name in [(top / one, f"oncegate/{one}") for one in _PACKAGES] + [(one, one.name) for one in extra]:
            for found in [path] if path.is_file() else sorted(path.resolve().rglob("*")):
                if found.is_file() and "__pycache__" not in found.parts:
                    inside = name if path.is_file() else f"{name}/{found.relative_to(path.resolve())}"
                    file.write(found, inside)
    return target


def supervise(
    line: Sequence[str],
    variables: Mapping[str, str],
    progress_file: Path,
    stopping: threading.Event,
    report: Callable[[Progress], None],
) -> int:
    """Run a process until it ends by itself or ``stopping`` is set; returns its exit status, 0 for a stop.

    Args:
        line: its command line.
        variables: its environment.
        progress_file: to which it appends; what stands there before is not read.
        stopping: asks the process to end, and kills it after 30 s.
        report: called when there is news; where it raises OSError, that is logged.
    """
    progress = Progress()
    offset = progress_file.stat().st_size if progress_file.exists() else 0
    wait_s = _WAIT_S_MIN
    while not stopping.is_set():
        with subprocess.Popen(line, env=variables) as process:
            status: int | None = None
            try:
                while status is None:
                    status = _ended(process) if stopping.wait(_LOOK_S) else process.poll()
                    news, offset = _lines(progress_file, offset)
                    for one in news:
                        _add(progress, one)
                    if news:
                        wait_s = _WAIT_S_MIN
                        _report(progress, report)
            except BaseException:
                _ended(process)  # nobody would follow it
                raise
        if stopping.is_set():
            return 0
        if status == 0 or status in _REFUSALS:
            return status
        progress.restarts += 1
        _report(progress, report)
        _log.warning("the job ended with status %d and is started again in %.0f s", status, wait_s)
        stopping.wait(wait_s)
        wait_s = min(wait_s * 2, _WAIT_S_MAX)
    return 0


def write_metrics(path: Path, job: str, progress: Progress) -> None:
    """Replace the file that Prometheus' node exporter reads (`--collector.textfile.directory`)."""
    put_durably(path, path.with_name(f".{path.name}.{os.getpid()}"), progress.metrics(job).encode())


def _add(progress: Progress, line: bytes) -> None:
    """Count a line; one that a killed process or a full disk has torn is named and left out."""
    try:
        progress.add(json.loads(line))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
        _log.warning("a line of the progress file is none, and is left out: %s: %.200r", fault, line)


def _report(progress: Progress, report: Callable[[Progress], None]) -> None:
    try:
        report(progress)
    except OSError as fault:  # a full disk, a closed terminal: the job is none the worse for it
        _log.warning("progress could not be reported: %s", fault)


def _ended(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    """The whole lines behind ``offset``, and where they end."""
    if not path.exists():
        return [], offset
    if path.stat().st_size < offset:
        offset = 0  # somebody has cut it off, or put another one there
    with path.open("rb") as file:
        file.seek(offset)
        news = file.read()
    whole = news[: news.rfind(b"\n") + 1]
    return whole.splitlines(), offset + len(whole)
