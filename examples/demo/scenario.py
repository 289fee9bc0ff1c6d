"""The run from the first node's start to the last batch's arrival, step by step.

Owns: the order of things and their times. Must not know how a step is done. Read next, in the order of the steps:
:mod:`examples.demo.stage`, `ingest`, `kills`, `delivery`, `readback`, `recount`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import aiohttp

from examples.demo.console import Screen
from examples.demo.dataset import Messages
from examples.demo.delivery import Arrival
from examples.demo.duplicates import Copier
from examples.demo.ingest import TABLE, ingest
from examples.demo.kills import AT_SHARES, kill_leaders, ready
from examples.demo.plan import Slice
from examples.demo.readback import ReadBack, read_back
from examples.demo.recording import Recording
from examples.demo.recount import Check, check_dataset, check_flow, check_timeline, expected_rows
from examples.demo.stage import Stage
from examples.demo.verdict import check_nodes, check_run
from oncegate import Client
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores.claimed import claimed_store

KILLS = len(AT_SHARES)
_SHOW_EVERY_S = 0.1


async def perform(
    stage: Stage, messages: Messages, slices: Sequence[Slice], recording: Recording, screen: Screen, *, seed: int
) -> ReadBack:
    """Start everything, write and kill, wait for the delivery, and read the flow back.

    Raises:
        ExceptionGroup: of :class:`examples.demo.errors.CouldNotRun` or OncegateError: a step could not be done.
    """
    cluster = stage.cluster
    async with aiohttp.ClientSession() as http:
        with _phase(recording, "starting three nodes and Spark"):
            # A JVM starts slower than a node: by the time it asks for the flow, there is one.
            job = stage.start_job()
            cluster.start()
            await ready(cluster)
            async with Client(cluster.endpoints) as client:
                await client.declare_table(TABLE, kind="stream")
            screen.say("three nodes are ready")
            arrival = Arrival(job, http, cluster.endpoints, recording)
            await arrival.attached()
        screen.say("Spark has attached to the flow; its workers start while messages are written")
        copier = Copier(http, cluster.endpoints, messages, recording, seed=seed, table=TABLE)
        async with asyncio.TaskGroup() as background:
            following = background.create_task(arrival.follow())
            showing = background.create_task(_show(recording, screen))
            with _phase(recording, "writing, with kills and copies"):
                async with asyncio.TaskGroup() as writing:
                    writing.create_task(ingest(cluster.endpoints, messages, slices, copier, recording, kills=KILLS))
                    writing.create_task(kill_leaders(cluster, recording, screen.say))
            screen.say("every message is acknowledged; waiting for Spark to deliver the rest")
            with _phase(recording, "delivering the rest"):
                batches = await arrival.complete()
            screen.say(f"the cursor has passed batch {batches}, the last one")
            following.cancel()
            showing.cancel()
        stage.stop_job()
        _show_once(recording, screen)
        with _phase(recording, "reading the flow back"):
            endpoints = dict(zip(cluster.ids, cluster.endpoints, strict=True))
            return await read_back(http, endpoints, recording.kills[-1].node, batches)


def recount(stage: Stage, messages: Messages, recording: Recording, found: ReadBack) -> list[Check]:
    """Judge the run, and compare flow and store with the file.

    Raises:
        StoreError: the store could not be read.
    """
    with _phase(recording, "recount"):
        checks = check_run(recording, KILLS)
        expected = expected_rows(messages)
        checks += check_dataset(messages, len(expected))
        checks += check_flow(messages, recording.commits, found.items)
        checks.append(check_nodes(found.etags))
        with claimed_store(stage.store_url) as store:
            checks += check_timeline(messages, recording.commits, expected, store.scan(TIMELINE))
            dead = store.count(DEAD_LETTERS)
        checks.append(Check("Messages that Spark could not read", "0", f"{dead:,}", dead == 0))
    return checks


async def _show(recording: Recording, screen: Screen) -> None:
    while True:
        _show_once(recording, screen)
        await asyncio.sleep(_SHOW_EVERY_S)


def _show_once(recording: Recording, screen: Screen) -> None:
    rows = recording.delivered[-1].rows if recording.delivered else 0
    screen.show(recording.acknowledged, rows, len(recording.kills))


@contextlib.contextmanager
def _phase(recording: Recording, name: str) -> Iterator[None]:
    began_s = recording.now_s()
    yield
    recording.phases[name] = recording.now_s() - began_s
