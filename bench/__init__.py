"""Experiments, one file each. A figure is only ever quoted from what these print."""
