"""Doubts and fates against a dictionary and the real apply rule: answers that are lost, late and doubled.

The model is what the server has executed, by number. The client half is the real tracker, doubts and fates.
"""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from oncegate.gateway.client import doubts as doubts_module
from oncegate.gateway.client import fates as fates_module
from oncegate.gateway.client.doubts import Doubts
from oncegate.gateway.client.fates import SEALED, Fates
from oncegate.gateway.client.results import Resolution, RowsPart, WriteResult
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import WINDOW_DEFAULT, ClientId, Epoch, Fingerprint, RequestId, SequenceNumber
from oncegate.rifl.request_tracker import RequestTracker
from oncegate.rifl.resolve_rule import Fate, resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import EXECUTE, Refusal, Replay, Standing, decide

WINDOW = 6
CLIENT, EPOCH = ClientId(7), Epoch(1)


def request(number: int) -> RequestId:
    return RequestId(CLIENT, SequenceNumber(number))


def applied(number: int, commit: int) -> Resolution:
    return Resolution("applied", WriteResult(*request(number), True, commit, commit, None, False, 0))


class Server:
    """The session's records under the real rules; ``executed`` is the model: number to commit number."""

    def __init__(self) -> None:
        self.records = ResultTracker(WINDOW)
        self.executed: dict[int, int] = {}

    def attempt(self, number: int, ack: int) -> Resolution | Refusal:
        """One attempt of a write reaches the log."""
        sequence, payload = SequenceNumber(number), Fingerprint(number)
        verdict = decide(self.records, sequence, SequenceNumber(ack), payload, Standing.LIVE)
        if isinstance(verdict, Refusal):
            return verdict
        if verdict is EXECUTE:
            assert number not in self.executed, "executed twice"
            self.executed[number] = len(self.executed) + 1
            self.records.record(sequence, payload, self.executed[number])
        else:
            assert isinstance(verdict, Replay)
        self.records.acknowledge(SequenceNumber(ack))
        return applied(number, self.executed[number])

    def resolve(self, number: int, ack: int) -> Resolution | Fate | Code:
        """A question about a write reaches the log."""
        try:
            verdict = resolve(self.records, SequenceNumber(number), SequenceNumber(ack))
        except OncegateError as refused:
            return refused.code
        self.records.acknowledge(SequenceNumber(ack))
        if verdict.fate is Fate.EXECUTED:
            return applied(number, self.executed[number])
        return SEALED if verdict.fate is Fate.SEALED else verdict.fate


class DoubtsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.tracker = RequestTracker(window=WINDOW)
        self.doubts = Doubts(CLIENT, EPOCH, self.tracker, Fates())
        self.copies: list[tuple[int, int]] = []  # attempts under way: number, ack
        self.open: set[int] = set()  # somebody waits for these
        self.gone: set[int] = set()  # sent on, though the caller has gone: cancelled
        self.untold: set[int] = set()  # every caller of these was told "unknown", and nothing since
        self.told: dict[int, Resolution] = {}
        self.forgotten: set[int] = set()  # nobody will ask for these

    # What a caller and the network do

    @rule(count=st.integers(1, WINDOW))
    def write(self, count: int) -> None:
        count = min(count, self.tracker.room_for_singles)
        for number in self.tracker.take_singles(count):
            self.open.add(number)
            self.copies.append((number, self.tracker.first_incomplete))

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), lost=st.booleans(), doubled=st.booleans())
    def arrive(self, data: st.DataObject, lost: bool, doubled: bool) -> None:
        at = data.draw(st.integers(0, len(self.copies) - 1))
        number, ack = self.copies[at]
        if not doubled:
            del self.copies[at]
        answer = self.server.attempt(number, ack)
        if not lost:
            self.answered(number, answer)

    def answered(self, number: int, answer: Resolution | Refusal) -> None:
        if answer is Refusal.SEALED:
            answer = SEALED
        if not isinstance(answer, Resolution):
            assert number not in self.open | self.gone or answer is Refusal.WINDOW_FULL
            return
        if number in self.open:
            self.open.discard(number)
            self.tracker.complete([number])
            self.told[number] = answer
        elif number in self.gone:
            self.gone.discard(number)
            self.doubts.heard([number], [(number, answer)])
        # a copy of what has ended: its request was given up, and nobody reads the answer

    @precondition(lambda self: self.open | self.gone)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open | self.gone)))
        self.copies.append((number, self.tracker.first_incomplete))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.open.discard(number)
        self.gone.add(number)
        self.untold.add(number)

    @precondition(lambda self: self.open | self.gone)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open | self.gone)))
        self.open.discard(number)
        self.gone.discard(number)
        if number not in self.told and number not in self.forgotten:
            self.untold.add(number)
        self.doubts.gave_up([number])

    @precondition(lambda self: self.untold)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.untold)))
        self.untold.discard(number)
        self.forgotten.add(number)
        self.doubts.forget(request(number))

    # What the session does

    @rule(told_full=st.booleans())
    def make_room(self, told_full: bool) -> None:
        self.tracker.make_room(WINDOW, told_full=told_full)

    @rule(count=st.integers(1, 3), lost=st.booleans())
    def ask(self, count: int, lost: bool) -> None:
        for question in self.doubts.ask(count):
            number = question.request.sequence
            fate = self.question(number)
            if fate is not None and not lost:
                self.doubts.learned(question.request, fate)
            self.doubts.asked(question.request)

    def question(self, number: int) -> Resolution | None:
        self.doubts.reach(number)
        answer = self.server.resolve(number, min(self.tracker.first_incomplete, number))
        assert answer is Code.WINDOW_FULL or isinstance(answer, Resolution), f"{number} can never be known: {answer}"
        return answer if isinstance(answer, Resolution) else None

    @precondition(lambda self: self.untold)
    @rule(data=st.data(), lost=st.booleans())
    def resolve(self, data: st.DataObject, lost: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.untold)))
        fate = self.doubts.told(request(number))
        if fate is None:
            fate = self.question(number)
            if fate is None or lost:
                return
            self.doubts.learned(request(number), fate, told=True)
        self.untold.discard(number)
        self.told[number] = fate

    @invariant()
    def every_fate_told_is_the_true_one_for_ever(self) -> None:
        for number, fate in self.told.items():
            commit = fate.result.commit if fate.result else None
            assert self.server.executed.get(number) == commit

    @invariant()
    def nothing_is_acknowledged_before_its_fate_is_known(self) -> None:
        known = self.doubts.fates.find
        lowest = min([n for n in self.untold if known(request(n)) is None], default=self.tracker.first_incomplete)
        assert self.tracker.first_incomplete <= lowest
        assert self.server.records.first_incomplete <= lowest

    @invariant()
    def a_fate_is_kept_when_it_becomes_known_exactly_if_somebody_may_ask_for_it(self) -> None:
        assert not any(self.doubts.fates.find(request(number)) for number in self.forgotten)
        for number in filter(self.tracker.may_be_asked, self.untold | self.forgotten):
            assert self.doubts.wants(request(number)) == (number in self.untold)

    def teardown(self) -> None:
        for number in sorted(self.open | self.gone):
            self.doubts.gave_up([number])
        self.untold |= self.open | self.gone - self.forgotten
        for _ in range(3 * WINDOW):
            for question in self.doubts.ask(WINDOW):
                fate = self.question(question.request.sequence)
                if fate is not None:
                    self.doubts.learned(question.request, fate)
                self.doubts.asked(question.request)
            self.tracker.make_room(WINDOW)
        assert not len(self.doubts), "every doubt ends"
        for number in self.untold:
            fate = self.doubts.told(request(number))
            assert fate is not None
            self.told[number] = fate
        self.every_fate_told_is_the_true_one_for_ever()
        assert self.tracker.room_for_singles == WINDOW


DoubtsAgainstModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
test_every_doubt_gets_its_true_answer = DoubtsAgainstModel.TestCase


def test_doubts_are_answered_after_a_million_further_writes() -> None:
    server, tracker = Server(), RequestTracker(window=WINDOW_DEFAULT)
    doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
    executed, sealed = tracker.take_singles(2)
    server.attempt(executed, 1)
    doubts.gave_up([executed, sealed])
    for question in doubts.ask(2):
        fate = server.resolve(question.request.sequence, 1)
        assert isinstance(fate, Resolution)
        doubts.learned(question.request, fate)
    while tracker.first_incomplete < 1_000_000:
        tracker.make_room(WINDOW_DEFAULT)
        tracker.complete(tracker.take_singles(tracker.room_for_singles))
    told = [doubts.told(request(number)) for number in (executed, sealed)]
    assert [fate and fate.executed for fate in told] == [True, False]


# Sessions that follow one another: each gives the same numbers out again


class RenewalsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = RequestTracker(window=WINDOW)
        self.client_id, self.epochs = ClientId(1), {1: Epoch(1)}
        self.doubts = Doubts(self.client_id, Epoch(1), self.tracker, Fates())
        self.unknown: set[RequestId] = set()
        self.known: dict[RequestId, Resolution] = {}  # and told nobody

    @rule(epoch=st.integers(1, 3).map(Epoch), count=st.integers(1, 3))
    def open_anew(self, epoch: Epoch, count: int) -> None:
        self.client_id = ClientId(self.client_id + 1)
        self.epochs[self.client_id] = epoch
        self.tracker = RequestTracker(window=WINDOW)
        self.doubts.go_on(self.client_id, epoch, self.tracker)
        self.give_up(count)

    @rule(count=st.integers(1, 3))
    def give_up(self, count: int) -> None:
        numbers = self.tracker.take_singles(min(count, self.tracker.room_for_singles))
        self.doubts.gave_up(numbers)
        self.unknown.update(RequestId(self.client_id, number) for number in numbers)

    @rule(count=st.sampled_from((1, 2, 20)), executed=st.booleans())
    def ask(self, count: int, executed: bool) -> None:
        for question in self.doubts.ask(count):
            asked = question.request
            assert question.epoch == self.epochs[asked.client_id]
            result = WriteResult(*asked, True, asked.client_id, asked.sequence, None, False, 0)
            fate = self.known[asked] = Resolution("applied", result) if executed else SEALED
            self.unknown.remove(asked)
            self.doubts.learned(asked, fate)
            self.doubts.asked(asked)

    @precondition(lambda self: self.unknown or self.known)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted({*self.unknown, *self.known})))
        known = self.known.pop(request, None)
        assert self.doubts.told(request) == known
        if known is None:
            self.unknown.remove(request)
            self.doubts.learned(request, SEALED, told=True)

    @invariant()
    def each_number_waits_until_its_own_fate_is_told(self) -> None:
        left = [one for one in (*self.unknown, *self.known) if one.client_id == self.client_id]
        assert self.tracker.incomplete == len(left)
        for one in left:
            assert self.tracker.is_abandoned(one.sequence) == (one in self.unknown)
        assert len(self.doubts) == len(self.unknown)
        assert self.doubts.of_this_session == any(one in self.unknown for one in left)


RenewalsAgainstModel.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
test_doubts_of_sessions_that_follow_one_another_stay_apart = RenewalsAgainstModel.TestCase


# The store of fates alone, against a dictionary


class FatesAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fates = Fates()
        self.kept: dict[int, int] = {}  # number to commit number, 0: sealed
        self.told: dict[int, int] = {}

    numbers = st.integers(1, 40)

    @rule(number=numbers, commit=st.sampled_from([0, 500]))
    def keep(self, number: int, commit: int) -> None:
        self.fates.keep(request(number), applied(number, commit) if commit else SEALED)
        if number not in self.told:
            self.kept.setdefault(number, commit)

    @rule(first=numbers, length=st.integers(1, 20), commit=st.sampled_from([1_000, 2_000]))
    def keep_rows(self, first: int, length: int, commit: int) -> None:
        self.fates.keep_rows(CLIENT, first, first + length - 1, commit + first)
        for number in range(first, first + length):
            if number not in self.told:
                self.kept.setdefault(number, commit + number)

    @rule(number=numbers)
    def tell(self, number: int) -> None:
        found = self.fates.tell(request(number))
        assert (found is None) == (number not in self.kept and number not in self.told)
        if number in self.kept:
            self.told[number] = self.kept.pop(number)

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        self.fates.forget(request(number))
        self.kept.pop(number, None)
        self.told.pop(number, None)

    @invariant()
    def every_fate_is_found(self) -> None:
        for number in range(62):
            fate = self.fates.find(request(number))
            commit = self.kept.get(number, self.told.get(number))
            assert (None if fate is None else fate.result.commit if fate.result else 0) == commit
            assert fate is None or fate.result is None or fate.result.request_id == request(number)

    @invariant()
    def neighbours_are_few_runs_and_bytes_are_counted(self) -> None:
        assert len(self.fates) <= len(self.kept)
        assert self.fates.bytes == sum(run.size for run in self.fates._runs.values())


FatesAgainstModel.TestCase.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
test_fates_agree_with_a_dictionary = FatesAgainstModel.TestCase


def test_rows_of_a_range_and_numbers_never_applied_take_one_run_each() -> None:
    fates = Fates()
    fates.keep_rows(CLIENT, 1, 4_096, 100)
    for number in range(5_000, 9_000):
        fates.keep(request(number), SEALED)
    assert len(fates) == 2


def test_bound_of_fates_is_one_of_runs_and_one_of_bytes_and_what_was_told_goes_first() -> None:
    few = Fates(fates_max=2)
    small = Fates(bytes_max=1_000)
    for number in (1, 3):
        assert not few.is_full
        few.keep(request(number), SEALED)
    assert few.is_full
    few.tell(request(1))
    assert not few.is_full
    value = WriteResult(*request(1), True, 1, 1, "x" * 1_000, False, 0)
    small.keep(request(1), Resolution("applied", value))
    assert small.is_full
    for number in range(10, 11 + fates_module.TOLD_MAX):
        few.remember(request(number), SEALED)
    assert few.find(request(1)) is None
    assert few.find(request(3)) is SEALED


