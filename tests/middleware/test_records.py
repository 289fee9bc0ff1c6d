"""What a gate keeps of a key and what it refuses with (``middleware.records``): each field and each refusal."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import msgspec
import pytest

from oncegate.gateway.middleware import records
from oncegate.gateway.middleware.records import IdempotencyRecord, Incoming, Kept, Policy

REQUEST = Incoming("POST", "/a?x=1", {}, ("k",), b"body")
CLAIM = IdempotencyRecord("claimed", "f" * 64, "owner", 3, 100, claim=7)


def test_requests_have_one_fingerprint_exactly_if_method_path_query_and_body_are_the_same() -> None:
    parts: tuple[tuple[Any, ...], ...] = (("POST", "PATCH"), ("/a?x=1", "/a?x=2", "/a", "/ab"), (b"body", b"", b"b"))
    requests = [Incoming(method, path, {}, ("k",), body) for method, path, body in product(*parts)]
    requests += [Incoming("POST", "/", {}, (), b"a\0b"), Incoming("POST", "/\0a", {}, (), b"b")]
    for one, other in combinations(requests, 2):
        assert one.fingerprint != other.fingerprint or one.path.startswith("/\0") or other.path.startswith("/\0")
    for one in requests:
        again = replace(one, headers={"date": "later"}, keys=("other",))
        assert again.fingerprint == one.fingerprint, "a retry comes at another time, and by other ways"


def test_keys_of_one_caller_never_meet_those_of_another() -> None:
    names = [records.row_key(scope, key) for scope, key in product(("", "ann", "bob", "a"), ("", "k", "nnk", "b/k"))]
    assert len({*names}) == len(names)
    assert {len(name) for name in names} == {97}


@pytest.mark.parametrize("body", [None, b"", b"\xff\0"])
def test_record_says_the_response_and_its_run_and_nothing_of_the_claim(body: bytes | None) -> None:
    kept = Kept(201, [("X-A", "1"), ("x-a", "2")], body)
    done = records.with_response(CLAIM, kept, 200)
    read = records.read_record(msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(done))))
    assert read == done
    assert read.response() == kept
    assert (read.state, read.fingerprint, read.owner, read.attempt, read.at_s) == ("done", "f" * 64, "owner", 3, 200)


def test_key_is_given_once_or_not_at_all() -> None:
    assert records.read_key(()) is None
    assert records.read_key(("k",)) == "k"
    for many in (("k", "k"), ("k", "l"), ("", "")):
        with pytest.raises(ValueError, match="more than once"):
            records.read_key(many)


@pytest.mark.parametrize(
    ("refusal", "status", "code", "outcome", "retry_after"),
    [
        (records.KEY_MISSING, 400, "BAD_REQUEST", "not_applied", None),
        (records.key_malformed("why"), 400, "BAD_REQUEST", "not_applied", None),
        (records.body_too_large(9), 413, "PAYLOAD_TOO_LARGE", "not_applied", None),
        (records.OTHER_PAYLOAD, 422, "PAYLOAD_MISMATCH", "not_applied", None),
        (records.IN_PROGRESS, 409, "IN_PROGRESS", "unknown", "1"),
        (records.OUTCOME_UNKNOWN, 500, "OUTCOME_UNKNOWN", "unknown", None),
        (records.UNAVAILABLE, 503, "NOT_READY", "not_applied", "1"),
        (records.response_not_kept(207), 410, "RESPONSE_NOT_KEPT", "applied", None),
    ],
)
def test_refusal_says_what_became_of_the_request_and_when_to_come_again(
    refusal: Kept, status: int, code: str, outcome: str, retry_after: str | None
) -> None:
    told, headers = msgspec.json.decode(refusal.body or b""), dict(refusal.headers)
    assert (refusal.status, told["status"]) == (status, status)
    assert (told["type"], told["code"], told["outcome"]) == ("about:blank", code, outcome)
    assert told["retryable"] == (retry_after is not None)
    assert headers.get("Retry-After") == retry_after
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["Cache-Control"] == "no-store", "the answer is another one later"
    assert headers.get("Idempotent-Replayed") == ("true" if status == 410 else None)


def test_figures_of_a_refusal_are_those_that_it_is_about() -> None:
    assert b"status 207" in (records.response_not_kept(207).body or b"")
    assert b"at most 9 bytes" in (records.body_too_large(9).body or b"")


def test_policy_without_settings_is_what_its_page_says() -> None:
    policy = Policy()
    assert policy.methods == {"POST", "PATCH"}
    assert policy.broken == {500, 502, 504}, "a run broke off"
    assert policy.passing == {429, 503}, "nothing was carried out: the key is free again"
    assert policy.required is False
    assert (policy.scope(REQUEST), policy.rerun(REQUEST)) == ("", False)
    assert {"set-cookie", "content-length", "transfer-encoding", "connection"} <= policy.left_out
