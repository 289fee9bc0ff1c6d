"""Offline proof that what stopped nodes have on disk agrees with itself and with each other."""

from gateway.verify.findings import Difference, Report, Undecided
from gateway.verify.store_check import StoreWanted
from gateway.verify.verifier import verify

__all__ = ["Difference", "Report", "StoreWanted", "Undecided", "verify"]
