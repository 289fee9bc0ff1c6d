"""Offline proof that what stopped nodes have on disk agrees with itself and with each other."""

from oncegate.proof.verify.findings import Difference, Report, Undecided
from oncegate.proof.verify.store_check import StoreWanted
from oncegate.proof.verify.verifier import verify

__all__ = ["Difference", "Report", "StoreWanted", "Undecided", "verify"]
