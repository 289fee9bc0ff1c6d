"""Sessions: opened once, fenced by a take-over, gone for ever, never more than the quota."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.rifl import session as session_module
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError, Outcome
from oncegate.rifl.ids import ClusterTimeMs
from oncegate.rifl.lease import BUCKET_MS, GONE_KEPT
from oncegate.rifl.session import SessionRecord, SessionTable, shared_int


def refusal(call: object, *args: object) -> Code:
    with pytest.raises(OncegateError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value.code


def opened(nonce: str = "n", lease_ms: int = 1_000, now_ms: int = 0) -> tuple[SessionTable, int]:
    table = SessionTable()
    return table, table.open(nonce, lease_ms, 8, now_ms)[0].client_id


def test_open_retried_is_the_same_session() -> None:
    table, client = opened()
    again, existed = table.open("n", 9_999, 99, 500)
    assert (again.client_id, existed) == (client, True)
    assert (again.lease_ms, again.window, again.ends_ms) == (1_000, 8, 1_500)
    assert len(table) == 1


def test_open_after_the_reap_is_another_session() -> None:
    table, client = opened()
    assert table.reap(client, 1_001)
    again, existed = table.open("n", 1_000, 8, 1_001)
    assert not existed
    assert again.client_id > client


def test_take_over_fences_the_older_epoch() -> None:
    table, client = opened()
    assert table.take_over(client, "new", 10).epoch == 2
    assert refusal(table.live, client, 1, 10) is Code.FENCED
    assert table.live(client, 2, 10).ends_ms == 1_010
    assert table.take_over(client, "new", 500).epoch == 2
    assert table.live(client, 2, 500).ends_ms == 1_500, "a retry is a sign of life too"


def test_late_copy_of_an_older_take_over_does_not_fence_the_newer_owner() -> None:
    table, client = opened()
    table.take_over(client, "second", 0)
    newest = table.take_over(client, "third", 0).epoch
    with suppress(OncegateError):
        table.take_over(client, "second", 0)
    assert table.live(client, newest, 0).epoch == newest


def test_late_copy_of_an_open_after_a_take_over_opens_no_second_session() -> None:
    table, client = opened()
    table.take_over(client, "new", 0)
    with suppress(OncegateError):
        assert table.open("n", 1_000, 8, 0)[0].client_id == client
    assert len(table) == 1


def test_closed_session_frees_the_nonces_of_all_its_owners() -> None:
    table, client = opened()
    table.take_over(client, "new", 0)
    table.close(client)
    for nonce in ("n", "new"):
        assert not table.open(nonce, 1_000, 8, 0)[1]


def test_take_over_with_the_nonce_of_another_session_is_refused() -> None:
    table, client = opened()
    table.open("other", 1_000, 8, 0)
    assert refusal(table.take_over, client, "other", 0) is Code.CONFLICT
    assert table.live(client, 1, 0).nonce == "n"


@pytest.mark.parametrize(
    ("epoch", "now_ms", "code"),
    [(2, 0, Code.BAD_REQUEST), (1, 1_001, Code.SESSION_EXPIRED), (None, 1_001, Code.SESSION_EXPIRED)],
)
def test_only_the_current_epoch_of_a_live_lease_lives(epoch: int | None, now_ms: int, code: Code) -> None:
    table, client = opened()
    assert refusal(table.live, client, epoch, now_ms) is code
    assert refusal(table.live, client + 1, epoch, 0) is Code.SESSION_EXPIRED
    assert refusal(table.take_over, client, "new", 1_001) is Code.SESSION_EXPIRED
    assert table.live(client, None, 1_000).client_id == client, "the last millisecond belongs to the lease"


def test_reap_checks_the_lease_again() -> None:
    table, client = opened()
    assert table.expired(5_000) == [client]
    table.get(client).renew(5_000)  # type: ignore[union-attr]
    assert not table.reap(client, 5_000), "a renewal came first in the log"
    assert table.get(client) is not None
    assert not table.reap(client + 1, 5_000)


def test_renewal_never_shortens_a_lease() -> None:
    table, client = opened(now_ms=1_000)
    session = table.live(client, 1, 1_000)
    session.renew(500)
    assert session.ends_ms == 2_000
    assert session.left_ms(1_400) == 600
    assert session.left_ms(9_000) == 0


def test_quota_refuses_the_new_and_leaves_the_live_alone() -> None:
    table = SessionTable()
    clients = [table.open(nonce, 1_000, 8, 0, sessions_max=2)[0].client_id for nonce in "ab"]
    before = table.next_id
    assert refusal(partial(table.open, sessions_max=2), "c", 1_000, 8, 0) is Code.QUOTA
    assert [s.client_id for s in table] == clients
    assert table.next_id == before
    assert table.open("a", 1_000, 8, 0, sessions_max=2)[1], "a retry is no new session"
    table.close(clients[0])
    assert not table.open("c", 1_000, 8, 0, sessions_max=2)[1]


def test_quota_of_a_tenant_is_its_own_and_survives_a_restore() -> None:
    table = SessionTable()
    opens = partial(table.open, tenant_sessions_max=2)
    mine = [opens(nonce, 1_000, 8, 0, "ann")[0] for nonce in "ab"]
    assert refusal(opens, "c", 1_000, 8, 0, "ann") is Code.QUOTA
    assert opens("a", 1_000, 8, 0, "ann")[1], "a retry is no new session"
    other = opens("a", 1_000, 8, 0, "bob")[0]
    again = SessionTable()
    for session in (*mine, other):
        again.put_back(session)
    reopens = partial(again.open, tenant_sessions_max=2)
    assert refusal(reopens, "c", 1_000, 8, 0, "ann") is Code.QUOTA
    again.close(mine[0].client_id)
    again.next_id = 4
    assert not reopens("c", 1_000, 8, 0, "ann")[1]
    assert not reopens("b", 1_000, 8, 0, "bob")[1]


def test_closed_session_frees_its_nonce_and_closing_twice_is_harmless() -> None:
    table, client = opened()
    table.close(client)
    table.close(client)
    assert len(table) == 0
    assert not table.open("n", 1_000, 8, 0)[1]


def test_the_nonce_of_a_closed_session_is_refused_for_the_time_of_its_lease() -> None:
    table, client = opened()
    table.take_over(client, "second", 0)
    table.remember_closed(client, 500)
    table.close(client)
    for nonce in ("n", "second"):
        for now_ms in (500, 1_500):
            assert refusal(table.open, nonce, 1_000, 8, now_ms) is Code.SESSION_EXPIRED
        assert not table.open(nonce, 1_000, 8, 0, "another")[1], "it is refused to its tenant alone"
    with pytest.raises(OncegateError) as refused:
        table.open("n", 1_000, 8, 500)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert not table.open("n", 1_000, 8, 1_501)[1], "a late copy does not come so late"


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1_000, 3_000)), max_size=30), st.integers(1, 6))
def test_nonces_of_closed_sessions_are_kept_in_bounds_the_newest_longest(
    closes: list[tuple[int, int]], most: int
) -> None:
    table, now, kept = SessionTable(), 0, dict[str, int]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_module, "CLOSED_MAX", most)
        for number, (wait_ms, lease_ms) in enumerate(closes):
            now += wait_ms
            client = table.open(f"n{number}", lease_ms, 8, now)[0].client_id
            table.remember_closed(client, now)
            table.close(client)
            kept[f"n{number}"] = now + lease_ms
            assert len(table.closed) <= most
            for nonce in list(kept)[-most:]:
                late = kept[nonce] >= now
                assert (table.closed.get(nonce, -1) >= now) == late, (nonce, now)


def test_thousands_that_end_together_are_found_in_bounded_pieces() -> None:
    table = SessionTable()
    for number in range(2_500):
        table.open(f"n{number}", 1_000, 8, 0)
    now, sizes = 5_000, []
    while len(table):
        found = table.expired(now)
        sizes.append(len(found))
        for client in found:
            assert table.reap(client, now)
        now += 2_000
    assert sizes == [1_000, 1_000, 500]


def test_sessions_closed_long_before_their_lease_do_not_pile_up() -> None:
    """A day's lease, held for a moment: what is filed for expiry is bounded by who lives."""
    table = SessionTable()
    kept = [table.open(f"kept{number}", 86_400_000, 8, 0)[0].client_id for number in range(10)]
    for number in range(20 * GONE_KEPT):
        table.close(table.open(f"n{number}", 86_400_000, 8, number)[0].client_id)
        if not number % 100:
            assert not table.expired(number)
    assert table.filed <= 2 * GONE_KEPT
    table.expired(20 * GONE_KEPT)
    now = 86_400_000 * 2
    assert table.expired(now, limit=100) == kept, "sweeping forgets nobody who lives"


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda table: table.put_back(SessionRecord(1, 1, "other", 1, 8, 9)), id="a client id twice"),
        pytest.param(lambda table: table.put_back(SessionRecord(0, 1, "other", 1, 8, 9)), id="no client id"),
        pytest.param(lambda table: table.put_back(SessionRecord(2, 0, "other", 1, 8, 9)), id="no epoch"),
        pytest.param(lambda table: table.put_back(SessionRecord(2, 1, "new", 1, 8, 9)), id="the nonce of another"),
        pytest.param(
            lambda table: table.put_back(SessionRecord(2, 1, "other", 1, 8, 9, ("n",))), id="its former nonce"
        ),
        pytest.param(lambda table: table.skip_to(1), id="a client id given out again"),
    ],
)
def test_session_that_would_hide_another_raises_and_changes_nothing(break_it: Callable[[SessionTable], None]) -> None:
    table, client = opened()
    table.take_over(client, "new", 0)
    with pytest.raises(InvariantViolation):
        break_it(table)
    assert (len(table), table.filed, table.next_id) == (1, 1, 2)
    assert (table.of_nonce("n"), table.of_nonce("new"), table.of_nonce("other")) == (1, 1, None)


