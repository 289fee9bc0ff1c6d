"""Commands and nodes that are none, or not as they should be: no token in the clear, and no traceback."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from oncegate.gateway.cli.cluster_state import OddAnswer, naming, unasked, whole
from oncegate.gateway.cli.main import app

MEMBER = {"id": "n2", "peer": "x:1", "role": "follower", "match": 1, "voter": True}
STATE: dict[str, Any] = {
    "node": "n1", "role": "leader", "leader": "n1", "term": 1, "log_index": 1, "commit_index": 1, "applied_index": 1,
    "commit": 1, "version": "1",
}  # fmt: skip
Answer = Callable[[str], tuple[int, dict[str, str], bytes]]
Seen = list[tuple[str, str | None]]
"""Paths, and the token that came with each."""


@contextmanager
def answering(answer: Answer, pem: Path | None = None) -> Iterator[tuple[str, Seen]]:
    """Answer on a port of its own; yields the address, and what was asked."""
    seen: Seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("Authorization")))
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, text in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        yield f"{'http' if pem is None else 'https'}://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def always(found: object) -> Answer:
    return lambda _: (200, {}, found if isinstance(found, bytes) else json.dumps(found).encode())


def named(*addresses: str, **more: Any) -> dict[str, Any]:
    """The cluster as n1 tells it, whose members have these addresses."""
    members = [{**MEMBER, "id": f"n{at}", "http": address} for at, address in enumerate(addresses, 1)]
    return {**STATE, "members": members, **more}


def run(*words: str) -> Any:
    ran = CliRunner().invoke(app, words)
    assert ran.exception is None or isinstance(ran.exception, SystemExit), (words, ran.exception)
    assert "Traceback" not in ran.output
    return ran


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("TOKEN_FILE", "CA_FILE", "ENDPOINT", "ENDPOINTS", "PROFILE"):
        monkeypatch.delenv(f"ONCEGATE_{name}", raising=False)
    monkeypatch.setenv("ONCEGATE_PROFILES", str(tmp_path / "none.toml"))
    monkeypatch.setenv("ONCEGATE_TOKEN", "secret")
    return "secret"


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    authority, pem = trustme.CA(), tmp_path / "both.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("ONCEGATE_CA_FILE", str(tmp_path / "authority.pem"))
    return pem


def test_no_member_is_asked_in_the_clear_where_an_https_endpoint_was_named(tmp_path: Path, tls: Path) -> None:
    told: dict[str, Any] = {}
    with (
        answering(lambda path: always(told)(path)) as (plain, seen),
        answering(lambda path: always(told)(path), tls) as (secure, asked),
    ):
        told.update(named(secure, plain))
        where = ("--endpoint", secure)
        shown = run("status", *where)
        assert (shown.exit_code, "not asked: no https" in shown.stdout) == (0, True)
        assert "not asked: no https" in run("level", "show", *where).stdout
        shown = run("top", "--count=1", "--interval=0.2", *where)
        assert (shown.exit_code, "not asked: no https" in shown.stdout) == (0, True)
        frame = json.loads(run("top", "--count=1", "--interval=0.2", "-o", "jsonl", *where).stdout)
        assert [one["error"] for one in frame["nodes"]] == ["", "not asked: no https"]
        bundle = run("debug", "bundle", "--file", str(tmp_path / "bundle.tar.gz"), *where)
        assert bundle.exit_code == 0
        judged = run("perf", "--data-dir", str(tmp_path), *where)
        assert (judged.exit_code, "is not asked: no https" in judged.stderr) == (2, True)
        assert {token for _, token in asked} == {"Bearer secret"}
        assert seen == []


@pytest.mark.parametrize(
    ("endpoint", "address", "reason"),
    [
        ("https://a:1", "https://b:1", None),
        ("http://a:1", "http://b:1", None),
        ("http://a:1", "https://b:1", None),
        ("https://a:1", "http://b:1", "no https"),
        ("https://a:1", "http://a:1", "no https"),
        ("http://a:1", "file:///etc/passwd", "no address"),
        ("https://a:1", "", "no address"),
    ],
)
def test_a_member_is_asked_no_less_safely_than_the_endpoint_that_was_named(
    endpoint: str, address: str, reason: str | None
) -> None:
    assert unasked(endpoint, address) == reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_with_the_token_or_without(tmp_path: Path, status: int) -> None:
    with (
        answering(always(named("http://127.0.0.1:1"))) as (other, seen),
        answering(lambda path: (status, {"Location": other + path}, b"")) as (endpoint, _),
    ):
        for words in (["status"], ["top", "--count=1"], ["table", "list"], ["level", "show"]):
            ran = run(*words, "--endpoint", endpoint)
            assert (ran.exit_code, ran.stdout) == (1, ""), words
            assert "which is not followed" in ran.stderr, words
        if status == 307:  # it measures the machine first, which takes seconds
            assert run("perf", "--data-dir", str(tmp_path), "--endpoint", endpoint).exit_code == 2
        assert seen == []


ODD: tuple[object, ...] = (
    {},
    [],
    "x",
    None,
    b"<html>",
    b"[" * 200_000,
    STATE,
    {**STATE, "members": 1},
    {**STATE, "members": []},
    {**STATE, "members": [1]},
    {**STATE, "members": [{"id": "n1"}]},
    {**STATE, "members": [{"id": ["n1"], "http": "http://x"}]},
    {**STATE, "members": [{"id": "../../n1", "http": "http://x"}]},
    {**named("http://127.0.0.1:1"), "node": None},
)
ODD_NUMBERS: tuple[dict[str, Any], ...] = (
    {"commit_index": None},
    {"term": "1"},
    {"applied_index": -1},
    {"commit": 10**400},
    {"commit": 1.5},
    {"role": 1},
    {"version": ["1"]},
    {"leader": {}},
)


def short(odd: object) -> str:
    return repr(odd)[:60]


@pytest.mark.parametrize("odd", [*ODD, *(named("http://127.0.0.1:1", **one) for one in ODD_NUMBERS)], ids=short)
def test_what_is_no_node_ends_a_command_as_one_that_nobody_answers(odd: object) -> None:
    with answering(always(odd)) as (endpoint, _):
        for words in (["status"], ["top", "--count=1", "--interval=0.2"], ["top", "--count=1", "-o", "json"]):
            ran = run(*words, "--endpoint", endpoint)
            assert (ran.exit_code, ran.stdout, ran.stderr.count("\n")) == (3, "", 1), words
            assert ran.stderr.startswith(f"oncegate: no node answers at {endpoint}: ")


@pytest.mark.parametrize("odd", ODD[:-1], ids=short)
def test_members_that_cannot_be_told_end_other_commands_too(tmp_path: Path, odd: object) -> None:
    with answering(always(odd)) as (endpoint, _):
        bundle = ["debug", "bundle", "--file", str(tmp_path / "b.tar.gz")]
        for words in (bundle, ["level", "show"], ["member", "remove", "n1"], ["member", "add", "n2=127.0.0.1:1:2"]):
            assert run(*words, "--endpoint", endpoint).exit_code == 3, words


@pytest.mark.parametrize("odd", [{}, b"<html>", named("http://127.0.0.1:1", commit="x")], ids=short)
def test_a_member_that_answers_oddly_is_shown_beside_the_others(odd: object) -> None:
    told: dict[str, Any] = {}
    with answering(lambda path: always(told)(path)) as (endpoint, _), answering(always(odd)) as (member, _):
        told.update(named(endpoint, member))
        ran = run("status", "--endpoint", endpoint)
        assert ran.exit_code == 0
        assert "odd answer" in ran.stdout or "unreachable" in ran.stdout
        ran = run("top", "--count=1", "--interval=0.2", "-o", "json", "--endpoint", endpoint)
        ((n1, n2),) = (one["nodes"] for one in json.loads(ran.stdout))
        assert (n1["state"], n2["state"]) == ("leader", "unreachable")
        assert n2["error"]


@pytest.mark.parametrize("role", ["follower", "candidate"])
def test_status_says_of_a_node_that_it_knows_no_leader(role: str) -> None:
    told: dict[str, Any] = {}
    with answering(lambda path: always(told)(path)) as (endpoint, _):
        told.update(named(endpoint, "http://127.0.0.1:1", role=role, leader=None))
        alone = run("status", "--endpoint", endpoint)
        told.update(damage="state is damaged")
        damaged = run("status", "--endpoint", endpoint)
        told.update(damage=None, leader="n2")
        led = run("status", "--endpoint", endpoint)
    assert (alone.exit_code, f"{role}, knows no leader" in alone.stdout) == (1, True)
    assert f"{role}, state is damaged" in damaged.stdout, "what has to be repaired comes first"
    assert (led.exit_code, "knows no leader" in led.stdout) == (0, False)


def test_what_a_node_tells_is_taken_as_it_is_if_it_is_whole() -> None:
    state = named("http://127.0.0.1:1", more="x")
    assert whole(state) == naming(state) == state
    with pytest.raises(OddAnswer, match="role is no text"):
        whole({**state, "role": None})
    assert naming({**state, "role": None})["role"] is None
