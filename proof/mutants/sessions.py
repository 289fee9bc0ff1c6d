"""Planted bugs of sessions, completion records, leases, keys and clients. Read next:
:mod:`oncegate.proof.mutants.mutant`.
"""

from __future__ import annotations

import oncegate.gateway.machine.machine
import oncegate.gateway.machine.state.session_images
import oncegate.rifl.rule
from oncegate.gateway.machine.cluster_clock import ClusterClock
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Operated
from oncegate.gateway.machine.state.layout import encode_session
from oncegate.gateway.machine.tables import _test
from oncegate.proof.mutants.forgotten import forgotten
from oncegate.proof.mutants.mutant import Mutant
from oncegate.rifl.completion import CompletionRecord, RangeRecord
from oncegate.rifl.key_table import KeySlot
from oncegate.rifl.range_rule import NewPart, ReplayPart, decide_range
from oncegate.rifl.request_tracker import RequestTracker
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Replay, Replayed, decide, standing
from oncegate.rifl.session import SessionTable

_KILLS = {"kill": 8, "kill several": 4, "power loss": 4, "break": 3}
_SAVED = {"save_every": 10}
_record = ResultTracker.record
_acknowledge = ResultTracker.acknowledge
_operate = Machine._operate
_execute_part = Machine._execute_part
_take_over = SessionTable.take_over
_slot_record = KeySlot.record
_lead_from = ClusterClock.lead_from
_resumed = RequestTracker.resumed
_first_incomplete = RequestTracker.first_incomplete


def _executes(wrong):
    """The rule, but what gets this verdict is executed, as if nothing were known of it."""

    def mutated(tracker, sequence, first_incomplete, fingerprint, stand):
        verdict = decide(tracker, sequence, first_incomplete, fingerprint, stand)
        return forgotten(tracker, sequence) if verdict is wrong or type(verdict) is wrong else verdict

    return mutated


def _forgets_answered(tracker, sequence, first_incomplete, fingerprint, stand):
    verdict = decide(tracker, sequence, first_incomplete, fingerprint, stand)
    if isinstance(verdict, Replay) and tracker._records is not None:
        tracker._records.pop(sequence, None)
    return verdict


def _no_fingerprint(tracker, sequence, first_incomplete, fingerprint, stand):
    verdict = decide(tracker, sequence, first_incomplete, fingerprint, stand)
    return Replay(tracker.find(sequence)) if verdict is Refusal.PAYLOAD_MISMATCH else verdict


def _drops_one_more(tracker, first_incomplete):
    _acknowledge(tracker, first_incomplete)
    if tracker._records is not None:
        tracker._records.pop(first_incomplete, None)


def _acknowledges_seen(tracker, first_incomplete):
    _acknowledge(tracker, max(first_incomplete, tracker.highest))


def _no_fence(session, epoch, now_ms):
    return standing(session, session.epoch, now_ms)


def _same_epoch(table, client_id, nonce, now_ms):
    before = table.live(client_id, None, now_ms).epoch
    session = _take_over(table, client_id, nonce, now_ms)
    session.epoch = before
    return session


def _reaps_early(table, client_id, now_ms):
    session = table.get(client_id)
    if session is None:
        return False
    table.close(client_id)
    return True


