"""``Idempotency-Key`` for any web service: a retried request is carried out once. Start at :class:`Gate`."""

from oncegate.gateway.middleware import SCOPE_TICKET, TICKET, ForAsgi, Gate, Incoming, Policy, Ticket, for_aiohttp

__all__ = ["SCOPE_TICKET", "TICKET", "ForAsgi", "Gate", "Incoming", "Policy", "Ticket", "for_aiohttp"]
