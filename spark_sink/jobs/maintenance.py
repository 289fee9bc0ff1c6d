"""What a job does beside its query now and then: compaction of partials, removal of what nobody reads any more.

Owns: when it runs, and that its failure is no failure of the job. Must not know what is done. Read next:
`oncegate.spark_sink.compaction`, `job`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from oncegate.spark_sink.flow_client import close_connections
from oncegate.stores.claimed import ClaimedStore, claimed_store
from oncegate.stores.errors import StoreError

if TYPE_CHECKING:
    from oncegate.spark_sink.jobs.settings import JobSettings

_REST: Final = 9
"""So many times as long as maintenance took, it rests at least: it takes a tenth of a core at most."""
_log = logging.getLogger(__name__)


@runtime_checkable
class Maintained(Protocol):
    """A derivation whose tables want care."""

    def maintain(self, store: ClaimedStore, finished: int) -> None:
        """Take care of them, given that all batches up to ``finished`` are in the store; idempotent, may be killed."""
        ...


@contextmanager
def maintained(settings: JobSettings) -> Iterator[None]:
    """Maintain the job's tables every ``maintenance_s`` in a thread of this process, and once at the end."""
    derivation: object = None
    with suppress(StoreError):  # the job itself says what is wrong with its options
        derivation = settings.derivation()
    if not isinstance(derivation, Maintained) or settings.replay or not settings.maintenance_s:
        yield
        return
    ended = threading.Event()

    def go_on() -> None:
        wait_s: float = settings.maintenance_s
        while not ended.wait(wait_s):
            begun = time.monotonic()
            once(settings, derivation)
            wait_s = max(settings.maintenance_s, _REST * (time.monotonic() - begun))
        close_connections()

    thread = threading.Thread(target=go_on, name="maintenance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    once(settings, derivation)


def once(settings: JobSettings, derivation: Maintained) -> None:
    """Maintain the tables once, up to the consumer's cursor; what fails is done the next time."""
    try:
        state = settings.flow_options().client(timeout_s=0).state()
        position = state.consumers.get(settings.consumer)
        if position is not None and position.attached:
            with claimed_store(settings.store, state.cluster_identity) as store:
                derivation.maintain(store, position.cursor)
    except StoreError as error:
        _log.warning("maintenance is put off: %s", error)
