"""Spark's daemon of Python workers, with what tasks need already imported: a worker is a fork of it.

PySpark's own daemon imports nothing, so each worker spends a second and a half on pandas and the sink. Workers that
plan a query are single ones and import what they need. The libraries imported here start no thread but an idle one of
pyarrow's, which a fork does without.
"""

import importlib
import os
import sys
from typing import Final

from pyspark.daemon import manager

_TASKS: Final = "pyspark.worker"
_NEEDED: Final = ("pandas", _TASKS, "oncegate.spark_sink.sink", "oncegate.spark_sink.source")

if __name__ == "__main__":
    if sys.argv[1:] == [_TASKS]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its pool would be threads before a fork
        for name in _NEEDED:
            importlib.import_module(name)
    manager()
