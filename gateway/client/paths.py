"""Paths of the HTTP API (API.md), percent-encoded.

Owns: how names and keys are written into a path. Knows nothing else.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

OPERATIONS: Final = "/v1/operations"
SESSIONS: Final = "/v1/sessions"
CLUSTER: Final = "/v1/cluster"
FLOWS: Final = "/v1/flows"


def segment(text: str) -> str:
    """Return one path segment; dots alone are encoded too, or they would be taken for directories."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def session_path(client_id: str) -> str:
    """Return the path of a session."""
    return f"{SESSIONS}/{client_id}"


def table_path(table: str) -> str:
    """Return the path of a table."""
    return f"/v1/tables/{segment(table)}"


def ranges_path(table: str) -> str:
    """Return where ranges of rows are posted."""
    return f"{table_path(table)}/ranges"


def row_path(table: str, key: str) -> str:
    """Return the path of a row."""
    return f"{table_path(table)}/rows/{segment(key)}"


def flow_path(flow: str) -> str:
    """Return the path of a flow."""
    return f"{FLOWS}/{segment(flow)}"


def consumer_path(flow: str, consumer: str) -> str:
    """Return the path of a flow's consumer."""
    return f"{flow_path(flow)}/consumers/{segment(consumer)}"


def request_path(client_id: str, sequence: int) -> str:
    """Return the path of a request id."""
    return f"/v1/requests/{client_id}/{sequence}"


def resolve_path(client_id: str, sequence: int) -> str:
    """Return where a request id is resolved."""
    return f"{request_path(client_id, sequence)}/resolve"
