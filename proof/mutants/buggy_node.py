"""A node of a checked cluster with a planted bug, which is the first argument.

``python -m oncegate.proof.mutants.buggy_node BUG …`` stands in the place of :mod:`oncegate.proof.check.node_process`.
"""

from __future__ import annotations

import sys

from oncegate.proof.check.node_process import main
from oncegate.proof.mutants.bugs import BUGS

if __name__ == "__main__":
    with BUGS[sys.argv.pop(1)].planted():
        main()
