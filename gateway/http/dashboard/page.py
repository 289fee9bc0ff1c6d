"""The dashboard's three files, as they are sent: joined of ``assets/``, with the headers that keep the page to itself.

Owns: the policy. The page runs this node's script and style alone, asks this node alone, is shown in no frame, and
makes no HTML of text (Trusted Types without a policy). It holds nothing secret: what it shows it asks with the token
that its reader gives, under the rules of the routes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

SCRIPTS: Final = (
    *("dom.js", "format.js", "api.js", "address.js", "plot.js"),
    *("browsing.js", "cluster.js", "flow_graph.js", "flows.js", "tables.js", "sessions.js", "history.js", "members.js"),
    "main.js",
)
"""In the order in which they are joined: each uses the ones before it."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Of all three. A browser asks each time whether its copy is current: a page of one build with a script of another is
none."""


class Asset(NamedTuple):
    """A file as it is sent."""

    body: bytes
    media: str
    etag: str
    """Without quotes."""


@cache
def page() -> Asset:
    """Return the page."""
    return _asset(_text("page.html"), "text/html")


@cache
def style() -> Asset:
    """Return its style."""
    return _asset(_text("page.css"), "text/css")


@cache
def script() -> Asset:
    """Return its script."""
    return _asset('(() => {\n"use strict";\n' + "".join(map(_text, SCRIPTS)) + "})();\n", "text/javascript")


def _asset(text: str, media: str) -> Asset:
    body = text.encode()
    return Asset(body, media, hashlib.sha256(body).hexdigest()[:32])


def _text(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
