"""How operations end, as clients see it. Read next: :mod:`oncegate.proof.sim.gateway.session`."""

from __future__ import annotations

import msgspec

from oncegate.rifl.errors import Code
from oncegate.rifl.ids import format_client_id

NEVER_SAID = {Code.STALE, Code.BAD_ACK, Code.PAYLOAD_MISMATCH, Code.FORBIDDEN}
"""Refusals that an honest owner of a session never gets for what it still waits for."""


class Ended(msgspec.Struct):
    """How an operation ended: ok with the server's result, fail (certainly not applied), or info."""

    status: str
    result: object = None
    error: str = ""


def request_of(pending):
    """The written id of an operation, or of the first one of a range."""
    return f"{format_client_id(pending.session.client_id)}/{pending.sequence}"
