"""Reading the flow back over HTTP, after the fact: all batches from one node, their checksums from every node.

Owns: the requests. Must not know what the batches should hold: :mod:`examples.demo.recount` judges that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import aiohttp
import pyarrow as pa

from examples.demo.errors import CouldNotRun
from examples.demo.ingest import TABLE


class ReadBackError(CouldNotRun):
    """A node did not hand out a batch."""


class ReadBack(NamedTuple):
    """Everything that the flow holds, and the checksum of each batch by node."""

    items: pa.Table
    etags: dict[str, tuple[str, ...]]


async def read_back(
    http: aiohttp.ClientSession, endpoints: Mapping[str, str], restarted: str, batches: int
) -> ReadBack:
    """Read batches 1 .. ``batches`` from the node that was restarted, and compare by checksum with the others.

    Args:
        http: connections.
        endpoints: HTTP address by node.
        restarted: the node whose batches are read whole.
        batches: number of the last one.

    Raises:
        ReadBackError: a node refused, or could not be reached.
    """
    tables: list[pa.Table] = []
    etags: dict[str, tuple[str, ...]] = {}
    for node in sorted(endpoints, key=lambda node: node != restarted):
        found: list[str] = []
        for number in range(1, batches + 1):
            known = etags[restarted][number - 1] if node != restarted else None
            url = f"{endpoints[node]}/v1/flows/{TABLE}/batches/{number}"
            # A node that holds the same bytes says so without sending them.
            headers = {"If-None-Match": known} if known is not None else {}
            try:
                async with http.get(url, headers=headers) as response:
                    body = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as fault:
                raise ReadBackError(f"{node} does not hand out batch {number}: {fault!r}") from fault
            if response.status not in (200, 304):
                raise ReadBackError(f"{node} answered {response.status} for batch {number}: {body[:200]!r}")
            found.append(response.headers.get("ETag", ""))
            if node == restarted:
                with pa.ipc.open_stream(body) as reader:
                    tables.append(reader.read_all().replace_schema_metadata(None))
        etags[node] = tuple(found)
    return ReadBack(pa.concat_tables(tables), etags)