def test_list_shows_a_tenants_own_sessions_and_looks_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "LOOKS_MAX", 4)
    table, now_ms = SessionTable(), ClusterTimeMs(0)
    for n in range(20):
        table.open(f"n{n}", 1_000, 8, now_ms, "a" if n % 5 == 0 else "b")
    seen: list[int] = []
    after: int | None = 0
    pages = 0
    while after is not None:
        found, after = table.page("a", after, 3)
        seen += [one.client_id for one in found]
        pages += 1
    assert seen == [1, 6, 11, 16]
    assert pages == 5
    assert table.page("a", 0, 1) == ([table.get(1)], None if len(table) == 1 else 4)


def test_bounds_that_clients_and_other_builds_rely_on() -> None:
    assert (session_module.CLOSED_MAX, session_module.LOOKS_MAX, session_module.NONCES_MAX) == (4_096, 10_000, 16)
    assert (session_module.SESSIONS_MAX, session_module.NONCE_LENGTH_MAX) == (2_000_000, 64)
    assert session_module._SHARED_INTS_MAX == 1_024


@pytest.mark.parametrize("tenant", ["", "ann"])
def test_earlier_owners_are_known_up_to_a_bound_the_latest_longest(tenant: str) -> None:
    table = SessionTable()
    client = table.open("n0", 1_000, 8, 0, tenant)[0].client_id
    for number in range(1, 18):
        assert table.take_over(client, f"n{number}", 0).epoch == number + 1
    session = table.get(client)
    assert session is not None
    assert session.former == tuple(f"n{number}" for number in range(1, 17))
    assert [table.of_nonce(nonce, tenant) for nonce in ("n0", "n1", "n17")] == [None, client, client]
    assert refusal(table.take_over, client, "n1", 0) is Code.FENCED
    assert refusal(table.open, "n16", 1_000, 8, 0, tenant) is Code.FENCED
    assert table.take_over(client, "n0", 0).epoch == 19, "it is forgotten, so it is somebody new"


