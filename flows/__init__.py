"""Flows: declarations, batches, cursors and retention; pure but for segment files.

Declared in :mod:`oncegate.flows.flow`; collected in :mod:`oncegate.flows.open_segment`, cut by
:mod:`oncegate.flows.batcher`; made into bytes by :mod:`oncegate.flows.segment`, written by
:mod:`oncegate.flows.publisher` to :mod:`oncegate.flows.segment_store`; counted in :mod:`oncegate.flows.batch_log`,
consumed through :mod:`oncegate.flows.cursor`, written back in :mod:`oncegate.flows.parts`, given a clock by
:mod:`oncegate.flows.event_clock`, judged by :mod:`oncegate.flows.lag_trend`, thinned by
:mod:`oncegate.flows.shedding`, dropped by :mod:`oncegate.flows.retention`; searched by :mod:`oncegate.flows.lookup`.
What a deleted flow leaves behind: :mod:`oncegate.flows.retired`. Columns: :mod:`oncegate.flows.schema`; bytes as
values: :mod:`oncegate.flows.bytes_text`; refusals:
:mod:`oncegate.flows.errors`.
"""
