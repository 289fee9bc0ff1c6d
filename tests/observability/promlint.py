"""What ``promtool check metrics`` asks of an exposition, for machines without it.

The rules are those of client_golang, ``prometheus/testutil/promlint/validations``: help, counters, histograms, types in
names, reserved characters, camel case, units. Where ``promtool`` is on the path it is asked as well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

_BASES = {
    *("amperes", "bytes", "celsius", "grams", "joules", "kelvin", "meters", "metres", "moles", "seconds", "volts"),
}
_UNITS = {
    *_BASES,
    *("bits", "fahrenheit", "calories", "hertz", "inches", "feet", "miles", "minutes", "hours", "days", "weeks"),
}
_PREFIXES = ("pico", "nano", "micro", "milli", "centi", "deci", "deca", "hecto", "kilo", "kibi", "mega", "mibi")
_PREFIXES += ("giga", "gibi", "tera", "tebi", "peta", "pebi")
_SHORT = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
_KINDS = ("counter", "gauge", "histogram", "summary", "untyped")
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def problems(exposition: str) -> list[str]:
    """Return what is wrong; empty: nothing is."""
    found = list(_problems(exposition))
    if (promtool := shutil.which("promtool")) is not None:
        asked = subprocess.run(
            [promtool, "check", "metrics"], input=exposition, capture_output=True, text=True, check=False
        )
        if asked.returncode:
            found.append(asked.stderr)
    return found


def _problems(exposition: str) -> Iterator[str]:
    helps: set[str] = set()
    kinds: dict[str, str] = {}
    seen: set[str] = set()
    for line in exposition.splitlines():
        if line.startswith("# HELP "):
            name, text = [*line.split(" ", 3), ""][2:4]
            helps.add(name)
            if not text:
                yield f"{name}: no help text"
        elif line.startswith("# TYPE "):
            name, kind = line.split(" ")[2:4]
            if name in kinds:
                yield f"{name}: declared twice"
            kinds[name] = kind
            yield from _name_problems(name, kind)
        else:
            sample = _SAMPLE.fullmatch(line)
            if sample is None:
                yield f"no sample: {line!r}"
                continue
            name, labels, value = sample.groups()
            float(value)
            if (series := line.rpartition(" ")[0]) in seen:
                yield f"{series}: stands twice"
            seen.add(series)
            yield from _sample_problems(name, labels or "", kinds)
    yield from (f"{name}: no help text" for name in kinds if name not in helps)


def _name_problems(name: str, kind: str) -> Iterator[str]:
    if (kind == "counter") != name.endswith("_total"):
        yield f"{name}: a counter, and nothing else, ends with _total"
    if kind not in ("histogram", "summary") and name.endswith(("_bucket", "_count", "_sum")):
        yield f"{name}: the end belongs to histograms"
    if ":" in name or re.search("[a-z][A-Z]", name):
        yield f"{name}: a colon, or camel case"
    for part in name.lower().split("_"):
        if part in _KINDS:
            yield f"{name}: its type in its name"
        if part in _SHORT:
            yield f"{name}: an abbreviated unit"
        unit = next((part.removeprefix(prefix) for prefix in _PREFIXES if part.startswith(prefix)), part)
        if unit in _UNITS and part not in _BASES:
            yield f"{name}: {part} is no base unit"


def _sample_problems(name: str, labels: str, kinds: dict[str, str]) -> Iterator[str]:
    family = name if name in kinds else re.sub("_(bucket|sum|count)$", "", name)
    kind = kinds.get(family)
    if kind is None:
        yield f"{name}: its type is not declared before it"
    if kind != "histogram" and re.search(r'\b(le|quantile)="', labels):
        yield f"{name}: a label that belongs to histograms"
    if re.search('[a-z][A-Z][a-zA-Z]*="', labels):
        yield f"{name}: a label in camel case"
