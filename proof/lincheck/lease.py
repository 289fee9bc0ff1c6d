"""The model of a lease: a lock that ends by itself, with a token that fences earlier owners.

Owns: ``acquire`` {"owner", "ms"} with the result {"token": n}, ``renew`` and ``release`` {"owner", "token", "ms"?}.
Tokens grow. An owner may lose the lease at any time after its duration, counted from the last grant that the history
proves, and never before: that is the promise checked. Times are those of the history; a clock of the lease that runs
slower than it only makes leases longer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from oncegate.proof.lincheck.history import Operation, refused
from oncegate.proof.lincheck.models import ILLEGAL, _Illegal, _KnownOperations
from oncegate.proof.lincheck.values import freeze, thaw

_NS: Final = 1_000_000

State = tuple[int, bool, Hashable, int, int]


class Lease(_KnownOperations):
    """A lease.

    State: last token, whether it is exactly that, owner (None: free), time until which the lease certainly lasts, and
    time before which this state cannot have been.
    """

    name = "lease"
    reads = frozenset()
    writes = frozenset({"acquire", "renew", "release"})
    equal_by_value = False

    def complain(self, op: Operation) -> str:
        """Refuse also other arguments and results."""
        argument = op.argument
        if not isinstance(argument, dict) or "owner" not in argument or type(argument.get("ms", 0)) is not int:
            return f'{op.f} takes {{"owner", "ms"}}'
        if op.f == "acquire" and op.status == "ok" and not refused(op):
            if not isinstance(op.result, dict) or type(op.result.get("token")) is not int:
                return 'acquire returns {"token"}'
        elif op.f in ("renew", "release") and type(argument.get("token")) is not int:
            return f"{op.f} takes a token"
        return super().complain(op)

    def initial(self) -> Hashable:
        """Return that it is free."""
        return (0, True, None, 0, 0)

    def step(self, state: State, op: Operation) -> Hashable | _Illegal:
        """Grant, prolong, give back."""
        last, exact, owner, until, since = state
        # An operation takes effect before it returned: a state that began later is none it can have met, and a lease
        # that lasts longer was not over.
        if op.returned is not None and op.returned < since:
            return ILLEGAL
        asker = freeze(op.argument["owner"])
        running = owner is not None and op.returned is not None and op.returned < until
        since = max(since, op.invoked)
        lasts = since + op.argument.get("ms", 0) * _NS
        if op.f == "acquire":
            if refused(op):
                return state if owner is not None else ILLEGAL
            if running and owner != asker:
                return ILLEGAL
            if owner is not None and owner != asker:
                since = max(since, until)
                lasts = since + op.argument.get("ms", 0) * _NS
            if op.status == "unknown":
                return (last, False, asker, lasts, since)
            token = op.result["token"]
            return (token, True, asker, lasts, since) if token > last else ILLEGAL
        token = op.argument["token"]
        mine = owner is not None and owner == asker and (token == last if exact else token > last)
        if refused(op):
            return ILLEGAL if mine and exact and running else state
        if not mine:
            return state if op.status == "unknown" else ILLEGAL
        if op.f == "release":
            return (token, True, None, 0, since)
        return (token, True, owner, max(until, lasts), since)

    def describe(self, state: State) -> str:
        """Write owner and token."""
        last, exact, owner, until, _ = state
        token = f"token {last}" if exact else f"a token above {last}"
        return f"free, last {token}" if owner is None else f"held by {thaw(owner)} with {token} until {until / 1e9:g} s"
