"""Identifiers of the exactly-once protocol and their written forms.

Owns: the names and bounds of ids. Knows nothing else. Read next: :mod:`oncegate.rifl.lease`,
:mod:`oncegate.rifl.completion`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NewType

ClientId = NewType("ClientId", int)
"""64-bit id of a session, assigned by the cluster, never reused (RIFL §3.2)."""

SequenceNumber = NewType("SequenceNumber", int)
"""Number of an operation inside its session, from 1 (RIFL §3.1)."""

Epoch = NewType("Epoch", int)
"""Generation of a session's owner, from 1; a take-over raises it and fences the older ones."""

CommitNumber = NewType("CommitNumber", int)
"""Position of an applied operation in the order of application, from 1; version of the row it wrote."""

ClusterTimeMs = NewType("ClusterTimeMs", int)
"""Milliseconds carried in log entries; advances only by entries and never goes back."""

Fingerprint = NewType("Fingerprint", int)
"""64-bit hash of an operation's payload: tells a retry from a reuse of its id."""

ID_MAX: Final = 2**53 - 1
"""Largest client id, sequence, commit or batch number: exact in every JSON reader."""

WINDOW_DEFAULT: Final = 512
"""Places above first incomplete that a session may use unless it asks for another number."""

WINDOW_MAX: Final = 4096
LEASE_MS_DEFAULT: Final = 60_000
LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 24 * 3_600_000
RANGE_LENGTH_MAX: Final = 10_000
"""Operations that one range may carry; a gap below a range counts in units of it."""


class RequestId(NamedTuple):
    """128-bit name of an operation: the same in every retry, on every node (RIFL §3.1)."""

    client_id: ClientId
    sequence: SequenceNumber

    def __str__(self) -> str:
        return f"{format_client_id(self.client_id)}/{self.sequence}"


_CLIENT_ID: Final = re.compile("[0-9a-f]{16}")


def format_client_id(client_id: int) -> str:
    """Return the written form: 16 lower-case hex digits."""
    return f"{client_id:016x}"


def parse_client_id(text: str) -> ClientId:
    """Read the written form.

    Raises:
        ValueError: not exactly 16 lower-case hex digits, or outside 1..ID_MAX.
    """
    if not _CLIENT_ID.fullmatch(text):
        raise ValueError("a client id is 16 lower-case hex digits")
    number = int(text, 16)
    if not 1 <= number <= ID_MAX:
        raise ValueError("client id out of range")
    return ClientId(number)


def parse_request_id(text: str) -> RequestId:
    """Read ``client_id/sequence``.

    Raises:
        ValueError: not of that form, or a number out of range.
    """
    client, slash, sequence = text.partition("/")
    if not slash or not sequence.isascii() or not sequence.isdigit() or len(sequence) > 16:
        raise ValueError("a request id is client_id/sequence")
    number = int(sequence)
    if not 1 <= number <= ID_MAX:
        raise ValueError("sequence number out of range")
    return RequestId(parse_client_id(client), SequenceNumber(number))
