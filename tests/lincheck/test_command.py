"""``oncegate check file``: verdicts as exit codes, keys in processes, and docs/checker.md."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli.main import app
from oncegate.proof.check import parallel
from oncegate.proof.check.parallel import WorkerFailed, check_keys, load_model
from oncegate.proof.lincheck import MODELS, Limits, ModelError, Operation, check, line_of
from tests.lincheck.lines import event, op
from tests.lincheck.test_limits import subset_sum

PAGE = (Path(__file__).parents[2] / "docs" / "checker.md").read_text()
OWN = re.search(r"<!-- own model -->\n```python\n(.*?)```", PAGE, re.DOTALL)
HISTORY = re.search(r"<!-- history -->\n```json\n(.*?)```", PAGE, re.DOTALL)
PYTHON = re.search(r"<!-- from python -->\n```python\n(.*?)```", PAGE, re.DOTALL)
GOOD = [event(0, "invoke", "write", 1), event(0, "ok", "write"), event(0, "invoke", "read"), event(0, "ok", "read", 1)]
EDN = b"{:process 0 :type :invoke :f :read :value nil} {:process 0 :type :ok :f :read :value nil}"
LOG = b"INFO  jepsen.core - begun\nINFO  jepsen.util - 3\t:invoke\t:read\tnil\nINFO  jepsen.util - 3\t:ok\t:read\t7\n"
BAD = [*GOOD[:3], event(0, "ok", "read", 2)]


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check", "file", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    unknown: list[bytes] = []
    for one in subset_sum():
        unknown.append(line_of(event(one.process, "invoke", one.f, one.argument, time=one.invoked)))
        if one.returned is not None:
            unknown.append(line_of(event(one.process, "ok", one.f, one.result, time=one.returned)))
    written = {
        "good": b"\n".join(map(line_of, GOOD)),
        "bad": b"\n".join(map(line_of, BAD)),
        "hard": b"\n".join(unknown),
        "broken": b'{"process": 0',
        "empty": b"",
        "jepsen.edn": EDN,
        "jepsen-edn": b"[" + EDN + b"]",
        "jepsen.log": LOG,
    }
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in written}


@pytest.mark.parametrize(
    ("name", "options", "code", "says"),
    [
        ("good", ("--model", "register"), 0, "VALID"),
        ("good", ("--model", "register", "--level", "sequential"), 0, "sequential register: VALID"),
        ("empty", ("--model", "register"), 0, "0 operations"),
        ("jepsen.edn", ("--model", "register"), 0, "VALID"),
        ("jepsen-edn", ("--model", "register"), 0, "VALID"),
        ("jepsen.log", ("--model", "register"), 1, "no operation ever gave 7"),
        ("bad", ("--model", "register"), 1, "no operation ever gave 2"),
        ("bad", ("--model", "register", "--level", "sequential"), 1, "INVALID"),
        ("hard", ("--model", "counter", "--states", "1000"), 2, "over 1000 states"),
        ("good", ("--model", "register", "--level", "session"), 2, "no operation was told a version"),
        ("good", ("--model", "nonsense"), 3, "no model"),
        ("good", ("--model", "nowhere.py:Model"), 3, "no file"),
        ("good", ("--model", "queue"), 3, "queue has no operation"),
        ("good", ("--model", "register", "--seconds", "soon"), 3, "soon"),
        ("good", ("--model", "register", "--format", "edn"), 3, "line"),
        ("good", (), 3, "model"),
        ("broken", ("--model", "register"), 3, "line 1"),
        ("missing", ("--model", "register"), 3, "missing"),
    ],
)
def test_verdict_is_the_exit_code(
    files: dict[str, Path], name: str, options: tuple[str, ...], code: int, says: str
) -> None:
    exit_code, output = run(files.get(name, Path("missing")), *options)
    assert (exit_code, says in output) == (code, True), output


@pytest.mark.parametrize("name", ["bad", "jepsen.log"])
def test_history_without_times_is_told_without_times(files: dict[str, Path], name: str) -> None:
    _, output = run(files[name], "--model", "register")
    assert "read " in output
    assert not re.search(r"\d s\b", output.partition("\n")[2]), output


def test_an_unknown_command_is_misuse() -> None:
    assert CliRunner().invoke(app, ["check", "nonsense"]).exit_code == 3


def test_json_is_the_whole_result(files: dict[str, Path]) -> None:
    code, output = run(files["bad"], "--model", "register", "-o", "json")
    found = json.loads(output)
    assert (code, found["verdict"], found["failures"][0]["window"]) == (1, "invalid", [1])


def test_own_model_of_the_documentation_has_ten_lines_and_works(tmp_path: Path) -> None:
    model = tmp_path / "max.py"
    model.write_text(OWN.group(1))
    lines = [line for line in OWN.group(1).split("class ")[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    history = tmp_path / "history.jsonl"
    for value, code in ((5, 0), (3, 1)):
        calls = [("write", 5, None), ("write", 3, None), ("read", None, value)]
        events = [
            line_of(found)
            for f, argument, result in calls
            for found in (event(0, "invoke", f, argument), event(0, "ok", f, result))
        ]
        history.write_bytes(b"\n".join(events))
        assert run(history, "--model", f"{model}:Max")[0] == code


def test_history_and_python_of_the_documentation_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PYTHON is not None
    (tmp_path / "history.jsonl").write_text(HISTORY.group(1))
    assert run(tmp_path / "history.jsonl", "--model", "register")[0] == 0
    monkeypatch.chdir(tmp_path)
    exec(PYTHON.group(1), {})


@pytest.mark.parametrize("name", sorted(MODELS))
def test_documentation_names_every_model(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize(
    ("text", "reason"), [("x = 1", "no class"), ("class Model: pass", "no name"), ("Model = 5", "no class")]
)
def test_file_that_holds_no_model_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ModelError, match=reason):
        load_model(f"{tmp_path / 'own.py'}:Model")


def test_model_that_raises_is_a_crash_and_no_verdict(tmp_path: Path, files: dict[str, Path]) -> None:
    (tmp_path / "own.py").write_text(_model("raise ZeroDivisionError"))
    code, output = run(files["good"], "--model", f"{tmp_path / 'own.py'}:Own", "--jobs", "1")
    assert code == 4
    assert "VALID" not in output


def test_keys_in_processes_have_the_verdicts_they_have_in_one() -> None:
    ops = [one for key in range(6) for one in _key(key, good=key != 4)]
    alone, together = check(ops, MODELS["register"]), check_keys(ops, "register", Limits(), 2)
    assert (together.verdict, together.keys, together.operations) == ("invalid", 6, len(ops))
    assert together.failures == alone.failures
    assert check_keys([], "register", Limits(), 2).verdict == "valid"


def test_key_whose_process_is_killed_is_unknown_and_the_others_are_checked(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_model(f"os.kill(os.getpid(), {int(signal.SIGKILL)})", "op.key == 2"))
    ops = [one for key in range(4) for one in _key(key)]
    result = check_keys(ops, f"{tmp_path / 'own.py'}:Own", Limits(), 1)
    assert result.verdict == "unknown"
    assert result.reason == "key 2: the process that checked it was killed"
    assert result.operations == len(ops)
    lost = [one for key in range(4) for one in _key(key, good=key != 3)]
    assert check_keys(lost, f"{tmp_path / 'own.py'}:Own", Limits(), 1).verdict == "invalid"


def test_worker_that_raises_is_a_crash(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(_model("raise ZeroDivisionError"))
    with pytest.raises(WorkerFailed):
        check_keys(_key(1), f"{tmp_path / 'own.py'}:Own", Limits(), 1)


def test_worker_that_never_ends_is_killed_and_its_key_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "GRACE_S", 0.0)
    (tmp_path / "own.py").write_text(_model("while True: pass"))
    result = check_keys(_key(1), f"{tmp_path / 'own.py'}:Own", Limits(seconds=0.2), 1)
    assert (result.verdict, result.reason) == ("unknown", "key 1: no time left")


def _key(key: int, *, good: bool = True) -> list[Operation]:
    return [
        op(key * 10, "write", 1, None, 0, 5, key=key),
        op(key * 10 + 1, "read", None, 1 if good else 2, 6, 7, key=key),
    ]


def _model(what: str, when: str = "True") -> str:
    return f"""
import os
from oncegate.proof.lincheck import MODELS

class Own:
    name, partitioned = "own", True
    initial = MODELS["register"].initial

    def step(self, state, op):
        if {when}:
            {what}
        return MODELS["register"].step(state, op)
"""
