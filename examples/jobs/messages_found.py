"""A copy of all messages, found by sender and by receiver; a message that is deleted or changed is found no more."""

from oncegate.spark import main
from oncegate.spark_sink.library.copies import copied
from oncegate.spark_sink.library.fields import whole

FIELDS = [whole("sender"), whole("receiver"), whole("sent_at")]
MESSAGES = copied("all_messages", FIELDS, by=["sender", "receiver"])

if __name__ == "__main__":
    raise SystemExit(main(MESSAGES, MESSAGES.tables, name="messages-found"))