def test_room_is_there_once_the_first_lease_may_end() -> None:
    table = SessionTable()
    assert table.room_in_ms(5_000) == 0
    table.open("a", 90_000_000, 8, 0)
    nearest = table.room_in_ms(0)
    assert 90_000_000 <= nearest <= 90_000_000 + BUCKET_MS
    assert table.room_in_ms(1_000) == nearest - 1_000
    assert table.room_in_ms(nearest) == table.room_in_ms(nearest + 1) == 0


def test_tenants_are_counted_apart_and_a_bound_is_reached_by_as_many_as_it_says() -> None:
    table = SessionTable()
    clients = [table.open(nonce, 1_000, 8, 0, tenant)[0].client_id for nonce, tenant in (("a", "x"), ("b", "x"))]
    table.open("a", 1_000, 8, 0, "y")
    assert [table.of_tenant(tenant) for tenant in "xyz"] == [2, 1, 0]
    assert [table.is_full("x", most, 9) for most in (2, 3, 4)] == [True, True, False]
    assert [table.is_full("x", 9, most) for most in (1, 2, 3)] == [True, True, False]
    assert [table.is_full("z", 9, most) for most in (0, 1)] == [True, False]
    for left, client in zip((1, 0), clients, strict=True):
        table.close(client)
        assert table.of_tenant("x") == left
    assert table.is_full("x", 9, 0)


def test_nonce_that_is_refused_stays_so_for_the_time_in_which_the_cluster_slept() -> None:
    table, client = opened()
    table.remember_closed(client, 0)
    table.close(client)
    table.sleep(700)
    assert table.closed == {"n": 1_700}
    assert refusal(table.open, "n", 1_000, 8, 1_700) is Code.SESSION_EXPIRED
    assert not table.open("n", 1_000, 8, 1_701)[1]


