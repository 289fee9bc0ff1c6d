"""Flows: declarations, batches, cursors and retention; pure but for segment files.

Declared in :mod:`flows.flow`; collected in :mod:`flows.open_segment`, cut by :mod:`flows.batcher`; made into bytes by
:mod:`flows.segment`, written by :mod:`flows.publisher` to :mod:`flows.segment_store`; counted in
:mod:`flows.batch_log`, consumed through :mod:`flows.cursor`, dropped by :mod:`flows.retention`; searched by
:mod:`flows.lookup`. Columns: :mod:`flows.schema`; refusals: :mod:`flows.errors`.
"""
