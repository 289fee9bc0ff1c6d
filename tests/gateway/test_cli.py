"""The ``oncegate`` command as a process: what it serves, prints, exits with and leaves behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
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
from oncegate.version import installing
from tests.gateway.http_contract import assert_problem, one_node, operations, put, serving

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


def _stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
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
    unknown = {"ONCEGATE_MEMBERS": members, "ONCEGATE_PALETTE": "x", "ONCEGATE_PORT_7400_TCP": "tcp://10.0.0.1:7400"}
    taken = _run("-m", "oncegate", "serve", cwd=tmp_path, env={**ENVIRONMENT, **unknown})
    assert taken.returncode == 1
    assert re.findall(r"(ONCEGATE_\w+) is no setting", taken.stderr) == ["ONCEGATE_PALETTE"]
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
    assert "ONCEGATE_MEMBERS" in result.stderr
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


def _processor_s(*arguments: str) -> float:
    """Return the processor time of a Python process, the least of three."""
    found = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0  # already waited for
        found.append(used.ru_utime + used.ru_stime)
    return min(found)


@pytest.mark.parametrize("line", ["--version", "status", "flow list"])
def test_start_of_a_command_costs_not_much_more_than_that_of_its_library(line: str) -> None:
    """0.3 s on the machine of the figures; here a ratio, which a busy machine leaves alone."""
    endpoint = ("--endpoint", "http://127.0.0.1:1") if line != "--version" else ()
    assert _processor_s("-m", "oncegate", *line.split(), *endpoint) < 4 * _processor_s("-c", "import typer, asyncio")


def test_node_loads_no_library_of_tests_jobs_or_tables_for_people() -> None:
    loaded = _loaded_by("serve --tokens-file nowhere")  # refused after all is there
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
    assert done.stderr.endswith(f"is not installed; {installing('server')}\n")


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
        return {"version": 1}

    monkeypatch.setattr(cluster, "ask", answer)
    assert CliRunner().invoke(app, ["explain", *line.split(), "--output", "json"]).exit_code == 0
    assert asked == [f"GET /v1/explain?{query}"]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({"events": [], "version": 0}, 1),
        ({"events": [], "version": 7}, 0),
        ({"events": [{"what": "log"}], "version": 0}, 0),
        ({"events": [], "request": "1/1", "state": {"state": "unknown"}}, 0),
    ],
)
def test_explain_exits_1_where_nothing_is_known_of_a_key(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], code: int
) -> None:
    monkeypatch.setattr(cluster, "ask", lambda *_: {"table": "t", "key": "nosuch", "log_from": 1, **found})
    shown = CliRunner().invoke(app, ["explain", "t/nosuch"])
    told = CliRunner().invoke(app, ["explain", "t/nosuch", "-o", "json"])
    assert (shown.exit_code, told.exit_code) == (code, code)
    assert ("nothing is known of t/nosuch" in shown.stderr, json.loads(told.stdout)["log_from"]) == (code == 1, 1)
    assert ("time (UTC)" in shown.stdout) == bool(found["events"]), "no table without rows"


def test_status_of_nobody_exits_3_with_one_line_and_asks_nobody_who_has_no_address() -> None:
    (port,) = free_ports(1)
    for endpoint, code, reason in (
        (f"http://127.0.0.1:{port}", 3, "Connection refused"),
        ("127.0.0.1", 2, "begins neither with http:// nor with https://"),
        ("nonsense://x", 2, "begins neither with http:// nor with https://"),
    ):
        result = CliRunner().invoke(app, ["status", "--endpoint", endpoint])
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
        assert endpoint in result.stderr
        assert reason in result.stderr


def test_status_refused_for_want_of_a_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RequestRefused("UNAUTHENTICATED: send a known token")

    monkeypatch.setattr("oncegate.gateway.cli.cluster.send_json", refused)
    for line in (["status"], ["member", "add", "n4=127.0.0.1:1:2"]):
        result = CliRunner().invoke(app, line)
        assert (result.exit_code, result.stderr) == (1, "oncegate: UNAUTHENTICATED: send a known token\n")


async def test_member_add_moves_no_member_and_status_of_a_removed_node_names_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(one_node(tmp_path)) as (api, _):
        _, _, state = await api.call("GET", "/v1/cluster")
        refusal = assert_problem(await api.call("POST", "/v1/cluster/members/n9/repair"), "CONFLICT")
        assert refusal["detail"] == "n9 is no member"
    asked: list[str] = []

    def ask(method: str, *_: Any) -> Any:
        asked.append(method)
        return state if method == "GET" else {}

    monkeypatch.setattr(cluster, "ask", ask)
    host, peer_port = state["members"][0]["peer"].rsplit(":", 1)
    http_port = state["members"][0]["http"].rsplit(":", 1)[1]
    misspelt = CliRunner().invoke(app, ["member", "add", "n1=127.0.0.1:1:2"])
    assert (misspelt.exit_code, misspelt.stdout, asked) == (1, "", ["GET"])
    assert "remove this one first" in misspelt.stderr
    again = CliRunner().invoke(app, ["member", "add", f"n1={host}:{http_port}:{peer_port}"])
    assert (again.exit_code, again.stdout, asked) == (0, "", ["GET", "GET"]), "a voter's directory is not to be emptied"
    assert again.stderr == "n1 is a member and votes\n"
    taken = CliRunner().invoke(app, ["member", "add", f"n5={host}:{http_port}:{peer_port}"])
    assert (taken.exit_code, taken.stdout, asked) == (1, "", ["GET"] * 3), "nothing is begun"
    assert f"{host}:{http_port} is an address of the member n1" in taken.stderr
    state["members"][0]["voter"] = False
    corrected = CliRunner().invoke(app, ["member", "add", "n1=127.0.0.1:1:2"])
    assert corrected.exit_code == 0, "a learner was given a wrong address, and never came"

    state["node"] = "n7"
    shown = CliRunner().invoke(app, ["status"])
    assert (shown.exit_code, "n7 is no member any more" in shown.stderr) == (1, True), "nobody tells of a leader"
    assert "unreachable" in shown.stdout


async def test_command_that_member_add_prints_gives_the_new_node_all_that_the_others_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    given = {"secret_file": secret, "insecure_http": True, "tenant_sessions_max": 7, "live_check_share": 0.0}
    async with serving(one_node(tmp_path, **given)) as (api, _):
        _, _, state = await api.call("GET", "/v1/cluster")
    assert str(tmp_path) not in json.dumps(state), "where a node has its files is not told"
    monkeypatch.setattr(cluster, "ask", lambda method, *_: state if method == "GET" else {})
    shown = CliRunner().invoke(app, ["member", "add", "n4=127.0.0.1:1:2"])
    assert shown.exit_code == 0
    assert "in place of SECRET_FILE.\n" in shown.stderr
    words = shlex.split(shown.stdout)
    assert words[:3] == ["oncegate", "serve", "--join"]
    command = " ".join(words)
    for flags in (
        *("--node n4", "--data-dir oncegate-n4", "--secret-file SECRET_FILE", "--insecure-http"),
        *("--tenant-sessions-max 7", "--live-check-share 0.0", "--member n4=127.0.0.1:1:2"),
    ):
        assert flags in command
    monkeypatch.chdir(tmp_path)
    started = CliRunner().invoke(app, words[1:])
    assert (started.exit_code, "SECRET_FILE" in started.stderr) == (2, True), "all that lacks is the file"


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def _dev(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    return _started(tmp_path, "dev", "--first-port", "0", *arguments, COLUMNS="20", TMPDIR=str(tmp_path))


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
    assert f"{shown[0].split()[1]}/dashboard\n" in text
    steps = "".join(shown[shown.index("Try:\n") + 1 :][:4])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the command `oncegate`
    how: dict[str, Any] = {"env": {**ENVIRONMENT, "PATH": path}, "cwd": tmp_path, "timeout": WAIT_S}
    tried = subprocess.run(["bash", "-euc", steps], capture_output=True, text=True, check=False, **how)
    assert (tried.returncode, tried.stdout.splitlines()[-1:]) == (0, ['"ann"']), tried
    (directory,) = tmp_path.glob("oncegate-dev-*")
    assert f"Data and logs: {directory}\n" in shown, "no path is cut, however narrow the terminal"
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


@pytest.mark.faults
def test_dev_whose_terminal_is_closed_leaves_nothing_behind(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below nohup, and inherited
    process = _dev(tmp_path, "--nodes", "2")
    signal.signal(signal.SIGHUP, before)
    _until(lambda: len(_children(process.pid)) == 2, process)
    nodes = _children(process.pid)
    assert _stop(process, signal.SIGHUP) == 0
    assert not any(_lives(pid) for pid in nodes)
    assert list(tmp_path.glob("oncegate-dev-*")) == []


def test_dev_on_a_taken_port_says_so_and_exits_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = _run("-m", "oncegate", "dev", "--nodes", "1", "--first-port", str(port), cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr == f"oncegate dev: port {port} is in use; choose another --first-port\n"


@pytest.mark.parametrize("line", ["--first-port 70000", "--first-port -5", "--first-port 65533 --nodes 2"])
def test_dev_on_ports_that_there_are_not_is_misuse(line: str) -> None:
    refused = CliRunner().invoke(app, ["dev", *line.split()])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "first-port" in refused.stderr
    assert "65535" in refused.stderr
