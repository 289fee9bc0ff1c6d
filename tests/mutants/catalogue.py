"""All planted bugs, by name. Read next: :mod:`tests.mutants.mutant`."""

from __future__ import annotations

from tests.mutants.replication import REPLICATION
from tests.mutants.scripted import SCRIPTED
from tests.mutants.sessions import SESSIONS

MUTANTS = {mutant.name: mutant for mutant in (*SESSIONS, *REPLICATION, *SCRIPTED)}
