"""The page as a file: what it carries, within which bounds, and that no text of a user becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.proof.check.errors import FileMalformed, FileMissing
from oncegate.proof.check.folder import FaultNote, RunFolder, RunInfo, RunVerdict
from oncegate.proof.check.report import write_report
from oncegate.proof.check.report.page import ends, inert
from oncegate.proof.check.report.payload import FAILURES_MAX, payload
from oncegate.proof.check.report.plots import series
from oncegate.proof.check.report.shown import TEXT_CHARS_MAX, key_name, lanes, sampled, shortened, spelled
from oncegate.proof.lincheck import Event, Failure, Operation, Result, operations
from tests.report import example_runs


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def operation(index: int, key: Any = "k", *, invoked: int = 0, process: int = 0) -> Operation:
    return Operation(
        index=index,
        process=process,
        f="read",
        key=key,
        argument=None,
        result=1,
        status="ok",
        invoked=invoked,
        returned=invoked + 5,
    )


def test_page_needs_nothing_else_and_allows_only_its_own_script_and_style(tmp_path: Path) -> None:
    page = write_report(example_runs.valid_run(tmp_path)).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none';")
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]
    assert not re.search(r"\s(style|on\w+)=", re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL))
    addresses = re.findall(r"""(?:src|href)=["']?([^"'>\s]+)|url\(|@import|https?://(\S+)""", page)
    assert {first or second for first, second in addresses} <= {"data:,", "#timeline", 'www.w3.org/2000/svg"'}


def test_writing_again_writes_the_same_bytes(tmp_path: Path) -> None:
    folder = example_runs.stale_read(tmp_path)
    names = ("report.html", "latency.svg", "rate.svg")
    write_report(folder)
    first = [(folder.path / name).read_bytes() for name in names]
    write_report(folder)
    assert [(folder.path / name).read_bytes() for name in names] == first


@given(st.text())
def test_data_in_the_page_is_the_same_data_and_no_markup(text: str) -> None:
    safe = inert(json.dumps({"x": text}))
    assert not set(safe) & set("<>&\u2028\u2029")
    assert json.loads(safe) == {"x": text}


@given(st.text(), st.integers(3, 200))
def test_texts_are_bounded_and_fit_into_a_page(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= most
    short.encode()
    assert short == text or len(text) > most or not text.isprintable()
    ET.fromstring(f"<x>{short.replace('&', '').replace('<', '')}</x>")


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=30)), unique_by=repr))
def test_different_keys_have_different_names(keys: list[Any]) -> None:
    printable = [key for key in keys if not isinstance(key, str) or (key.isprintable() and key != "the only object")]
    assert len({key_name(key) for key in printable}) == len(printable)


def test_page_carries_all_operations_as_they_were(tmp_path: Path) -> None:
    folder = example_runs.stale_read(tmp_path)
    data = data_of(write_report(folder).read_text())
    columns, at, index, found = data["operations"], 0, 0, {}
    for row in range(len(columns["invoked"])):
        at, index = at + columns["invoked"][row], index + columns["index"][row]
        status = ("ok", "unknown", "failed")[columns["status"][row]]
        found[index] = (at, status, data["keys"][columns["key"][row]]["name"], columns["process"][row])
    expected = operations(list(folder.read_history()))
    assert found == {o.index: (o.invoked, o.status, o.key, o.process) for o in expected}
    assert data["sample"] == ""
    verdicts = {key["name"]: key["verdict"] for key in data["keys"]}
    assert verdicts == {"k1": "valid", "k2": "invalid", "k3": "valid", "k4": "valid"}
    assert data["keys"][0]["name"] == "k2"


def test_unknown_check_calls_no_other_key_valid(tmp_path: Path) -> None:
    events = [Event(process=0, type="invoke", f="read", key=key, time=1 + key) for key in (0,)]
    unknown = Result(name="c", verdict="unknown", operations=1, keys=1, reason="out of states & <time>")
    page = write_report(example_runs.written(tmp_path, events, [], result=unknown)).read_text()
    assert [key["verdict"] for key in data_of(page)["keys"]] == ["unknown"]
    assert "out of states &amp; &lt;time&gt;" in page
    assert '<h1 id="verdict">Unknown' in page


def test_failing_key_is_complete_in_a_sample_and_the_bound_holds() -> None:
    run = [operation(index, f"k{index % 10}", invoked=index) for index in range(5_000)]
    failure = Failure(key="k3", prefix=[3, 13], stuck=[23], window=[13, 23])
    found = sampled(run, [failure], 1_000)
    chosen = [run[row] for row in found.rows]
    assert len(chosen) <= 1_000
    assert [o.index for o in chosen if o.key == "k3"] == [o.index for o in run if o.key == "k3"]
    others = [o.index for o in chosen if o.key != "k3"]
    assert len(others) > 300
    assert others[-1] - others[0] > 4_000
    assert "all of key k3" in found.words


