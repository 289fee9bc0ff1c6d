"""What stands around figures: percentiles, the machine, the build.

Absolute times do not carry between machines; what carries are ratios to the two calibrations of the same run
(:mod:`bench.calibrate`).
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Latency(NamedTuple):
    """Percentiles of samples in milliseconds."""

    samples: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> Latency:
        """Return the percentiles of ``seconds``."""
        if not seconds:
            return cls(0, float("nan"), float("nan"), float("nan"))
        p50, p99, worst = np.percentile(np.asarray(seconds), [50, 99, 100]) * 1000
        return cls(len(seconds), float(p50), float(p99), float(worst))


def interpreter() -> str:
    """Return the version of Python, and how it was built where that costs speed.

    One that was built without profile-guided optimisation takes an eighth more processor time here; that of a
    distribution has it.
    """
    version = platform.python_version()
    if sys.base_prefix == "/usr":
        return f"{version} of {platform.freedesktop_os_release()['NAME']}"
    optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return version if optimised else f"{version} built without optimisations"


def machine() -> dict[str, Any]:
    """Describe the machine and the build."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    dirty = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=False)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": interpreter(),
        "commit": (commit.stdout.strip() or "none") + ("+" if dirty.stdout.strip() else ""),
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
