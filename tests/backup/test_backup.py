"""A backup of a serving node, and the new cluster that begins with it: what is there, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow.fs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from oncegate import Client, Code, OperationFailed, Outcome
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.ports import SavedPoint
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway import wire
from oncegate.gateway.backup.fence import SESSIONS_SKIPPED
from oncegate.gateway.backup.manifest import SEGMENTS, STATE, BackupFile, Manifest, decode, encode
from oncegate.gateway.backup.restoring import BackupOrigin, NewCluster, Restored, restore
from oncegate.gateway.backup.shelf import Shelf, name_of
from oncegate.gateway.backup.taking import COPIES_MAX, Copies, Copy
from oncegate.gateway.cli.main import app
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.machine.state.snapshot import StoreSnapshot
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import MemberAddress, Settings
from oncegate.proof.check.damage import spoil_saved_state
from oncegate.rifl.errors import OncegateError
from oncegate.stores.errors import StoreCode, StoreError
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, one_node, put, sealed, send_range, serving
from tests.gateway.test_damage import damage
from tests.s3 import s3_like


def done(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


async def saved(settings: Settings, shelf: Path | str, *more: str) -> str:
    """Back a serving node up as an operator does."""
    return await asyncio.to_thread(done, "snapshot", "save", shelf, "--endpoint", settings.address.http, *more)


def restored(shelf: Path | str, directory: Path, name: str | None = None) -> tuple[Settings, Restored]:
    """Begin a new cluster with a backup; returns what its node is started with."""
    node = MemberAddress("n1", "127.0.0.1", *free_ports(2))
    place = Shelf(str(shelf))
    made = restore(BackupOrigin(place, place.manifest(name)[1]), directory, NewCluster("second", node))
    return Settings(members=[str(node)], data_dir=directory, cluster="second"), made


async def value(api: Api, key: str, table: str = "rows") -> Any:
    status, _, row = await api.call("GET", f"/v1/tables/{table}/rows/{key}")
    return row["value"] if status == 200 else None


async def worked(api: Api) -> str:
    """Rows, a session with records, a key, two flows with sealed and open batches, and a consumer."""
    await declare(api)
    await declare(api, "events", "stream")
    await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 4, "consumers": ["x"]})
    client_id = await api.session(lease_ms=600_000)
    for sequence in range(1, 11):
        await api.operate(client_id, put(sequence, f"k{sequence % 3}", sequence))
    await send_range(api, client_id, 11, ["a", "b", "c"])
    await sealed(api, "events")
    _, _, attached = await api.call("POST", "/v1/flows/f/consumers/x/attach", {"nonce": "one"})
    moved = await api.call("POST", "/v1/flows/f/consumers/x/cursor", {"batch": 1, "fence": attached["fence"]})
    assert moved[0] == 200
    return client_id


async def keyed(api: Api, key: str, value: int) -> tuple[int, Any, Any]:
    """Put the row ``keyed`` under an idempotency key."""
    return await api.call("PUT", "/v1/tables/rows/rows/keyed", value, headers={"Idempotency-Key": f'"{key}"'})


@pytest.fixture
def files(tmp_path: Path) -> Settings:
    return one_node(tmp_path)


async def test_everything_acknowledged_before_the_backup_is_in_the_new_cluster_and_nothing_of_after(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, _):
        client_id = await worked(api)
        await saved(files, tmp_path / "shelf")
        await api.operate(client_id, put(14, "k1", "after"), put(15, "late", 1), first_incomplete=14)
        _, _, before = await api.call("GET", "/v1/flows/f")
        batch = (await api.call("GET", "/v1/flows/events/batches/1"))[2]
    settings, made = restored(tmp_path / "shelf", tmp_path / "new")
    assert not made.missing
    async with serving(settings) as (api, node):
        assert [await value(api, key) for key in ("k0", "k1", "k2", "late")] == [9, 10, 8, None]
        assert (await api.call("GET", "/v1/flows/events/batches/1"))[2] == batch
        assert (await value(api, "b", "events")) == {"n": 12}
        _, _, after = await api.call("GET", "/v1/flows/f")
        assert after["consumers"]["x"]["cursor"] == before["consumers"]["x"]["cursor"] == 1
        second = await api.session("nonce-2")
        await api.operate(second, put(1, "k0", "new"))
        assert await value(api, "k0") == "new"
        assert node.machine.identity == made.identity
    done("verify", settings.data_dir)


async def test_a_restore_tells_of_every_byte_of_the_backup_as_it_is_read(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, _):
        await worked(api)
        await saved(files, tmp_path / "shelf")
    place = Shelf(str(tmp_path / "shelf"))
    manifest = place.manifest()[1]
    node, told = MemberAddress("n1", "127.0.0.1", *free_ports(2)), list[int]()
    restore(BackupOrigin(place, manifest, told.append), tmp_path / "new", NewCluster("second", node))
    assert sum(told) == manifest.size_bytes
    assert len(told) == len(manifest.files) > 1


async def test_backup_waits_for_no_save_and_leaves_no_copy_behind(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, node):
        await worked(api)
        assert node.state.saved is None, "nothing was due"
        await saved(files, tmp_path / "shelf")
        assert node.state.saved is not None
        assert not [path for path in (files.data_dir / "state").iterdir() if path.name.startswith("copy-")]


async def test_what_a_client_of_the_old_cluster_sends_again_is_refused_with_unknown_outcome_and_never_executed(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, _):
        client_id = await worked(api)
        await saved(files, tmp_path / "shelf")
        await api.operate(client_id, put(14, "unsure", 1), first_incomplete=11)
        later = await api.session("opened after the backup")
        await api.operate(later, put(1, "later", 1))
    settings, made = restored(tmp_path / "shelf", tmp_path / "new")
    assert made.fenced.sessions == 1
    async with serving(settings) as (api, _):
        newcomer = await api.session("newcomer")
        assert int(newcomer, 16) > int(later, 16) + 2**31, "no id of the old cluster is given out again"
        for old, sequence in ((client_id, 10), (client_id, 14), (client_id, 15), (later, 1)):
            (refused,) = await api.operate(old, put(sequence, "unsure", 1), first_incomplete=sequence)
            assert (refused["status"], refused["code"], refused["outcome"]) == (
                "rejected",
                "SESSION_EXPIRED",
                "unknown",
            )
        assert await value(api, "unsure") is None
        _, _, fate = await api.call("GET", f"/v1/requests/{client_id}/14")
        assert fate["state"] == "expired", "it is not said to be unexecuted: the old cluster may have executed it"


async def test_an_sdk_session_of_the_old_cluster_is_told_and_the_next_one_goes_on(
    files: Settings, tmp_path: Path
) -> None:
    """The new cluster answers at the old address, and the client does not know."""
    async with Client(files.address.http, timeout_s=20) as client:
        async with serving(files) as (api, _):
            await declare(api)
            session = await client.session().__aenter__()
            assert (await session.increment("rows", "n")).applied
            await saved(files, tmp_path / "shelf")
            assert (await session.increment("rows", "n")).applied
        place = Shelf(str(tmp_path / "shelf"))
        origin = BackupOrigin(place, place.manifest()[1])
        restore(origin, tmp_path / "new", NewCluster("second", files.address))
        async with serving(replace(files, cluster="second", data_dir=tmp_path / "new")) as (api, _):
            with pytest.raises(OperationFailed) as caught:
                await session.increment("rows", "n")
            # It was sent once, and refused: the client itself knows that nobody can have executed it.
            assert (caught.value.code, caught.value.outcome) == (Code.SESSION_EXPIRED, Outcome.NOT_APPLIED)
            assert session.lost.is_set()
            await session.close()
            assert await value(api, "n") == 1
            async with client.session() as fresh:
                assert (await fresh.increment("rows", "n")).applied
            assert await value(api, "n") == 2


async def test_keys_of_the_backup_are_answered_and_later_ones_that_name_their_time_are_refused(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        status, first, _ = await keyed(api, "bare", 1)
        assert status in (200, 201)
        now = int(first["Oncegate-Time-Ms"])
        assert (await keyed(api, f"oncegate-{now}-known", 2))[0] == 200
        await saved(files, tmp_path / "shelf")
        _, last, _ = await keyed(api, "other", 3)
        lost = f"oncegate-{last['Oncegate-Time-Ms']}-lost"
        assert (await keyed(api, lost, 4))[0] == 200
    settings, made = restored(tmp_path / "shelf", tmp_path / "new")
    assert made.fenced.keys == 2
    async with serving(settings) as (api, _):
        ids = set()
        for key, put_value in (("bare", 1), (f"oncegate-{now}-known", 2)):
            status, headers, _ = await keyed(api, key, put_value)
            assert status in (200, 201)
            assert headers[wire.H_REPLAYED] == "true"
            ids.add(headers["Oncegate-Request"])
        assert first["Oncegate-Request"] in ids, "what both clusters know has one id in both"
        state = (await api.call("GET", f"/v1/requests/{last['Oncegate-Request']}"))[2]["state"]
        assert state == "expired", "an id that the old cluster gave out later is nobody's here"
        assert assert_problem(await keyed(api, lost, 4), "SESSION_EXPIRED")["outcome"] == "unknown"
        assert await value(api, "keyed") == 2
        now = (await api.call("GET", "/v1/cluster"))[2]["cluster_time_ms"]
        async with asyncio.timeout(20):  # cluster time stands at the fence until the first entry moves it
            while (await keyed(api, f"oncegate-{now}-new", 5))[0] == 410:
                now = (await api.call("GET", "/v1/cluster"))[2]["cluster_time_ms"]
        assert await value(api, "keyed") == 5
        assert (await keyed(api, "after", 6))[1]["Oncegate-Request"] not in {*ids, last["Oncegate-Request"]}


async def test_a_version_and_a_fence_of_the_old_cluster_mean_nothing_in_the_new_one(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, _):
        client_id = await worked(api)
        await saved(files, tmp_path / "shelf")
        fences = [
            (await api.call("POST", "/v1/flows/f/consumers/x/attach", {"nonce": f"zombie {n}"}))[2]["fence"]
            for n in range(3)
        ]
        (lost,) = await api.operate(client_id, put(14, "row", "lost"), first_incomplete=14)
    settings, _ = restored(tmp_path / "shelf", tmp_path / "new")
    async with serving(settings) as (api, _):
        second = await api.session("nonce-2")
        (written,) = await api.operate(second, put(1, "row", "new"))
        assert written["commit"] > lost["commit"] + 2**35
        (refused,) = await api.operate(second, put(2, "row", "stale", condition={"version": lost["commit"]}))
        assert refused["status"] == "refused"
        assert await value(api, "row") == "new"
        await api.call("POST", "/v1/flows/f/consumers/x/attach", {"nonce": "new"})
        for fence in fences:
            move = {"batch": 2, "fence": fence}
            assert_problem(await api.call("POST", "/v1/flows/f/consumers/x/cursor", move), "FENCED")


async def test_a_second_backup_adds_only_what_is_new_and_either_is_restored(files: Settings, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    async with serving(files) as (api, _):
        client_id = await worked(api)
        await saved(files, shelf, "--name", "one")
        before = {path.name: path.stat().st_mtime_ns for path in (shelf / "files").iterdir()}
        await api.operate(client_id, put(14, "second", 2), first_incomplete=14)
        await saved(files, shelf, "--name", "two")
    kept = {path.name: path.stat().st_mtime_ns for path in (shelf / "files").iterdir()}
    assert before.items() <= kept.items(), "what was there was not written again"
    one, two = (Shelf(str(shelf)).manifest(name)[1] for name in ("one", "two"))
    assert {file.sha256 for file in one.of(SEGMENTS)} <= {file.sha256 for file in two.of(SEGMENTS)}
    assert len({file.sha256 for file in one.of(STATE)} & {file.sha256 for file in two.of(STATE)}) > 0
    for name, expected in (("one", None), ("two", 2)):
        settings, _ = restored(shelf, tmp_path / name, name)
        async with serving(settings) as (api, _):
            assert await value(api, "second") == expected
    again = CliRunner().invoke(app, ["snapshot", "inspect", str(shelf), "--name", "three"])
    assert (again.exit_code, "one, two" in again.output) == (2, True)


async def test_every_damaged_or_missing_file_is_found_named_and_leaves_no_directory(
    files: Settings, tmp_path: Path
) -> None:
    shelf = tmp_path / "shelf"
    async with serving(files) as (api, _):
        await worked(api)
        await saved(files, shelf)
    done("snapshot", "inspect", shelf, "--verify")
    # RocksDB leaves an empty log of writes behind, which cannot be damaged.
    everything = [path for path in sorted(shelf.rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(everything) > 5
    for path in everything:
        whole = path.read_bytes()
        at = len(whole) // 2
        for spoilt in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:-1], None):
            path.unlink()
            if spoilt is not None:
                path.write_bytes(spoilt)
            with pytest.raises(StoreError) as caught:
                restored(shelf, tmp_path / "new")
            missing_manifest = spoilt is None and path.suffix == ".json"
            assert caught.value.code is (StoreCode.BAD_OPTION if missing_manifest else StoreCode.BAD_BACKUP)
            assert missing_manifest or path.name in caught.value.detail
            assert sorted(one.name for one in tmp_path.iterdir()) == ["n1", "shelf"]
            path.write_bytes(whole)


async def test_a_backup_that_meets_damage_is_refused_and_the_node_serves_nothing_more(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, node):
        await worked(api)
        await saved(files, tmp_path / "shelf")
        damaged = spoil_saved_state(files.data_dir / "state")
        assert "cannot be read" in assert_problem(await api.call("POST", "/v1/snapshots"), "NOT_READY")["detail"]
        assert damaged in assert_problem(await api.call("GET", "/readyz"), "NOT_READY")["detail"]
        assert damaged in node.damage


async def test_batches_that_retention_drops_during_a_backup_are_in_it(
    files: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files) as (api, node):
        await worked(api)
        await api.call("PATCH", "/v1/flows/f", {"retention_ms": 0, "version": 1})
        _, _, attached = await api.call("POST", "/v1/flows/f/consumers/x/attach", {"nonce": "two"})
        retained = range(node.machine.flows.get("f").batches.first, node.machine.flows.get("f").batches.last + 1)
        assert retained
        copied = node.state.open_snapshot
        loop = asyncio.get_running_loop()

        def dropped() -> None:
            """Let the consumer pass everything once the state is frozen, and the publisher do what follows."""
            move = {"batch": retained[-1], "fence": attached["fence"]}
            asked = api.call("POST", "/v1/flows/f/consumers/x/cursor", move)
            assert asyncio.run_coroutine_threadsafe(asked, loop).result(20)[0] == 200
            assert node.publisher.wait_done(node.publisher.mark(), 20)

        def opened() -> Any:
            made = copied()
            dropped()
            return made

        monkeypatch.setattr(node.state, "open_snapshot", opened)
        await saved(files, tmp_path / "shelf")
        assert await asyncio.to_thread(node.publisher.wait_done, node.publisher.mark(), 20)
        assert SegmentStore(files.data_dir / "segments").list("f") == []
    manifest = Shelf(str(tmp_path / "shelf")).manifest()[1]
    assert len([file for file in manifest.of(SEGMENTS) if "/f/" in file.path]) == len(retained)
    restored(tmp_path / "shelf", tmp_path / "new")


async def test_batches_are_as_old_in_the_new_cluster_as_they_were(files: Settings, tmp_path: Path) -> None:
    """Else a retention time that is over by the time of a restore takes what stores have to be written from."""
    async with serving(files) as (api, node):
        await worked(api)
        await saved(files, tmp_path / "shelf")
        flow = node.machine.flows.get("f").batches
        age = node.machine.time_ms - flow.get(flow.last).sealed_ms
    settings, _ = restored(tmp_path / "shelf", tmp_path / "new")
    async with serving(settings) as (_, node):
        flow = node.machine.flows.get("f").batches
        assert 0 <= node.machine.time_ms - flow.get(flow.last).sealed_ms - age < 60_000


async def test_a_copy_is_refused_while_two_are_read_and_forgotten_when_it_is_idle(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        taken = [(await api.call("POST", "/v1/snapshots"))[2]["id"] for _ in range(2)]
        assert_problem(await api.call("POST", "/v1/snapshots"), "OVERLOADED")
        assert (await api.call("DELETE", f"/v1/snapshots/{taken[0]}"))[0] == 204
        monkeypatch.setattr("oncegate.gateway.backup.taking.IDLE_S", 0.0)
        status, _, third = await api.call("POST", "/v1/snapshots")
        assert status == 201
        name = third["manifest"]["files"][0]["sha256"]
        async with asyncio.timeout(20):
            while (await api.call("GET", f"/v1/snapshots/{third['id']}/files/{name}"))[0] == 200:
                pass
        assert_problem(await api.call("GET", f"/v1/snapshots/{third['id']}/files/{name}"), "NOT_FOUND")
        assert_problem(await api.call("GET", f"/v1/snapshots/{taken[1]}/files/{'0' * 64}"), "NOT_FOUND")


class Making(Copies):
    """Copies that are made when the test says so, with or without success."""

    def __init__(self) -> None:
        super().__init__(cast(Node, None), "1")
        self.asked: list[asyncio.Future[Copy]] = []

    async def _made(self) -> tuple[StoreSnapshot, Copy]:
        wanted = asyncio.get_running_loop().create_future()
        self.asked.append(wanted)
        return cast(StoreSnapshot, SimpleNamespace(close=lambda: None)), await wanted


@pytest.mark.parametrize("seed", range(20))
async def test_copies_that_are_made_and_that_are_read_are_together_never_more_than_the_bound(seed: int) -> None:
    """Asked for at any time: also while others are made, which may fail or be cancelled."""
    rng, copies, numbers = random.Random(seed), Making(), count(1)
    made = Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 9, 6, 0, 0, 0, {}, {}, [])
    making: dict[asyncio.Task[Copy], asyncio.Future[Copy]] = {}
    held: list[str] = []
    for _ in range(60):
        what = rng.choice(["ask", "ask", "made", "failed", "cancelled", "discard"])
        if what == "ask":
            asked = asyncio.ensure_future(copies.make())
            await asyncio.sleep(0)
            if len(making) + len(held) < COPIES_MAX:
                assert not asked.done()
                making[asked] = copies.asked.pop()
            else:
                assert asked.done(), "it is refused at once"
                refused = asked.exception()
                assert isinstance(refused, OncegateError)
                assert refused.code is Code.OVERLOADED
                assert copies.asked == []
        elif what == "discard" and held:
            await copies.discard(held.pop(rng.randrange(len(held))))
        elif what in ("made", "failed", "cancelled") and making:
            task = rng.choice(list(making))
            wanted = making.pop(task)
            if what == "made":
                wanted.set_result(Copy(str(next(numbers)), Path(), made))
                held.append((await task).id)
            elif what == "failed":
                wanted.set_exception(OncegateError(Code.TIMEOUT, "not saved in time"))
            else:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for copy_id in held:
            assert copies.find(copy_id).id == copy_id
    for task in making:
        task.cancel()
    await asyncio.gather(*making, return_exceptions=True)
    await copies.close()


async def test_new_cluster_needs_a_name_and_a_directory_of_its_own(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        await saved(files, tmp_path / "shelf")
    place = Shelf(str(tmp_path / "shelf"))
    origin = BackupOrigin(place, place.manifest()[1])
    node = files.address
    for directory, name in ((tmp_path / "new", files.cluster), (files.data_dir, "second")):
        with pytest.raises(StoreError) as caught:
            restore(origin, directory, NewCluster(name, node))
        assert caught.value.code is StoreCode.BAD_OPTION
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with pytest.raises(StoreError, match="inside of it"):
        restore(origin, tmp_path / "link", NewCluster("second", node))
    restore(origin, tmp_path / "new", NewCluster("second", node))
    with pytest.raises(ConsensusError, match="cluster second"):
        async with serving(replace(files, data_dir=tmp_path / "new")):
            pass


def test_a_manifest_that_was_changed_or_is_of_a_later_version_is_refused(tmp_path: Path) -> None:
    made = Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b"\x00"), 5, 6, 7, 0, 0, {}, {}, [])
    text = encode(made)
    assert decode(text, "here") == made
    evil = BackupFile("state/../../x", 1, "0" * 64)
    double = BackupFile("state/a", 1, "0" * 64)
    for bad in (
        text.replace(b'"commit":5', b'"commit":6'),
        text[:-1],
        encode(msgspec.structs.replace(made, version=2)),
        encode(msgspec.structs.replace(made, files=[evil])),
        encode(msgspec.structs.replace(made, files=[double, double])),
    ):
        with pytest.raises(StoreError, match="here") as caught:
            decode(bad, "here")
        assert caught.value.code is StoreCode.BAD_BACKUP


async def test_a_node_that_names_files_of_nobody_gets_nothing_written(tmp_path: Path) -> None:
    evil = BackupFile("state/../../x", 1, "0" * 64)
    sent = Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 9, 6, 0, 0, 0, {}, {}, [evil])
    given_back: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"id": "1", "manifest": msgspec.to_builtins(sent)})
        given_back.append(f"{request.method} {request.path}")
        return web.json_response({})

    app_of_node = web.Application()
    app_of_node.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app_of_node) as node:
        save = ["snapshot", "save", str(tmp_path), "--endpoint", str(node.make_url("")).rstrip("/")]
        refused = await asyncio.to_thread(CliRunner().invoke, app, save)
    assert (refused.exit_code, "it names a file that no backup has" in refused.output) == (1, True), refused.output
    assert given_back == ["DELETE /v1/snapshots/1"]
    assert Shelf(str(tmp_path)).names() == []


def test_newest_backup_is_the_one_made_last_whatever_backups_are_called(tmp_path: Path) -> None:
    place, made = (
        Shelf(str(tmp_path)),
        Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 9, 6, 0, 0, 0, {}, {}, []),
    )
    by_hand = msgspec.structs.replace(made, made_ms=1_700_000_000_000)
    same_second = msgspec.structs.replace(by_hand, made_ms=1_700_000_001_500)
    newest = msgspec.structs.replace(same_second, commit=10)
    place.finish("nightly", by_hand)
    place.finish(name_of(same_second), same_second)
    place.finish(name_of(newest), newest)
    assert place.names() == ["nightly", name_of(same_second), name_of(newest)]
    assert place.manifest() == (name_of(newest), newest)
    assert place.prune(1, datetime.now(UTC))[0] == ["nightly", name_of(same_second)]
    (tmp_path / "backups" / "cut.json").write_bytes(b"{")
    with pytest.raises(StoreError, match="cut"):  # it may be the newest one
        place.prune(1, datetime.now(UTC))
    assert place.manifest(name_of(newest))[1] == newest


def test_a_name_that_a_backup_cannot_have_is_refused_before_the_cluster_is_asked(tmp_path: Path) -> None:
    place = Shelf(str(tmp_path))
    place.finish("taken", Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 9, 6, 0, 0, 0, {}, {}, []))
    for name in ("taken", "../x"):
        nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
        refused = CliRunner().invoke(app, ["snapshot", "save", str(tmp_path), "--name", name, "--endpoint", nobody])
        assert (refused.exit_code, "no node answers" in refused.output) == (2, False)


@pytest.fixture
def bucket() -> Iterator[str]:
    """URL of an empty place in an S3-like store."""
    with s3_like("backups") as url:
        yield url


async def test_an_s3_like_store_holds_backups_and_gives_them_back(files: Settings, tmp_path: Path, bucket: str) -> None:
    pyarrow.fs.FileSystem.from_uri(bucket)[0].create_dir("backups")
    async with serving(files) as (api, _):
        await worked(api)
        assert await saved(files, bucket, "--name", "one")
        assert await saved(files, bucket, "--name", "two")
    assert Shelf(bucket).names() == ["one", "two"]
    assert '"verified": true' in await asyncio.to_thread(done, "snapshot", "inspect", bucket, "--verify", "-o", "json")
    made = await asyncio.to_thread(restored, bucket, tmp_path / "new")
    assert not made[1].missing


async def test_a_backup_that_is_cut_off_is_none_and_the_next_one_goes_on(
    files: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, kept = tmp_path / "shelf", Shelf.add

    def full(self: Shelf, file: BackupFile, data: bytes) -> None:
        if len(list(shelf.rglob("*"))) > 3:
            raise StoreError(StoreCode.STORE_UNAVAILABLE, "the place is full")
        kept(self, file, data)

    async with serving(files) as (api, _):
        await worked(api)
        with monkeypatch.context() as patched:
            patched.setattr(Shelf, "add", full)
            arguments = ["snapshot", "save", str(shelf), "--endpoint", files.address.http]
            refused = await asyncio.to_thread(CliRunner().invoke, app, arguments)
            assert (refused.exit_code, "the place is full" in refused.output) == (3, True)
        assert Shelf(str(shelf)).names() == []
        assert not list((files.data_dir / "state").glob("copy-*")), "the node has given its copy back"
        await saved(files, shelf)
    restored(shelf, tmp_path / "new")


async def test_pruning_leaves_the_newest_backups_whole_and_no_file_of_the_others(
    files: Settings, tmp_path: Path
) -> None:
    shelf = tmp_path / "shelf"
    async with serving(files) as (api, _):
        client_id = await worked(api)
        for number in range(3):
            await saved(files, shelf, "--name", f"b{number}")
            await api.operate(client_id, put(14 + number, f"n{number}", number), first_incomplete=14)
    place = Shelf(str(shelf))
    spared = {path.name for path in (shelf / "files").iterdir()}
    assert "1 backups and 0 files" in done("snapshot", "prune", shelf, "--keep", 2)
    assert {path.name for path in (shelf / "files").iterdir()} == spared, "they may be of a backup under way"
    gone, count = place.prune(1, datetime.now(UTC) + timedelta(days=1))
    assert (gone, place.names()) == (["b1"], ["b2"])
    named = {file.sha256 for file in place.manifest()[1].files}
    assert count == len(spared - named) > 0
    assert {path.name for path in (shelf / "files").iterdir()} == named
    restored(shelf, tmp_path / "new")
    manifest = place.manifest()[1]
    (shelf / "files" / manifest.files[0].sha256).unlink()
    with pytest.raises(StoreError, match="save again"):
        place.finish("pruned-meanwhile", manifest)


async def test_a_backup_with_a_chosen_name_is_as_old_as_it_is(files: Settings, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    place = Shelf(str(shelf))
    async with serving(files) as (api, _):
        await worked(api)
        await saved(files, shelf, "--name", "before-upgrade")
        manifest = place.manifest("before-upgrade")[1]
        nightly = [f"20991122T030000Z-{commit}" for commit in (99, 100)]
        for name in reversed(nightly):
            place.finish(name, manifest)
    assert place.names() == ["before-upgrade", *nightly]
    assert place.manifest()[0] == nightly[1], "what a restore takes"
    done("snapshot", "prune", shelf, "--keep", 2)
    assert place.names() == nightly


async def test_a_backup_in_a_directory_is_closed_to_others(files: Settings, tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        async with serving(files) as (api, _):
            await worked(api)
            await saved(files, tmp_path / "shelf")
        restored(tmp_path / "shelf", tmp_path / "new")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    made = [tmp_path / "shelf", *(tmp_path / "shelf").rglob("*")]
    assert [path for path in made if path.stat().st_mode & 0o007] == []


async def test_a_node_gives_no_backup_of_a_damaged_block_or_batch_and_a_refusal_takes_no_place(
    files: Settings, tmp_path: Path
) -> None:
    async with serving(files) as (api, node):
        client_id = await worked(api)
        many = [put(14 + n, f"row{n:03}", "x" * 100) for n in range(300)]
        await api.operate(client_id, *many, first_incomplete=14)
        await saved(files, tmp_path / "shelf")
        path = node.store.path("f", 1)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        for _ in range(3):  # more than there are places
            detail = assert_problem(await api.call("POST", "/v1/snapshots"), "NOT_READY")["detail"]
            assert "batch 1 of f is not whole" in detail
        path.write_bytes(whole)
        damage(files.data_dir / "state")
        assert_problem(await api.call("POST", "/v1/snapshots"), "NOT_READY")
        assert not list((files.data_dir / "state").glob("copy-*"))


async def test_a_batch_that_is_whole_and_not_the_one_of_the_state_is_refused(files: Settings, tmp_path: Path) -> None:
    async with serving(files) as (api, _):
        await worked(api)
        await saved(files, tmp_path / "shelf")

    class Another(BackupOrigin):
        def batch(self, flow: str, number: int) -> bytes | None:
            return super().batch("events", 1)

    place = Shelf(str(tmp_path / "shelf"))
    with pytest.raises(StoreError, match="items") as caught:
        restore(Another(place, place.manifest()[1]), tmp_path / "new", NewCluster("second", files.address))
    assert caught.value.code is StoreCode.BAD_BACKUP
    assert not (tmp_path / "new").exists()


async def test_a_backup_begins_at_a_read_point_and_is_kept_for_as_long_as_a_file_is_read(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    found: list[str] = []
    find = Copies.find

    def finding(self: Copies, copy_id: str) -> Copy:
        found.append(copy_id)
        return find(self, copy_id)

    monkeypatch.setattr(Copies, "find", finding)
    monkeypatch.setattr("oncegate.gateway.http.routes.snapshots._PIECE_BYTES", 64)
    async with serving(files) as (api, node):
        await worked(api)
        reach = node.reads.reach

        async def reaching(consistency: str, min_commit: int) -> None:
            asked.append((consistency, min_commit))
            await reach(consistency, min_commit)

        monkeypatch.setattr(node.reads, "reach", reaching)
        _, _, taken = await api.call("POST", "/v1/snapshots")
        assert asked == [("linearizable", 0)]
        file = max(taken["manifest"]["files"], key=lambda one: one["size_bytes"])
        assert (await api.call("GET", f"/v1/snapshots/{taken['id']}/files/{file['sha256']}"))[0] == 200
        assert len(found) > file["size_bytes"] // 64, "each piece puts its end off"


async def test_two_clusters_of_one_backup_begin_with_other_client_ids(
    files: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        await saved(files, tmp_path / "shelf")
    ids = []
    for block in (3, 11):
        monkeypatch.setattr("oncegate.gateway.backup.restoring.secrets.randbelow", lambda most, block=block: block)
        settings, _ = restored(tmp_path / "shelf", tmp_path / f"new{block}")
        async with serving(settings) as (api, _):
            ids.append(int(await api.session(), 16))
    assert ids[1] - ids[0] == 8 * SESSIONS_SKIPPED


def test_a_shelf_that_gives_back_other_bytes_than_it_got_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Shelf(str(tmp_path))
    kind = type(place._place)
    put_ = kind.put
    monkeypatch.setattr(kind, "put", lambda self, path, data: put_(self, path, data[:-1]))
    with pytest.raises(StoreError) as caught:
        place.add(BackupFile("state/a", 3, hashlib.sha256(b"abc").hexdigest()), b"abc")
    assert caught.value.code is StoreCode.BAD_BACKUP
