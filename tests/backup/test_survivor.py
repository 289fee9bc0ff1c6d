"""A new cluster from the data directory of a node that is left: what it keeps, what it says, what it refuses."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import SEGMENT_HEADER_BYTES
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.backup.restoring import Missing, NewCluster, Restored, restore
from oncegate.gateway.backup.survivor import SurvivorOrigin
from oncegate.gateway.cli.main import app
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.node.settings import MemberAddress, Settings
from oncegate.rifl.ids import SequenceNumber
from oncegate.stores.errors import StoreCode, StoreError
from tests.backup.test_backup import done, saved, value, worked
from tests.gateway.http_contract import declare, one_node, put, serving

MIB = 2**20


@pytest.fixture
def files(tmp_path: Path) -> Settings:
    return one_node(tmp_path)


def forced(survivor: Path, directory: Path) -> tuple[Settings, Restored]:
    node = MemberAddress("n1", "127.0.0.1", *free_ports(2))
    with SurvivorOrigin(survivor) as origin:
        made = restore(origin, directory, NewCluster("second", node))
    return Settings(members=[str(node)], data_dir=directory, cluster="second"), made


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def appended(data_dir: Path, *entries: bytes) -> None:
    """Add entries to a stopped node's log, flushed and not known to be committed, as a leader's last ones are."""
    storage = DirectoryStorage(data_dir / "raft")
    with ThreadPoolExecutor(1) as worker:
        ballot = Ballot.load(storage)
        log = LibraryLog(storage, worker, ballot, segment_bytes=16 * MIB, memory_bytes_max=MIB)
        for entry in entries:
            log.append(entry, log.last_index + 1, log.last_term)
        log.flush()
        log.abandon()
    storage.close()


@pytest.mark.parametrize("with_saved_state", [False, True])
async def test_everything_in_the_log_is_in_the_new_cluster_and_the_old_directory_stays_as_it_was(
    files: Settings, tmp_path: Path, *, with_saved_state: bool
) -> None:
    async with serving(files) as (api, _):
        client_id = await worked(api)
        if with_saved_state:
            await saved(files, tmp_path / "shelf")
        await api.operate(client_id, put(14, "last", 1), first_incomplete=14)
        payload = (await api.call("GET", "/v1/flows/f/batches/2"))[2]
    before = contents(files.data_dir)
    settings, made = forced(files.data_dir, tmp_path / "new")
    assert contents(files.data_dir) == before
    assert (made.missing, made.fenced.sessions) == ([], 1)
    async with serving(settings) as (api, _):
        assert [await value(api, key) for key in ("k0", "k1", "k2", "last")] == [9, 10, 8, 1]
        assert (await api.call("GET", "/v1/flows/f/batches/2"))[2] == payload
        assert (await value(api, "b", "events")) == {"n": 12}
        (refused,) = await api.operate(client_id, put(15, "k0", "again"), first_incomplete=15)
        assert (refused["code"], refused["outcome"]) == ("SESSION_EXPIRED", "unknown")
    done("verify", settings.data_dir)


async def test_entries_that_nobody_knows_to_be_committed_are_kept_and_counted(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, _):
        client_id = int(await worked(api), 16)
    with SurvivorOrigin(files.data_dir) as origin:
        known = origin.known
        assert (known.node, known.members) == ("n1", ["n1"])
        assert (known.last - known.committed, known.uncertain) == (0, 0)
    ops = [
        c.Op(
            SequenceNumber(20 + n), c.OpKind.PUT, "rows", f"tail{n}", c.fingerprint_put("rows", f"tail{n}", b"1"), b"1"
        )
        for n in range(3)
    ]
    one, two = (c.Operate(client_id, 1, SequenceNumber(20), part) for part in (ops[:1], ops[1:]))
    appended(files.data_dir, c.encode_entry(0, [one]), c.encode_entry(0, [two]))
    with SurvivorOrigin(files.data_dir) as origin:
        assert origin.known.last == known.last + 2
        assert (origin.known.committed, origin.known.uncertain) == (known.committed, 3)
    settings, _ = forced(files.data_dir, tmp_path / "new")
    async with serving(settings) as (api, _):
        assert [await value(api, f"tail{n}") for n in range(3)] == [1, 1, 1]


async def test_a_node_that_runs_and_what_is_no_data_directory_are_refused(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        with pytest.raises(StoreError, match="stop the node first") as caught:
            await asyncio.to_thread(SurvivorOrigin, files.data_dir)
        assert caught.value.code is StoreCode.BAD_OPTION
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nothing"):
        with pytest.raises(StoreError, match="no data directory") as caught:
            SurvivorOrigin(place)
        assert caught.value.code is StoreCode.BAD_OPTION


async def test_a_batch_that_the_node_had_not_fetched_is_named_and_a_damaged_one_is_refused(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, _):
        await worked(api)
        await saved(files, tmp_path / "shelf")  # the log behind it seals neither again
    path = SegmentStore(files.data_dir / "segments").path("f", 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StoreError) as caught:
        forced(files.data_dir, tmp_path / "new")
    assert caught.value.code is StoreCode.BAD_BACKUP
    assert str(path) in caught.value.detail
    assert not (tmp_path / "new").exists()
    path.unlink()
    assert forced(files.data_dir, tmp_path / "new")[1].missing == [Missing("f", 1)]


async def test_a_damaged_log_or_state_is_refused_and_named(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, _):
        await worked(api)
        await saved(files, tmp_path / "shelf")
    spoilt = [min((files.data_dir / "raft").glob("journal-*")), *(files.data_dir / "state").rglob("*.sst")]
    assert len(spoilt) == 2
    for path in spoilt:
        whole = path.read_bytes()
        at = 64 if path.suffix == ".sst" else SEGMENT_HEADER_BYTES + 100  # in cells, in a record
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreError, match=path.name) as caught:
            forced(files.data_dir, tmp_path / "new")
        assert caught.value.code is StoreCode.BAD_BACKUP
        assert not (tmp_path / "new").exists()
        path.write_bytes(whole)
    forced(files.data_dir, tmp_path / "new")


def test_the_name_of_a_backup_beside_the_directory_of_a_survivor_is_refused_before_anything_is_done(
    tmp_path: Path,
) -> None:
    command = ["snapshot", "restore", "--force-new-cluster", str(tmp_path), "--name", "monday"]
    where = ["--data-dir", str(tmp_path / "new"), "--cluster", "second", "--member", "n1=127.0.0.1:1:2", "--yes"]
    refused = CliRunner().invoke(app, [*command, *where])
    assert (refused.exit_code, "--name names a backup" in refused.output) == (2, True), refused.output
    assert not (tmp_path / "new").exists()


async def test_a_log_that_begins_behind_the_end_of_the_state_is_refused(files: Settings, tmp_path: Path) -> None:
    """A state that was lost, or is older than its log: what lies between is nowhere, and must not be left out."""
    async with serving(files) as (api, _):
        await worked(api)
    settings, _ = forced(files.data_dir, tmp_path / "new")  # its log begins behind a state
    async with serving(settings) as (api, _):
        await declare(api, "later")
    shutil.rmtree(settings.data_dir / "state")
    MachineState(settings.data_dir / "state").close()
    third = NewCluster("third", settings.address)
    missing = pytest.raises(StoreError, match=r"entries 1 to \d+ are missing")
    with SurvivorOrigin(settings.data_dir) as origin, missing as caught:
        restore(origin, tmp_path / "newer", third)
    assert caught.value.code is StoreCode.BAD_BACKUP
