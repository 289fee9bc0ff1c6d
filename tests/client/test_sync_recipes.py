"""Recipes without ``await``: the same names, and each does for threads what it does for tasks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncegate import Code, DeadlineExceeded, Outcome, Transaction, recipes, sync
from oncegate.testing import FakeCluster
from tests.client.answers import fails
from tests.client.test_public_exports import public

Pair = tuple[sync.Session, sync.Session]


@pytest.fixture
def client(oncegate_cluster: FakeCluster) -> Iterator[sync.Client]:
    oncegate_cluster.declare("recipes")
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints) as client:
        yield client


@pytest.fixture
def pair(client: sync.Client) -> Iterator[Pair]:
    with client.session() as one, client.session() as two:
        yield one, two


def left(client: sync.Client) -> list[str]:
    return [row.key for row in client.rows("recipes")]


def test_names_are_those_of_the_asynchronous_recipes() -> None:
    for name in recipes.__all__:
        assert public(getattr(sync.recipes, name)) == public(getattr(recipes, name)) - {"kind"}, name


def test_lock_passes_from_thread_to_thread_and_fences_the_one_before(client: sync.Client, pair: Pair) -> None:
    mine, other = (sync.recipes.Lock(client, session, "l") for session in pair)
    with ThreadPoolExecutor(1) as threads:
        with mine.held() as hold:
            assert other.try_acquire() is None
            with fails(Code.TIMEOUT, Outcome.NOT_APPLIED, kind=DeadlineExceeded):
                other.acquire(timeout_s=0.05)
            waiting = threads.submit(other.acquire, timeout_s=20)
            assert pair[0].transact(hold.guard(Transaction().put("rows", "r", 1))).applied
        later = waiting.result(20)
    assert later.token > hold.token
    assert (later.alive, hold.alive) == (True, False)
    assert not pair[0].transact(hold.guard(Transaction().put("rows", "r", 2))).applied
    assert later.release()
    later.lost()
    pair[1].close()  # and with it what was cut off has left for sure
    assert left(client) == []


def test_a_block_that_fails_gives_back_what_it_held(client: sync.Client, pair: Pair) -> None:
    both = sync.recipes.ReadWriteLock(client, pair[0], "rw")
    election = sync.recipes.Election(client, pair[0], "e")
    queue = sync.recipes.Queue(client, pair[0], "q")
    number = queue.put("a")
    for block in (both.reading, both.writing, election.leading, queue.claimed):
        with pytest.raises(ZeroDivisionError), block():
            _ = 1 / 0
    assert left(client) == [f"queue/q/ready/{number:019d}"]
    with both.reading(), both.reading(), fails(Code.TIMEOUT, kind=DeadlineExceeded):
        both.acquire("write", timeout_s=0)


def test_leaders_are_seen_and_items_are_completed_once(client: sync.Client, pair: Pair) -> None:
    election = sync.recipes.Election(client, pair[0], "e")
    assert election.leader() is None
    leaders = election.leaders()
    assert next(leaders) is None
    with election.leading("me") as term:
        seen = next(leaders)
        assert seen == election.leader()
        assert seen is not None
        assert (seen.value, seen.token) == ("me", term.token)
    assert next(leaders) is None

    queue = sync.recipes.Queue(client, pair[1], "q")
    number = queue.put({"to": "ann"})
    with queue.claimed() as claim:
        assert (claim.item, claim.number, claim.attempts) == ({"to": "ann"}, number, 1)
        done = claim.completing(Transaction().put("rows", "mail", "twice"))
        assert claim.complete(Transaction().put("rows", "mail", "sent")).applied
    assert not pair[1].transact(done).applied
    with fails(Code.TIMEOUT, kind=DeadlineExceeded):
        queue.claim(timeout_s=0)

    picky = sync.recipes.Queue(client, pair[1], "p", attempts_max=1)
    assert pair[0].transact(picky.putting("b", picky.putting("a"))).applied
    [one, two] = picky.claim_many(5)
    assert (one.item, one.bury(), two.release()) == ("a", True, True)
    with fails(Code.TIMEOUT, kind=DeadlineExceeded):
        picky.claim(timeout_s=2)
    assert [letter.item for letter in picky.dead()] == ["a", "b"]
    assert (picky.redrive(one.number), picky.claim().item) == (1, "a")


def test_permits_names_numbers_and_a_barrier(client: sync.Client, pair: Pair, oncegate_cluster: FakeCluster) -> None:
    one, two = (sync.recipes.Semaphore(client, session, "s", permits=2) for session in pair)
    with one.held(), two.held():
        assert one.try_acquire() is None
    limiter = sync.recipes.RateLimiter(client, pair[0], "api", permits=1, per_ms=1_000)
    limiter.acquire()
    assert not limiter.try_acquire()
    with fails(Code.TIMEOUT, kind=DeadlineExceeded):
        limiter.acquire(timeout_s=0.05)
    oncegate_cluster.advance(3)
    limiter.acquire(timeout_s=20)

    names = sync.recipes.Registry(client, pair[0], "users")
    token = names.take("ann", 1)
    assert token is not None
    assert names.take("ann", 2) is None
    found = names.find("ann")
    assert found is not None
    assert found.version == token
    assert pair[1].transact(names.guard(Transaction().put("rows", "r", 1), "ann", token)).applied
    assert names.give_up("ann", token)
    assert list(sync.recipes.Sequence(client, pair[0], "n").next(3)) == [1, 2, 3]

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(sync.recipes.Barrier(client, pair[0], "b", parties=2).wait, timeout_s=20)
        sync.recipes.Barrier(client, pair[1], "b", parties=2).wait(timeout_s=20)
        first.result(20)
