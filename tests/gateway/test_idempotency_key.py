"""Headers of changes under ``Idempotency-Key``: the quick readers of what is usual say what the full ones say."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http import request_headers as plain
from oncegate.gateway.http.exchange import traceparent
from oncegate.gateway.http.hot.request import Fields
from oncegate.gateway.idempotency_key import KEY_LENGTH_MAX, read_any_key, read_key
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import OncegateError

SIGNS = 'a "\\,;=\t\n\x7f\u00e9~!#'
LONG = st.builds(
    lambda start, sign, count, end: start + sign * count + end,
    st.sampled_from(["", '"', ' "', '"\\"']),
    st.sampled_from("k ~"),
    st.integers(KEY_LENGTH_MAX - 3, KEY_LENGTH_MAX + 2),
    st.sampled_from(["", '"', '";a=1', '"\n', '" ']),
)


def _said(read: Callable[[str], str], value: str) -> str:
    try:
        return "key " + read(value)
    except ValueError as fault:
        return str(fault)


def test_quick_reader_of_keys_says_what_the_reader_of_every_form_says() -> None:
    for length in range(6):
        for signs in itertools.product(SIGNS if length < 5 else 'a"\\; ', repeat=length):
            value = "".join(signs)
            assert _said(read_key, value) == _said(read_any_key, value)


@given(LONG | st.text(SIGNS, max_size=12).map(lambda text: f'"{text}"'))
def test_quick_reader_of_keys_keeps_to_their_length(value: str) -> None:
    assert _said(read_key, value) == _said(read_any_key, value)


FIELDS = {
    "idempotency-key": ['"k"', "k", "", '"oncegate-12-k"', "oncegate-x"],
    "oncegate-request": ["0000000000000001/2", "x"],
    "oncegate-first-incomplete": ["1"],
    "if-match": ['"1"', "*", "x"],
    "if-none-match": ["*", '"1"'],
    "oncegate-ttl-ms": ["5", "x"],
    "traceparent": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x"],
    "accept": ["*/*"],
}
PUT = c.Op(1, 1, "t", "k", c.fingerprint_put("t", "k", b"1"), b"1")  # type: ignore[arg-type]


def _in_full(headers: plain.Headers) -> object:
    who = plain.identity(headers)
    return who, plain.lasting(plain.conditional(PUT, headers), headers), traceparent(headers)


def _or_refusal(read: Callable[[plain.Headers], object], headers: plain.Headers) -> object:
    try:
        return read(headers)
    except OncegateError as refusal:
        return refusal.detail


def test_key_alone_is_all_that_the_headers_say() -> None:
    alone = 0
    for values in itertools.product(*[[None, *some] for some in FIELDS.values()]):
        headers = Fields({name: value for name, value in zip(FIELDS, values, strict=True) if value is not None})
        key = _or_refusal(plain.key_alone, headers)
        if key is not None:
            alone += isinstance(key, plain.Key)
            wanted = (key, PUT, "") if isinstance(key, plain.Key) else key
            assert _or_refusal(_in_full, headers) == wanted
    assert alone == 4 * 2 * 2
