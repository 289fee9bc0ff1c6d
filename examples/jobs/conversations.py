"""Finds the conversations: messages from one user to another that are at most an hour apart."""

from oncegate.spark import main
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.sessions import sessions

MESSAGES = events_by({"sender": int, "receiver": int}, at="sent_at", unit_ms=1000)
CONVERSATIONS = sessions("conversations", MESSAGES, gap_ms=3_600_000, lateness_ms=3_600_000)

if __name__ == "__main__":
    raise SystemExit(main(CONVERSATIONS, CONVERSATIONS.tables, name="conversations"))