def test_failing_key_beyond_the_bound_is_kept_around_its_window() -> None:
    run = [operation(index, "k", invoked=index) for index in range(5_000)]
    failure = Failure(key="k", prefix=list(range(3_000)), stuck=[3_000], window=[10, 2_999, 3_000])
    rows = sampled(run, [failure], 100).rows
    assert len(rows) == 100
    assert {10, 2_999, 3_000} <= set(rows)
    result = Result(name="c", verdict="invalid", failures=[failure])
    data = payload(run, RunVerdict(verdict="invalid", checks=[result]), [], {}, operations_max=100)
    shown = data["checks"][0]["failures"][0]
    assert shown["left_out"] + len(shown["prefix"]) == 3_000
    assert len(shown["places"]) == len(shown["prefix"])
    assert "100 of 5,000 operations" in data["sample"]


def test_failures_texts_and_faults_are_bounded() -> None:
    run = [operation(index, f"k{index}") for index in range(500)]
    failures = [Failure(key=f"k{index}", stuck=[index], words=["w" * 10_000] * 500) for index in range(500)]
    verdict = RunVerdict(verdict="invalid", checks=[Result(name="c", verdict="invalid", failures=failures)])
    data = payload(run, verdict, [FaultNote(0, 1, "f" * 1_000, ["n"] * 100, "d" * 1_000)] * 5_000, {})
    kept = [failure for check in data["checks"] for failure in check["failures"]]
    assert len(kept) == FAILURES_MAX
    assert len(kept[0]["words"]) == 100
    assert len(data["faults"]) == 2_000
    assert len(data["faults"][0]["name"]) <= TEXT_CHARS_MAX
    assert len(spelled({"x": ["y" * 100_000]})) <= TEXT_CHARS_MAX


def test_process_that_goes_on_under_a_new_number_stays_in_its_lane() -> None:
    run = [
        operation(0, process=0, invoked=0),
        operation(1, process=1, invoked=0),
        operation(2, process=2, invoked=60),
        operation(3, process=3, invoked=55),
    ]
    found = lanes(run, {0: 50})
    assert found.of == {0: 0, 1: 1, 2: 2, 3: 0}
    assert found.names == ["0…3", "1", "2"]


def test_last_end_of_a_request_with_several_attempts_counts() -> None:
    events = [
        Event(process=0, type="invoke", f="write", request="c/1", time=1),
        Event(process=0, type="info", f="write", request="c/1", time=5, error="TIMEOUT"),
        Event(process=1, type="invoke", f="write", request="c/1", time=6),
        Event(process=2, type="invoke", f="read", time=7),
        Event(process=1, type="info", f="write", request="c/1", time=9, error="STALE"),
        Event(process=2, type="fail", f="read", time=8, error="NO_LEADER"),
    ]
    assert ends(events) == {0: (9, "STALE"), 2: (8, "NO_LEADER")}


def test_series_are_the_latencies_and_the_counts() -> None:
    second = 1_000_000_000
    run = [
        Operation(
            index=index,
            process=0,
            f="read",
            key=None,
            argument=None,
            result=None,
            status="ok",
            invoked=second - (index + 1) * 1_000_000,
            returned=second,
        )
        for index in range(100)
    ]
    lost = Operation(
        index=100, process=1, f="read", key=None, argument=None, result=None, status="unknown", invoked=0, returned=None
    )
    found = series([*run, lost], {100: (3 * second, "TIMEOUT")}, 4 * second)
    bucket = int(1 / found.width_s)
    assert found.max_ms[bucket] == pytest.approx(100)
    assert found.p50_ms[bucket] == pytest.approx(50.5)
    assert found.p99_ms[bucket] == pytest.approx(99.01)
    assert found.rates["ok"].sum() * found.width_s == pytest.approx(100)
    assert found.rates["unknown"][int(3 / found.width_s)] * found.width_s == pytest.approx(1)
    assert found.rates["fail"].sum() == 0


def test_plots_are_whole_files_with_every_fault_shaded(tmp_path: Path) -> None:
    folder = example_runs.lost_write(tmp_path)
    write_report(folder)
    for name in ("latency.svg", "rate.svg"):
        root = ET.parse(folder.path / name).getroot()
        space = "{http://www.w3.org/2000/svg}"
        shaded = [rect for rect in root.iter(f"{space}rect") if rect.get("class") == "fault"]
        assert [rect.findtext(f"{space}title") for rect in shaded] == [
            " ".join([note.fault, *note.target]) for note in folder.read_faults()
        ]
        assert len([path for path in root.iter(f"{space}path") if (path.get("class") or "").startswith("line")]) >= 3


def test_run_without_operations_has_a_page(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, RunInfo(workload="register"))
    folder.history.touch()
    folder.write_verdict(RunVerdict(verdict="valid"))
    page = write_report(folder).read_text()
    assert data_of(page)["keys"] == []
    assert "Nothing was checked." in page


def test_events_that_do_not_fit_are_refused_with_file_and_line(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, RunInfo(workload="register"))
    with pytest.raises(FileMissing):
        write_report(folder)
    folder.write_verdict(RunVerdict(verdict="valid"))
    with folder.history_writer() as history:
        history.event(Event(process=0, type="ok", f="read", time=1))
    with pytest.raises(FileMalformed, match=r"history\.jsonl: line 1"):
        write_report(folder)
    assert not folder.report.exists()
