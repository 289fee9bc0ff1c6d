"""Which values there are (SEMANTICS, *Values*): what JSON cannot say exactly is refused, never changed in silence."""

from __future__ import annotations

import pytest

from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import OncegateError

HEAD = (
    b'{"client_id":"0000000000000001","epoch":1,"first_incomplete":1,"operations":[{"sequence":1,"table":"t","key":"k",'
)


def operation(rest: bytes) -> c.Op:
    (op,) = request_bodies.operate(HEAD + rest + b"}]}", "application/json", "", "").ops
    assert not isinstance(op, c.Transaction)
    return op


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**63 - 1, 2**64 - 1])
def test_integer_of_64_bits_is_kept_as_it_came(number: int) -> None:
    assert operation(b'"op":"put","value":{"n":[%d]}' % number).value == b'{"n":[%d]}' % number


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**64, 10**40])
@pytest.mark.parametrize("filler", [b"", b"x" * 40_000], ids=["small", "large"])
def test_integer_of_more_bits_is_refused_wherever_it_stands(number: int, filler: bytes) -> None:
    for rest in (
        b'"op":"put","value":["%s",%d]' % (filler, number),
        b'"op":"append","item":["%s",{"n":%d}]' % (filler, number),
        b'"op":"put","value":"%s","if":{"value":%d}' % (filler, number),
        b'"op":"increment","by":%d' % number,
    ):
        with pytest.raises(OncegateError, match="64 bits"):
            operation(rest)


def test_increment_takes_signed_64_bits_and_integers_alone() -> None:
    assert operation(b'"op":"increment","by":%d' % -(2**63)).by == -(2**63)
    for by in (b"9223372036854775808", b"1.0", b"0.1", b'"1"'):
        with pytest.raises(OncegateError, match="BAD_REQUEST"):
            operation(b'"op":"increment","by":' + by)
