"""Everything in the documentation that is generated: a new part needs a line here and its markers in the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oncegate.gateway.docs.pages import Section, table
from oncegate.rifl.errors import REGISTRY


def errors() -> Iterator[str]:
    """Return the table of errors, one row a code."""
    rows = (
        [f"`{code}`", str(one.status), one.outcome.value, "yes" if one.retryable else "no", one.title, one.advice]
        for code, one in REGISTRY.items()
    )
    return table(("code", "status", "outcome", "retryable", "meaning", "what to do"), rows)


SECTIONS: Final = (Section("docs/SEMANTICS.md", "errors", errors),)
