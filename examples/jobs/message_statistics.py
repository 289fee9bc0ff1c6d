"""Statistics of messages, all by one job: how many a day, to how many, to whom most often, and when."""

from oncegate.spark import main
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.sketches import distinct, most_frequent, quantiles
from oncegate.spark_sink.library.together import together

SENDER, RECEIVER = whole("sender"), whole("receiver")

DAILY = totals("messages_per_day", [SENDER, whole("sent_at", per=86_400, column="day")], count="messages")
REACHED = distinct("receivers_reached", [SENDER], RECEIVER)
FAVOURITES = most_frequent("favourite_receivers", [SENDER], RECEIVER)
TIMES = quantiles("times_of_messages", [text("kind", default="all")], whole("sent_at"))

STATISTICS = together(DAILY, REACHED, FAVOURITES, TIMES)

if __name__ == "__main__":
    raise SystemExit(main(STATISTICS, STATISTICS.tables, name="message-statistics"))
