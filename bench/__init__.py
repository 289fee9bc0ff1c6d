"""Measurements. A bench declares its options and yields rows (`bench.harness`); figures are only quoted from those."""
