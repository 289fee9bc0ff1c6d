"""Which check has to say so, of each bug that is planted under simulated clients, or in the engine.

That a run fails is not enough: a bug that breaks one promise and is only seen by what it breaks beside it would go
unseen once that is mended. A hunt goes on until the named check has spoken.
"""

from __future__ import annotations

from typing import Final

SPEAKS: Final[dict[str, tuple[str, ...]]] = {
    "audit": (
        "transaction-without-dedup",
        "half-applied-transaction",
        "condition-on-the-state-after",
        "floor-judged-before",
        "refused-transaction-not-undone",
    ),
    "batches": ("straddled-batch",),
    "cascade": (
        "parts-of-their-instance",
        "cascade-not-fenced",
        "cursor-behind-its-writes",
    ),
    "commit durability": ("acks-before-flush",),
    "cursor": ("cursor-not-fenced",),
    "flow": (
        "item-twice-at-the-border",
        "sealed-differently",
        "range-cut-executed-twice",
        "commit-numbers-with-gaps",
    ),
    "halt": (
        "append-without-matching-term",
        "snapshot-keeps-other-entries",
        "matching-suffix-truncated",
        "votes-for-any-log",
    ),
    "leader completeness": ("commits-older-term",),
    "lease": (
        "reaped-while-live",
        "lease-by-wall-clock",
        "leases-lost-with-leader",
    ),
    "linearizability": (
        "read-without-point",
        "read-before-caught-up",
        "dropped-before-delivered",
        "store-before-batches",
        "vote-forgotten",
        "members-change-before-no-op",
        "answer-on-any-connection",
        "deposed-leader-reads",
        "reads-before-no-op",
        "unknown-called-not-applied",
        "apply-without-dedup",
        "stale-is-new",
        "sealed-is-executed",
        "forgets-once-answered",
        "ack-off-by-one",
        "no-fence",
        "take-over-keeps-epoch",
        "resolve-without-seal",
        "snapshot-without-records",
        "record-apart-from-effect",
        "snapshot-without-first-incomplete",
        "condition-before-dedup",
        "key-forgotten-early",
        "sequence-number-reused",
        "save-of-later-records",
    ),
    "one vote a term": ("votes-twice",),
    "rows that end": (
        "row-ends-early",
        "row-never-ends",
        "replay-revives-row",
        "bound-row-outlives-session",
        "put-keeps-the-end",
    ),
    "session protocol": (
        "run-record-of-another",
        "ack-drops-rest-of-run",
        "window-not-checked",
        "fingerprint-ignored",
        "acks-what-was-seen",
        "client-acks-unheard",
    ),
    "start": (
        "never-flushed",
        "term-not-saved",
    ),
    "state digest": (
        "applied-before-commit",
        "saved-applied-again",
        "snapshot-without-runs",
    ),
}
"""Check -> bugs."""
CHECK_OF: Final = {bug: check for check, bugs in SPEAKS.items() for bug in bugs}
IN_ENGINE: Final[dict[str, tuple[str, ...]]] = {
    "acknowledged is kept": ("keeps-truncated-members",),
    "commit durability": (
        "ack-before-flush",
        "b3-ack-of-any-term",
        "counts-learners",
        "leader-counts-unflushed",
        "members-when-committed",
    ),
    "election safety": ("vote-counted-twice",),
    "everybody is answered": ("forgets-proposals", "transfer-not-answered"),
    "flushed is kept": ("corruption-taken-for-torn", "last-batch-taken-for-torn", "no-sync"),
    "halt": ("acks-without-installing", "b1-no-follower-filter", "log-kept-at-installation"),
    "leader completeness": ("overlapping-changes", "votes-for-any-log"),
    "linearizable reads": ("applies-uncommitted", "confirms-any-term", "reads-before-no-op", "reads-without-round"),
    "liveness": ("acks-whole-log", "ignores-refusals"),
    "members": ("campaigns-when-removed", "change-answered-early"),
    "one vote a term": ("votes-twice",),
    "saving": ("log-kept-for-followers-of-another",),
    "start": ("compacts-before-saved", "torn-taken-for-corruption", "vote-not-saved"),
    "state equals replay": ("applies-saved-again",),
    "state machine safety": ("commit-uncapped", "commits-at-the-first-chunk"),
}
"""Check -> bugs that are planted in the engine under the simulator of consensus."""
CHECK_IN_ENGINE: Final = {bug: check for check, bugs in IN_ENGINE.items() for bug in bugs}
