"""A Spark session that suits flows: local addresses, a fast checkpoint, quick start.

Owns: the settings. Read next: `spark_cache`, `jobs.timeline`.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from oncegate.spark_sink.spark_cache import archive_options, plain_home
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
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "oncegate.spark_sink.worker_daemon",
}


def build(name: str, *, cores: int = 2, cache: bool = True) -> SparkSession:
    """Return the session of this process; without ``cache`` nothing is kept, or used, in the user's cache.

    Under spark-submit, and on a server of Spark Connect (`SPARK_REMOTE`), their settings hold and only those of queries
    are added. Otherwise it runs in this process, on ``cores`` threads, a failed task being tried 4 times in all.
    """
    builder = SparkSession.builder.appName(name)
    settings = dict(_QUERY_SETTINGS)
    if not is_submitted():
        builder = builder.master(f"local[{cores},{_TASK_ATTEMPTS_MAX}]")
        settings |= _LOCAL_SETTINGS | {"spark.default.parallelism": str(cores)}
        # Workers must run the driver's Python; a setting of the session would come too late.
        if os.environ.setdefault("PYSPARK_PYTHON", sys.executable) == sys.executable and cache:
            home = None if "SPARK_HOME" in os.environ else plain_home(_cache())
            if home is not None:
                os.environ["SPARK_HOME"] = str(home)
        settings["spark.driver.extraJavaOptions"] = " ".join(_jvm_options(cache=cache))
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


_REGISTERING: Final = threading.Lock()
"""Two threads that register one name at once: Spark refuses the second."""


def register(spark: SparkSession, *formats: type[DataSource]) -> None:
    """Make these formats known to the session, by their names; again changes nothing."""
    with _REGISTERING:
        for each in formats:
            spark.dataSource.register(each)


def is_submitted() -> bool:
    """Tell whether Spark's own processes belong to somebody else: to spark-submit, or to a server of Spark Connect."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ


def _jvm_options(*, cache: bool) -> list[str]:
    # The JVM only moves buffers here: the quick compiler is enough, and leaves the cores to the Python workers.
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
    java = java_program()
    if cache and java is not None:
        options += archive_options(_cache(), java)
    return options


def _cache() -> Path:
    return cache_directory() / "spark"
