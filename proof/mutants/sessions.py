"""Planted bugs of sessions, completion records, leases, keys and clients. Read next:
:mod:`oncegate.proof.mutants.mutant`.
"""

from __future__ import annotations

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import operations, session_handlers
from oncegate.gateway.machine.apply import HANDLERS
from oncegate.gateway.machine.cluster_clock import ClusterClock
from oncegate.gateway.machine.results import Operated
from oncegate.gateway.machine.row_rule import holds, refused
from oncegate.gateway.machine.state import session_images
from oncegate.gateway.machine.state.layout import encode_session
from oncegate.proof.mutants.forgotten import executes
from oncegate.proof.mutants.mutant import Mutant, enter, plants
from oncegate.rifl import rule as rule_module
from oncegate.rifl.completion import CompletionRecord, RangeRecord
from oncegate.rifl.key_table import KeySlot
from oncegate.rifl.range_rule import NewPart, ReplayPart, decide_range
from oncegate.rifl.request_tracker import RequestTracker
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Replay, Replayed, decide, standing
from oncegate.rifl.session import SessionTable

_CHANGES = {"kill": 6, "transfer": 6}
_KILLS = {"kill": 8, "kill several": 4, "power loss": 4, "break": 3}
_SAVED = {"save_every": 10}
_record = ResultTracker.record
_acknowledge = ResultTracker.acknowledge
_operate = operations.operate
_execute_part = operations.execute_part
_take_over = SessionTable.take_over
_slot_record = KeySlot.record
_lead_from = ClusterClock.lead_from
_resumed = RequestTracker.resumed
_first_incomplete = RequestTracker.first_incomplete


def _executes(wrong, name, workload, breaks):
    enter(Mutant(name, breaks, workload, ((rule_module, "decide", executes(wrong)),)))


_executes(Replay, "apply-without-dedup", "counter", "a retry is executed again")
_executes(Refusal.STALE, "stale-is-new", "dedup", "a copy that comes after its acknowledgement is executed again")
_executes(Refusal.WINDOW_FULL, "window-not-checked", "dedup", "a number far above first incomplete is executed")
_executes(Refusal.SEALED, "sealed-is-executed", "resolve", "an id that was sealed as never executed is executed later")


@plants("forgets-once-answered", "dedup", (rule_module, "decide"))
def _forgets_answered(tracker, sequence, first_incomplete, fingerprint, stand):
    """A record is dropped when a retry has been answered from it."""
    verdict = decide(tracker, sequence, first_incomplete, fingerprint, stand)
    if isinstance(verdict, Replay) and tracker._records is not None:
        tracker._records.pop(sequence, None)
    return verdict


@plants("fingerprint-ignored", "dedup", (rule_module, "decide"))
def _no_fingerprint(tracker, sequence, first_incomplete, fingerprint, stand):
    """An id that is used again for something else is answered from its record."""
    verdict = decide(tracker, sequence, first_incomplete, fingerprint, stand)
    return Replay(tracker.find(sequence)) if verdict is Refusal.PAYLOAD_MISMATCH else verdict


@plants("ack-off-by-one", "dedup", (ResultTracker, "acknowledge"))
def _drops_one_more(tracker, first_incomplete):
    """First incomplete itself is dropped with what lies below it."""
    _acknowledge(tracker, first_incomplete)
    if tracker._records is not None:
        tracker._records.pop(first_incomplete, None)
    if tracker._runs is not None:
        tracker._runs = [run for run in tracker._runs if run.first != first_incomplete] or None


@plants("acks-what-was-seen", "dedup", (ResultTracker, "acknowledge"))
def _acknowledges_seen(tracker, first_incomplete):
    """Records are dropped when a later one is made, acknowledged or not."""
    _acknowledge(tracker, max(first_incomplete, tracker.highest))


@plants("no-fence", "hand-over", (operations, "standing"))
def _no_fence(session, epoch, now_ms):
    """An older owner's operations are executed."""
    return standing(session, session.epoch, now_ms)


@plants("take-over-keeps-epoch", "hand-over", (SessionTable, "take_over"))
def _same_epoch(table, client_id, nonce, now_ms):
    """A take-over fences nobody."""
    before = table.live(client_id, None, now_ms).epoch
    session = _take_over(table, client_id, nonce, now_ms)
    session.epoch = before
    return session


