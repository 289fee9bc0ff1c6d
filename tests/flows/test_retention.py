"""Which batches may be dropped."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows.batch_log import BatchLog
from oncegate.flows.cursor import Consumers
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.retention import droppable_through


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 20), max_size=8),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 8)),
    st.booleans(),
    st.integers(0, 30),
    st.integers(0, 200),
    st.integers(0, 8),
)
def test_batch_goes_only_when_consumers_and_time_have_passed_it(
    steps_ms: list[int], cursors: dict[str, int], required: bool, retention_ms: int, now_ms: int, dropped: int
) -> None:
    flow = FlowDeclaration(
        name="f", source="a", retention_ms=retention_ms, consumers=tuple(cursors) if required else ()
    )
    log, consumers, sealed = BatchLog(), Consumers(flow.consumers), []
    for number, step_ms in enumerate(steps_ms):
        sealed.append((sealed[-1] if sealed else 0) + step_ms)
        log.append(number + 1, number + 1, 1, 1, sealed[-1])
    for name, cursor in cursors.items():
        fence = consumers.attach(name, "n", log).fence
        consumers.move(name, min(cursor, log.last), fence, log)
    log.drop_through(min(dropped, log.last))
    through = droppable_through(flow, log, consumers, now_ms)
    for number in range(log.first, log.last + 1):
        passed = bool(cursors) and all(min(cursor, log.last) >= number for cursor in cursors.values())
        over = sealed[number - 1] + retention_ms <= now_ms
        assert (number <= through) == (passed and over)
    log.drop_through(through)
    assert droppable_through(flow, log, consumers, now_ms) == log.first - 1


def test_required_consumer_that_has_never_come_holds_everything() -> None:
    flow = FlowDeclaration(name="f", source="a", retention_ms=0, consumers=("later",))
    log = BatchLog()
    log.append(1, 1, 1, 1, 0)
    assert droppable_through(flow, log, Consumers(flow.consumers), 10**9) == 0


def test_flow_that_nobody_has_read_drops_nothing() -> None:
    flow = FlowDeclaration(name="f", source="a", retention_ms=0)
    log = BatchLog()
    log.append(1, 1, 1, 1, 0)
    assert droppable_through(flow, log, Consumers(), 10**9) == 0


def test_optional_consumer_holds_nothing_where_others_are_required() -> None:
    flow = FlowDeclaration(name="f", source="a", retention_ms=0, consumers=("needed",))
    log, consumers = BatchLog(), Consumers(flow.consumers)
    log.append(1, 1, 1, 1, 0)
    consumers.attach("curious", "n", log)
    consumers.move("needed", 1, consumers.attach("needed", "n", log).fence, log)
    assert droppable_through(flow, log, consumers, 10**9) == 1