def _proposes_early(table, now_ms, *, limit=1_000):
    return [session.client_id for session in table if session.ends_ms < now_ms + session.lease_ms // 2][:limit]


def _wall_clock(clock, monotonic_s):
    clock._last_ms = max(clock._last_ms, int(monotonic_s * 1000))
    return clock._last_ms


def _leads_later(clock, applied_ms, monotonic_s):
    _lead_from(clock, applied_ms + 5_000, monotonic_s)


def _resolves_without_seal(tracker, sequence, first_incomplete):
    if tracker.find(sequence) is None and sequence >= tracker.first_incomplete:
        return ResolveVerdict(Fate.SEALED)
    return resolve(tracker, sequence, first_incomplete)


def _without_records(session, tracker):
    kept = ResultTracker.restore(session.window, tracker.first_incomplete, tracker.highest, {}, [])
    return encode_session(session, kept)


def _without_newest(session, tracker):
    records = {number: record for number, record in tracker.records.items() if number != tracker.highest}
    numbers = [*records, *(part.last for part in tracker.ranges)]
    highest = max(numbers, default=tracker.first_incomplete - 1)
    kept = ResultTracker.restore(session.window, tracker.first_incomplete, highest, records, list(tracker.ranges))
    return encode_session(session, kept)


def _without_first_incomplete(session, tracker):
    records = dict(tracker.records)
    kept = ResultTracker.restore(session.window, 1, tracker.highest, records, list(tracker.ranges))
    return encode_session(session, kept)


def _condition_first(machine, command):
    rows = []
    for op in command.ops:
        table = machine.tables.get(op.table)
        rows.append(_test(op, table.rows.get(op.key)) if table is not None and op.test else None)
    done = _operate(machine, command)
    verdicts = []
    for verdict, refused in zip(done.verdicts, rows, strict=True):
        if isinstance(verdict, Replayed) and refused is not None:
            record = CompletionRecord(verdict.record.fingerprint, verdict.record.commit, refused)
            verdict = Replayed(verdict.sequence, record)
        verdicts.append(verdict)
    return Operated(verdicts, done.memory_ms)


def _whole_ranges_only(tracker, first, fingerprints, first_incomplete, stand):
    parts = decide_range(tracker, first, fingerprints, first_incomplete, stand)
    last = first + len(fingerprints) // 8 - 1
    known = any(isinstance(part, RangeRecord) and (part.first, part.last) == (first, last) for part in tracker.ranges)
    if known:
        return parts
    for part in parts:
        if isinstance(part, ReplayPart):
            tracker._records = None
            tracker._ranges = [known for known in tracker.ranges if known.first > part.last or known.last < part.first]
    return [NewPart(part.first, part.last) if isinstance(part, ReplayPart) else part for part in parts]


def _forgets_keys_early(slot, sequence, fingerprint, commit, result=None, traceparent=""):
    return _slot_record(slot._replace(lifetime_ms=slot.lifetime_ms // 60), sequence, fingerprint, commit, result)


def _skips_a_number(machine, command, tracker, part):
    commit = _execute_part(machine, command, tracker, part)
    machine.commit += 1
    return commit


@classmethod
def _reuses_highest(kind, *, window, highest, held):
    tracker = _resumed(window=window, highest=highest, held=held)
    if tracker._next - 1 not in tracker._held and tracker._next > 1:
        tracker._next -= 1
        if tracker._order:
            tracker._order.pop()
    return tracker


@property
def _acknowledges_open(tracker):
    order = tracker._order
    return order[1] if len(order) > 1 and order[0] not in tracker._abandoned else _first_incomplete.fget(tracker)


def _images_of_later(images, client_id):
    """Nothing is kept as it was."""


SESSIONS = [
    Mutant(
        "apply-without-dedup",
        "a retry is executed again",
        "counter",
        ((oncegate.rifl.rule, "decide", _executes(Replay)),),
    ),
    Mutant(
        "forgets-once-answered",
        "a record is dropped when a retry has been answered from it",
        "dedup",
        ((oncegate.rifl.rule, "decide", _forgets_answered),),
    ),
    Mutant(
        "acks-what-was-seen",
        "records are dropped when a later one is made, acknowledged or not",
        "dedup",
        ((ResultTracker, "acknowledge", _acknowledges_seen),),
    ),
    Mutant(
        "ack-off-by-one",
        "first incomplete itself is dropped with what lies below it",
        "dedup",
        ((ResultTracker, "acknowledge", _drops_one_more),),
    ),
    Mutant(
        "stale-is-new",
        "a copy that comes after its acknowledgement is executed again",
        "dedup",
        ((oncegate.rifl.rule, "decide", _executes(Refusal.STALE)),),
    ),
    Mutant(
        "fingerprint-ignored",
        "an id that is used again for something else is answered from its record",
        "dedup",
        ((oncegate.rifl.rule, "decide", _no_fingerprint),),
    ),
    Mutant(
        "window-not-checked",
        "a number far above first incomplete is executed",
        "dedup",
        ((oncegate.rifl.rule, "decide", _executes(Refusal.WINDOW_FULL)),),
    ),
    Mutant(
        "record-apart-from-effect",
        "the newest record is not saved with its effect, and lost at a crash",
        "dedup",
        ((oncegate.gateway.machine.state.session_images, "encode_session", _without_newest),),
        kinds=_KILLS,
        fixed=_SAVED,
    ),
    Mutant(
        "snapshot-without-records",
        "a saved state holds rows, and no records",
        "dedup",
        ((oncegate.gateway.machine.state.session_images, "encode_session", _without_records),),
        kinds=_KILLS,
        fixed=_SAVED,
    ),
    Mutant(
        "snapshot-without-first-incomplete",
        "a saved state has forgotten what was acknowledged",
        "dedup",
        ((oncegate.gateway.machine.state.session_images, "encode_session", _without_first_incomplete),),
        kinds=_KILLS,
        fixed=_SAVED,
    ),
    Mutant(
        "save-of-later-records",
        "a save holds records of operations that came after its rows",
        "counter",
        ((oncegate.gateway.machine.state.session_images.SessionImages, "before_change", _images_of_later),),
        kinds=_KILLS,
        fixed=_SAVED,
    ),
    Mutant(
        "no-fence",
        "an older owner's operations are executed",
        "hand-over",
        ((oncegate.gateway.machine.machine, "standing", _no_fence),),
    ),
    Mutant(
        "take-over-keeps-epoch",
        "a take-over fences nobody",
        "hand-over",
        ((SessionTable, "take_over", _same_epoch),),
    ),
    Mutant(
        "sequence-number-reused",
        "a client that starts again gives the newest number out once more",
        "hand-over",
        ((RequestTracker, "resumed", _reuses_highest),),
    ),
    Mutant(
        "client-acks-unheard",
        "a client acknowledges what it has no result of",
        "hand-over",
        ((RequestTracker, "first_incomplete", _acknowledges_open),),
    ),
    Mutant(
        "sealed-is-executed",
        "an id that was resolved as never executed is executed later",
        "resolve",
        ((oncegate.rifl.rule, "decide", _executes(Refusal.SEALED)),),
    ),
    Mutant(
        "resolve-without-seal",
        "a resolve says that an id will never be executed, and nothing remembers it",
        "resolve",
        ((oncegate.gateway.machine.machine, "resolve", _resolves_without_seal),),
    ),
    Mutant(
        "reaped-while-live",
        "a session is reaped because somebody said so, without a look at its lease",
        "lease",
        ((SessionTable, "reap", _reaps_early), (SessionTable, "expired", _proposes_early)),
    ),
    Mutant(
        "lease-by-wall-clock",
        "cluster time is the leader's clock, so that a new leader with a later one ends leases",
        "lease",
        ((ClusterClock, "stamp_ms", _wall_clock),),
        kinds={"kill": 6, "transfer": 6},
    ),
    Mutant(
        "leases-lost-with-leader",
        "time goes on at a change of leader, in which nobody could renew",
        "lease",
        ((ClusterClock, "lead_from", _leads_later),),
        kinds={"kill": 6, "transfer": 6},
    ),
    Mutant(
        "condition-before-dedup",
        "a retry of an applied operation is refused, since its condition does not hold any more",
        "bank",
        ((Machine, "_operate", _condition_first),),
    ),
    Mutant(
        "range-cut-executed-twice",
        "a range that is cut differently when it is sent again is executed again",
        "flow",
        ((oncegate.gateway.machine.machine, "decide_range", _whole_ranges_only),),
    ),
    Mutant(
        "commit-numbers-with-gaps",
        "a range leaves out a commit number",
        "flow",
        ((Machine, "_execute_part", _skips_a_number),),
    ),
    Mutant(
        "key-forgotten-early",
        "an idempotency key is forgotten before its time",
        "keys",
        ((KeySlot, "record", _forgets_keys_early),),
    ),
]
"""In the order of the report."""
