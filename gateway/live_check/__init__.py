"""Live traffic, sampled and checked while the cluster runs (docs/decisions/0013-live-check.md).

Read in this order: :mod:`oncegate.gateway.live_check.recorder` (what is recorded, and the hot path),
:mod:`oncegate.gateway.live_check.order` (what must hold), :mod:`oncegate.gateway.live_check.checker` (windows, verdict,
others).
"""

from oncegate.gateway.live_check.checker import LiveChecker

__all__ = ["LiveChecker"]
