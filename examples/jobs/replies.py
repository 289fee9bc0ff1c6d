"""Joins each message with the replies to it within ten minutes: both sides are of one flow, and wait in the store.

`python replies.py left …` and `python replies.py right …` are two jobs; `python replies.py pair STORE` makes one pass.
"""

import sys

from oncegate.spark import claimed_store, main
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.store_join import store_join

ASKED = events_by({"asker": (int, "sender"), "other": (int, "receiver")}, at="sent_at", unit_ms=1000)
REPLIED = events_by({"asker": (int, "receiver"), "other": (int, "sender")}, at="sent_at", unit_ms=1000)
REPLIES = store_join("replies", ASKED, REPLIED, after_ms=600_000, lateness_ms=60_000)

if __name__ == "__main__":
    part = sys.argv.pop(1)
    if part == "pair":
        with claimed_store(sys.argv[1]) as store:
            raise SystemExit(print(REPLIES.assemble(store)))
    side = {"left": REPLIES.left, "right": REPLIES.right}[part]
    raise SystemExit(main(side, REPLIES.tables, name=f"replies-{part}"))
