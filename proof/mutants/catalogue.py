"""All planted bugs, by name. Read next: :mod:`oncegate.proof.mutants.mutant`."""

from __future__ import annotations

from oncegate.proof.mutants.replication import REPLICATION
from oncegate.proof.mutants.scripted import SCRIPTED
from oncegate.proof.mutants.sessions import SESSIONS

MUTANTS = {mutant.name: mutant for mutant in (*SESSIONS, *REPLICATION, *SCRIPTED)}
