"""How long the tests' own Cassandra driver waits where a machine is busy: for connections, and for a request."""

from __future__ import annotations

from typing import Any, Final

from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile

PATIENT: Final[dict[str, Any]] = {
    "connect_timeout": 60,
    "control_connection_timeout": 60,
    "execution_profiles": {EXEC_PROFILE_DEFAULT: ExecutionProfile(request_timeout=60)},
}
