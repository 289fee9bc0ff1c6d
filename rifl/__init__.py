"""Exactly-once bookkeeping after RIFL (Lee et al., SOSP 2015): pure, no I/O, no clock.

Client half: :mod:`oncegate.rifl.request_tracker`. Server half: :mod:`oncegate.rifl.result_tracker` (records and the
apply rule), :mod:`oncegate.rifl.session` (who is alive), :mod:`oncegate.rifl.lease` (until when). Names:
:mod:`oncegate.rifl.ids`; refusals: :mod:`oncegate.rifl.errors`.
"""
