"""Locks, elections, semaphores, queues and the like for services that work together. Start at :class:`Lock`."""

from oncegate.gateway.client.recipes import (
    Barrier,
    Claim,
    DeadLetter,
    Election,
    Hold,
    Leader,
    Lock,
    Queue,
    RateLimiter,
    ReadWriteLock,
    Registry,
    Semaphore,
    Sequence,
)

__all__ = [
    "Barrier",
    "Claim",
    "DeadLetter",
    "Election",
    "Hold",
    "Leader",
    "Lock",
    "Queue",
    "RateLimiter",
    "ReadWriteLock",
    "Registry",
    "Semaphore",
    "Sequence",
]
