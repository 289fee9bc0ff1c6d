"""One replica as a process of its own, for the tests that kill it.

While it leads, and until told ``quiet`` on standard input, it keeps 64 commands outstanding and says
``acked <command>`` for each result. ``dump`` prints everything applied and the commit index as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from oncegate.consensus import ConsensusError, Replica, ReplicaConfig
from oncegate.consensus.config import KIB, MIB


class Machine:
    def __init__(self):
        self.commands = []

    def apply(self, index, term, command):
        self.commands.append(command.decode())
        return index


def say(*words):
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


async def load(replica, life, state):
    number = 0

    async def one():
        nonlocal number
        while not state["quiet"]:
            if not replica.status().ready:
                await asyncio.sleep(0.01)
                continue
            number += 1
            command = f"{replica.status().node_id}-{life}-{number}"
            try:
                await replica.propose(command.encode())
            except ConsensusError:
                continue
            say("acked", command)

    await asyncio.gather(*[one() for _ in range(64)])


async def main():
    settings = json.loads(sys.argv[1])
    name = settings["name"]
    machine = Machine()
    replica = Replica(
        ReplicaConfig(
            node_id=name,
            cluster_id="processes",
            listen=tuple(settings["addresses"][name]),
            peers={other: tuple(found) for other, found in settings["addresses"].items() if other != name},
            data_dir=Path(settings["directory"]) / name,
            command_bytes_max=64 * KIB,
            append_bytes_max=64 * KIB,
            journal_segment_bytes=MIB,
            **settings["config"],
        ),
        machine,
    )
    await replica.start()
    state = {"quiet": settings["quiet"]}
    loading = asyncio.create_task(load(replica, settings["life"], state))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        match line.decode().strip():
            case "quiet":
                state["quiet"] = True
                await loading
                say("quiet")
            case "dump":
                status = replica.status()
                report = {"ready": status.ready, "commit": status.commit_index, "applied": status.applied_index}
                say("dump", json.dumps({**report, "commands": machine.commands}))
    await replica.stop()


if __name__ == "__main__":
    asyncio.run(main())
