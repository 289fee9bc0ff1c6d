"""The sizing page says what the newest stored run says, and a node of the bench holds what it was filled with."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench import sizing, sizing_page
from oncegate.gateway.machine.state import MachineState

RUN = sizing_page.newest(sizing_page.RESULTS.read_text())


def test_the_page_shows_the_newest_stored_run() -> None:
    page = sizing_page.PAGE.read_text()
    assert sizing_page.filled(page, RUN) == page, "python -m bench.sizing --page"


def test_filling_replaces_what_stands_between_the_markers_and_nothing_else() -> None:
    page = "before\n<!-- measured: sizing x -->\n{}<!-- end: sizing -->\nafter\n"
    filled = sizing_page.filled(page.format("old\n"), RUN)
    assert filled == page.format("".join(f"{line}\n" for line in sizing_page.lines(RUN)))
    assert sizing_page.filled(filled, RUN) == filled
    for broken in ("no markers", page.format("") * 2):
        with pytest.raises(ValueError, match="markers"):
            sizing_page.filled(broken, RUN)


def test_what_all_nodes_have_in_common_is_in_no_slope() -> None:
    few, many = ({"count": n, "filled": {"state": 1_000_000 + 220 * n}} for n in (10, 1_000))
    assert sizing_page.slope(few, many, "filled", "state") == 220.0
    run = copy.deepcopy(RUN)
    for row in run["rows"]:
        if row["what"] in sizing.COUNTS:
            row["filled"]["rss_anon"] += 2**30

    def told(run: dict[str, Any]) -> list[str]:
        lines = "\n".join(sizing_page.lines(run)).splitlines()
        return [line for line in lines if "1,000,000 rows of a resident" in line]

    assert told(run) == told(RUN) != []


def test_a_run_has_what_each_table_needs_and_without_one_there_is_no_page() -> None:
    assert {row["what"] for row in RUN["rows"]} >= {*sizing_page.HELD, "nothing", "rows one by one", "processor"}
    assert sizing_page.HELD.keys() == sizing.COUNTS.keys()
    assert [row["outstanding"] for row in RUN["rows"] if row["what"] == "processor"] == list(sizing.OUTSTANDING)
    with pytest.raises(LookupError):
        sizing_page.newest("")
    assert sizing_page.newest(f"{json.dumps({'rows': []})}\n{json.dumps(RUN)}\n") == RUN


def _held(directory: Path) -> dict[str, int]:
    state = MachineState(directory / "state")
    machine = state.machine
    found = {
        "rows": len(machine.tables["rows"].rows),
        "sessions": len(machine.sessions),
        "records": sum(tracker.records_count for tracker in machine.trackers.values()),
        "keys": len(machine.keys),
    }
    state.close()
    return found


@pytest.mark.parametrize(
    ("what", "count"), [("rows", 700), ("rows one by one", 20), ("sessions", 600), ("records", 4_000), ("keys", 700)]
)
def test_a_node_that_was_filled_holds_what_was_asked_for_and_so_it_does_after_a_restart(
    tmp_path: Path, what: str, count: int
) -> None:
    row: dict[str, Any] = sizing.node(what, count, tmp_path)
    assert (row["what"], row["count"]) == (what, count)
    for figures in (row["filled"], row["opened"]):
        assert min(figures["rss_anon"], figures["state"], figures["disk"]["state"]) > 0
    assert row["filled"]["entry_bytes"] > row["filled"]["entries"] > 0
    held = _held(tmp_path)[what.removesuffix(" one by one")]
    assert count <= held <= count + 60  # sessions that only filled, or waited for the save
