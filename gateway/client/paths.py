"""Paths of the HTTP API (API.md), percent-encoded.

Owns: how names and keys are written into a path; what is none is refused with BAD_REQUEST. Knows nothing else.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from oncegate.gateway.client.arguments import key_of, name_of

OPERATIONS: Final = "/v1/operations"
SESSIONS: Final = "/v1/sessions"
CLUSTER: Final = "/v1/cluster"
FLOWS: Final = "/v1/flows"
ROWS: Final = "/v1/rows"
TABLES: Final = "/v1/tables"


def segment(text: str) -> str:
    """Return one path segment; dots alone are encoded too, or they would be taken for directories."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def session_path(client_id: str) -> str:
    """Return the path of a session."""
    return f"{SESSIONS}/{client_id}"


def table_path(table: str) -> str:
    """Return the path of a table."""
    return f"{TABLES}/{segment(name_of(table))}"


def ranges_path(table: str) -> str:
    """Return where ranges of rows are posted."""
    return f"{table_path(table)}/ranges"


def row_path(table: str, key: str) -> str:
    """Return the path of a row."""
    return f"{table_path(table)}/rows/{segment(key_of(key))}"


def flow_path(flow: str) -> str:
    """Return the path of a flow."""
    return f"{FLOWS}/{segment(name_of(flow, 'flow'))}"


def consumer_path(flow: str, consumer: str) -> str:
    """Return the path of a flow's consumer."""
    return f"{flow_path(flow)}/consumers/{segment(name_of(consumer, 'consumer'))}"


def request_path(client_id: str, sequence: int) -> str:
    """Return the path of a request id."""
    return f"/v1/requests/{client_id}/{sequence}"


def resolve_path(client_id: str, sequence: int) -> str:
    """Return where a request id is resolved."""
    return f"{request_path(client_id, sequence)}/resolve"
