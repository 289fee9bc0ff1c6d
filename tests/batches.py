"""Reading a whole flow over HTTP, with nothing but the standard library and pyarrow."""

from __future__ import annotations

import urllib.request
from typing import Any

import pyarrow as pa

from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.local.waiting import wait_for


def read_flow(endpoint: str, flow: str, timeout_s: float = 30.0) -> list[tuple[str, int]]:
    """Return (key, commit) of every item of a flow, once its open segment has been sealed."""

    def sealed() -> dict[str, Any] | None:
        state = get_json(f"{endpoint}/v1/flows/{flow}")
        return state if state is not None and state["open_items"] == 0 else None

    state = wait_for(sealed, timeout_s, f"{endpoint} has sealed {flow}")
    items: list[tuple[str, int]] = []
    for number in range(state["first_batch"], state["last_batch"] + 1):
        with urllib.request.urlopen(f"{endpoint}/v1/flows/{flow}/batches/{number}", timeout=30) as answer:
            table = pa.ipc.open_stream(answer.read()).read_all()
        items += zip(table.column("key").to_pylist(), table.column("commit").to_pylist(), strict=True)
    return items
