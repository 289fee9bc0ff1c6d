"""A Spark session that suits flows: local addresses, a fast checkpoint, quick start.

Owns: the settings, and a class-data archive per user that halves the JVM's start. Read next: `jobs.timeline`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from oncegate.stores.devcassandra.jars import cache_directory, java_program

_CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_TASK_ATTEMPTS_MAX: Final = 4
_ARROW_ROWS_MAX: Final = 50_000

_QUERY_SETTINGS: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_MANAGER,
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ARROW_ROWS_MAX),
    "spark.sql.shuffle.partitions": "2",
}
_LOCAL_SETTINGS: Final = {
    # Without these Spark picks an interface of its own, which may be down or filtered.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def build(name: str, *, cores: int = 2, archive: bool = True) -> SparkSession:
    """Return the session of this process; without ``archive`` no class-data archive is used or made in the user's
    cache.

    Under spark-submit, and on a server of Spark Connect (`SPARK_REMOTE`), their settings hold and only those of queries
    are added. Otherwise it runs in this process, on ``cores`` threads, a failed task being tried 4 times in all.
    """
    builder = SparkSession.builder.appName(name)
    settings = dict(_QUERY_SETTINGS)
    if not is_submitted():
        builder = builder.master(f"local[{cores},{_TASK_ATTEMPTS_MAX}]")
        settings |= _LOCAL_SETTINGS | {"spark.default.parallelism": str(cores)}
        # Workers must run the driver's Python; a setting of the session would come too late.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings["spark.driver.extraJavaOptions"] = " ".join(_jvm_options(archive=archive))
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_submitted() -> bool:
    """Tell whether Spark's own processes belong to somebody else: to spark-submit, or to a server of Spark Connect."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def _jvm_options(*, archive: bool) -> list[str]:
    # The JVM only moves buffers here: the quick compiler is enough, and leaves the cores to the Python workers.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    java = java_program()
    if archive and java is not None:
        options += _archive_options(cache_directory() / "spark", java)
    return options


def _archive_options(directory: Path, java: str) -> list[str]:
    """Use the archive that fits this Java and this Spark, or have this run write it when its JVM ends."""
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    mark = hashlib.sha256(version + pyspark.__version__.encode() + pyspark.__file__.encode()).hexdigest()[:12]
    quiet = ["-Xlog:disable", "-Xlog:all=error:stderr", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    whole = directory / f"{mark}.jsa"
    directory.mkdir(parents=True, exist_ok=True)
    if not whole.exists():
        # A JVM writes its archive while it ends: a later run takes over the archive of an ended one.
        for draft in directory.glob(f"{mark}.jsa.*"):
            if not Path("/proc", draft.suffix[1:]).exists():
                draft.replace(whole)
    if whole.exists():
        return [f"-XX:SharedArchiveFile={whole}", *quiet]
    return [f"-XX:ArchiveClassesAtExit={whole}.{os.getpid()}", *quiet]
