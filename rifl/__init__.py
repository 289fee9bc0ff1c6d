"""Exactly-once bookkeeping after RIFL (Lee et al., SOSP 2015): pure, no I/O, no clock.

Client half: :mod:`rifl.request_tracker`. Server half: :mod:`rifl.result_tracker` (records and the apply
rule), :mod:`rifl.session` (who is alive), :mod:`rifl.lease` (until when). Names: :mod:`rifl.ids`;
refusals: :mod:`rifl.errors`.
"""
