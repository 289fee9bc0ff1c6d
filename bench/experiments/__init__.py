"""The published experiments, and how cost grows: what their commands share, and the page of all of them.

``python -m bench.scale``, ``python -m bench.stream`` and ``python -m bench.dataflows`` measure; each appends to
``bench/results`` and draws ``docs/experiments.md`` again. ``make bench-all`` runs all of them. Read next:
:mod:`bench.experiments.page`.
"""
