"""What became of one key or one request, as one timeline: attempts, suppressed duplicates, log, batch, delivery.

Costs the hot path one note for each entry and one for each request. A question searches the log, which is kept anyway,
for everything else. What a node no longer remembers is unknown, never guessed. Read next:
:mod:`oncegate.gateway.explain.explainer`.
"""
