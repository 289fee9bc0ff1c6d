"""Where and with what a run took place: machine, build, seed, store, versions.

Owns: what is asked. Must not know the run.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from examples.demo.stage import Stage
from oncegate.stores.store import open_store


def describe(ground: Stage, *, java: str, seed: int) -> dict[str, str]:
    """Return names and values, in the order in which they are shown."""
    with open_store(ground.store_url) as store:
        durability = store.durability()
    libraries = ("oncegate", "pysyncobj", "aiohttp", "pyspark", "pyarrow", "numpy")
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib()} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "commit": _commit(),
        "seed": str(seed),
        "gateway": f"{len(ground.cluster.ids)} node processes on loopback, each flushed before it answers",
        "store": durability,
        "Python": platform.python_version(),
        "Java": java,
        "libraries": ", ".join(f"{name} {version(name)}" for name in libraries),
    }


def _processor() -> str:
    lines = _text("/proc/cpuinfo").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "none") + (", with changes" if changed.stdout.strip() else "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
