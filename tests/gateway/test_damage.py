"""A damaged block: the node that meets it serves nothing more, others answer, and a repair makes it whole."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from oncegate.consensus.errors import NotReady, StorageError
from oncegate.gateway.cli.main import app
from oncegate.gateway.client import Client
from oncegate.gateway.http.server import running
from oncegate.gateway.machine.state import MachineState, scrub, state_digest
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.restore import all_cells
from oncegate.gateway.machine.state.scrub import Scrubber
from oncegate.gateway.machine.state.store import RocksStore
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, one_node, serving
from tests.gateway.logs import RandomLog
from tests.gateway.state_harness import Member, copy_files, point, ship
from tests.gateway.three_nodes import NAMES, Three, three

KEYS = [f"k{number:03}" for number in range(300)]
VALUE = "x" * 100


def damage(state: Path) -> Path:
    """Flip one byte in a block of rows of a saved state, as the disk would: through the file; return the file."""
    (store,) = state.glob("store-*")
    return damaged_store(store)


def damaged_store(store: Path) -> Path:
    file = max(store.glob("*.sst"), key=lambda each: each.stat().st_size)
    handle = os.open(file, os.O_RDWR)
    try:
        at = file.stat().st_size // 2
        byte = os.pread(handle, 1, at)
        os.pwrite(handle, bytes([byte[0] ^ 1]), at)
    finally:
        os.close(handle)
    return file


# --- the state by itself ------------------------------------------------------------------------------------------


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    member = Member(tmp_path / "member", RandomLog(11))
    member.apply(120)
    member.save()
    yield member
    member.close()


def found_by_scrub(state: MachineState) -> Scrubber:
    scrubber = Scrubber(state, 2**30)
    scrubber.look()
    return scrubber


def repaired(damaged: MachineState, sound: Member) -> Member:
    """Give a damaged state a copy of the sound one, at entry 60, and close it; returns the sound one."""
    sound.apply(60)
    sound.save()
    ship(sound.state, damaged).install()
    assert (damaged.damage, damaged.wants_state, damaged.saved) == (None, False, point(60))
    damaged.close()
    return sound


def test_scrub_of_a_sound_state_reads_all_of_it_and_leaves_nothing_behind(member: Member, tmp_path: Path) -> None:
    scrubber = found_by_scrub(member.state)
    assert member.state.damage is None
    assert scrubber.passes == 1
    assert scrubber.last_s > 0
    assert scrubber.bytes > 1000
    assert sorted(path.name for path in (tmp_path / "member").iterdir()) == ["CURRENT", "reserve", "store-1"]


def test_scrub_finds_what_nobody_reads_and_names_the_file(member: Member, tmp_path: Path) -> None:
    told: list[str] = []
    state = member.state
    state._on_damaged = lambda: told.append("damaged")
    file = damage(tmp_path / "member")
    assert state.damage is None
    assert (found_by_scrub(state).passes, told) == (0, ["damaged"])
    assert state.damage is not None
    assert state.damage.file == file
    with pytest.raises(NotReady):
        state.open_snapshot()
    found_by_scrub(state)
    assert told == ["damaged"], "it is told once"


@pytest.mark.parametrize("name", ["CURRENT", "DAMAGED"])
def test_repair_of_a_state_whose_own_small_files_are_damaged_goes_on_after_a_restart(
    member: Member, tmp_path: Path, name: str
) -> None:
    copy_files(tmp_path / "member", tmp_path / "copy")
    (tmp_path / "copy" / name).write_bytes(b"x" * 40)
    with pytest.raises(StateCorrupt, match=name):
        MachineState(tmp_path / "copy")
    for asked in (False, True):
        again = MachineState(tmp_path / "copy", stand_in=True)
        assert (again.damage is not None, again.wants_state) == (True, asked)
        again.want_state()
        again.close()
    again = MachineState(tmp_path / "copy", stand_in=True)
    sound = repaired(again, Member(tmp_path / "sound", member.log))
    MachineState(tmp_path / "copy").close()
    sound.close()


def test_scrub_keeps_its_rate(member: Member) -> None:
    now = 0.0

    def wait(pause_s: float) -> bool:
        nonlocal now
        now += pause_s
        return False

    scrubber = Scrubber(member.state, 100, clock=lambda: now)
    scrubber._stop.wait = wait  # type: ignore[assignment, method-assign]
    scrubber.look()
    assert scrubber.bytes / 200 < now <= scrubber.bytes / 100


def test_damage_of_a_store_that_was_replaced_meanwhile_is_nobodys(
    member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Member(tmp_path / "sound", member.log)
    sound.apply(150)
    sound.save()

    def replaced(store: RocksStore) -> Iterator[tuple[bytes, bytes]]:
        ship(sound.state, member.state).install()
        raise StateCorrupt(store.path, "block checksum mismatch in 000009.sst")
        yield

    monkeypatch.setattr(scrub, "all_cells", replaced)
    assert found_by_scrub(member.state).passes == 0
    assert member.state.damage is None
    sound.close()


@pytest.mark.parametrize("installed", [False, True])
def test_damage_that_a_read_comes_upon_is_found_in_a_state_of_this_start_and_in_one_that_was_installed(
    member: Member, tmp_path: Path, installed: bool
) -> None:
    target = Member(tmp_path / "target", member.log, cache_bytes=0)
    target.apply(90)
    target.save()
    if installed:
        ship(member.state, target.state).install()
    store = target.state._store
    file = damaged_store(store.path)
    store.reopen()  # without what it has in memory
    with pytest.raises(StateCorrupt):
        list(all_cells(store))
    assert target.state.damage is not None
    assert file.name in str(target.state.damage)
    target.close()


def test_damaged_state_stays_damaged_at_the_next_start_until_a_snapshot_replaces_it(
    member: Member, tmp_path: Path
) -> None:
    file = tmp_path / "member" / "store-1" / "000009.sst"
    member.state.found(StateCorrupt(file.parent, f"block checksum mismatch in {file} offset 0"))
    copy_files(tmp_path / "member", tmp_path / "copy")
    with pytest.raises(StateCorrupt, match=r"000009\.sst"):
        MachineState(tmp_path / "copy")
    again = MachineState(tmp_path / "copy", stand_in=True)
    assert (again.damage is not None, again.saved, len(again.machine.tables)) == (True, None, 0)
    assert not again.wants_state
    again.want_state()
    again.close()
    again = MachineState(tmp_path / "copy", stand_in=True)
    assert again.wants_state, "a repair that was asked for goes on after a restart"
    assert (tmp_path / "copy" / "store-1").is_dir(), "what is damaged is evidence until then"
    sound = repaired(again, Member(tmp_path / "sound", member.log))
    mended = MachineState(tmp_path / "copy")
    assert state_digest(mended.machine) == state_digest(sound.machine)
    assert not (tmp_path / "copy" / "store-1").exists()
    mended.close()
    sound.close()


# --- nodes --------------------------------------------------------------------------------------------------------


async def saved(cluster: Three) -> None:
    """Wait until every node has saved all that it has applied."""
    for name, node in cluster.nodes.items():
        node.state._save_rows = 10**9
        async with asyncio.timeout(90):
            while True:
                status = node.replica.status()
                point = node.state.saved
                idle = status.applied_index == status.commit_index and not node.state.saving
                if idle and point is not None and point.index == status.applied_index:
                    break
                if idle:
                    node.state.ask_to_save()  # the newest entry may have changed no row
                await asyncio.sleep(0.02)
                assert cluster.nodes[name] is node


async def rows_on_disk(cluster: Three) -> None:
    """Write rows and have every node save them and drop them from memory: look-ups go to the files."""
    async with Client([cluster.url(name) for name in NAMES]) as client:
        await client.declare_table("rows")
        await client.declare_table("other")
        async with client.session() as session:
            await session.put_many("rows", [(key, VALUE) for key in KEYS])
            await saved(cluster)
            await session.put_many("rows", [("last", 1)])
    await saved(cluster)


async def refused(cluster: Three, name: str, path: str) -> str:
    """Read at a damaged node; return what the refusal says."""
    return str(assert_problem(await cluster.get(name, path), "NOT_READY")["detail"])


async def meet_damage(cluster: Three, name: str) -> None:
    """Read every row at one node until it has come upon the damage; whatever it answers before is right."""
    for key in KEYS:
        status, _, row = await cluster.get(name, f"/v1/tables/rows/rows/{key}?consistency=stale")
        if status != 200:
            assert (status, row["code"], row["retryable"]) == (503, "NOT_READY", True), row
            return
        assert row["value"] == VALUE
    pytest.fail("no row is damaged")


async def test_leader_with_a_damaged_block_hands_over_and_no_caller_of_the_sdk_sees_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with three(tmp_path) as cluster:
        await rows_on_disk(cluster)
        leader = await cluster.leader()
        await Api(cluster.http).call(
            "PUT", f"{cluster.url(leader)}/v1/flows/f", {"source": "other", "linger_ms": 60_000}
        )
        watching = await cluster.http.get(f"{cluster.url(leader)}/v1/flows/f/watch")
        file = damage(tmp_path / leader / "state")
        async with Client([cluster.url(name) for name in (leader, *NAMES)]) as client, client.session() as session:
            for key in KEYS:
                row = await client.get("rows", key)
                assert row is not None
                assert row.value == VALUE
                await session.increment("other", "n")
        assert await asyncio.wait_for(watching.content.read(), 20) == b"", "who watches is sent away"
        place = f"state/{file.parent.name}/{file.name}"
        assert place in await refused(cluster, leader, "/readyz")
        assert place in await refused(cluster, leader, "/v1/tables/rows/rows/last?consistency=stale")
        assert place in (await cluster.get(leader, "/v1/cluster"))[2]["damage"]
        assert (await cluster.get(leader, "/livez"))[0] == 200
        assert b"oncegate_state_damaged 1.0" in (await cluster.get(leader, "/metrics"))[2]
        (said,) = (one for one in caplog.records if one.levelno == logging.CRITICAL)
        assert str(file) in said.getMessage()
        assert f"oncegate member repair {leader}" in said.getMessage()
        successor = await cluster.leader()
        assert successor != leader
        repair = f"/v1/cluster/members/{leader}/repair"
        status, _, _ = await Api(cluster.http).call("POST", cluster.url(successor) + repair)
        assert status == 200
        await cluster.until_state(leader, damage="")
        await cluster.until_state(leader, lag=0)
        assert (await cluster.get(leader, "/readyz"))[0] == 200
        for key in KEYS:
            _, _, found = await cluster.get(leader, f"/v1/tables/rows/rows/{key}?consistency=stale")
            assert found["value"] == VALUE
        nodes = cluster.nodes
        assert state_digest(nodes[leader].machine) == state_digest(nodes[successor].machine)
        again = await Api(cluster.http).call("POST", cluster.url(leader) + repair)
        assert "sound" in assert_problem(again, "CONFLICT")["detail"]


async def test_follower_that_applies_to_a_damaged_block_stays_in_the_majority_and_is_repaired_after_a_restart(
    tmp_path: Path,
) -> None:
    async with three(tmp_path) as cluster:
        await rows_on_disk(cluster)
        leader = await cluster.leader()
        victim = next(name for name in NAMES if name != leader)
        damage(tmp_path / victim / "state")
        async with Client([cluster.url(leader)]) as client, client.session() as session:
            for key in KEYS:
                await session.put("rows", key, "new")
        async with asyncio.timeout(20):
            while not cluster.nodes[victim].damage:
                await asyncio.sleep(0.01)
        status = cluster.nodes[victim].replica.status()
        assert status.applied_index < status.commit_index
        # One of the two others goes as well: the damaged node's log is what makes a majority.
        third = next(name for name in NAMES if name not in (leader, victim))
        await cluster.stop(third)
        async with Client([cluster.url(name) for name in NAMES]) as client, client.session() as session:
            assert (await session.put("other", "with two", 1)).applied
        down = await Api(cluster.http).call("POST", f"{cluster.url(leader)}/v1/cluster/members/{third}/repair")
        assert "start it first" in assert_problem(down, "NOT_READY")["detail"]
        await cluster.start(third)
        await cluster.stop(victim)
        await cluster.start(victim)
        await refused(cluster, victim, "/readyz")
        commands, elsewhere = CliRunner(), ["--endpoint", cluster.url(third)]
        shown = await asyncio.to_thread(commands.invoke, app, ["status", *elsewhere, "-o", "json"])
        assert "is damaged" in json.loads(shown.stdout)[victim]["damage"]
        repaired = await asyncio.to_thread(commands.invoke, app, ["member", "repair", victim, *elsewhere])
        while "is not connected" in repaired.output:  # it has just been started
            repaired = await asyncio.to_thread(commands.invoke, app, ["member", "repair", victim, *elsewhere])
        assert (repaired.exit_code, f"{victim} has a sound state" in repaired.output) == (0, True), repaired.output
        again = await asyncio.to_thread(commands.invoke, app, ["member", "repair", victim, *elsewhere])
        assert (again.exit_code, "is sound" in again.output) == (1, True), again.output
        await cluster.until_state(victim, damage="", lag=0)
        nodes = cluster.nodes
        leader = await cluster.leader()
        await cluster.until_state(victim, applied_index=nodes[leader].replica.status().applied_index)
        assert state_digest(nodes[victim].machine) == state_digest(nodes[leader].machine)


async def test_cluster_of_one_with_a_damaged_state_refuses_everything_and_has_nobody_to_copy_from(
    tmp_path: Path,
) -> None:
    files = one_node(tmp_path)
    async with serving(files) as (_, node):
        node.state.found(StateCorrupt(node.state.store_path, "block checksum mismatch in 000009.sst"))
    async with running(files) as node, aiohttp.ClientSession(base_url=files.address.http) as http:
        api = Api(http)
        assert_problem(await api.call("GET", "/readyz"), "NOT_READY")
        assert_problem(await api.call("PUT", "/v1/tables/rows", {"kind": "resident"}), "NOT_READY")
        assert "000009.sst" in (await api.call("GET", "/v1/cluster"))[2]["damage"]
        refusal = await api.call("POST", "/v1/cluster/members/n1/repair")
        assert "no other member" in assert_problem(refusal, "CONFLICT")["detail"]


async def test_running_node_scrubs_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    monkeypatch.setattr(scrub, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(Scrubber, "look", lambda self: looked.set())
    async with serving(one_node(tmp_path)):
        assert await asyncio.to_thread(looked.wait, 20)


async def test_node_whose_state_cannot_be_saved_any_more_applies_nothing(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path)) as (_, node):
        node.state._broken = StorageError("saving failed")
        with pytest.raises(StorageError, match="saving failed"):
            node.state.apply(10**6, 1, b"")
        node.state._broken = None
