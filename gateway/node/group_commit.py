"""When the commands that wait at a leader become an entry: the rule of group commit. Pure.

An entry costs three nodes what twenty to fifty small commands in it do: it is encoded, sent, flushed, acknowledged,
committed and applied once, however many it holds. Commands of independent clients come one by one, so a leader that
proposes what one turn of its loop has brought makes entries of a few; while one of them is on its way the next ones
wait, and share the next entry. Nobody waits for a timer, a lone command for nothing, and none longer than the entries
that were under way when it came. A request of many operations is an entry by itself: its flush and its way to the
followers overlap with those of the one before, which is what few clients with large requests live on.
"""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 16 * 1024
"""Waiting commands of fewer bytes, together, wait for what is under way."""


def leaves_now(waiting_bytes: int, entries_under_way: int) -> bool:
    """Tell whether what waits is proposed now.

    Args:
        waiting_bytes: of the commands that wait, together.
        entries_under_way: proposed, and neither applied nor given up.
    """
    return not entries_under_way or waiting_bytes >= SMALL_BYTES
