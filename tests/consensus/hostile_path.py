"""A TCP proxy between two replicas that does to their frames what somebody on the path can do, without the secret."""

from __future__ import annotations

import asyncio
import dataclasses
import struct

import google_crc32c

from oncegate.consensus.messages import decode
from tests.consensus.cluster import Cluster, free_addresses

HANDSHAKE_FRAMES = 2
"""In each direction; they carry a checksum in every version."""
CLEAR, SEALED = 8, 20


def mended(header, body):
    """The frame of ``body`` with a right length, and, where the header has one, a right checksum."""
    length = struct.pack("<I", len(body))
    return length + (struct.pack("<I", google_crc32c.value(body)) if len(header) == CLEAR else header[4:]) + body


class HostilePath:
    """``attack(number, header, body, dialled)`` returns the bytes that go on in place of a frame, or None: the frame.

    ``number`` counts the frames of a connection and direction, ``dialled`` says which direction it is.
    """

    def __init__(self, target, attack, *, header_bytes):
        self.target, self.attack, self.header_bytes = target, attack, header_bytes
        self.attacks = self.connections = 0
        self.tasks = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.address = self.server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *exc):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve(self, reader, writer):
        self.connections += 1
        self.tasks.add(task := asyncio.current_task())
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self.pump(reader, far_writer, True))
                ways.create_task(self.pump(far_reader, writer, False))
        except* (OSError, EOFError):
            pass
        finally:
            writer.close()
            far_writer.close()
            self.tasks.discard(task)

    async def pump(self, reader, writer, dialled):
        for number in range(10**9):
            header = await reader.readexactly(CLEAR if number < HANDSHAKE_FRAMES else self.header_bytes)
            body = await reader.readexactly(struct.unpack_from("<I", header)[0])
            replaced = self.attack(number, header, body, dialled)
            self.attacks += replaced is not None
            writer.write(header + body if replaced is None else replaced)


class TwoOnAPath(Cluster):
    """n1 and n2, of which n2 dials n1, through the path if there is one, and n1 cannot dial at all."""

    def __init__(self, directory, **settings):
        super().__init__(directory, ("n1", "n2"), **settings)
        self.path = None

    def config(self, name, **settings):
        to_first = self.addresses["n1"] if self.path is None else self.path.address
        peers = {"n2": free_addresses(1)[0]} if name == "n1" else {"n1": to_first}
        return dataclasses.replace(super().config(name, **settings), peers=peers)


def message(body):
    """What a frame says."""
    return decode(body)