def _proposes_early(table, now_ms, *, limit=1_000):
    return [session.client_id for session in table if session.ends_ms < now_ms + session.lease_ms // 2][:limit]


@plants("reaped-while-live", "lease", (SessionTable, "reap"), also=((SessionTable, "expired", _proposes_early),))
def _reaps_early(table, client_id, now_ms):
    """A session is reaped because somebody said so, without a look at its lease."""
    session = table.get(client_id)
    if session is None:
        return False
    table.close(client_id)
    return True


@plants("lease-by-wall-clock", "lease", (ClusterClock, "stamp_ms"), kinds=_CHANGES)
def _wall_clock(clock, monotonic_s):
    """Cluster time is the leader's clock, so that a new leader with a later one ends leases."""
    clock._last_ms = max(clock._last_ms, int(monotonic_s * 1000))
    return clock._last_ms


@plants("leases-lost-with-leader", "lease", (ClusterClock, "lead_from"), kinds=_CHANGES)
def _leads_later(clock, applied_ms, monotonic_s):
    """Time goes on at a change of leader, in which nobody could renew."""
    _lead_from(clock, applied_ms + 5_000, monotonic_s)


@plants("resolve-without-seal", "resolve", (session_handlers, "resolve"))
def _resolves_without_seal(tracker, sequence, first_incomplete):
    """A resolve says that an id will never be executed, and nothing remembers it."""
    if tracker.find(sequence) is None and sequence >= tracker.first_incomplete:
        return ResolveVerdict(Fate.SEALED)
    return resolve(tracker, sequence, first_incomplete)


@plants("snapshot-without-records", "dedup", (session_images, "encode_session"), kinds=_KILLS, fixed=_SAVED)
def _without_records(session, tracker):
    """A saved state holds rows, and no records."""
    kept = ResultTracker.restore(session.window, tracker.first_incomplete, tracker.highest, {}, [])
    return encode_session(session, kept)


@plants("record-apart-from-effect", "dedup", (session_images, "encode_session"), kinds=_KILLS, fixed=_SAVED)
def _without_newest(session, tracker):
    """The newest record is not saved with its effect, and lost at a crash."""
    records = {number: record for number, record in tracker.records.items() if number != tracker.highest}
    numbers = [*records, *(part.last for part in tracker.ranges)]
    highest = max(numbers, default=tracker.first_incomplete - 1)
    kept = ResultTracker.restore(session.window, tracker.first_incomplete, highest, records, list(tracker.ranges))
    return encode_session(session, kept)


@plants("snapshot-without-first-incomplete", "dedup", (session_images, "encode_session"), kinds=_KILLS, fixed=_SAVED)
def _without_first_incomplete(session, tracker):
    """A saved state has forgotten what was acknowledged."""
    records = dict(tracker.records)
    kept = ResultTracker.restore(session.window, 1, tracker.highest, records, list(tracker.ranges))
    return encode_session(session, kept)


@plants("condition-before-dedup", "bank", (HANDLERS, c.Operate))
def _condition_first(machine, command):
    """A retry of an applied operation is refused, since its condition does not hold any more."""
    rows = []
    for op in command.ops:
        table = machine.tables.get(op.table)
        row = None if table is None else table.rows.get(op.key)
        failed = table is not None and op.test and not holds(op.test, op.operand, row)
        rows.append(refused("CONDITION_FAILED", row) if failed else None)
    done = _operate(machine, command)
    verdicts = []
    for verdict, failure in zip(done.verdicts, rows, strict=True):
        if isinstance(verdict, Replayed) and failure is not None:
            record = CompletionRecord(verdict.record.fingerprint, verdict.record.commit, failure)
            verdict = Replayed(verdict.sequence, record)
        verdicts.append(verdict)
    return Operated(verdicts, done.memory_ms)


@plants("range-cut-executed-twice", "flow", (operations, "decide_range"))
def _whole_ranges_only(tracker, first, fingerprints, first_incomplete, stand):
    """A range that is cut differently when it is sent again is executed again."""
    parts = decide_range(tracker, first, fingerprints, first_incomplete, stand)
    last = first + len(fingerprints) // 8 - 1
    known = any(isinstance(part, RangeRecord) and (part.first, part.last) == (first, last) for part in tracker.ranges)
    if known:
        return parts
    for part in parts:
        if isinstance(part, ReplayPart):
            tracker._records = None
            kept = [known for known in tracker.ranges if known.first > part.last or known.last < part.first]
            tracker._ranges = kept or None
    return [NewPart(part.first, part.last) if isinstance(part, ReplayPart) else part for part in parts]


@plants("key-forgotten-early", "keys", (KeySlot, "record"))
def _forgets_keys_early(slot, sequence, fingerprint, commit, result=None, traceparent=""):
    """An idempotency key is forgotten before its time."""
    return _slot_record(
        msgspec.structs.replace(slot, lifetime_ms=slot.lifetime_ms // 60), sequence, fingerprint, commit, result
    )


@plants("commit-numbers-with-gaps", "flow", (operations, "execute_part"))
def _skips_a_number(machine, command, tracker, part):
    """A range leaves out a commit number."""
    commit = _execute_part(machine, command, tracker, part)
    machine.commit += 1
    return commit


@plants("sequence-number-reused", "hand-over", (RequestTracker, "resumed"))
@classmethod
def _reuses_highest(kind, *, window, highest, held):
    """A client that starts again gives the newest number out once more."""
    tracker = _resumed(window=window, highest=highest, held=held)
    if tracker._next - 1 not in tracker._held and tracker._next > 1:
        tracker._next -= 1
        if tracker._order:
            tracker._order.pop()
    return tracker


@plants("client-acks-unheard", "hand-over", (RequestTracker, "first_incomplete"))
@property
def _acknowledges_open(tracker):
    """A client acknowledges what it has no result of."""
    order = tracker._order
    return order[1] if len(order) > 1 and order[0] not in tracker._spent else _first_incomplete.fget(tracker)


@plants("save-of-later-records", "counter", (session_images.SessionImages, "before_change"), kinds=_KILLS, fixed=_SAVED)
def _images_of_later(images, client_id):
    """A save holds records of operations that came after its rows."""
