"""Blocking requests to a node, with the standard library: for callers without an event loop.

The token, and whom to trust, are those of :func:`as_whom`, else of the variables that the SDK reads:
``ONCEGATE_TOKEN``, else ``ONCEGATE_TOKEN_FILE``; ``ONCEGATE_CA_FILE``, else the system's authorities. No redirect is
followed: no node sends one, and the token would go with it.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncegate.version import __version__

TIMEOUT_S: Final = 3.0
_USER_AGENT: Final = f"oncegate-command/{__version__}"


class Credentials(NamedTuple):
    """Who asks, and whom it trusts; ``token`` comes before ``token_file``."""

    token: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


_AS_WHOM: Final[list[Credentials]] = []
"""Of this process, the one in force last: a command asks as one, in whichever thread."""


def credentials_of(environment: Mapping[str, str]) -> Credentials:
    """Return what the variables say."""
    names = ("ONCEGATE_TOKEN", "ONCEGATE_TOKEN_FILE", "ONCEGATE_CA_FILE")
    return Credentials(*(environment.get(name) or None for name in names))


@contextmanager
def as_whom(credentials: Credentials) -> Iterator[None]:
    """Ask with these credentials, and not with those of the variables."""
    _AS_WHOM.append(credentials)
    try:
        yield
    finally:
        _AS_WHOM.pop()


def credentials_in_force() -> Credentials:
    """Return what requests are sent with."""
    return _AS_WHOM[-1] if _AS_WHOM else credentials_of(os.environ)


class RequestRefused(Exception):
    """The node refused the request; the text says why."""


class NotAsked(RequestRefused):
    """No node was asked: the address, the token's file or the authorities' file is of no use; the text says which."""


def _request(method: str, url: str, data: bytes | None = None) -> urllib.request.Request:
    """Make a request; it carries the token, if there is one."""
    headers = {"User-Agent": _USER_AGENT} | ({} if data is None else {"Content-Type": "application/json"})
    if not url.startswith(("http://", "https://")):
        raise NotAsked(f"{url} begins neither with http:// nor with https://")
    token, file, _ = credentials_in_force()
    if file and not token:
        try:
            token = Path(file).read_text().strip()
        except (OSError, ValueError) as fault:
            raise NotAsked(f"the token's file cannot be read: {fault}") from None
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return urllib.request.Request(url, data, headers, method=method)


class _Staying(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an answer that is no 2xx."""

    def redirect_request(self, *_: object) -> None:
        """Ask nobody else."""


def _open(request: urllib.request.Request, timeout_s: float) -> Any:
    context = _trusted()
    handlers = [] if context is None else [urllib.request.HTTPSHandler(context=context)]
    return urllib.request.build_opener(_Staying, *handlers).open(request, timeout=timeout_s)


def _trusted() -> ssl.SSLContext | None:
    authorities = credentials_in_force().ca_file
    try:
        return ssl.create_default_context(cafile=authorities) if authorities else None
    except OSError as fault:
        raise NotAsked(f"the authorities' file {authorities} holds no certificates: {fault}") from None


def get(url: str, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Return the body of a 200 answer, or None for any other answer or none."""
    try:
        with _open(_request("GET", url), timeout_s) as answer:
            body: bytes = answer.read()
            return body if answer.status == 200 else None
    except (OSError, HTTPException, ValueError, NotAsked):
        return None  # refused, cut off in the middle, or not an HTTP address


def get_json(url: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """Return the JSON object of a 200 answer, or None for any other answer or none."""
    body = get(url, timeout_s)
    try:
        found = None if body is None else json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Unreachable(Exception):
    """No answer came; the text says why, as far as the system tells."""


class Untrusted(Unreachable):
    """A node answered with a certificate that this process does not trust; nothing was sent to it."""


def send_json(method: str, url: str, body: dict[str, object] | None, timeout_s: float) -> dict[str, Any]:
    """Send a request and return the JSON object of a 2xx answer.

    Raises:
        RequestRefused: another status, with the problem's code and detail; or :class:`NotAsked`.
        Untrusted: the node's certificate is not to be trusted.
        Unreachable: none came in ``timeout_s``.
    """
    data = None if body is None else json.dumps(body).encode()
    try:
        with _open(_request(method, url, data), timeout_s) as answer:
            found = json.loads(answer.read() or b"{}")
    except RecursionError:
        raise Unreachable("what answered is JSON beyond any depth") from None
    except urllib.error.HTTPError as fault:
        raise RequestRefused(_refusal(fault)) from None
    except (OSError, HTTPException, ValueError) as fault:
        raise _no_answer(fault) from None
    return found if isinstance(found, dict) else {}


def download(url: str, timeout_s: float) -> bytes:
    """Return the body of a 200 answer; raises as :func:`send_json`, also when it is cut off."""
    try:
        with _open(_request("GET", url), timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as fault:
        raise RequestRefused(_refusal(fault)) from None
    except (OSError, HTTPException, ValueError) as fault:
        raise _no_answer(fault) from None


def _no_answer(fault: Exception) -> Unreachable:
    cause = fault.reason if isinstance(fault, urllib.error.URLError) else fault
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Untrusted(cause.verify_message)
    if isinstance(cause, OSError) and cause.strerror:
        return Unreachable(f"{cause.strerror}{f': {cause.filename}' if cause.filename else ''}")
    return Unreachable(str(cause) or type(cause).__name__)


def _refusal(fault: urllib.error.HTTPError) -> str:
    try:
        body = fault.read()
    except (OSError, HTTPException):
        body = b""  # cut off in the middle: the status is known
    if 300 <= fault.code < 400:
        return f"it answers {fault.code} with another address, which is not followed"
    return _reason(body, fault.reason)


def _reason(body: bytes, otherwise: str) -> str:
    try:
        problem = json.loads(body)
        return f"{problem['code']}: {problem.get('detail') or problem['title']}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return otherwise
