"""Which requests are hot: those of routes that declare an ordering, where path and headers say nothing unusual.

Owns: how a hot request finds its route, and what it needs to be admitted. Pure but for the desk's clock. The paths are
those of the routes; a path with an escape or an unusual sign is left to aiohttp, which knows how to read it, and so is
a query with more than plain words, or of a route that takes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from oncegate.gateway.http.admission.desk import Asked, Desk
from oncegate.gateway.http.exchange import Exchange, MakeOrdering, UsualAnswers, wants_msgpack
from oncegate.gateway.http.hot.framing import Head
from oncegate.gateway.http.routing import UNNAMED, Route
from oncegate.gateway.node.node import Node

_PART: Final = re.compile(r"{(\w+)(:[^}]*)?}")
_SIGNS: Final = r"[A-Za-z0-9_~:-][A-Za-z0-9_.~:-]*"
"""Letters that no escape is needed for and that no reader of paths takes for something else."""
_QUERY: Final = re.compile(r"[a-z_]+=\w+(?:&[a-z_]+=\w+)*", re.ASCII)
_MEDIA: Final = re.compile(r"([a-z0-9-]+/[a-z0-9.+-]+)(?:; ?charset=utf-8)?")


class Found(NamedTuple):
    """The route of a hot request, what its path names, and what begins it."""

    route: Route
    names: Mapping[str, str]
    make: MakeOrdering
    body_bytes_max: int
    query: Mapping[str, str] = {}


class Form(NamedTuple):
    """What a head says of how its request is to be read, once the desk has found nothing wrong with that."""

    asked: Asked
    media: str
    packed: bool


class Fields:
    """The headers of a hot request, each of which stands once."""

    __slots__ = ("_given",)

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given

    def __call__(self, name: str, /) -> list[str]:
        """Return the value of a header, none if it is not there."""
        value = self._given.get(name.lower())
        return [] if value is None else [value]

    def have_none(self, names: frozenset[str], /) -> bool:
        """Tell whether none of these is there; they are written in small letters."""
        return names.isdisjoint(self._given)


class HotRoutes:
    """Finds and admits hot requests.

    Args:
        routes: all that are served; those with an ordering are hot.
        desk: the same that admits what aiohttp serves.
        node: which serves them.
        running: idempotency keys in use, the same set as aiohttp's handlers use.
    """

    def __init__(self, routes: Iterable[Route], desk: Desk, node: Node, running: set[str]) -> None:
        self._desk = desk
        self.node = node
        self._running = running
        self._usual = UsualAnswers(node)
        self._exact: dict[tuple[str, str], Found] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], Found]]] = {}
        for route in routes:
            if route.ordering is None:
                continue
            pattern = _PART.sub(lambda part: f"(?P<{part[1]}>{_SIGNS})", route.path)
            found = Found(route, {}, route.ordering, desk.body_bytes_max(route))
            if pattern == route.path:
                self._exact[route.method, route.path] = found
            else:
                self._patterns.setdefault(route.method, []).append((re.compile(pattern), found))

    def find(self, head: Head) -> Found | None:
        """Return what serves a request, None if it is not hot."""
        found = self._exact.get((head.method, head.target))
        if found is None:
            path, asks, text = head.target.partition("?")
            for pattern, (route, _, make, most, _) in self._patterns.get(head.method, ()):
                named = pattern.fullmatch(path)
                if named is None:
                    continue
                if not asks:
                    found = Found(route, named.groupdict(), make, most)
                elif route.takes_query and (query := _parameters(text)) is not None:
                    found = Found(route, named.groupdict(), make, most, query)
                break
        if found is None or head.length > found.body_bytes_max:
            return None
        return found

    def form(self, head: Head, found: Found, known: Form | None = None) -> Form | None:
        """Return how a request is to be read; None if its content type is not for this reader.

        Args:
            head: the request's.
            found: what serves it.
            known: that of a head which differs from this one in the values alone that a
                :class:`oncegate.gateway.http.hot.framing.KnownHead` lets vary; what follows from the others is not
                looked at again.

        Raises:
            OncegateError: the desk refuses it.
        """
        if known is not None and known.asked.route is found.route and not known.asked.query and not found.query:
            asked, has_body = known.asked, head.length > 0
            if asked.has_body == has_body:
                if asked.target == head.target:
                    return known
                route = found.route
                asked = Asked(head.method, head.target, route, found.names, (), asked.header, known.media, has_body)
                return Form(asked, known.media, known.packed)
        headers = head.headers
        media = UNNAMED
        if (kind := headers.get("content-type")) is not None:
            named = _MEDIA.fullmatch(kind)
            if named is None:
                return None
            media = named[1]

        def header(name: str) -> str | None:
            return headers.get(name.lower())

        asks = tuple(found.query)
        asked = Asked(head.method, head.target, found.route, found.names, asks, header, media, head.length > 0)
        self._desk.check_site(asked)
        self._desk.check_form(asked, found.route)
        return Form(asked, media, wants_msgpack(headers.get("accept"), media))

    def admit(self, head: Head, found: Found, form: Form) -> Exchange | None:
        """Admit a request of this form; None if no route serves it.

        Raises:
            OncegateError: the desk refuses it, and has counted nothing: aiohttp's side may ask again, and tell.
        """
        identity = self._desk.identify(form.asked)
        if identity is None:
            return None
        usage = self._desk.count(found.route, identity)
        fields = Fields(head.headers)
        return Exchange(
            self.node,
            identity,
            usage,
            fields,
            form.media,
            form.packed,
            self._running,
            found.query,
            usual=self._usual,
        )


def _parameters(text: str) -> dict[str, str] | None:
    """Read a query whose parameters are plain words and stand once each; None for any other."""
    if not _QUERY.fullmatch(text):
        return None
    pairs = text.split("&")
    query = dict([pair.split("=") for pair in pairs])
    return query if len(query) == len(pairs) else None
