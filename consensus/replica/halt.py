"""The end of a process that must not go on. Read next: :mod:`oncegate.consensus.replica.ticker`, which decides when."""

from __future__ import annotations

import logging
import os
from typing import Final, NoReturn

logger = logging.getLogger(__name__)

HALT_EXIT_STATUS: Final = 70


def halt_process(reason: str) -> NoReturn:
    """End the process now: going on could break a promise, and cleaning up could write more."""
    logger.critical("halting: %s", reason)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(HALT_EXIT_STATUS)
