"""What is known of sealed batches, compared with a list of them, and which of them may be dropped."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncegate.flows.batch_log import BatchLog, BatchLogState, BatchMeta
from oncegate.flows.chunks import int64s_from_bytes
from oncegate.flows.cursor import Consumers
from oncegate.flows.errors import BadRequestError, NotFoundError, RetentionExceededError
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.retention import droppable_through, why_held
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.state.flow_images import FlowMark, freeze_flow


class BatchLogMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.log = BatchLog()
        self.model: list[BatchMeta] = []
        self.dropped = 0
        self.events: list[int] = []
        self.unread = False
        """Whether a batch was dropped of which nobody knows the event times that count."""
        self.flow = Flow(FlowDeclaration(name="f", source="a", event_time="at"))
        self.flow.batches = self.log
        self.mark = FlowMark(self.flow)
        self.cells: dict[bytes, bytes] = {}

    @rule(gap=st.integers(0, 3), items=st.integers(1, 9), spread=st.integers(0, 9), later_ms=st.integers(0, 5))
    def seal(self, gap: int, items: int, spread: int, later_ms: int) -> None:
        commit = self.model[-1].last_commit + 1 + gap if self.model else 1 + gap
        last_commit = commit + items - 1 + spread
        sealed_ms = (self.model[-1].sealed_ms if self.model else 0) + later_ms
        number = self.log.append(commit, last_commit, items, items * 7, sealed_ms)
        self.model.append(BatchMeta(len(self.model) + 1, commit, last_commit, items, items * 7, sealed_ms))
        assert number == len(self.model)

    @rule(share=st.floats(0, 1))
    def drop(self, share: float) -> None:
        number = int(share * len(self.model))
        gone = self.log.drop_through(number)
        assert list(gone) == list(range(self.dropped + 1, number + 1))
        self.dropped = max(self.dropped, number)
        self.unread = self.unread or self.dropped > len(self.events)
        self.events += [0] * (self.dropped - len(self.events))

    @rule(newest=st.lists(st.integers(0, 50), max_size=4), back=st.integers(0, 2))
    def clock(self, newest: list[int], back: int) -> None:
        first = max(self.log.clocked_through + 1 - back, 1)
        known = len(self.events)
        self.log.clock(first, newest)
        for number, event in enumerate(newest, first):
            if known < number <= len(self.model) and number > self.dropped:
                # What was dropped unread is never known.
                self.events += [0] * (number - 1 - len(self.events))
                self.events.append(event)

    @rule(newest=st.lists(st.integers(1, 50), min_size=1, max_size=3), share=st.floats(0, 1))
    def seal_clock_and_drop(self, newest: list[int], share: float) -> None:
        """What each rule alone seldom comes to: event times that are known and then dropped."""
        for _ in newest:
            self.seal(0, 1, 0, 1)
        unknown = len(self.model) - self.log.clocked_through
        self.clock((newest * unknown)[:unknown], 0)
        self.drop(share)

    @rule(slept_ms=st.integers(0, 9))
    def sleep(self, slept_ms: int) -> None:
        self.log.sleep(slept_ms)
        self.model = [batch._replace(sealed_ms=batch.sealed_ms + slept_ms) for batch in self.model]

    @rule(newest=st.lists(st.integers(1, 50), min_size=1, max_size=4))
    def another_event_time(self, newest: list[int]) -> None:
        """Of what is retained every event time is read again; of what was dropped none will ever be."""
        self.clock(newest, 0)
        self.save()
        self.log.reset_clock()
        self.events, self.unread = [0] * self.dropped, self.dropped > 0
        self.save()

    @rule()
    def save(self) -> None:
        """A save writes what changed since the one before; all saves together leave what one of everything would."""
        self._write(self.mark, self.cells)
        whole: dict[bytes, bytes] = {}
        self._write(FlowMark(self.flow), whole)
        assert self.cells == whole
        assert len(whole) == len(self.model) - self.dropped

    def _write(self, mark: FlowMark, cells: dict[bytes, bytes]) -> None:
        self.flow.moves += 1
        frozen = freeze_flow(0, self.flow, mark)
        assert frozen is not None
        for key, cell in frozen.batch_cells():
            if cell is None:
                del cells[key]
            else:
                cells[key] = cell

    @rule()
    def restart(self) -> None:
        self.save()
        data = msgspec.msgpack.encode(self.log.snapshot())
        self.log = self.flow.batches = BatchLog.restore(msgspec.msgpack.decode(data, type=BatchLogState))
        assert msgspec.msgpack.encode(self.log.snapshot()) == data
        self.mark = FlowMark(self.flow, None, self.log.first, self.log.last, self.log.clocked_through)

    @invariant()
    def what_is_saved_after_a_batch_is_the_rest_of_its_columns_and_nothing_else(self) -> None:
        for after in range(len(self.model) + 2):
            state = self.log.snapshot(after)
            rest = [(batch.last_commit, batch.sealed_ms) for batch in self.model[max(after, self.dropped) :]]
            columns = (int64s_from_bytes(state.last_commits), int64s_from_bytes(state.sealed_ms))
            assert list(zip(*columns, strict=True)) == rest

    @invariant()
    def clock_at_a_batch_is_the_newest_event_time_until_then(self) -> None:
        assert self.log.clocked_through == max(len(self.events), self.dropped)
        for number in range(self.dropped, len(self.model) + 1):
            assert self.log.event_ms_at(number) == max(self.events[:number], default=0)

    @invariant()
    def all_items_of_an_event_time_or_a_later_one_are_read_from_there(self) -> None:
        for event in (1, 10, 30, 60):
            dropped = [known for known in self.events[: self.dropped] if known >= event]
            try:
                cursor = self.log.before_event(event)
            except RetentionExceededError:
                assert dropped or self.unread
            else:
                assert not dropped
                if self.unread:
                    assert cursor > self.dropped, "nobody knows the event times of what lies before all that is read"
                assert all(known < event for known in self.events[self.dropped : cursor])

    @invariant()
    def retained_batches_are_those_of_the_model(self) -> None:
        log, kept = self.log, self.model[self.dropped :]
        assert (log.first, log.last, len(log)) == (self.dropped + 1, len(self.model), len(kept))
        assert [log.get(b.number) for b in kept] == kept
        assert log.items_total == sum(b.items for b in self.model)
        for number in range(len(self.model) + 2):
            after = [b for b in kept if b.number > number]
            assert log.items_after(number) == sum(b.items for b in after)
            assert log.bytes_after(number) == sum(b.size_bytes for b in after)
            assert log.sealed_ms_after(number) == (after[0].sealed_ms if after else None)
        for time_ms in {b.sealed_ms + d for b in kept for d in (-1, 0, 1)}:
            by = [b.number for b in kept if b.sealed_ms <= time_ms]
            assert log.last_sealed_by(time_ms) == (by[-1] if by else self.dropped)
            # Items applied at a time or later are in batches sealed at that time or later.
            late = [b.number for b in self.model if b.sealed_ms >= time_ms]
            begins = late[0] if late else len(self.model) + 1
            if begins > self.dropped + 1 or not self.dropped:
                assert log.before_time(time_ms) == begins - 1
            else:
                with pytest.raises(RetentionExceededError):
                    log.before_time(time_ms)
        for commit in range(1, self.model[-1].last_commit + 3 if self.model else 3):
            spans = [b.number for b in kept if b.first_commit <= commit <= b.last_commit]
            assert log.of_commit(commit) == (spans[0] if spans else None)


TestBatchLogEqualsAListOfBatches = BatchLogMachine.TestCase
TestBatchLogEqualsAListOfBatches.settings = settings(deadline=None, max_examples=40, stateful_step_count=25)


def test_log_that_begins_above_one_never_uses_the_numbers_below() -> None:
    log = BatchLog(51)
    assert (log.first, log.last, len(log), log.has_dropped) == (51, 50, 0, False)
    assert log.append(1, 5, 5, 10, 100) == 51
    again = BatchLog.restore(log.snapshot())
    assert (again.first, again.last, again.bytes_after(50), again.bytes_after(0)) == (51, 51, 10, 10)
    assert again.before_time(100) == 50
    with pytest.raises(RetentionExceededError):
        again.get(50)


@pytest.mark.parametrize(("size_bytes", "through"), [(50, 0), (49, 1), (40, 1), (39, 2), (10, 4), (9, 5), (0, 5)])
def test_as_many_batches_are_kept_for_a_size_as_fit_into_it(size_bytes: int, through: int) -> None:
    log = BatchLog()
    for number in range(1, 6):
        log.append(number, number, 1, 10, number)
    assert log.before_bytes(size_bytes) == through
    log.drop_through(2)
    assert log.before_bytes(size_bytes) == max(through, 2)


def test_batch_that_is_dropped_unsealed_or_impossible_has_its_own_refusal() -> None:
    log = BatchLog()
    log.append(1, 5, 5, 10, 100)
    log.append(6, 9, 4, 10, 100)
    log.drop_through(1)
    with pytest.raises(RetentionExceededError):
        log.get(1)
    with pytest.raises(NotFoundError):
        log.get(3)
    with pytest.raises(BadRequestError):
        log.get(0)
    with pytest.raises(BadRequestError):
        log.drop_through(3)


@pytest.mark.parametrize(
    ("first_commit", "last_commit", "items", "sealed_ms"),
    [(5, 9, 5, 100), (6, 5, 1, 100), (6, 9, 0, 100), (6, 9, 4, 99)],
)
def test_batch_that_does_not_follow_is_refused(first_commit: int, last_commit: int, items: int, sealed_ms: int) -> None:
    log = BatchLog()
    log.append(1, 5, 5, 10, 100)
    with pytest.raises(ValueError, match="does not follow"):
        log.append(first_commit, last_commit, items, 10, sealed_ms)
    assert log.last == 1


def test_batches_after_the_one_named_weigh_no_more_than_the_bound() -> None:
    log = BatchLog()
    assert log.before_bytes(5) == 0
    for number in range(1, 5):
        log.append(number, number, 1, 10 * number, 0)
    assert [log.before_bytes(size) for size in (0, 39, 40, 69, 70, 90, 99, 100, 200)] == [4, 4, 3, 3, 2, 1, 1, 0, 0]
    log.drop_through(2)
    assert [log.before_bytes(size) for size in (39, 40, 69, 70)] == [4, 3, 3, 2]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 20), max_size=8),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 8)),
    st.sets(st.sampled_from("abc")),
    st.integers(0, 30),
    st.integers(0, 200),
    st.integers(-3, 8),
    st.integers(0, 40),
)
def test_batch_goes_only_when_consumers_and_time_or_size_have_passed_it(
    steps_ms: list[int],
    cursors: dict[str, int],
    required: set[str],
    retention_ms: int,
    now_ms: int,
    dropped: int,
    retention_bytes: int,
) -> None:
    """Consumers are required or not, and required ones may never have come; batch n has n bytes."""
    names = tuple(sorted(required))
    flow = FlowDeclaration(
        name="f", source="a", retention_ms=retention_ms, retention_bytes=retention_bytes, consumers=names
    )
    log, consumers, sealed = BatchLog(), Consumers(flow.consumers), []
    for number, step_ms in enumerate(steps_ms):
        sealed.append((sealed[-1] if sealed else 0) + step_ms)
        log.append(number + 1, number + 1, 1, number + 1, sealed[-1])
    for name, cursor in cursors.items():
        fence = consumers.attach(name, "n", log).fence
        consumers.move(name, min(cursor, log.last), fence, log)
    if dropped < 0:  # the oldest batch is one that the slowest consumer has just passed, or is about to pass
        dropped = max(0, consumers.watermark() + dropped + 1)
    log.drop_through(min(dropped, log.last))
    through = droppable_through(flow, log, consumers, now_ms)
    for number in range(log.first, log.last + 1):
        awaited = [cursors.get(name, 0) for name in required or cursors]
        passed = bool(awaited) and min(awaited) >= number
        over = sealed[number - 1] + retention_ms <= now_ms
        follow = sum(range(number, log.last + 1))
        heavy = bool(retention_bytes) and follow > retention_bytes
        assert (number <= through) == (passed and (over or heavy))
    _says_what_the_oldest_waits_for(why_held(flow, log, consumers, now_ms), flow, log, cursors)
    log.drop_through(through)
    assert droppable_through(flow, log, consumers, now_ms) == log.first - 1


def _says_what_the_oldest_waits_for(words: str, flow: FlowDeclaration, log: BatchLog, cursors: dict[str, int]) -> None:
    """The slowest of those that count, with its cursor; its own time or size once all have passed it."""
    awaited = {name: cursors.get(name, 0) for name in flow.consumers or cursors}
    behind = {name for name, cursor in awaited.items() if cursor == min(awaited.values()) and cursor < log.first}
    if not len(log):
        assert words == ""
    elif not awaited:
        assert words == f"batch {log.first} of flow f waits for a consumer: none has attached"
    elif behind:
        assert words.startswith(f"batch {log.first} of flow f waits for consumer ")
        named = (f"{name} (cursor {cursors[name]})" if name in cursors else f"{name} (which has" for name in behind)
        assert all(one in words for one in named)
    else:
        size = f", or {flow.retention_bytes} bytes follow it" if flow.retention_bytes else ""
        assert words == f"batch {log.first} of flow f is kept until its retention_ms is over{size}"


def test_reader_from_an_event_time_misses_no_item_of_it_or_is_refused() -> None:
    """Also where the time is the very one of the newest item that was dropped, or of none at all."""
    dice = random.Random(1)
    for _ in range(200):
        log, newest = BatchLog(), [dice.choice((0, 0, *range(1, 9))) for _ in range(dice.randint(1, 6))]
        for number in range(1, len(newest) + 1):
            log.append(number, number, 1, 1, number)
        log.clock(1, newest)
        dropped = dice.randint(0, len(newest))
        log.drop_through(dropped)
        for at_ms in range(10):
            lost = any(event >= at_ms for event in newest[:dropped])
            try:
                cursor = log.before_event(at_ms)
            except RetentionExceededError:
                assert lost, (newest, dropped, at_ms)
            else:
                assert not lost, (newest, dropped, at_ms)
                assert dropped <= cursor <= len(newest)
                assert all(event < at_ms for event in newest[:cursor]), "what is skipped is older"
