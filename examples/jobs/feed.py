"""Copies each message to everyone to whom its sender ever wrote; above 200 of these it is read from its sender."""

from pathlib import Path

from oncegate.spark import main
from oncegate.spark_sink.library.fan_out import fan_out
from oncegate.spark_sink.library.fields import whole

FOLLOWERS = Path(__file__).parents[1] / "collegemsg.txt.gz"
FEED = fan_out("feeds", whole("sender"), str(FOLLOWERS), [whole("sent_at")], celebrity_over=200)

if __name__ == "__main__":
    raise SystemExit(main(FEED, FEED.tables, name="feed"))
