# ruff: noqa: N802 - names of the interface of the library, documented there.
"""The one module that knows PySyncObj 0.3.17: its seams, its private names, its message dictionaries.

Owns what stays with the library (vote rules, roles and terms, log matching, the commit rule) and switches
off what does not serve here: its timers, queue, poller, pickling, sending, applying and compaction. A private
name ``__x`` of a class is looked up as ``_SyncObj__x``, so a subclass can override it; that is the library's layout
of exactly one version, hence the check at import. Read next: :mod:`oncegate.consensus.log.library_log`,
:mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pysyncobj.syncobj
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from oncegate.consensus.core.repairs import cap_snapshot_chunk
from oncegate.consensus.errors import SafetyViolation
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.messages import Append, VoteReply, VoteRequest
from oncegate.consensus.ports import Role

SUPPORTED_VERSION: Final = "0.3.17"
if VERSION != SUPPORTED_VERSION:
    raise ImportError(f"consensus needs pysyncobj {SUPPORTED_VERSION} exactly; {VERSION} is installed")

NO_OP_BYTES: Final = 1
"""The library's entries of its own are one byte long; commands are longer (``COMMAND_BYTES_MIN``)."""

_ROLES = (Role.FOLLOWER, Role.CANDIDATE, Role.LEADER)
_FOREVER_S = 1e12

LibraryMessage = Mapping[str, Any]


class _Member(Node):  # type: ignore[misc]
    """A node whose hash is the same in every process, so that a simulation repeats exactly."""

    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self._hash = zlib.crc32(node_id.encode())

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash


class _Outbox(Transport):  # type: ignore[misc]
    """Hands the library's outgoing messages to a function, and incoming ones to the library."""

    def __init__(self, send: Callable[[str, LibraryMessage], None]) -> None:
        super().__init__(None, None, [])
        self._send = send

    def send(self, node: Node, message: LibraryMessage) -> bool:
        self._send(node.id, message)
        return True

    def set_connected(self, node: Node, *, connected: bool) -> None:
        if connected:
            self._onNodeConnected(node)
        else:
            self._onNodeDisconnected(node)


class _NullPoller:
    """The event loop waits for sockets; the library never does."""

    def poll(self, timeout: float) -> None:
        """Return at once."""


@contextmanager
def _journal_by_configuration() -> Iterator[None]:
    """Let the library's constructor take ``conf.journalFile`` as the journal itself."""
    original = pysyncobj.syncobj.createJournal
    pysyncobj.syncobj.createJournal = lambda journal: journal
    try:
        yield
    finally:
        pysyncobj.syncobj.createJournal = original


