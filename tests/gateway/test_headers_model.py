"""What requests say of bodies, conditions and tags, against short references: every combination, well formed or not."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from multidict import CIMultiDict

from oncegate.gateway.http import exchange, negotiation, request_bodies, request_headers
from oncegate.gateway.http.admission import bodies as budget
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.desk import Usage
from oncegate.gateway.http.identity import Identity
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, Fingerprint, SequenceNumber

PUT = c.Op(SequenceNumber(1), int(c.OpKind.PUT), "t", "k", Fingerprint(7), b"1")
TAGS = ["*", '"*"', '"1"', '"0"', f'"{ID_MAX}"', f'"{ID_MAX + 1}"', 'W/"1"', '"1", "2"', "1", "", '"x"']


def headers(given: dict[str, list[str]]) -> Any:
    return lambda name: given.get(name, [])


def condition(match: list[str], none: list[str]) -> tuple[int, int | None] | None:
    """The test that the two headers ask for, None for what no row can be asked."""
    if len(match) > 1 or len(none) > 1 or (match and none):
        return None
    if none:
        return (int(c.Test.ABSENT), None) if none == ["*"] else None
    if not match:
        return int(c.Test.NONE), None
    if match == ["*"]:
        return int(c.Test.PRESENT), None
    known = {'"1"': 1, f'"{ID_MAX}"': ID_MAX}
    return (int(c.Test.VERSION), known[match[0]]) if match[0] in known else None


def test_change_has_the_condition_of_the_one_header_that_is_there_or_is_refused() -> None:
    given = [[], *([tag] for tag in TAGS), ['"1"', '"1"'], ["*", "*"]]
    for match, none in itertools.product(given, given):
        expected = condition(match, none)
        said = headers({"If-Match": match, "If-None-Match": none})
        if expected is None:
            with pytest.raises(OncegateError) as caught:
                request_headers.conditional(PUT, said)
            assert caught.value.code is Code.BAD_REQUEST
            continue
        op = request_headers.conditional(PUT, said)
        assert (op.test, op.operand) == expected
        assert (op.fingerprint == PUT.fingerprint) == (op == PUT)
        assert (op.kind, op.table, op.key, op.value) == (PUT.kind, PUT.table, PUT.key, PUT.value)


def test_tag_is_current_if_it_is_in_the_list_before_the_first_place_that_is_no_list() -> None:
    dice = random.Random(4)
    ways = [0, 0]
    for _ in range(5_000):
        good = [(f'{dice.choice(("", "W/"))}"{tag}"', tag) for tag in dice.choices("12345", k=dice.randrange(4))]
        bad = dice.choice(("", "", "x", '"', '"1', "1", ";", '""', '"1 1"', "w/"))
        behind = [f'"{tag}"' for tag in dice.choices("12345", k=dice.randrange(1, 3))]
        between = dice.choice((",", ", ", " ,\t"))
        if bad:
            odd = dice.choice((bad, bad + behind[0], f"{behind[0]} {bad}"))
            items = [*(one for one, _ in good), odd, *behind]
        else:
            items = [one for one, _ in good]
        held = headers({"If-None-Match": [between.join(items)] if items else []})
        expected = "3" in [tag for _, tag in good]
        assert exchange.is_current(held, "3") == expected, items
        ways[expected] += 1
    assert min(ways) > 500
    assert exchange.is_current(headers({"If-None-Match": ["*"]}), "3")
    assert not exchange.is_current(headers({}), "3")


class Request(dict[Any, Any]):
    """An admitted request, and how its body comes: whole with its head or in pieces, its length told or not."""

    def __init__(self, tenant: str, body: bytes, most: int, dice: random.Random, held: BodyBudget) -> None:
        super().__init__()
        self.body, self.headers = body, CIMultiDict[str]()
        self.content_length = dice.choice((None, len(body)))
        self.pieces = [body[:3], body[3:]] if dice.random() < 0.5 else None
        self.content = SimpleNamespace(is_eof=lambda: self.pieces is None, readany=self.readany)
        self.app = {negotiation.BODIES: held, negotiation.PARSING: SimpleNamespace(run=self.run)}
        self.usage = Usage(None, 5)
        self.usage.requests = 1
        self[negotiation.IDENTITY] = Identity("n", tenant, frozenset())
        self[negotiation.USAGE] = self.usage
        self[negotiation.BODY_BYTES_MAX] = most

    async def read(self) -> bytes:
        return self.body

    async def readany(self) -> bytes:
        assert self.pieces is not None
        assert self.usage.requests == 0, "what arrives takes no place of its tenant"
        return self.pieces.pop(0) if self.pieces else b""

    async def run(self, tenant: str, read: Any) -> Any:
        assert tenant == self[negotiation.IDENTITY].tenant
        return read()


@pytest.mark.parametrize("seed", range(4))
async def test_body_is_taken_up_to_its_bound_however_it_comes_and_held_if_it_is_large_and_has_room(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held is told to the gate, which gives it back: neither more, nor what was refused its room."""
    monkeypatch.setattr(request_bodies, "INLINE_BYTES_MAX", 20)
    monkeypatch.setattr(budget, "HELD_BYTES_MAX", 100)
    dice, bodies = random.Random(seed), BodyBudget(60, 1_000, 60_000)
    under_way: list[tuple[Request, int]] = []
    ends = dict.fromkeys(("taken", "held", "too large", "no room"), 0)
    for _ in range(400):
        body, most = b"b" * dice.choice((0, 5, 20, 21, 40, 59, 60)), dice.choice((19, 40, 60))
        request = Request(dice.choice("abc"), body, most, dice, bodies)
        before, size, came = bodies.held_bytes, len(body), ""
        try:
            assert await negotiation.parsed(cast("Any", request), lambda sent: sent) == body
            came = "held" if size > 20 else "taken"
        except OncegateError as refusal:
            came = "too large" if refusal.code is Code.PAYLOAD_TOO_LARGE else "no room"
        ends[came] += 1
        assert (came == "too large") == (size > most)
        assert request.usage.requests == 1
        held = size if came == "held" else 0
        assert request.get(negotiation.HELD_BYTES, 0) == held
        assert bodies.held_bytes - before == held
        under_way.append((request, held))
        while under_way and dice.random() < 0.5:
            ended, size = under_way.pop(dice.randrange(len(under_way)))
            if size:
                bodies.release(ended[negotiation.IDENTITY].tenant, size)
        assert bodies.held_bytes == sum(size for _, size in under_way) <= 100
    assert min(ends.values()) > 5
