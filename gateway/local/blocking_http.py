"""Blocking requests to a node, with the standard library: for callers without an event loop."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final

TIMEOUT_S: Final = 3.0


def _request(method: str, url: str, data: bytes | None = None) -> urllib.request.Request:
    """Make a request; it carries the token that ``ONCEGATE_TOKEN`` holds, if there is one."""
    headers = {} if data is None else {"Content-Type": "application/json"}
    token = os.environ.get("ONCEGATE_TOKEN")
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return urllib.request.Request(url, data, headers, method=method)


def get(url: str, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Return the body of a 200 answer, or None for any other answer or none."""
    try:
        with urllib.request.urlopen(_request("GET", url), timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body if answer.status == 200 else None
    except (OSError, HTTPException, ValueError):
        return None  # refused, cut off in the middle, or not an HTTP address


def get_json(url: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Return the JSON object of a 200 answer, or None for any other answer or none."""
    body = get(url, timeout_s)
    try:
        found = None if body is None else json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class RequestRefused(Exception):
    """The node refused the request; the text says why."""


class Unreachable(Exception):
    """No answer came."""


def send_json(method: str, url: str, body: dict[str, object] | None, timeout_s: float) -> dict[str, Any]:
    """Send a request and return the JSON object of a 2xx answer.

    Raises:
        Refused: another status, with the problem's code and detail.
        Unreachable: none came in ``timeout_s``.
    """
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(_request(method, url, data), timeout=timeout_s) as answer:
            found = json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as fault:
        raise RequestRefused(_reason(fault.read(), fault.reason)) from None
    except (OSError, HTTPException, ValueError) as fault:
        raise Unreachable(str(fault)) from None
    return found if isinstance(found, dict) else {}


def _reason(body: bytes, otherwise: str) -> str:
    try:
        problem = json.loads(body)
        return f"{problem['code']}: {problem['detail']}"
    except (ValueError, KeyError, TypeError):
        return otherwise
