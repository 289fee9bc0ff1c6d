"""The ``oncegate`` command as a process: what it serves, prints, exits with and leaves behind."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from oncegate.gateway.cli import cluster
from oncegate.gateway.cli.main import app
from oncegate.gateway.local.blocking_http import RequestRefused, get, get_json, send_json
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import wait_for
from tests.gateway.http_contract import operations, put

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
WAIT_S = 30.0


def _run(*arguments: str, **how: Any) -> subprocess.CompletedProcess[str]:
    how = {"env": ENVIRONMENT, "timeout": WAIT_S, **how}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, **how)


def _started(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "oncegate", *arguments]
    return subprocess.Popen(command, cwd=directory, env={**ENVIRONMENT, **environment}, **streams)


def _until(condition: Any, process: subprocess.Popen[str]) -> None:
    def look() -> Any:
        assert process.poll() is None, process.communicate()
        return condition()

    wait_for(look, WAIT_S, "the process does what is expected of it")


def _stop(process: subprocess.Popen[str]) -> int:
    process.terminate()
    process.communicate(timeout=WAIT_S)
    return process.returncode


def test_serve_without_arguments_is_a_durable_cluster_of_one_and_loads_its_libraries_before_it_serves(
    tmp_path: Path,
) -> None:
    http_port, peer_port = free_ports(2)
    members = json.dumps([f"n1=127.0.0.1:{http_port}:{peer_port}"])  # only so that two runs of the suite do not collide
    endpoint = f"http://127.0.0.1:{http_port}"

    def serve() -> subprocess.Popen[str]:
        process = _started(tmp_path, "serve", ONCEGATE_MEMBERS=members)
        _until(lambda: get(f"{endpoint}/readyz") is not None, process)
        return process

    process = serve()
    send_json("PUT", f"{endpoint}/v1/tables/rows", {"kind": "resident"}, 10)
    session = send_json("POST", f"{endpoint}/v1/sessions", {"nonce": "n"}, 10)
    request = operations(session["client_id"], put(1, "a", 1))
    send_json("POST", f"{endpoint}/v1/operations", request, 10)
    assert (tmp_path / "oncegate-data").is_dir()
    process.kill()
    process.communicate(timeout=WAIT_S)
    process = serve()
    assert send_json("POST", f"{endpoint}/v1/operations", request, 10)["results"][0]["replayed"] is True
    shown = CliRunner().invoke(app, ["status", "-o", "json", "--endpoint", endpoint])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["n1"]["role"] == "leader"

    def loaded() -> list[str]:
        libraries = Path(f"/proc/{process.pid}/maps").read_text()
        return [name for name in ("numpy", "pyarrow", "pandas") if f"/{name}/" in libraries]

    # numpy changes the environment while it is imported: once other threads run, that may end the process.
    assert loaded() == ["numpy", "pyarrow"]
    send_json("PUT", f"{endpoint}/v1/tables/readings", {"kind": "stream"}, 10)
    session = send_json("POST", f"{endpoint}/v1/sessions", {"nonce": "m"}, 10)
    headers = {"Oncegate-Client": session["client_id"], "Content-Type": "application/json"}
    headers |= {f"Oncegate-{name}": "1" for name in ("Epoch", "First-Sequence", "First-Incomplete")}
    body = b'{"key":"k","value":1}'
    sent = urllib.request.Request(f"{endpoint}/v1/tables/readings/ranges", body, headers, method="POST")
    with urllib.request.urlopen(sent, timeout=WAIT_S) as answer:
        assert json.load(answer)["results"][0]["status"] == "applied"
    # Rows have been converted to Arrow, which imports pandas where that is installed, unless it is kept out.
    assert loaded() == ["numpy", "pyarrow"]
    taken = _run("-m", "oncegate", "serve", cwd=tmp_path, env={**ENVIRONMENT, "ONCEGATE_MEMBERS": members})
    assert taken.returncode == 1
    assert "Traceback" not in taken.stderr
    assert "cannot serve" in taken.stderr
    assert _stop(process) == 0


def test_misuse_of_serve_exits_2_with_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ONCEGATE_"):
            monkeypatch.delenv(name)
    (tmp_path / "broken.toml").write_text("node = ")
    misuses = {
        ("--node", "other"): "not among the members",
        ("--member", "nonsense"): "id=host:http_port:peer_port",
        ("--member", "n1=10.1.2.3:1:2"): "secret",
        ("--log-level", "LOUD"): "LOUD",
        ("--config", "missing.toml"): "missing.toml",
        ("--config", "broken.toml"): "broken.toml",
        ("--secret-file", "missing"): "missing",
    }
    for arguments, reason in misuses.items():
        result = CliRunner().invoke(app, ["serve", *arguments])
        assert result.exit_code == 2, (arguments, result.output)
        line = result.stderr.removesuffix("\n")
        assert line.startswith("oncegate: "), arguments
        assert "\n" not in line
        assert reason in line
    monkeypatch.setenv("ONCEGATE_MEMBERS", "no json")
    result = CliRunner().invoke(app, ["serve"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "members" in result.stderr
    assert not (tmp_path / "oncegate-data").exists()


def test_unknown_commands_and_flags_exit_2() -> None:
    for line in ("nonsense", "serve --nonsense", "dev --nodes 0", "dev --nodes x", "status -o x"):
        assert CliRunner().invoke(app, line.split()).exit_code == 2, line
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def _loaded_by(*command_lines: str) -> set[str]:
    """Run commands in one new process and return the modules that are loaded at its end."""
    script = """
import sys
from oncegate.gateway.cli import cluster
from oncegate.gateway.cli.main import app
for line in sys.argv[1:]:
    try:
        app(line.split())
    except SystemExit:
        pass
