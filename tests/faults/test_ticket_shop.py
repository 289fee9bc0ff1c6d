"""The example of a ticket shop: its tills killed and stopped for longer than their leases, nodes that lead killed."""

from __future__ import annotations

import asyncio
import inspect
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from examples.applications import ticket_shop
from examples.applications.ticket_shop import Order, open_shop
from oncegate import Client, Json, OutboxDamaged
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import until, wait_for
from oncegate.gateway.machine.levels import NEWEST
from oncegate.rifl.ids import format_client_id
from tests.faults.harness.till import Till

TILLS = 3
KILLS = (34, 33, 33)
ORDERS = 400
SEATS = 3000
MONEY = {"ann": 20_000, **{f"c{n}": 10_000_000 for n in range(9)}}
"""Of each customer: ann has too little for her orders."""
LINES_MAX = 40
WAIT_S = 60.0

pytestmark = pytest.mark.faults


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster") as started:
        started.start()
        started.wait_ready()
        # A member that came up late has been asked after the identity was ordered.
        wait_for(lambda: (started.state(started.leader()) or {}).get("level") == NEWEST, WAIT_S, "the newest level")
        yield started


def drawn(dice: random.Random) -> list[list[Order]]:
    """Return the orders of each till: more than seats and money are enough for, and one in ten comes to two tills."""
    tills: list[list[Order]] = [[] for _ in range(TILLS)]
    for number in range(TILLS * ORDERS * 10 // 11):
        seat, customer = f"s{dice.randrange(SEATS)}", dice.choice([*MONEY])
        order: Order = {"order": f"o{number}", "seat": seat, "customer": customer, "cents": dice.randrange(1, 5000)}
        for till in dice.sample(tills, 2 if dice.random() < 0.1 else 1):
            till.append(order)
    return tills


def expired(cluster: LocalCluster, client_id: int) -> bool:
    try:
        send_json("GET", f"{cluster.endpoints[0]}/v1/sessions/{format_client_id(client_id)}", None, 2.0)
    except (RequestRefused, Unreachable) as refusal:
        return "SESSION_EXPIRED" in str(refusal)
    return False


async def look(condition: Callable[[], object], what: str) -> None:
    """Wait until a till that runs is seen to be so far; an outbox that a kill cut off, its owner makes whole first."""
    await until(condition, WAIT_S, what, despite=(OutboxDamaged,), every_s=0.005)


async def stand_still(cluster: LocalCluster, till: Till) -> None:
    """Let a till stand still until its session has expired, from when its order has met a leader that is dead."""
    leader = await asyncio.to_thread(cluster.leader)
    await asyncio.to_thread(cluster.kill, leader)
    await look(lambda: till.look()[1], "an order is under way")
    lost = till.look()[0].client_id
    till.signal(signal.SIGSTOP)
    cluster.start(leader)
    await asyncio.to_thread(wait_for, partial(expired, cluster, lost), WAIT_S, "the session expires")
    till.signal(signal.SIGCONT)
    await look(lambda: till.look()[0].client_id not in (0, lost), "the next session is there")


async def killed(cluster: LocalCluster, till: Till, kills: int, dice: random.Random) -> None:
    """Kill a till so often, with a lost session in the middle."""
    for kill in range(kills):
        goal = till.done(owned=False) + dice.randrange(8)
        till.start()
        await look(lambda goal=goal: till.done() >= goal, f"order {goal} is taken in")
        if kill == kills // 2:
            await stand_still(cluster, till)
        await asyncio.sleep(dice.uniform(0.0, 0.02))  # the random point
        till.signal(signal.SIGKILL)
        assert await till.ended() == -signal.SIGKILL
    assert till.done(owned=False) < len(till.orders), "there was work at every kill"


async def sold_out(till: Till) -> None:
    """Let a till end by itself, and once more for what the one before has left in doubt."""
    for _ in range(2):
        till.start()
        assert await till.ended() == 0
    head, left = till.look(owned=False)
    assert (head.position, left) == (len(till.orders), 0)


async def rows(client: Client, table: str) -> dict[str, Json]:
    return {row.key: row.value async for row in client.rows(table)}


async def test_shop_is_exact_after_a_hundred_kills_and_a_lost_session_of_each_till(
    cluster: LocalCluster, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    tills = [
        Till(cluster.endpoints, orders, tmp_path / f"till{n}.outbox") for n, orders in enumerate(drawn(dice), start=1)
    ]
    everything = {order["order"]: order for till in tills for order in till.orders}
    async with Client(cluster.endpoints) as client:
        await open_shop(client, MONEY)
        try:
            async with asyncio.TaskGroup() as work:
                for till, kills in zip(tills, KILLS, strict=True):
                    work.create_task(killed(cluster, till, kills, dice))
        finally:
            for till in tills:
                till.close()
        await asyncio.gather(*map(sold_out, tills))
        receipts, seats, balances, shop = [
            await rows(client, table) for table in ("receipts", "seats", "balances", "shop")
        ]
    assert receipts == {name: everything[name] for name in receipts}
    assert shop == {"sold": len(receipts)}
    assert seats == {everything[name]["seat"]: name for name in receipts}
    assert len(seats) == len(receipts), "no seat twice"
    spent = Counter[str]()
    for name in receipts:
        spent[everything[name]["customer"]] += everything[name]["cents"]
    assert balances == {customer: cents - spent[customer] for customer, cents in MONEY.items()}
    assert min(balances.values()) >= 0  # type: ignore[type-var]
    refused = [order for name, order in everything.items() if name not in receipts]
    taken = [order for order in refused if order["seat"] in seats]
    poor = [order for order in refused if balances[order["customer"]] < order["cents"]]  # type: ignore[operator]
    assert all(order in taken or order in poor for order in refused), "an order was lost"
    assert taken
    assert poor
    once = Counter(order["order"] for till in tills for order in till.orders)
    told = [line.split(maxsplit=1) for till in tills for line in till.told()]
    assert len(told) > len(everything) / 2
    assert [name for name, what in told if once[name] == 1 and what.startswith("sold") != (name in receipts)] == []


def test_shop_is_short() -> None:
    lines = inspect.getsource(ticket_shop).split('"""', 2)[2].splitlines()
    assert sum(1 for line in lines if line.strip() and not line.startswith(("from", "import"))) <= LINES_MAX
