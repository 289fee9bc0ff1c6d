"""A run as a page: one HTML file that needs nothing else, with latency and rate as SVG.

Read next: :mod:`oncegate.proof.check.report.page` (what the page says), :mod:`oncegate.proof.check.report.payload`
(what it carries).
"""

from oncegate.proof.check.report.page import write_report
from oncegate.proof.check.report.payload import OPERATIONS_MAX

__all__ = ["OPERATIONS_MAX", "write_report"]
