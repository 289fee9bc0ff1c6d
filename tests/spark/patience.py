"""How long the tests' own Cassandra driver waits where a machine is busy."""

from __future__ import annotations

from typing import Any, Final

PATIENT: Final[dict[str, Any]] = {"connect_timeout": 60, "control_connection_timeout": 60}