sys.__stdout__.write("\\n" + " ".join(sys.modules))
"""
    done = _run("-c", script, *command_lines)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_command_that_runs_no_server_loads_none_of_its_libraries() -> None:
    loaded = _loaded_by(
        *("--help", "--version", "serve --help", "verify --help", "check file --help", "outbox drain --help"),
        *("status --endpoint http://127.0.0.1:1", "token me --tenant t --scope read", "member add nonsense"),
    )
    heavy = {"aiohttp", "asyncio", "cassandra", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "pysyncobj"}
    heavy |= {"rich", "rocksdict", "sqlite3", "tenacity", "oncegate.consensus", "oncegate.flows", "oncegate.spark_sink"}
    assert "typer" in loaded
    assert heavy & loaded == set()


def test_node_loads_no_library_of_tests_jobs_or_tables_for_people() -> None:
    loaded = _loaded_by("serve --node nobody")
    other = {"cassandra", "hypothesis", "opentelemetry", "pandas", "pydantic", "pyspark", "pytest", "rich", "selenium"}
    assert "oncegate.gateway.http.server" in loaded
    assert (other | {"oncegate.proof.check", "oncegate.gateway.client", "oncegate.proof.verify"}) & loaded == set()


@pytest.mark.parametrize(("line", "code"), [("verify .", 3), ("check replay .", 3), ("serve", 2)])
def test_command_of_the_server_that_is_not_installed_exits_as_misused(line: str, code: int) -> None:
    script = """
import sys
for name in ("rocksdict", "pyarrow", "numpy", "google_crc32c", "aiohttp"):
    sys.modules[name] = None
from oncegate.gateway.cli.main import main
sys.argv[0] = "oncegate"
main()
"""
    done = _run("-c", script, *line.split())
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert done.stderr.endswith("is not installed; pip install 'oncegate[server]'\n")


def test_version_is_that_of_the_package() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"oncegate {version('oncegate')}\n")


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("000000000000000a/9", "request=000000000000000a%2F9"),
        ("000000000000000a/9 --key", "table=000000000000000a&key=9"),
        ("rows/k", "table=rows&key=k"),
        ("a/9", "table=a&key=9"),
        ("rows/000000000000000a/9", "table=rows&key=000000000000000a%2F9"),
    ],
)
def test_explain_reads_two_numbers_as_a_request_unless_told_that_they_are_a_key(
    monkeypatch: pytest.MonkeyPatch, line: str, query: str
) -> None:
    asked: list[str] = []

    def answer(method: str, endpoint: str, path: str, body: Any, timeout_s: float) -> dict[str, Any]:
        asked.append(f"{method} {path}")
        return {}

    monkeypatch.setattr(cluster, "ask", answer)
    assert CliRunner().invoke(app, ["explain", *line.split(), "--output", "json"]).exit_code == 0
    assert asked == [f"GET /v1/explain?{query}"]


def test_status_of_nobody_exits_3_with_one_line() -> None:
    (port,) = free_ports(1)
    for endpoint in (f"http://127.0.0.1:{port}", "127.0.0.1", "nonsense://x"):
        result = CliRunner().invoke(app, ["status", "--endpoint", endpoint])
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr == f"oncegate: no node answers at {endpoint}\n"


def test_status_refused_for_want_of_a_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RequestRefused("UNAUTHENTICATED: send a known token")

    monkeypatch.setattr("oncegate.gateway.cli.cluster.send_json", refused)
    for line in (["status"], ["member", "add", "n4=127.0.0.1:1:2"]):
        result = CliRunner().invoke(app, line)
        assert (result.exit_code, result.stderr) == (1, "oncegate: UNAUTHENTICATED: send a known token\n")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def _dev(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return _started(tmp_path, "dev", "--first-port", "0", *arguments, COLUMNS="300", TMPDIR=str(tmp_path))


@pytest.mark.faults
def test_dev_shows_a_whole_cluster_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = _dev(tmp_path, "--nodes", "3")
    assert process.stderr is not None
    shown: list[str] = []
    while not shown or "Ctrl-C" not in shown[-1]:
        line = process.stderr.readline()
        assert line, "".join(shown)
        shown.append(line)
    text = "".join(shown)
    endpoints = sorted(set(re.findall(r"http://127\.0\.0\.1:\d+", text)))
    assert len(endpoints) == 3
    assert text.count("leader") == 1
    assert "curl -s" in text
    states = [get_json(f"{endpoint}/v1/cluster") for endpoint in endpoints]
    assert sorted(state["role"] for state in states if state) == ["follower", "follower", "leader"]
    status = CliRunner().invoke(app, ["status", "-o", "json", "--endpoint", endpoints[1]])
    assert sorted(json.loads(status.stdout)) == ["n1", "n2", "n3"]
    table = CliRunner().invoke(app, ["status", "--endpoint", endpoints[1]], env={"COLUMNS": "200"})
    assert table.stdout.count("follower") == 2
    nodes = _children(process.pid)
    assert len(nodes) == 3
    assert _stop(process) == 0
    assert not any(_lives(pid) for pid in nodes)
    assert list(tmp_path.glob("oncegate-dev-*")) == []


@pytest.mark.faults
def test_dev_stopped_while_it_starts_leaves_no_node_behind(tmp_path: Path) -> None:
    process = _dev(tmp_path, "--nodes", "2")
    _until(lambda: len(_children(process.pid)) == 2, process)
    nodes = _children(process.pid)
    assert _stop(process) == 0
    assert not any(_lives(pid) for pid in nodes)


def test_dev_on_a_taken_port_says_so_and_exits_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = _run("-m", "oncegate", "dev", "--nodes", "1", "--first-port", str(port), cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr == f"oncegate dev: port {port} is in use; choose another --first-port\n"
