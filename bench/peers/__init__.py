"""Other systems beside this gateway: three nodes each, flushed before the answer, in one interleaved run.

``python -m bench.peers`` runs everything and draws ``docs/peers.md``; ``python -m bench.peers etcd`` runs one system.
Each system is a module with one class (:mod:`bench.peers.peer` is their interface). ``load/`` is the load generator,
in Go; ``servers/`` pins what is built from the Go module proxy, Maven Central and npm. Read next:
:mod:`bench.peers.rounds`.
"""
