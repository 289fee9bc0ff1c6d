"""The other nodes: who is connected, who votes, who is listened to, with whom to connect.

Owns the connections' epochs, and what follows from the configuration in force for each peer. The configurations
themselves belong to the log (:mod:`oncegate.consensus.log.membership`). Read next:
:mod:`oncegate.consensus.core.message_handling`.
"""

from __future__ import annotations

from collections.abc import Collection

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.log.membership import Membership


class Peers:
    """All other nodes, as this one sees them."""

    def __init__(self, config: ReplicaConfig, membership: Membership) -> None:
        """Nobody counts before the first :meth:`follow`."""
        self._config = config
        self._node_id = config.node_id
        self._membership = membership
        self.followed = -1
        """:attr:`Membership.version` at the last :meth:`follow`."""
        self._unsettled_index = 0
        self.epochs: dict[str, int] = {}
        """Who is connected, in the order of connecting, and the number of each connection."""
        self.voters: frozenset[str] = frozenset()
        """The voters of the configuration in force without this node."""
        self.known: frozenset[str] = frozenset()
        """Members of the newest and of the committed configuration: they are listened to."""

    def is_connected(self, peer_id: str, epoch: int) -> bool:
        """Whether the connection of this epoch is the one to the peer now."""
        return self.epochs.get(peer_id) == epoch

    def connected_voters(self) -> list[str]:
        """The other voters within reach, in an order that does not depend on the process."""
        return [peer_id for peer_id in self.epochs if peer_id in self.voters]

    def within_reach(self, leader_id: str | None) -> str | None:
        """``leader_id`` if that is this node or a connected one."""
        if leader_id == self._node_id or leader_id in self.epochs:
            return leader_id
        return None

    # -- the configuration in force --------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        """The configuration in force was not committed when that was last asked."""
        return self._unsettled_index > 0

    def follow(self, commit_index: int) -> None:
        """The log's newest configuration is in force from now on."""
        self.followed = self._membership.version
        self.voters = self._membership.voters - {self._node_id}
        self._unsettled_index = self._membership.current_index
        self._know(commit_index)

    def settle(self, commit_index: int) -> bool:
        """Whether the configuration in force is committed now, and was not before: the two become one."""
        if not 0 < self._unsettled_index <= commit_index:
            return False
        self._know(commit_index)
        return True

    def _know(self, commit_index: int) -> None:
        # Two majorities. n1 leads four, appends the removal of n4 as entry 9, and is cut off before anybody has it:
        #
        #   n1           log ends with 9   members n1 n2 n3      a majority is two
        #   n2, n3, n4   log ends with 8   members n1 n2 n3 n4   a majority is three
        #
        # n4 may be elected by n2 and n3, and replace entry 9. So n1 listens to n4 until 9 is committed. (Two of n1, n2
        # and n3, and three of all four, share a node: they never decide differently.)
        current = self._membership.current.members
        self.known = frozenset(current) | self._membership.committed(commit_index).members.keys()
        if self._unsettled_index <= commit_index:
            self._unsettled_index = 0

    # -- with whom to connect --------------------------------------------------------------------------

    @property
    def awaits_membership(self) -> bool:
        """The node joins, and its log does not name it yet: whoever leads may be somebody it never heard of."""
        return self._config.joining and self._node_id not in self._membership.current.members

    def hears_anyone(self, leader_id: str | None) -> bool:
        """Whoever leads may be a member that the log here does not name yet: who joins, or was away, listens to all."""
        return self.awaits_membership or self.within_reach(leader_id) is None

    def wanted(self, commit_index: int, leader_id: str | None, leaving: Collection[str]) -> dict[str, RaftMember]:
        """Whom to be connected with: the other members, those ``leaving`` that are still told so, seeds of a joiner."""
        members = self._membership.current.members
        # A removal that is not committed may be taken back, by a leader that is among those removed.
        known = {**self._membership.committed(commit_index).members, **members}
        wanted = {peer_id: member for peer_id, member in known.items() if peer_id != self._node_id}
        if self.awaits_membership:
            # The log may begin with members that are gone: until it names this node, the given ones stay in reach.
            wanted = {peer_id: RaftMember(*address) for peer_id, address in self._config.peers.items()} | wanted
        for peer_id in leaving:
            wanted.setdefault(peer_id, RaftMember("", 0))
        if leader_id is not None and leader_id != self._node_id:
            # Added while this node was away; what it says of itself is on its way.
            wanted.setdefault(leader_id, RaftMember("", 0))
        return wanted
