"""``Idempotency-Key`` for any web service, backed by a gateway: a retried request is carried out once.

Start at :class:`Gate`; then :func:`for_aiohttp` or :class:`ForAsgi`. What is promised, and what is not when a
service dies half-way: :mod:`oncegate.gateway.middleware.gate`. Needs the SDK only.
"""

from oncegate.gateway.middleware.aiohttp_app import TICKET, for_aiohttp
from oncegate.gateway.middleware.asgi_app import SCOPE_TICKET, ForAsgi
from oncegate.gateway.middleware.gate import Gate, Ticket
from oncegate.gateway.middleware.records import Incoming, Policy

__all__ = ["SCOPE_TICKET", "TICKET", "ForAsgi", "Gate", "Incoming", "Policy", "Ticket", "for_aiohttp"]