def test_nonce_that_is_closed_again_is_refused_from_then_on_and_forgotten_as_a_new_one() -> None:
    table = SessionTable()
    closed: list[list[str]] = []
    for nonce, now_ms in (("a", 0), ("b", 10), ("a", 1_001), ("c", 1_011)):
        client = table.open(nonce, 1_000, 8, now_ms)[0].client_id
        table.remember_closed(client, now_ms)
        table.close(client)
        closed.append(list(table.closed))
    assert closed == [["a"], ["a", "b"], ["b", "a"], ["a", "c"]]
    assert table.closed == {"a": 2_001, "c": 2_011}


def test_page_ends_where_its_tenant_has_no_more_and_shows_who_is_wanted() -> None:
    table = SessionTable()
    clients = [table.open(f"n{number}", 1_000, number, 0)[0].client_id for number in range(1, 6)]
    assert [[one.client_id for one in table.page("", after, 9)[0]] for after in (0, 2, 5)] == [clients, [3, 4, 5], []]
    assert table.page("", 0, 5)[1] is None
    assert table.page("", 0, 4)[1] == 4
    found, after = table.page("", 0, 2, lambda one: one.window % 2 == 1)
    assert ([one.client_id for one in found], after) == ([1, 3], 3)
    assert table.page("", 0, 3, lambda one: one.window % 2 == 1)[1] is None


def test_equal_terms_are_one_int_in_memory_within_a_bound_and_any_other_term_is_kept_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "_shared_ints", shared := {})
    monkeypatch.setattr(session_module, "_SHARED_INTS_MAX", 3)
    table = SessionTable()
    for number in range(6):
        table.open(f"n{number}", int("86400000"), int("4096"), 0)
        table.put_back(SessionRecord(100 * (number + 1), 1, f"back{number}", int("86400000"), int("4096"), 9))
    assert len({id(session.lease_ms) for session in table}) == len({id(session.window) for session in table}) == 1
    numbers = range(100_000, 100_009)
    assert [shared_int(number) for number in numbers] == list(numbers)
    assert list(shared) == [86_400_000, 4_096, 100_000]
    assert shared_int(int("86400000")) is table.live(1, None, 0).lease_ms, "also once no other is taken in"


def test_saved_form_of_a_session_is_a_list_and_an_older_one_without_its_end_is_read() -> None:
    session = SessionRecord(7, 2, "new", 1_000, 8, 5_000, ("n",), "ann")
    assert msgspec.to_builtins(session) == [7, 2, "new", 1_000, 8, 5_000, ("n",), "ann"]
    older = msgspec.convert([7, 2, "new", 1_000, 8, 5_000], SessionRecord)
    assert (older.former, older.tenant) == ((), "")


def test_refusal_says_why_in_words_that_help() -> None:
    table, client = opened()
    with pytest.raises(OncegateError, match="as many sessions as it may"):
        table.open("other", 1_000, 8, 0, sessions_max=1)
    table.remember_closed(client, 0)
    table.close(client)
    with pytest.raises(OncegateError, match="a new one needs another nonce"):
        table.open("n", 1_000, 8, 0)
    with pytest.raises(InvariantViolation, match="client id 1 would be given out again, 1 was already"):
        table.skip_to(1)


def test_table_is_behind_while_more_leases_have_ended_than_one_look_finds() -> None:
    table = SessionTable()
    for number in range(3):
        table.open(f"n{number}", 1_000, 8, 0)
    assert not table.is_behind(1_000)
    behind: list[bool] = []
    for _ in range(3):
        for client in table.expired(5_000, limit=1):
            table.reap(client, 5_000)
        behind.append(table.is_behind(5_000))
    assert behind == [True, True, False]


def test_the_last_millisecond_of_a_lease_belongs_to_it_and_that_of_a_refusal_to_the_refusal() -> None:
    table, client = opened()
    assert table.open("n", 1_000, 8, 1_000)[0].ends_ms == 2_000
    assert table.open("n", 1_000, 8, 2_001)[0].ends_ms == 2_000, "an ended lease is not revived"
    assert not table.reap(client, 2_000)
    other = table.open("other", 1_000, 8, 2_000)[0].client_id
    table.remember_closed(client, 1_000)
    table.close(client)
    table.remember_closed(other, 2_000)
    assert list(table.closed) == ["n", "other"]
    assert refusal(table.open, "n", 1_000, 8, 2_000) is Code.SESSION_EXPIRED


def test_take_over_asks_for_the_nonce_in_the_tenant_of_the_session() -> None:
    table = SessionTable()
    mine = [table.open(nonce, 1_000, 8, 0, "ann")[0].client_id for nonce in ("a", "b")]
    table.open("c", 1_000, 8, 0)
    assert refusal(table.take_over, mine[0], "b", 0) is Code.CONFLICT
    assert table.take_over(mine[0], "c", 0).epoch == 2
    assert [table.of_nonce("c", tenant) for tenant in ("ann", "")] == [mine[0], 3]
