"""Writes under an idempotency key: what they send, and what each answer means, in every form that one may have."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from oncegate import Code, Transaction
from oncegate.gateway import wire
from oncegate.gateway.client import keyed_writes
from oncegate.gateway.client.keyed_writes import KeyedCall
from oncegate.rifl.ids import ClientId, format_client_id
from tests.client.answers import fails

REQUEST = f"{format_client_id(ClientId(7))}/3"
VALUES: tuple[tuple[dict[str, str], Any], ...] = (
    ({"value": "djE="}, "djE="),
    ({"value": "djE=", "encoding": "base64"}, b"v1"),
    ({}, None),
)
"""Values as they travel, and as they are told."""


def headers(*, replayed: bool) -> dict[str, str]:
    return {wire.H_MEMORY_MS: "900", **({wire.H_REPLAYED: "true"} if replayed else {})}


def call(key: str = "k") -> KeyedCall:
    transaction = Transaction().put("rows", "a", 1).check("rows", "b", absent=True)
    return KeyedCall(transaction, key, {"Authorization": "x"}, 9.0)


def test_request_carries_all_of_the_transaction_and_its_key_as_it_is() -> None:
    for key, quoted in (("k", '"k"'), ('a "b"', r'"a \"b\""'), ("a\\b", r'"a\\b"'), ('\\"', r'"\\\""')):
        made = call(key)
        assert made.headers[wire.H_IDEMPOTENCY_KEY] == quoted
        assert made.headers["Authorization"] == "x"
        assert made.body is not None
        body = msgspec.msgpack.decode(made.body)
        assert [one["key"] for one in body["writes"]] == ["a"]
        assert [one["key"] for one in body["conditions"]] == ["b"]


@pytest.mark.parametrize("replayed", [False, True])
def test_result_says_what_the_answer_does(replayed: bool) -> None:
    for (said, value), status in product(VALUES, (409, 412)):
        for version in ({"version": 4}, {}):
            no = {"code": "CONDITION_FAILED", "request": REQUEST, "commit": 8, "failed": "writes[0]", **said, **version}
            payload = msgspec.json.encode(no)
            assert call().takes(status, payload)
            told = call().accept(status, headers(replayed=replayed), payload)
            assert (told.request_id, told.applied, told.commit) == ((7, 3), False, 8)
            assert (told.code, told.failed, told.value) == ("CONDITION_FAILED", "writes[0]", value)
            assert (told.version, told.replayed, told.memory_ms_left) == (version.get("version", 0), replayed, 900)
    for (first, one), (second, other) in product(VALUES, VALUES):
        writes = [{"commit": 8, "version": 8, **first}, {"commit": 9, "version": 5, **second}]
        payload = msgspec.json.encode({"request": REQUEST, "commit": 9, "writes": writes})
        told = call().accept(200, headers(replayed=replayed), payload)
        assert (told.request_id, told.applied, told.commit) == ((7, 3), True, 9)
        assert [(at.commit, at.version, at.value or None) for at in told.writes] == [(8, 8, one), (9, 5, other)]
        assert (told.replayed, told.memory_ms_left, told.code, told.failed) == (replayed, 900, None, None)


def test_refusal_of_another_kind_is_an_error_and_no_result() -> None:
    problem = msgspec.json.encode({"type": "", "title": "t", "status": 409, "code": "PAYLOAD_MISMATCH"})
    refused = {"code": "CONDITION_FAILED", "request": REQUEST, "commit": 8, "failed": "writes[0]"}
    for status, payload in product((409, 412), (problem, b"", b"<html>", b'{"code": "\xff"}')):
        assert not call().takes(status, payload)
    for status in (400, 403, 404, 410, 413, 421, 429, 500, 503):
        assert not call().takes(status, msgspec.json.encode(refused))


class Link:
    """A client's connection that gives one answer."""

    headers: dict[str, str] = {}  # noqa: RUF012 - never changed

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        self._answer, self.seen = (status, headers(replayed=False), msgspec.json.encode(body)), list[int]()

    def deadline(self, timeout_s: float | None = None) -> float:
        return 100.0 if timeout_s is None else timeout_s

    async def perform(self, asked: KeyedCall) -> Any:
        self.asked = asked
        return asked.accept(*self._answer)

    def saw(self, commit: int) -> None:
        self.seen.append(commit)


@pytest.mark.parametrize("timeout_s", [None, 3.0])
@pytest.mark.parametrize("single", [False, True])
async def test_later_reads_reflect_each_result_and_the_call_has_the_time_that_was_given(
    timeout_s: float | None, single: bool
) -> None:
    send: Any = keyed_writes.send_one if single else keyed_writes.send
    applied = {"request": REQUEST, "commit": 9, "writes": [{"commit": 9, "version": 5}]}
    refused = {"code": "CONDITION_FAILED", "request": REQUEST, "commit": 8, "failed": "writes[0]", "version": 2}
    for status, body in ((200, applied), (412, refused)):
        link = Link(status, body)
        told = await send(link, Transaction().put("rows", "a", 1), "k", timeout_s)
        assert link.seen == [told.commit] == [body["commit"]]
        assert link.asked.deadline == (timeout_s or 100.0)
        if single:
            assert (told.version, told.value, told.writes) == (5 if status == 200 else 2, None, ())


async def test_keys_are_1_to_255_printable_characters() -> None:
    link: Any = Link(200, {"request": REQUEST, "commit": 9, "writes": [{"commit": 9, "version": 5}]})
    for key in ("k", " ", "~" * 255):
        assert (await keyed_writes.send(link, Transaction().put("rows", "a", 1), key, None)).applied
    for wrong in ("", "~" * 256, "é", "k\n", "\tk", 7, None, b"k"):
        with fails(Code.BAD_REQUEST):
            await keyed_writes.send(link, Transaction().put("rows", "a", 1), wrong, None)


def test_key_that_names_its_time_has_the_name_that_was_given_or_one_that_nobody_has() -> None:
    assert keyed_writes.naming(5, "order 7") == "oncegate-5-order 7"
    assert keyed_writes.naming(5, "") == "oncegate-5-"
    assert len({keyed_writes.naming(5, None) for _ in range(9)}) == 9
    for wrong in ("é", "a\n", "x" * 250, 7, b"x"):
        with fails(Code.BAD_REQUEST):
            keyed_writes.naming(5, wrong)  # type: ignore[arg-type]
