"""Which data directory each member was last seen with: a wiped, copied or restored one is refused.

Owns the file ``known-peers``. A vote or an acknowledgement is worth something only while its node remembers it; a
directory that was lost, or is older than what the peers saw, does not. The first one seen under an id is trusted. What
is known of an id ends with its membership: an id that was removed and added again is another member
(``Member.since``). Read next: :mod:`oncegate.consensus.log.identity`, :mod:`oncegate.consensus.net.handshake`.

What this cannot see: a wiped directory that comes to peers which never met the member before, as when a cluster starts
for the first time; and a copy that missed more than ``identity.BOOTS_KEPT`` starts and was itself opened more often.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from oncegate.consensus.log.reserve import write_small
from oncegate.consensus.log.sealed_file import read_sealed_struct
from oncegate.consensus.log.storage import Storage
from oncegate.consensus.messages import Refusal
from oncegate.consensus.net.handshake import Stamp

logger = logging.getLogger(__name__)

KNOWN_PEERS_FILE = "known-peers"
_MAGIC = b"OGPEERS1"


class _KnownPeers(msgspec.Struct, array_like=True, frozen=True):
    since: int
    node_uuid: str
    incarnation: int
    boot: int


class KnownPeers:
    """What this node durably remembers of the other members' data directories."""

    def __init__(self, storage: Storage) -> None:
        """Read the file of an opened directory; raises :class:`~oncegate.consensus.errors.Corrupt`."""
        self._storage = storage
        self._known: dict[str, _KnownPeers] = {}
        if KNOWN_PEERS_FILE in storage.names():
            self._known = read_sealed_struct(storage, KNOWN_PEERS_FILE, _MAGIC, dict[str, _KnownPeers])

    def judge(self, peer_id: str, since: int, stamp: Stamp) -> Refusal | None:
        """Compare what a peer says with what is known of the member that was added at ``since``.

        Each incarnation has its own random number: two copies of a directory that were opened equally often differ
        in it, and so does an old copy that was opened often enough to catch up.
        """
        known = self._known.get(peer_id)
        if known is None or known.since != since:
            return None
        if stamp.node_uuid != known.node_uuid:
            return "wiped"
        age = stamp.incarnation - known.incarnation
        if age < 0 or (age < len(stamp.boots) and stamp.boots[-1 - age] != known.boot):
            return "cloned"
        return None

    def remember(self, peer_id: str, since: int, stamp: Stamp, members: Collection[str]) -> None:
        """Make durable what was accepted; of ids that are in ``members`` only, so that the file is bounded."""
        seen = _KnownPeers(since, stamp.node_uuid, stamp.incarnation, stamp.boots[-1] if stamp.boots else 0)
        if self._known.get(peer_id) == seen:
            return
        self._known = {known: record for known, record in self._known.items() if known in members}
        self._known[peer_id] = seen
        try:
            write_small(self._storage, KNOWN_PEERS_FILE, _MAGIC, msgspec.msgpack.encode(self._known))
        except OSError as error:
            # The file as it was is still whole, and refusing the peer for want of space would cost the quorum.
            logger.error("what is known of %s could not be written and is forgotten at a restart: %s", peer_id, error)