def test_question_about_any_row_finds_room_for_a_seal_once_all_below_it_is_known() -> None:
    """Ranges have more numbers than the window has places; the server counts those that never arrived one by one."""
    lengths = [one for count in (2, 3) for one in product((1, 2, WINDOW), repeat=count)]
    for layout, arrived in ((one, bits) for one in lengths for bits in product((False, True), repeat=len(one))):
        server, tracker = Server(), RequestTracker(window=WINDOW)
        doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
        firsts = [tracker.take_range(length) for length in layout]
        for first, length, here in zip(firsts, layout, arrived, strict=True):
            for number in range(first, first + length) if here else ():
                server.attempt(number, 1)
        doubts.gave_up(firsts)
        while questions := doubts.ask(1):
            number = questions[0].request.sequence
            doubts.reach(number)
            assert tracker.first_incomplete <= number
            fate = server.resolve(number, tracker.first_incomplete)
            assert isinstance(fate, Resolution), f"{layout}, arrived {arrived}: {number} is refused with {fate}"
            doubts.learned(questions[0].request, fate)
        told = [doubts.told(request(number)) for number in range(1, sum(layout) + 1)]
        assert [fate and fate.executed for fate in told] == [n in server.executed for n in range(1, sum(layout) + 1)]


@pytest.mark.parametrize("forgotten_while", ["open", "in doubt", "in doubt since the session before"])
@pytest.mark.parametrize("length", [1, 3])
def test_fate_that_nobody_will_ask_for_is_not_kept_and_those_beside_it_are(length: int, forgotten_while: str) -> None:
    for forgotten in (set(some) for count in range(length + 1) for some in combinations(range(2, 2 + length), count)):
        tracker = RequestTracker(window=WINDOW)
        doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
        tracker.complete(tracker.take_singles(1))
        first = tracker.take_range(length)
        if forgotten_while != "open":
            doubts.gave_up([first])
        if forgotten_while == "in doubt since the session before":
            doubts.go_on(ClientId(CLIENT + 1), EPOCH, RequestTracker(window=WINDOW))
        for number in forgotten:
            doubts.forget(request(number))
        assert [doubts.wants(request(number)) for number in range(2, 2 + length)] == [
            number not in forgotten for number in range(2, 2 + length)
        ]
        if forgotten_while != "open":
            for question in doubts.ask(length):
                doubts.learned(question.request, applied(question.request.sequence, question.request.sequence))
        elif length == 1:
            doubts.heard([first], [(first, applied(first, first))])
        else:
            doubts.heard([first], rows=[RowsPart(first, SequenceNumber(first + length - 1), first, False)])
        found = [doubts.fates.find(request(number)) for number in range(1, 4 + length)]
        kept = set(range(2, 2 + length)) - forgotten
        assert found == [applied(number, number) if number in kept else None for number in range(1, 4 + length)]


@pytest.mark.parametrize("length", [1, 3])
def test_write_that_gets_the_number_of_one_that_was_forgotten_has_a_fate(length: int) -> None:
    tracker = RequestTracker(window=WINDOW)
    doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
    first = tracker.take_range(length)
    doubts.forget(request(first + length - 1))
    doubts.release([first])
    assert tracker.take_range(length) == first, "the number is given out again"
    assert all(doubts.wants(request(number)) for number in range(first, first + length))


def test_what_is_said_of_calls_that_get_their_answers_is_not_remembered_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one that is never answered it is, and its fate is not kept."""
    monkeypatch.setattr(doubts_module, "UNWANTED_MIN", 4)
    tracker = RequestTracker(window=WINDOW)
    doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
    (doubted,) = tracker.take_singles(1)
    doubts.gave_up([doubted])
    doubts.forget(request(doubted))
    for _ in range(WINDOW - 1):
        for number in tracker.take_singles(1):
            doubts.forget(request(number))
            tracker.complete([number])
        assert len(doubts._unwanted) <= 4
    assert not doubts.wants(request(doubted))


def test_lost_doubts_hold_up_nothing() -> None:
    tracker = RequestTracker(window=WINDOW)
    doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
    doubts.gave_up(tracker.take_singles(3))
    doubts.lose(request(1))
    assert [question.request.sequence for question in doubts.ask(9)] == [2, 3]
    doubts.lose_all(CLIENT)
    assert not len(doubts)


def test_doubt_of_a_range_ends_with_its_last_row() -> None:
    tracker = RequestTracker(window=WINDOW)
    doubts = Doubts(CLIENT, EPOCH, tracker, Fates())
    first = tracker.take_range(4)
    doubts.heard([], rows=[RowsPart(SequenceNumber(1), SequenceNumber(2), 70, False)])
    doubts.gave_up([first])
    for number in (4, 3):
        assert tracker.is_abandoned(first)
        doubts.learned(request(number), SEALED)
    assert not tracker.is_abandoned(first)
    assert [fate and fate.state for fate in map(doubts.told, map(request, range(1, 6)))] == [
        "applied",
        "applied",
        "sealed",
        "sealed",
        None,
    ]
