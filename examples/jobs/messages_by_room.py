"""Keeps an index of the messages of each room, newest first; a row key is `room/message`."""

from oncegate.spark import Clustering, Column, ColumnType, FlowBatch, StoreTable, main

INDEX = StoreTable(
    name="messages_by_room",
    columns=(*(Column(name, ColumnType.TEXT) for name in ("room", "message", "text")),),
    partition_key=("room",),
    clustering=(Clustering("message", descending=True),),
)


def messages_by_room(batch: FlowBatch):
    for item in batch:
        room, separator, message = item.key.partition("/")
        if not separator:
            yield item.reject("the key names no room")
        elif item.value is None:
            yield item.delete(INDEX, room=room, message=message)
        else:
            yield item.upsert(INDEX, room=room, message=message, text=item.json()["text"])


if __name__ == "__main__":
    raise SystemExit(main(messages_by_room, [INDEX]))
