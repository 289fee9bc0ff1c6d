"""Derivations ready to use, one module a topic; each is composed in a few lines and run like a derivation of one's own.

Aggregates: `aggregates`, `sketches`. Rows: `copies`, `fan_out`, `history`. Both: `sql`. What a job takes of an item:
`fields`; several in one job: `together`. docs/library.md and docs/library-time.md show each.
"""
