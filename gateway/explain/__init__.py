"""What became of one key or one request, as one timeline: attempts, suppressed duplicates, log, batch, delivery.

Costs the hot path one note an entry and one a request: everything else is searched for when somebody asks, in the log
that is kept anyway. What a node no longer remembers is said to be unknown, never guessed. Read next:
:mod:`oncegate.gateway.explain.explainer`.
"""
