"""Counts the messages of each sender by hour, and of 24 hours at each hour, by the messages' own time."""

from oncegate.spark import main
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.windows import sliding, tumbling

HOUR_MS = 3_600_000
MESSAGES = events_by({"sender": int}, at="sent_at", unit_ms=1000)

HOURS = tumbling("messages_per_hour", MESSAGES, size_ms=HOUR_MS, lateness_ms=HOUR_MS)
DAYS = sliding("messages_of_24_hours", MESSAGES, size_ms=24 * HOUR_MS, slide_ms=HOUR_MS, lateness_ms=HOUR_MS)

if __name__ == "__main__":
    raise SystemExit(main(HOURS, HOURS.tables, name="messages-per-hour"))
