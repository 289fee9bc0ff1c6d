"""What services that work together need: locks, elections, queues and the like, made of what the SDK shows anyone.

Start at :class:`Lock`. Owns nothing else: whatever a recipe knows is in rows of one resident table, which the
application declares (``recipes`` by default), and each decision is one transaction of the log. Rows that stand for a
process are bound to its session, so that nothing waits for the dead; waiters follow a watch and ask nothing again.

Every recipe says in its docstring what holds while the session lives, and what after it.
"""

from oncegate.gateway.client.recipes.allocation import RateLimiter, Registry, Sequence
from oncegate.gateway.client.recipes.barrier import Barrier
from oncegate.gateway.client.recipes.election import Election, Leader
from oncegate.gateway.client.recipes.line import Hold
from oncegate.gateway.client.recipes.lock import Lock, ReadWriteLock, Semaphore
from oncegate.gateway.client.recipes.queue import Claim, DeadLetter, Queue

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
