"""Plain GET requests to a node, with the standard library: for commands that must not need an event loop."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Any

TIMEOUT_S = 3.0


def get(url: str, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Return the body of a 200 answer, or None for any other answer or none."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
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
