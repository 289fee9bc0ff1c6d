"""A run as a page: one HTML file that needs nothing else, with latency and rate as SVG.

Read next: :mod:`gateway.check.report.page` (what the page says), :mod:`gateway.check.report.payload` (what it carries).
"""

from gateway.check.report.page import write_report
from gateway.check.report.payload import OPERATIONS_MAX

__all__ = ["OPERATIONS_MAX", "write_report"]
