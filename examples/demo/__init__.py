"""``make demo``: the whole path on real messages, with duplicates and leader kills, and a recount at the end."""
