"""One bare replica as a process of its own, with a socket for clients (:mod:`tests.faults.harness.raw_wire`).

``python -m tests.faults.harness.replica_process SETTINGS`` with settings as JSON. The state machine remembers every
command's id and position and a digest of everything it applied, so that nodes can be compared. SIGTERM stops it in
order. A data directory that cannot be trusted ends it with status 1 and a last line that names the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oncegate.consensus import ConsensusError, Replica, ReplicaConfig
from tests.faults.harness.raw_wire import (
    ID,
    Ask,
    Done,
    Frames,
    Propose,
    Read,
    Refused,
    Request,
    Said,
    decode_entry,
    encode,
)

READ_S = 1.5
"""Longer than an election time-out: a read of a deposed leader ends by its step-down."""


class Recorder:
    """Remembers what was applied, in order."""

    def __init__(self) -> None:
        self.ids = array("Q")
        self.indexes = array("Q")
        self._digest = hashlib.blake2b(digest_size=16)

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Take one entry; answers its position."""
        for one in decode_entry(command):
            self.ids.append(ID.unpack_from(one)[0])
            self.indexes.append(index)
        self._digest.update(index.to_bytes(8, "little") + command)
        return index

    def report(self) -> dict[str, Any]:
        """Everything there is to compare."""
        return {"ids": self.ids.tobytes(), "indexes": self.indexes.tobytes(), "digest": self._digest.hexdigest()}


class Discard:
    """A state machine without state."""

    def apply(self, index: int, term: int, command: bytes) -> object:
        """Answer the position."""
        return index


class ReplicaProcess:
    """The replica and the clients' connections. ``asks`` answers what is neither a command nor a read."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.machine: Recorder | Discard = Recorder() if settings["record"] else Discard()
        name = settings["name"]
        self.replica = Replica(
            ReplicaConfig(
                node_id=name,
                cluster_id="faults",
                listen=tuple(settings["listen"]),
                peers={peer: tuple(address) for peer, address in settings["peers"].items()},
                data_dir=Path(settings["directory"]),
                **settings["config"],
            ),
            self.machine,
        )
        self.asks: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "status": self._status,
            "dump": self._dump,
            "transfer": self._transfer,
            "wall_clock": self._wall_clock,
        }
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until SIGTERM."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        await self.replica.start()
        host, port = self.settings["client"]
        server = await loop.create_server(lambda: Frames(self._received, lambda _: None), host, port)
        await self._stop.wait()
        await self.replica.stop()
        server.close()

    def _received(self, client: Frames, frame: Request) -> None:
        match frame:
            case Propose():
                self._propose(client, frame)
            case Read():
                self._later(self._read(client, frame))
            case Ask():
                self._later(self._asked(client, frame))

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _propose(self, client: Frames, request: Propose) -> None:
        try:
            future = self.replica.propose(encode(request.commands))
        except ConsensusError as error:
            client.send(Refused(request.number, error.code, error.outcome))
            return

        def finished(done: asyncio.Future[object]) -> None:
            error = done.exception()
            if error is None:
                index = done.result()
                client.send(Done(request.number, index if isinstance(index, int) else 0))
            elif isinstance(error, ConsensusError):
                client.send(Refused(request.number, error.code, error.outcome))
            else:
                raise error

        future.add_done_callback(finished)

    async def _read(self, client: Frames, request: Read) -> None:
        try:
            index = await self.replica.read_index(timeout_s=READ_S)
            await self.replica.wait_applied(index, timeout_s=READ_S)
        except ConsensusError as error:
            client.send(Refused(request.number, error.code, error.outcome))
        else:
            client.send(Done(request.number, index))

    async def _asked(self, client: Frames, request: Ask) -> None:
        client.send(Said(request.number, await self.asks[request.what](request.argument)))

    async def _status(self, _: Any) -> dict[str, Any]:
        status = asdict(self.replica.status())
        return {**status, "role": status["role"].value, "cpu_s": time.process_time(), "pid": os.getpid()}

    async def _dump(self, _: Any) -> dict[str, Any]:
        status = await self._status(None)
        return {**status, **(self.machine.report() if isinstance(self.machine, Recorder) else {})}

    async def _transfer(self, target: str | None) -> str:
        try:
            await self.replica.transfer_leadership(to=target, timeout_s=10.0)
        except ConsensusError as error:
            return error.code
        return "done"

    async def _wall_clock(self, _: Any) -> float:
        return time.time()


def main(process: type[ReplicaProcess] = ReplicaProcess) -> None:
    """Run the process that the command line describes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    settings = json.loads(sys.argv[1])

    async def run() -> None:
        await process(settings).run()

    try:
        asyncio.run(run())
    except (ConsensusError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
