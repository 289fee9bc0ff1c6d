"""Settings that do not fit each other or the machine are told before a node starts, with what to set."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from oncegate.consensus.config import ReplicaConfig
from oncegate.gateway.cli.main import command_line
from oncegate.gateway.http.admission import bodies, connections
from oncegate.gateway.http.admission.accept_faults import EVERY_S, AcceptFaults, told_rarely
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node import fitness, host
from oncegate.gateway.node.fitness import CHECKS, Finding, Host, findings
from oncegate.gateway.node.settings import SETTINGS, Settings
from oncegate.proof.check.equipment import SmallDisk
from oncegate.proof.check.errors import Unavailable

MIB, GIB = 2**20, 2**30
ROOMY = Host(20_000, 100 * GIB, 50 * GIB, False, 8 * GIB, None)
CASES: list[tuple[Any, dict[str, Any], Host, bool, str]] = [
    (fitness.address_space, {}, ROOMY._replace(address_space_bytes=GIB), True, "ulimit -v"),
    (fitness.address_space, {}, ROOMY._replace(address_space_bytes=4 * GIB), False, "4096 MiB"),
    (fitness.descriptors, {}, ROOMY._replace(descriptors_max=516), True, "raise it to 4608"),
    (fitness.descriptors, {}, ROOMY._replace(descriptors_max=4_000), False, "takes 3488 connections"),
    (fitness.disk, {}, ROOMY._replace(disk_bytes=120 * MIB), True, "has 120 MiB, and a node needs 192 MiB"),
    (fitness.disk, {}, ROOMY._replace(disk_bytes=300 * MIB), True, f"set log_kept_bytes to {140 * MIB} or less"),
    (fitness.disk, {}, ROOMY._replace(disk_free_bytes=50 * MIB, is_new=True), False, "50 MiB are free"),
    (fitness.memory, {}, ROOMY._replace(memory_bytes=256 * MIB), True, "state_cache_bytes"),
    (fitness.memory, {}, ROOMY._replace(memory_bytes=768 * MIB), False, "receiving_bytes_max"),
    (fitness.memory, {"state_cache_bytes": 8 * GIB}, ROOMY, True, "8192 MiB state_cache_bytes"),
    (
        fitness.addresses,
        {"http_listen": "0.0.0.0:7400", "peer_listen": "0.0.0.0:7400"},
        ROOMY,
        True,
        "http_listen and peer_listen are both 0.0.0.0:7400",
    ),
    (fitness.shares_of_connections, {"watchers_max": 5_000}, ROOMY, False, "watchers_max (5000) is no bound"),
    (fitness.shares_of_connections, {"connections_max": 100}, ROOMY, False, "set 75 or less"),
    (fitness.shares_of_connections, {"watchers_max": 3_073}, ROOMY, False, "set 3072 or less"),
    (fitness.kept_log, {"log_kept_bytes": 2**45}, ROOMY._replace(disk_bytes=2**50), False, "log_kept_bytes has no"),
    (fitness.patience, {"answer_ms_max": 600}, ROOMY, False, "answer_ms_max (600)"),
    (fitness.sessions, {"sessions_max": 10, "tenant_sessions_max": 20}, ROOMY, False, "tenant_sessions_max is no"),
]


@pytest.mark.parametrize(("check", "given", "machine", "is_error", "words"), CASES)
def test_contradiction_is_told_with_what_to_set(
    check: Any, given: dict[str, Any], machine: Host, is_error: bool, words: str
) -> None:
    settings = Settings(**given)
    found = check(settings, machine)
    assert isinstance(found, Finding)
    assert (found.is_error, words in found.text) == (is_error, True), found.text
    assert found in list(findings(settings, machine))


def test_every_check_has_a_case_and_defaults_have_none() -> None:
    assert {check for check, *_ in CASES} == set(CHECKS)
    assert list(findings(Settings(), ROOMY)) == []
    assert list(findings(Settings(), Host())) == [], "what is not known is not held against anybody"


@pytest.mark.parametrize("places", [fitness.CONNECTIONS_MIN - 1, fitness.CONNECTIONS_MIN])
def test_node_starts_with_the_fewest_connections_that_may_be_set_and_with_no_fewer(places: int) -> None:
    machine = ROOMY._replace(descriptors_max=fitness.DESCRIPTORS_RESERVED + places)
    found = fitness.descriptors(Settings(), machine)
    assert found is not None
    assert found.is_error == (places < SETTINGS["connections_max"].least)
    assert (f"takes {places} connections" in found.text) != found.is_error


@given(st.integers(0, 2**40), st.integers(0, 2**41))
def test_what_the_disk_check_says_to_set_passes_it(kept: int, size: int) -> None:
    machine = ROOMY._replace(disk_bytes=size, disk_free_bytes=size)
    found = fitness.disk(Settings(log_kept_bytes=kept), machine)
    if found is None or "or less" not in found.text:
        assert (found is None) == (size >= fitness.DISK_BYTES_FIXED + max(kept, fitness.SEGMENT_BYTES))
        return
    most = int(found.text.rpartition("log_kept_bytes to ")[2].split()[0])
    assert fitness.disk(Settings(log_kept_bytes=most), machine) is None


SHARES = ("watchers_max", "receiving_max", "tenant_requests_max")


@given(
    st.integers(fitness.CONNECTIONS_MIN, 200),
    st.none() | st.integers(fitness.DESCRIPTORS_RESERVED + 2, fitness.DESCRIPTORS_RESERVED + 250),
    st.tuples(*(st.integers(1, 300) for _ in SHARES)),
)
def test_share_is_told_as_none_exactly_if_it_takes_all_connections_there_can_be_and_what_to_set_passes(
    connections_max: int, descriptors_max: int | None, given: tuple[int, ...]
) -> None:
    machine, shares = ROOMY._replace(descriptors_max=descriptors_max), dict(zip(SHARES, given, strict=True))
    free = connections_max if descriptors_max is None else descriptors_max - fitness.DESCRIPTORS_RESERVED
    places = min(connections_max, free)
    found = fitness.shares_of_connections(Settings(connections_max=connections_max, **shares), machine)  # type: ignore[arg-type]
    watches = max(1, places * 3 // 4)
    none = {name for name, share in shares.items() if share > watches if name == "watchers_max" or share >= places}
    if found is None:
        assert not none
        return
    assert {name for name in SHARES if f"{name} ({shares[name]})" in found.text} == none
    most = int(found.text.rpartition("set ")[2].split()[0])
    lower: Any = {name: min(share, most) for name, share in shares.items()}
    assert fitness.shares_of_connections(Settings(connections_max=connections_max, **lower), machine) is None


FILLED = ("state_cache_bytes", "history_bytes_max")
FILLED_BY_OTHERS = ("receiving_bytes_max", "unsent_bytes_max")


@pytest.mark.parametrize(
    ("memory_mib", "named", "counted"), [(100, FILLED, FILLED), (700, FILLED_BY_OTHERS, (*FILLED, *FILLED_BY_OTHERS))]
)
def test_each_setting_that_fills_memory_counts_byte_for_byte(
    memory_mib: int, named: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    def told(memory: int, **given: int) -> tuple[int, str] | None:
        found = fitness.memory(Settings(**given), ROOMY._replace(memory_bytes=memory))  # type: ignore[arg-type]
        return found and (int(re.findall(r"fills? (\d+) MiB", found.text)[0]), found.text)

    first = told(memory_mib * MIB)
    assert first is not None
    assert all(name in first[1] for name in named)
    for name in SETTINGS:
        raised = {name: getattr(Settings(), name) + 64 * MIB} if "bytes" in name else {}
        if name in counted or (raised and raised[name] <= SETTINGS[name].most):
            more = told(memory_mib * MIB, **raised)
            assert more is not None
            assert more[0] - first[0] == (64 if name in counted else 0), name
    again = told(first[0] * MIB)
    assert again is None or again[1] != first[1], "with as much as is told it is not told any more"


def test_figures_are_those_of_the_parts_that_have_them(tmp_path: Path) -> None:
    config = ReplicaConfig(node_id="n", cluster_id="c", listen=("127.0.0.1", 1), peers={}, data_dir=tmp_path)
    assert (config.journal_segment_bytes, config.save_log_bytes_max) == (fitness.SEGMENT_BYTES,) * 2
    assert config.journal_bytes_max == fitness.JOURNAL_BYTES_MAX
    assert bodies.HELD_BYTES_MAX == fitness.HELD_BODIES_BYTES
    assert SETTINGS["connections_max"].least == fitness.CONNECTIONS_MIN
    assert connections.DESCRIPTORS_RESERVED == fitness.DESCRIPTORS_RESERVED


def test_facts_are_those_of_the_machine_and_of_its_container(tmp_path: Path) -> None:
    there = host.host_of(tmp_path / "not" / "there")
    assert there.is_new
    assert there.disk_bytes == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    (tmp_path / "meminfo").write_text("MemTotal:     1024 kB\nMemFree: 1 kB\n")
    assert host._memory_bytes(tmp_path, tmp_path) == MIB
    for written, bound in (("max\n", MIB), ("4096\n", 4096)):
        (tmp_path / "memory.max").write_text(written)
        assert host._memory_bytes(tmp_path, tmp_path) == bound
    assert host._memory_bytes(tmp_path / "none", tmp_path / "none") is None


def test_config_check_says_the_same_unless_values_alone_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "n1.toml"
    file.write_text("watchers_max = 5000\n")
    monkeypatch.setattr(host, "host_of", lambda _: ROOMY)

    def check(*words: str) -> Any:
        return CliRunner().invoke(command_line("config"), ["config", "check", str(file), *words])

    warned = check()
    assert (warned.exit_code, "watchers_max (5000) is no bound" in warned.stderr) == (0, True), warned.stderr
    monkeypatch.setattr(host, "host_of", lambda _: ROOMY._replace(disk_bytes=120 * MIB))
    refused = check()
    assert (refused.exit_code, "a node needs 192 MiB" in refused.stderr) == (1, True), refused.stderr
    assert check("--values-only").exit_code == 0


def _serve(directory: Path, bounds: list[tuple[int, int]], *prefix: str) -> subprocess.CompletedProcess[str]:
    """Start a node that is refused, under these bounds."""

    def bound() -> None:
        for which, limit in bounds:
            resource.setrlimit(which, (limit, limit))

    http, peer = free_ports(2)
    flags = ["serve", "--member", f"n1=127.0.0.1:{http}:{peer}", "--data-dir", str(directory / "data")]
    command = [*prefix, sys.executable, "-m", "oncegate", *flags]
    return subprocess.run(command, preexec_fn=bound, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("which", "limit", "words"),
    [
        (resource.RLIMIT_NOFILE, 300, "this process may open 300 files (ulimit -n)"),
        (resource.RLIMIT_AS, 500 * MIB, "the address space of this process is bounded to 500 MiB (ulimit -v)"),
    ],
)
def test_node_that_lacks_what_it_needs_says_so_and_does_not_start(
    tmp_path: Path, which: int, limit: int, words: str
) -> None:
    ended = _serve(tmp_path, [(which, limit)])
    assert (ended.returncode, words in ended.stderr) == (2, True), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()


def test_disk_that_the_log_would_fill_is_refused(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "disk", 120 * MIB)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with disk:
        ended = _serve(tmp_path / "disk", [], *disk.prefix)
    assert (ended.returncode, "has 120 MiB, and a node needs 192 MiB" in ended.stderr) == (2, True), ended.stderr


async def test_failed_accepts_are_one_line_in_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, now_s = asyncio.get_running_loop(), 100.0
    before = loop.get_exception_handler()
    with told_rarely(loop) as faults, caplog.at_level(logging.ERROR):
        monkeypatch.setattr(faults, "_loop", type("Clock", (), {"time": lambda self: now_s})())
        full = OSError(errno.EMFILE, "Too many open files")
        report = {"message": "socket.accept() out of system resource", "exception": full}
        for _ in range(1_000):
            loop.call_exception_handler(report)
        assert [record.exc_info for record in caplog.records] == [None]
        now_s += EVERY_S
        loop.call_exception_handler(report)
        assert len(caplog.records) == 2
        assert "1000 attempts" in caplog.messages[1]
        loop.call_exception_handler({"message": "something else"})
        assert len(caplog.records) == 3, "other faults are told as before"
    assert loop.get_exception_handler() is before
    assert isinstance(faults, AcceptFaults)


async def test_faults_of_other_kinds_go_to_the_handler_that_was_there_and_it_is_there_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    told: list[Any] = []
    loop.set_exception_handler(lambda of, report: told.append((of, report)))
    report = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "too many")}
    other = {"message": "something else", "exception": OSError("another")}
    try:
        with told_rarely(loop) as faults:
            loop.call_exception_handler(report)
            loop.call_exception_handler(other)
            assert faults.faults == 0, "all of them were told of"
            loop.call_exception_handler(report)
            assert faults.faults == 1
        assert told == [(loop, other)]
        assert caplog.text.count("attempts to accept a connection failed: [Errno 24] too many") == 1
        loop.call_exception_handler(report)
        assert told == [(loop, other), (loop, report)]
    finally:
        loop.set_exception_handler(None)


async def test_server_without_descriptors_tells_it_once_and_accepts_when_there_are_some(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, tries = socket.socket.accept, 0

    def failing(listening: socket.socket) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 200:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", failing)
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)  # type: ignore[attr-defined]
    loop, came = asyncio.get_running_loop(), asyncio.Event()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            came.set()
            transport.close()

    with told_rarely(loop), caplog.at_level(logging.ERROR):
        server = await loop.create_server(Accepted, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(60):
            await came.wait()
        writer.close()
        server.close()
    assert tries > 200
    assert [(record.exc_info, "Too many open files" in record.getMessage()) for record in caplog.records] == [
        (None, True)
    ]