class Raft(SyncObj):  # type: ignore[misc]
    """The library, reduced to decisions: messages go in, messages and state come out, nothing waits.

    Methods and not properties, since the library's constructor reads every attribute by name.
    """

    _SyncObj__otherNodes: set[_Member]

    def __init__(
        self,
        node_id: str,
        peer_ids: Iterable[str],
        log: LibraryLog,
        *,
        send_vote: Callable[[str, VoteRequest | VoteReply], None],
        on_role: Callable[[Role], None],
    ) -> None:
        self._log = log
        self._send_vote = send_vote
        self._on_role = on_role
        self._last_ack: LibraryMessage | None = None
        self._outbox = _Outbox(self._library_sends)
        self._nodes = {peer_id: _Member(peer_id) for peer_id in peer_ids}
        conf = SyncObjConf(
            autoTick=False,
            journalFile=log,
            appendEntriesUseBatch=True,
            leaderFallbackTimeout=_FOREVER_S,
            onStateChanged=lambda _, new: on_role(_ROLES[new]),
            useFork=False,
        )
        # Candidates count replies and the commit rule counts matches over exactly these: the other voters.
        with _journal_by_configuration():
            super().__init__(_Member(node_id), list(self._nodes.values()), conf=conf, transport=self._outbox)
        self._poller = _NullPoller()

    # -- state -----------------------------------------------------------------------------------------

    def role(self) -> Role:
        """Role of this node; a leader may have been deposed without knowing it."""
        return _ROLES[self._SyncObj__raftState]

    def standing(self) -> tuple[object, ...]:
        """Role, leader and term, as one value to compare."""
        return self._SyncObj__raftState, self._SyncObj__raftLeader, self._SyncObj__raftCurrentTerm

    def leads(self) -> bool:
        """Role is leader."""
        return self._SyncObj__raftState == 2  # type: ignore[no-any-return]

    def term(self) -> int:
        """Current term."""
        return self._SyncObj__raftCurrentTerm  # type: ignore[no-any-return]

    def leader(self) -> str | None:
        """Leader of the current term, as far as known."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.id

    def commit_index(self) -> int:
        """Last entry known to be committed."""
        return self._SyncObj__raftCommitIndex

    def no_op_index(self) -> int | None:
        """Index of the entry that began this node's latest term as a leader."""
        return self._SyncObj__noopIDx  # type: ignore[no-any-return]

    # -- input -----------------------------------------------------------------------------------------

    def set_connected(self, peer_id: str, *, connected: bool) -> None:
        """The connection to a peer came up or went down."""
        self._outbox.set_connected(self._node(peer_id), connected=connected)

    def set_voters(self, peer_ids: Collection[str], matched: Mapping[str, int]) -> None:
        """Another configuration is in force: ``peer_ids`` are its voters without this node.

        The library counts itself in every majority, so a node that does not vote must neither lead nor campaign.
        ``matched`` says, at a leader, how far each is known to be; the library hears of later news only.
        """
        voters = {self._node(peer_id) for peer_id in peer_ids}
        for node in self._SyncObj__otherNodes - voters:
            self._SyncObj__raftMatchIndex.pop(node, None)
            self._SyncObj__raftNextIndex.pop(node, None)
            self._SyncObj__lastResponseTime.pop(node, None)
        if self.leads():
            for node in voters - self._SyncObj__otherNodes:
                self._SyncObj__raftMatchIndex[node] = matched.get(node.id, 0)
                self._SyncObj__raftNextIndex[node] = matched.get(node.id, 0) + 1
                self._SyncObj__lastResponseTime[node] = _FOREVER_S
        self._SyncObj__otherNodes = voters

    def receive_append(self, peer_id: str, append: Append, *, success: bool) -> None:
        """Take an append that passed :func:`oncegate.consensus.core.repairs.admit_append`.

        Raises:
            SafetyViolation: the library does not come to the filter's conclusion.
        """
        self._last_ack = None
        self._deliver(
            peer_id,
            {
                "type": "append_entries",
                "term": append.term,
                "commit_index": append.commit,
                "entries": append.entries,
                "prevLogIdx": append.prev_index,
                "prevLogTerm": append.prev_term,
            },
        )
        ack: Any = self._last_ack
        if ack is None or ack["success"] != success:
            raise SafetyViolation(f"append after entry {append.prev_index}: library and filter disagree")

    def receive_match(self, peer_id: str, index: int) -> None:
        """A follower has flushed everything up to ``index`` in this term."""
        self._deliver(peer_id, {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True})

    def receive_vote_request(self, peer_id: str, request: VoteRequest) -> None:
        """May vote, through ``send_vote``."""
        self._deliver(
            peer_id,
            {
                "type": "request_vote",
                "term": request.term,
                "last_log_index": request.last_index,
                "last_log_term": request.last_term,
            },
        )

    def receive_vote(self, peer_id: str, reply: VoteReply) -> None:
        """May make this node the leader; the caller counts no voter twice."""
        self._deliver(peer_id, {"type": "response_vote", "term": reply.term})

    def adopt_term(self, peer_id: str, term: int) -> None:
        """Follow a later term that was seen in a message (Raft §5.1).

        The library learns terms from vote requests, so it gets one that no log can be behind of: it steps
        down and does not vote.
        """
        self.receive_vote_request(peer_id, VoteRequest(term, 0, -1))

    def campaign(self) -> None:
        """Start an election now: next term, own vote, vote requests through ``send_vote``."""
        self._SyncObj__raftElectionDeadline = -1.0
        self._onTick(0.0)

    def advance_commit(self) -> None:
        """Apply the commit rule (Raft §5.3, §5.4.2) to what the peers have acknowledged."""
        self._onTick(0.0)

    def installed(self, index: int) -> None:
        """The state up to ``index`` came as a snapshot, and the log goes on behind it."""
        self._SyncObj__raftCommitIndex = index
        self._log.setRaftCommitIndex(index)

    def step_down(self) -> None:
        """Stop leading without a later term (Raft thesis §6.2)."""
        self._SyncObj__setState(0)
        self._SyncObj__raftLeader = None

    def _deliver(self, peer_id: str, message: LibraryMessage) -> None:
        if "serialized" in message:
            message = cap_snapshot_chunk(message, self.commit_index())
        self._SyncObj__onMessageReceived(self._nodes.get(peer_id) or self._node(peer_id), message)

    def _node(self, peer_id: str) -> _Member:
        node = self._nodes.get(peer_id)
        if node is None:
            node = self._nodes[peer_id] = _Member(peer_id)
        return node

    def _library_sends(self, peer_id: str, message: LibraryMessage) -> None:
        match message["type"]:
            case "request_vote":
                self._send_vote(
                    peer_id, VoteRequest(message["term"], message["last_log_index"], message["last_log_term"])
                )
            case "response_vote":
                self._send_vote(peer_id, VoteReply(message["term"]))
            case "next_node_idx":
                # Only the verdict is used: the acknowledgement that goes out carries term and epoch.
                self._last_ack = message
            case other:
                raise SafetyViolation(f"the library sends {other!r}, which nobody asked for")

    # -- overridden inside the library -----------------------------------------------------------------

    def _SyncObj__generateRaftTimeout(self) -> float:
        """The library never starts an election by its own clock: pre-vote comes first."""
        return math.inf

    def _SyncObj__sendAppendEntries(self) -> None:
        """Appends are paced, bounded and sent by the engine."""

    def _SyncObj__applyLogEntries(self) -> bool:
        """Entries are applied by the engine: after the flush, in slices, never retried."""
        return False

    def _SyncObj__tryLogCompaction(self) -> None:
        """The log is not compacted by the library, which would rewrite it in place."""

    def _checkCommandsToApply(self) -> None:
        """Commands are appended by the engine: raw bytes, no queue."""

    def _SyncObj__onBecomeLeader(self) -> None:
        super()._SyncObj__onBecomeLeader()
        # The leader counts itself for everything in its log, so its log is flushed before it counts.
        self._log.flush()
